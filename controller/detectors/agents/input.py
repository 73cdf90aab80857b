"""What is told of input that was not taken: of agents, of the journal, of a node's name."""

from collections.abc import Sequence

from holdfast.controller.detectors.base.table import finding
from holdfast.controller.state.model import Finding, Instant
from holdfast.wire import types as t

_WHAT = {
    "message": "a message that cannot be decoded",
    "worker": "a worker's state with values that cannot be",
    "step": "a step with numbers that cannot be",
    "gauge": "gauges that are no numbers, or too many",
    "device": "more devices than a node has",
    "spans": "spans that cannot be",
    "text": "a text that is too long",
    "foreign": "news of ranks that the node does not hold",
}


def refused_finding(node: str, reason: str, many: int, now: Instant) -> Finding:
    """Something that an agent sent was left out; the rest of its message counts."""
    what = _WHAT.get(reason, reason)
    return finding(
        t.FindingKind.INPUT_REFUSED,
        node,
        f"{node} sent {what} ({many} so far): left out, the rest of what it sends counts",
        now,
        node=node,
        signature=f"refused:{reason}",
        evidence={"reason": reason, "count": many},
    )


def journal_finding(what: str, rows: Sequence[str], now: Instant) -> Finding:
    """Of the controller's own memory something could not be read or written."""
    return finding(
        t.FindingKind.JOURNAL_DAMAGED,
        "controller",
        f"journal: {what}, the first is {rows[0][:200]}",
        now,
        signature=what.split(maxsplit=1)[-1],
        evidence={"rows": [row[:200] for row in rows[:20]]},
    )
