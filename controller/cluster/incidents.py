"""The book of incidents of all jobs: a job has one live incident at a time, and later findings join it."""

from collections.abc import Iterable

from holdfast.base.bounds import MAX_INCIDENTS, MAX_JOBS
from holdfast.controller.detectors.workers.exits import root_cause
from holdfast.controller.state.events import Action, Record, Say
from holdfast.controller.state.incidents import Finding, Incident, IncidentState
from holdfast.controller.state.model import Instant, Job


class IncidentBook:
    def __init__(self) -> None:
        self.incidents: dict[str, Incident] = {}
        self.counts: dict[str, int] = {}  # findings by kind
        self.forgotten: dict[str, int] = {}  # incidents that are in the journal alone by now, by kind of their cause
        self._issued = 0
        self._newest: dict[str, Incident] = {}  # by job, of those that were not over at once

    def live(self, job: str) -> Incident | None:
        """The incident of this job that is not over yet."""
        newest = self._newest.get(job)
        return newest if newest is not None and newest.live else None

    def of_generation(self, job: str, generation: int) -> Incident | None:
        """The incident that this generation of the job was started for; it may be over."""
        return next(
            (
                i for i in reversed(self.incidents.values())
                if i.generation_to == generation > 0 and i.job in ("", job)  # "": by an older version
            ),
            None,
        )  # fmt: skip

    def open(self, finding: Finding, job: Job | None, now: Instant) -> Incident:
        incident = Incident(
            id=f"i{self._issued + 1}",
            opened=now.wall,
            job=job.spec.id if job else "",
            findings=[finding],
            since=finding.since,
            generation_from=job.generation if job else 0,
            step_at_fault=job.best_step if job else -1,
        )
        incident.phases.append(("suspect", finding.since, None))
        self._keep(incident)
        self.count(finding)
        return incident

    def _keep(self, incident: Incident) -> None:
        self.incidents[incident.id] = incident
        self.taken(incident.id)
        if self.live(incident.job) is None:
            self._newest.pop(incident.job, None)
            self._newest[incident.job] = incident
            self._forget_jobs()
        if len(self.incidents) > MAX_INCIDENTS:
            self._forget()

    def taken(self, id: str) -> None:
        """No later incident gets this id."""
        number = id.removeprefix("i")
        self._issued = max(self._issued, int(number) if number.isdecimal() and len(number) < 19 else 0)

    def _forget_jobs(self) -> None:
        """Of jobs without a live incident only the newest are remembered here."""
        while len(self._newest) > MAX_JOBS:
            over = next((job for job, newest in self._newest.items() if not newest.live), None)
            if over is None:
                return
            del self._newest[over]

    def _forget(self) -> None:
        """The oldest that is over leaves memory; the journal keeps it as long as its retention says."""
        oldest = next((i for i in self.incidents.values() if not i.is_open), None)
        if oldest is not None:
            self._leave_out(oldest)

    def _leave_out(self, incident: Incident) -> None:
        del self.incidents[incident.id]
        kind = incident.cause.kind.value
        self.forgotten[kind] = self.forgotten.get(kind, 0) + 1

    def needed(self, job: Job) -> set[str]:
        """Incidents of a job that is not over which decisions may still ask for: the newest ones of it."""
        own = [one for one in self.incidents.values() if one.job in ("", job.spec.id)]
        found = [
            own[-1] if own else None,
            self._newest.get(job.spec.id),
            self.of_generation(job.spec.id, job.generation),
        ]
        return {one.id for one in found if one is not None}

    def drop(self, ids: Iterable[str]) -> None:
        """Leave out what the journal has dropped, too."""
        for id in ids:
            incident = self.incidents.get(id)
            if incident is not None and not incident.is_open:
                self._leave_out(incident)

    def attach(self, incident: Incident, finding: Finding) -> bool:
        """Add evidence; True when the incident has another cause now. The same finding again adds nothing."""
        known = {(f.kind, f.subject) for f in incident.findings}
        if (finding.kind, finding.subject) in known or len(incident.findings) >= 200:
            return False
        incident.findings.append(finding)
        self.count(finding)
        before = incident.root
        incident.root = root_cause(incident.findings)
        if incident.root != before:
            incident.since = incident.cause.since
        return incident.root != before

    def count(self, finding: Finding) -> None:
        self.counts[finding.kind.value] = self.counts.get(finding.kind.value, 0) + 1

    def restore(self, incident: Incident) -> None:
        self._keep(incident)
        for finding in incident.findings:
            self.count(finding)


class JobIncidents:
    """The book as one job sees it."""

    def __init__(self, book: IncidentBook, job: Job) -> None:
        self.all, self._job = book, job

    def live(self) -> Incident | None:
        """The job's incident that is not over yet."""
        return self.all.live(self._job.spec.id)

    def of_generation(self, generation: int) -> Incident | None:
        """The incident that this generation of the job was started for; it may be over."""
        return self.all.of_generation(self._job.spec.id, generation)

    def open(self, finding: Finding, now: Instant) -> Incident:
        return self.all.open(finding, self._job, now)

    def attach(self, incident: Incident, finding: Finding) -> bool:
        return self.all.attach(incident, finding)

    def count(self, finding: Finding) -> None:
        self.all.count(finding)

    def own(self) -> list[Incident]:
        """All that are known of the job, oldest first."""
        return [incident for incident in self.all.incidents.values() if incident.job == self._job.spec.id]


def saved(incident: Incident) -> Record:
    return Record("incident", incident.id, incident.to_doc())


def closed(incident: Incident, state: IncidentState, now: Instant) -> list[Action]:
    incident.end(state, now.wall)
    return [
        saved(incident),
        Say("incident.closed", {
            "id": incident.id, "kind": incident.cause.kind.value, "culprit": incident.cause.subject,
            "state": state.value, "seconds": round(now.wall - incident.opened, 3),
        }),
    ]  # fmt: skip
