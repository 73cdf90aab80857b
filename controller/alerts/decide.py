"""Which messages are sent, and when: one while an incident lasts, one when it is over, no alert storm. Pure.

While an incident is handled, no message is sent about its consequences. An incident that ends before it could be
noticed is reported once. Alerts of the same kind within the window are counted and reported together.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from holdfast.controller.job.policy import Move
from holdfast.controller.state.model import Incident, IncidentState, Instant
from holdfast.wire import types as t

LEVELS = (t.Severity.INFO, t.Severity.WARNING, t.Severity.CRITICAL)


@dataclass(frozen=True, slots=True)
class Message:
    """`key` is the same for the message that opens a matter and the one that ends it."""

    key: str
    severity: t.Severity
    title: str
    text: str
    kind: str
    subject: str
    opened: float
    closed: float | None = None


@dataclass(slots=True)
class _Group:
    reported_at: float
    more: int = 0


@dataclass(slots=True)
class Decider:
    """`patience`: seconds an incident may last before a message says that it is under way. `window`: seconds in which
    alerts of one kind are one. `least`: severities below it are not reported at all."""

    patience: float = 10.0
    window: float = 600.0
    least: t.Severity = t.Severity.WARNING
    _over: set[str] = field(default_factory=set)  # incidents that are fully reported
    _open: set[str] = field(default_factory=set)  # incidents reported as in progress
    _groups: dict[tuple[str, str], _Group] = field(default_factory=dict)

    def forget(self, incidents: Iterable[Incident]) -> None:
        """Skip closed incidents: an earlier run of the controller reported them."""
        self._over |= {one.id for one in incidents if not one.live}

    def look(self, incidents: Iterable[Incident], now: Instant) -> list[Message]:
        """Messages to send now. Called about once a second."""
        messages = [said for one in incidents if one.id not in self._over for said in self._of(one, now)]
        return [one for one in messages if LEVELS.index(one.severity) >= LEVELS.index(self.least)]

    def _of(self, one: Incident, now: Instant) -> list[Message]:
        if one.live:
            if one.id in self._open or now.wall - one.opened < self.patience:
                return []
            self._open.add(one.id)
            return [_message(one, t.Severity.CRITICAL, "in progress", one.reason)]
        self._over.add(one.id)
        if one.state is IncidentState.FAILED:
            self._open.discard(one.id)
            return [_message(one, t.Severity.CRITICAL, "failed", one.reason, ended=True)]
        if one.id in self._open:
            self._open.discard(one.id)
            return [_message(one, t.Severity.WARNING, _recovered(one), one.reason, ended=True)]
        if one.action == Move.ALERT:
            return self._grouped(one, now)
        return [_message(one, t.Severity.INFO, _recovered(one), one.reason, ended=True)]

    def _grouped(self, one: Incident, now: Instant) -> list[Message]:
        key = (one.cause.kind.value, one.cause.subject)
        group = self._groups.get(key)
        if group is not None and now.mono - group.reported_at < self.window:
            group.more += 1
            return []
        self._groups[key] = _Group(now.mono)
        more = f"; {group.more} more of this kind since the last message" if group is not None and group.more else ""
        return [_message(one, one.cause.severity, "alert", f"{one.reason}{more}", ended=True)]


def _recovered(one: Incident) -> str:
    return "closed" if one.closed is None else f"closed after {one.closed - one.opened:.1f} s"


def _message(one: Incident, severity: t.Severity, state: str, reason: str, ended: bool = False) -> Message:
    cause = one.cause
    lines = [cause.text, f"{one.action}: {reason}" if reason else one.action]
    if one.step_resumed is not None:
        lines.append(f"training resumed at step {one.step_resumed}" + (f" from {one.source}" if one.source else ""))
    return Message(
        key=one.id,
        severity=severity,
        title=f"{cause.kind.value} on {cause.subject}: {state}",
        text="\n".join(line for line in lines if line),
        kind=cause.kind.value,
        subject=cause.subject,
        opened=one.opened,
        closed=one.closed if ended else None,
    )
