"""What the training itself and its logs say: a loss that is NaN or infinite, a log line that a rule knows."""

import math

from holdfast.controller.state.incidents import Finding
from holdfast.controller.state.model import Instant
from holdfast.wire import types as t


def loss_finding(record: t.StepRecord, node: str, world: int, now: Instant) -> Finding | None:
    """A reported loss that is not finite. (NaN in a record means: none reported; the probe sends inf for NaN.)

    Parameters that are not finite are so on all ranks that share them after one reduction: whose gradient it was is
    another finding (`origins.py`), and no rank is named here for having been the first to be sampled."""
    if not math.isinf(record.loss):
        return None
    is_spoilt = record.loss == t.SPOILT
    is_shared = is_spoilt and world > 1
    if is_spoilt:
        whose = "the parameters" if is_shared else f"the parameters of rank {record.rank}"
        text = f"{whose} are not finite: at step {record.step} most are NaN or infinite"
        text += f" (first seen on rank {record.rank}; whose gradient was not finite is not known)" if is_shared else ""
    else:
        text = f"the loss of step {record.step} is not finite (rank {record.rank})"
    return Finding(
        kind=t.FindingKind.LOSS_NONFINITE,
        severity=t.Severity.CRITICAL,
        subject="job" if is_shared else f"rank{record.rank}",
        text=text,
        since=min(record.end_wall_ns / 1e9, now.wall),
        at=now.wall,
        node="" if is_shared else node,
        rank=-1 if is_shared else record.rank,
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
