"""A worker ended: what ended it, and is it likely the cause or a victim?"""

import signal

from holdfast.controller.state.incidents import Finding
from holdfast.controller.state.model import Instant
from holdfast.facts import tracebacks
from holdfast.wire import types as t

LOST = "lost"
"""Signature of a worker that was gone when its agent came back: its exit was not observed."""
_CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT)


def exit_finding(event: t.WorkerExited, node: str, now: Instant) -> Finding:
    """Distinguish exit code, signal, core dump and OOM kill. Only for exits that are faults (not code 0)."""
    kind, text = _explain(event)
    if kind is t.FindingKind.WORKER_EXCEPTION:
        secondary = tracebacks.is_secondary(event.error)
    else:
        by_itself = kind in (t.FindingKind.WORKER_EXIT, t.FindingKind.WORKER_PREEMPTED)
        # Ranks that all refuse their input may leave it to one of them to say why.
        is_silent = event.code == 2 and not _last_words(event)
        secondary = by_itself and (is_silent or tracebacks.is_secondary(_last_words(event)))
    return Finding(
        kind=kind,
        severity=t.Severity.CRITICAL,
        subject=f"rank{event.rank}",
        text=text,
        since=min(event.wall_ns / 1e9, now.wall),
        at=now.wall,
        node=node,
        rank=event.rank,
        secondary=secondary,
        signature=tracebacks.signature(event.error) if event.error else LOST if _is_unwitnessed(event) else kind.value,
        exit_code=128 + event.signal if event.signal else max(event.code, 1),
        evidence={
            "pid": event.pid, "code": event.code, "signal": event.signal, "core_dumped": event.core_dumped,
            "oom_killed": event.oom_killed,
            "no_room": tracebacks.is_want_of_room(event.error or event.tail),
            "error": event.error[-4000:], "tail": event.tail[-2000:],
        },
    )  # fmt: skip


def _explain(event: t.WorkerExited) -> tuple[t.FindingKind, str]:
    who = f"rank {event.rank} (pid {event.pid})"
    if event.oom_killed:
        return t.FindingKind.WORKER_OOM, f"{who} was killed by the OOM killer"
    if event.signal in _CRASHES:
        core = ", core dumped" if event.core_dumped else ""
        return t.FindingKind.WORKER_SEGFAULT, f"{who} crashed with {_signal_name(event.signal)}{core}"
    if event.signal == signal.SIGKILL:
        return t.FindingKind.WORKER_KILLED, f"{who} received SIGKILL, but not from the OOM killer"
    if signal.SIGTERM in (event.signal, event.code - 128):
        said = _last_words(event)
        return t.FindingKind.WORKER_PREEMPTED, f"{who} ended after SIGTERM" + (said and f": {said[:300]}")
    if event.signal:
        return t.FindingKind.WORKER_EXIT, f"{who} ended by {_signal_name(event.signal)}"
    if event.error:
        last = event.error.strip().splitlines()[-1][:300]
        return t.FindingKind.WORKER_EXCEPTION, f"{who} raised {last}"
    if _is_unwitnessed(event):
        return t.FindingKind.WORKER_EXIT, f"{who} ended, and its exit status is lost"
    said = _last_words(event)
    said = f"; last line: {said[:300]}" if said else ""
    return t.FindingKind.WORKER_EXIT, f"{who} exited with code {event.code}{said}"


def _last_words(event: t.WorkerExited) -> str:
    return next((line.strip() for line in reversed(event.tail.splitlines()) if line.strip()), "")


def _is_unwitnessed(event: t.WorkerExited) -> bool:
    return event.code < 0 and not event.signal and not event.oom_killed


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def root_cause(findings: list[Finding]) -> int:
    """Index of the finding that explains the others best: a cause before a victim's echo, then the earliest.

    Clocks of hosts differ by milliseconds while an echo follows within them, so nature outranks time. Workers that
    were gone when their agent came back went down with their node.
    """
    away = {f.node for f in findings if f.kind in _NODE_AWAY}
    down = away & {f.node for f in findings if f.signature == LOST}
    return min(range(len(findings)), key=lambda i: (_weight(findings[i], away, down), findings[i].since, i))


_NODE_AWAY = (t.FindingKind.NODE_SILENT, t.FindingKind.AGENT_EXIT)


def _weight(finding: Finding, away: set[str], down: set[str]) -> int:
    if finding.kind in (t.FindingKind.NODES_AWAY, t.FindingKind.NODE_CUT_OFF):
        return -1
    if finding.node in down:
        return 0 if finding.kind in _NODE_AWAY else 2
    if finding.kind is t.FindingKind.LINK_FLAP and finding.node in away:
        return 0  # it is silent whenever its link is down
    if finding.secondary or finding.kind is t.FindingKind.CONTROLLER_RESTART:
        return 3  # training does not notice a controller's death: it explains nothing that happened meanwhile
    if finding.kind in (t.FindingKind.TRAFFIC_STOPPED, t.FindingKind.NODE_SILENT, t.FindingKind.AGENT_EXIT):
        return 1
    if finding.kind is t.FindingKind.LOG_RULE or finding.severity is not t.Severity.CRITICAL:
        return 2
    return 0
