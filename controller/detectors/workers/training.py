"""What the training itself and its logs say: a loss that is NaN or infinite, a log line that a rule knows."""

import math

from holdfast.controller.state.incidents import Finding
from holdfast.controller.state.model import Instant
from holdfast.wire import types as t


def loss_finding(record: t.StepRecord, node: str, now: Instant) -> Finding | None:
    """A reported loss that is not finite. (NaN in a record means: none reported; the probe sends inf for NaN.)"""
    if not math.isinf(record.loss):
        return None
    return Finding(
        kind=t.FindingKind.LOSS_NONFINITE,
        severity=t.Severity.CRITICAL,
        subject=f"rank{record.rank}",
        text=(
            f"the parameters of rank {record.rank} are not finite: at step {record.step} most are NaN or infinite"
            if record.loss == t.SPOILT
            else f"the loss of step {record.step} is not finite (rank {record.rank})"
        ),
        since=min(record.end_wall_ns / 1e9, now.wall),
        at=now.wall,
        node=node,
        rank=record.rank,
        signature=t.FindingKind.LOSS_NONFINITE.value,
        evidence={"step": record.step},
    )


def log_finding(event: t.LogMatched, node: str, now: Instant) -> Finding:
    """A line that a rule knows: evidence beside an exit, an alert of its own when nothing else happens."""
    subject = f"rank{event.rank}" if event.rank >= 0 else node
    return Finding(
        kind=t.FindingKind.LOG_RULE,
        severity=event.severity,
        subject=subject,
        text=f"{subject} logged {event.kind} ({event.rule}): {event.line[:200]}",
        since=min(event.wall_ns / 1e9, now.wall),
        at=now.wall,
        node=node,
        rank=event.rank,
        evidence={"rule": event.rule, "kind": event.kind, "line": event.line[:1000]},
    )


def store_finding(event: t.AgentNotice, now: Instant) -> Finding:
    """An agent's checkpoint daemon cannot store. The first report counts: the store is one for all."""
    return Finding(
        kind=t.FindingKind.STORE,
        severity=event.severity,
        subject="store",
        text=event.text,
        since=min(event.wall_ns / 1e9, now.wall),
        at=now.wall,
    )


def full_finding(event: t.AgentNotice, node: str, now: Instant) -> Finding:
    """An agent's own folder has no room."""
    return Finding(
        kind=t.FindingKind.DISK_FULL,
        severity=event.severity,
        subject=node,
        text=f"{node}: {event.text}",
        since=min(event.wall_ns / 1e9, now.wall),
        at=now.wall,
        node=node,
        signature="state-dir",
    )


def notice_finding(event: t.AgentNotice, node: str, now: Instant) -> Finding:
    """What an agent says of itself."""
    return Finding(
        kind=t.FindingKind.AGENT,
        severity=event.severity,
        subject=node,
        text=f"{node}: {event.text}",
        since=min(event.wall_ns / 1e9, now.wall),
        at=now.wall,
        node=node,
        evidence={"kind": event.kind},
    )
