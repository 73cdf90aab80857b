"""Findings for refused input: of agents and of the journal."""

from collections.abc import Sequence

from holdfast.controller.detectors.base.table import finding
from holdfast.controller.state.incidents import Finding
from holdfast.controller.state.model import Instant
from holdfast.wire import types as t

_WHAT = {
    "message": "a message that cannot be decoded",
    "worker": "a worker state with impossible values",
    "step": "a step with impossible values",
    "gauge": "gauges that are NaN or infinite, or too many gauges",
    "device": "more devices than a node has",
    "spans": "spans with impossible values",
    "text": "a text that is too long",
    "foreign": "reports about ranks that the node does not run",
}


def refused_finding(node: str, reason: str, many: int, now: Instant) -> Finding:
    """Part of an agent's message was dropped; the rest is used."""
    what = _WHAT.get(reason, reason)
    return finding(
        t.FindingKind.INPUT_REFUSED,
        node,
        f"{node} sent {what} ({many} so far): these values are dropped, the rest of the message is used",
        now,
        node=node,
        signature=f"refused:{reason}",
        evidence={"reason": reason, "count": many},
    )


def journal_finding(what: str, rows: Sequence[str], now: Instant) -> Finding:
    """Rows of the controller's journal could not be read or written."""
    return finding(
        t.FindingKind.JOURNAL_DAMAGED,
        "controller",
        f"journal: {what}, the first is {rows[0][:200]}",
        now,
        signature=what.split(maxsplit=1)[-1],
        evidence={"rows": [row[:200] for row in rows[:20]]},
    )
