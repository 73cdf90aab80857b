"""Nodes that fail again and again over weeks, each time for a reason of its own, and pass every test between. Pure.

Meta's clusters keep such "lemon" nodes out by counts over 28 days, of evictions among others;
that cut failed jobs of 512 GPUs and more from 14 to 4 percent (arXiv 2410.21680, section IV). The thresholds there
are not published; Holdfast has one count: the times that a node was evicted for a fault.
"""

from collections.abc import Mapping

from holdfast.controller.detectors.base.table import finding
from holdfast.controller.state.history import History
from holdfast.controller.state.incidents import Finding
from holdfast.controller.state.model import Instant
from holdfast.wire import types as t


def lemon_finding(node: str, history: History, limits: Mapping[str, float], now: Instant) -> Finding | None:
    """A finding when the node was evicted for faults as often within as many days as the limits say."""
    days = limits["days"]
    recent = [(at, job) for at, job in history.outs if at > now.wall - days * 86400.0]
    if len(recent) < limits["evictions"]:
        return None
    jobs = len({job for _, job in recent})
    return finding(
        t.FindingKind.NODE_LEMON,
        node,
        f"{node} was evicted for faults {len(recent)} times within {days:g} days, under {jobs} "
        f"job{'s' if jobs > 1 else ''}: it is quarantined until an operator uncordons it; replace its hardware",
        now,
        node=node,
        signature=f"lemon:{len(recent)}",
        evidence={"evictions": len(recent), "window_days": days, "jobs": jobs},
    )
