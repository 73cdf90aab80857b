"""Nodes lost at once: a switch, a power supply, a network. One fault, and none of the nodes is to blame."""

from collections import Counter
from collections.abc import Mapping, Sequence

from holdfast.controller.state.incidents import Finding
from holdfast.controller.state.model import Instant, Node
from holdfast.wire import types as t

_LEAST = 3
_SHARE = 0.5  # of a switch's nodes that are in the job, or of all its nodes


def correlated_loss(job_nodes: Sequence[str], nodes: Mapping[str, Node], now: Instant) -> Finding | None:
    """A finding when three or more nodes of the job are away: most of one switch's, or most of all."""
    known = [nodes[name] for name in job_nodes if name in nodes]
    away = [node for node in known if node.state in (t.NodeState.SUSPECT, t.NodeState.LOST)]
    if len(away) < _LEAST:
        return None
    on_switch = Counter(node.identity.switch for node in known)
    switch, number = Counter(node.identity.switch for node in away).most_common(1)[0]
    if switch and number >= _LEAST and number >= _SHARE * on_switch[switch] and len(on_switch) > 1:
        subject, what = f"switch {switch}", f"{number} of {on_switch[switch]} nodes on switch {switch}"
    elif len(away) >= _SHARE * len(known):
        subject, what = "job", f"{len(away)} of {len(known)} nodes of the job"
    else:
        return None
    return Finding(
        kind=t.FindingKind.NODES_AWAY,
        severity=t.Severity.CRITICAL,
        subject=subject,
        text=f"correlated loss: {what} were lost at the same time",
        since=now.wall - max(0.0, max(now.mono - node.frame_at for node in away)),
        at=now.wall,
        evidence={"nodes": sorted(node.name for node in away)},
    )
