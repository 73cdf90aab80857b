"""The book of notices: what is firing, given up or over, from incidents and from the health of jobs. Pure.

The book judges nothing: a message prints the sentence and the action of the job's health. An incident that lasts is
one notice. One that ends within `patience` is in the next digest. An alert of the same kind on the same subject within
`window` is counted only. A failed job stays firing until somebody acts.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.controller.alerts.notice import Notice, Stage
from holdfast.controller.job.policy import Move
from holdfast.controller.state.incidents import Incident, IncidentState
from holdfast.wire import types as t

_MARK = "mark"
FAILED, NO_PROGRESS, AT_RISK = "failed", "no progress", "at risk"
"""Conditions of a job's health that are notices of their own where no incident is."""
_ENDING_S = 60.0
"""Workers that have not ended by then do not hold a message up."""
_MOST_NAMED = 20
"""Incidents that a digest names one by one."""


@dataclass(frozen=True, slots=True)
class JobView:
    """What the book needs of a job. `health`: `models.Health`."""

    id: str
    name: str
    submitted_at: float
    health: Mapping[str, Any]


@dataclass(slots=True)
class _Group:
    opened: float
    more: int = 0


@dataclass(slots=True)
class Book:
    """`patience`: seconds an incident may last before it is a notice. `window`: seconds for which alerts of one kind
    are one, and for which an alert is firing. `digest`: seconds between two digests; 0: there are none."""

    patience: float = 10.0
    window: float = 600.0
    digest: float = 3600.0
    notices: dict[str, Notice] = field(default_factory=dict)
    changed: set[str] = field(default_factory=set)
    """Keys of notices that the journal does not have as they are."""
    _began: float | None = None
    """Wall seconds: what was over before is no matter of this book."""
    _newest: int = 0
    """The highest number of an incident that was looked at."""
    _digest_at: float = 0.0
    _started: float = 0.0
    _known: dict[str, float] = field(default_factory=dict)
    """When each receiver was first there."""
    _groups: dict[tuple[str, str], _Group] = field(default_factory=dict)

    def restore(self, documents: Iterable[tuple[str, str, dict[str, Any]]]) -> list[str]:
        """From the journal's, of an earlier run. Gives what cannot be read, a line each."""
        damaged = []
        for kind, key, doc in documents:
            if kind != "notice":
                continue
            try:
                if key == _MARK:
                    self._began, self._newest = float(doc["began"]), int(doc["newest"])
                    self._digest_at, self._known = float(doc["digest_at"]), dict(doc["known"])
                    continue
                one = Notice.from_doc(doc)
            except (KeyError, TypeError, ValueError) as error:
                damaged.append(f"notice {key}: {error!r}")
                continue
            self.notices[key] = one
            if one.is_alert:
                self._groups[one.kind, one.subject] = _Group(one.opened)
        return damaged

    def take_changed(self) -> list[tuple[str, dict[str, Any]]]:
        """Key and document of all that changed since."""
        docs = [(key, self._mark() if key == _MARK else self.notices[key].to_doc()) for key in sorted(self.changed)
                if key == _MARK or key in self.notices]  # fmt: skip
        self.changed.clear()
        return docs

    def look(self, incidents: Sequence[Incident], jobs: Sequence[JobView], now: float) -> None:
        """Bring all notices up to the wall time `now`. Called about once a second."""
        if self._began is None:
            self._began = self._digest_at = now
            self._newest = max(map(_number, incidents), default=0)
            self.changed.add(_MARK)
        if not self._started:
            self._started = now
        known = {job.id: job for job in jobs}
        for one in incidents:
            self._look_at(one, known.get(one.job), now)
        newest = max(map(_number, incidents), default=0)
        if newest > self._newest:
            self._newest = newest
            self.changed.add(_MARK)
        for job in jobs:
            self._look_at_job(job, incidents, now)
        for notice in self.notices.values():
            self._expire(notice, jobs, now)
        self._add_digest(incidents, now)
        self._forget({one.id for one in incidents}, known)

    def meet(self, receiver: str, now: float) -> float:
        """When this receiver was first there."""
        if receiver not in self._known:
            self._known[receiver] = now
            self.changed.add(_MARK)
        return self._known[receiver]

    def acknowledge(self, job: str, now: float) -> bool:
        """Somebody takes care of this failed job: its notices are over. False: there is nothing to acknowledge."""
        open_ones = [one for one in self.notices.values() if one.job == job and one.stage is Stage.GIVEN_UP]
        for one in open_ones:
            self._end(one, now, "acknowledged")
        return bool(open_ones)

    def _look_at(self, one: Incident, job: JobView | None, now: float) -> None:
        notice = self.notices.get(one.id)
        lasted = (now if one.closed is None else one.closed) - one.opened
        if self._is_ending(one, job, now):
            return
        if notice is None:
            if one.closed is not None and (one.closed <= (self._began or 0.0) or self._is_old_alert(one)):
                return
            if one.action == Move.ALERT and one.state is not IncidentState.FAILED:
                self._add_alert(one, job)
                return
            if lasted < self.patience and one.state is not IncidentState.FAILED:
                return
            notice = self._add(one.id, t.Severity.CRITICAL, one.cause.kind.value, one.cause.subject, one.opened, job)
            notice.job, notice.incident = one.job, one.id
            notice.title, notice.text = _title(one, job, "in progress"), _text(one, job)
        if one.is_open and notice.stage is Stage.FIRING:  # what is sent again says what is so now
            state = "alert" if notice.is_alert else "in progress"
            notice.title, notice.text = _title(one, job, state), _text(one, job) + notice.more
        if notice.is_alert or notice.stage is Stage.RESOLVED:
            return
        if one.state is IncidentState.FAILED and notice.stage is Stage.FIRING:
            notice.stage, notice.title, notice.text = Stage.GIVEN_UP, _title(one, job, "failed"), _text(one, job)
            self.changed.add(notice.key)
        elif one.state is IncidentState.CLOSED and notice.stage is Stage.FIRING:
            notice.title, notice.text = _title(one, job, f"closed after {lasted:.1f} s"), _text(one, job)
            self._end(notice, one.closed or now)

    def _is_ending(self, one: Incident, job: JobView | None, now: float) -> bool:
        """The incident failed, and the job's workers are being ended: its health does not say so before they have."""
        is_behind = job is not None and job.health["condition"] != FAILED
        return one.state is IncidentState.FAILED and is_behind and now - (one.closed or now) < _ENDING_S

    def _is_old_alert(self, one: Incident) -> bool:
        return one.action == Move.ALERT and _number(one) <= self._newest

    def _add_alert(self, one: Incident, job: JobView | None) -> None:
        key = (one.cause.kind.value, one.cause.subject)
        group = self._groups.get(key)
        if group is not None and one.opened - group.opened < self.window:
            group.more += _number(one) > self._newest
            return
        self._groups[key] = _Group(one.opened)
        notice = self._add(one.id, one.cause.severity, *key, one.opened, job)
        notice.is_alert, notice.incident, notice.job = True, one.id, one.job
        if group is not None and group.more:
            notice.more = f"\n{group.more} more of this kind since the last message"
        notice.title, notice.text = _title(one, job, "alert"), _text(one, job) + notice.more

    def _look_at_job(self, job: JobView, incidents: Sequence[Incident], now: float) -> None:
        """Conditions that no incident stands for."""
        for wanted in (FAILED, NO_PROGRESS, AT_RISK):
            key = f"{wanted.replace(' ', '-')}-{job.id}"
            notice, found = self.notices.get(key), _condition(job, wanted)
            if found is None:
                if notice is not None and notice.stage is not Stage.RESOLVED and wanted != FAILED:
                    notice.title, notice.text = f"{job.name}: {wanted}: over", _of_health(job)
                    self._end(notice, now)
                continue
            since = float(found["since"])
            is_new = notice is None or (notice.stage is Stage.RESOLVED and since > (notice.closed or 0.0))
            if not is_new or (wanted != FAILED and now - since < self.patience):
                continue
            if wanted == FAILED:
                has_own = any(one.job == job.id and one.state is IncidentState.FAILED for one in incidents)
                if has_own or since <= (self._began or 0.0):
                    continue
            elif wanted == NO_PROGRESS and any(one.job == job.id and one.live for one in incidents):
                continue
            severity = t.Severity.WARNING if wanted == AT_RISK else t.Severity.CRITICAL
            notice = self._add(key, severity, f"job-{wanted.replace(' ', '-')}", job.name, since, job)
            notice.title, notice.text = f"{job.name}: {wanted}", _said(found)
            notice.stage = Stage.GIVEN_UP if wanted == FAILED else Stage.FIRING

    def _expire(self, notice: Notice, jobs: Sequence[JobView], now: float) -> None:
        if notice.is_alert and notice.stage is Stage.FIRING:
            # After a restart it is firing for as long again: receivers that were not reached get it.
            if now - max(notice.opened, self._started) >= self.window:
                self._end(notice, now)
        elif notice.stage is Stage.GIVEN_UP:
            again = [one for one in jobs if one.name == notice.job_name and one.submitted_at > notice.opened
                     and one.id != notice.job]  # fmt: skip
            if again and notice.job_name:
                self._end(notice, now, f"started again as {again[-1].id}")

    def _add_digest(self, incidents: Sequence[Incident], now: float) -> None:
        if not self.digest or now - self._digest_at < self.digest:
            return
        since, self._digest_at = self._digest_at, now
        self.changed.add(_MARK)
        short = [
            one for one in incidents
            if one.closed is not None and since < one.closed <= now and one.state is IncidentState.CLOSED
            and one.action != Move.ALERT and one.closed - one.opened < self.patience
        ]  # fmt: skip
        if not short:
            return
        notice = self._add(f"digest-{now:.3f}", t.Severity.INFO, "digest", "controller", since, None)
        notice.is_digest, notice.stage, notice.closed = True, Stage.RESOLVED, now
        many = f"{len(short)} short incident{'s' * (len(short) > 1)}"
        notice.title = f"{many} in {(now - since) / 60:.0f} min, each over within {self.patience:.0f} s"
        lines = [
            f"{one.id}: {one.cause.kind.value} on {one.cause.subject}, {(one.closed or now) - one.opened:.1f} s"
            for one in short[:_MOST_NAMED]
        ]
        left = len(short) - len(lines)
        notice.text = "\n".join([*lines, *([f"and {left} more"] if left else [])])

    def _add(
        self, key: str, severity: t.Severity, kind: str, subject: str, opened: float, job: JobView | None
    ) -> Notice:
        ours = (job.id, job.name) if job is not None else ("", "")
        notice = self.notices[key] = Notice(key, severity, kind, subject, *ours, opened)
        self.changed.add(key)
        return notice

    def _end(self, notice: Notice, at: float, why: str = "") -> None:
        notice.stage, notice.closed = Stage.RESOLVED, at
        if why:
            notice.title = f"{notice.title}: {why}"
        self.changed.add(notice.key)

    def _forget(self, incidents: set[str], jobs: Mapping[str, JobView]) -> None:
        """Notices that are over and that nothing would open anew."""
        gone = [
            key for key, one in self.notices.items()
            if one.stage is Stage.RESOLVED and key not in incidents and one.job not in jobs
            and (not one.is_digest or (one.closed or 0.0) < self._digest_at)
        ]  # fmt: skip
        for key in gone:
            del self.notices[key]

    def _mark(self) -> dict[str, Any]:
        began = self._began or 0.0
        return {"began": began, "newest": self._newest, "digest_at": self._digest_at, "known": self._known}


def _number(one: Incident) -> int:
    digits = one.id.lstrip("i")
    return int(digits) if digits.isdecimal() else 0


def _title(one: Incident, job: JobView | None, state: str) -> str:
    whose = f"{job.name}: " if job is not None else ""
    return f"{whose}{one.cause.kind.value} on {one.cause.subject}: {state}"


def _text(one: Incident, job: JobView | None) -> str:
    lines = [one.cause.text, f"{one.action}: {one.reason}" if one.reason else one.action]
    if one.step_resumed is not None:
        lines.append(f"training resumed at step {one.step_resumed}" + (f" from {one.source}" if one.source else ""))
    return "\n".join(line for line in [_of_health(job) if job is not None else "", *lines] if line)


def _of_health(job: JobView) -> str:
    return _said(job.health)


def _said(condition: Mapping[str, Any]) -> str:
    return "\n".join(str(condition[key]) for key in ("sentence", "doing", "action") if condition[key])


def _condition(job: JobView, wanted: str) -> Mapping[str, Any] | None:
    """The condition of the job that goes by this name and is a matter of its own: the one that leads, and a risk also
    where it is one among others, if it needs a person."""
    if wanted != AT_RISK:
        return job.health if job.health["condition"] == wanted else None
    every = (job.health, *job.health["others"])
    return next((one for one in every if one["condition"] == AT_RISK and one["needs_person"]), None)
