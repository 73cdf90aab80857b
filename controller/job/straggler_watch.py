"""A straggler's incident stays open until its rank is well, with what it has cost so far. Pure.

Training goes on meanwhile, so it is no incident of the job, and recovery does not see it.
"""

from collections.abc import Mapping

from holdfast.controller.cluster import incidents as books
from holdfast.controller.cluster.alerts import concerns
from holdfast.controller.job.recovery import Recovery
from holdfast.controller.job.state import JobState
from holdfast.controller.state.events import Action
from holdfast.controller.state.incidents import Finding, Incident, IncidentState
from holdfast.controller.state.model import Instant
from holdfast.wire.types import FindingKind


class StragglerWatch:
    def __init__(self, job: JobState, recovery: Recovery) -> None:
        self.c, self._recovery = job, recovery
        self._ongoing: dict[str, Incident] = {}
        self._attached: dict[str, tuple[int, Finding]] = {}
        """Findings that are evidence in another incident, with the generation: that incident ends, slowness may not."""

    @property
    def is_quiet(self) -> bool:
        """Is no incident of a straggler open, nor to be opened?"""
        return not self._ongoing and not self._attached

    def restore(self) -> None:
        """Take up the incidents that an earlier run of the controller left open: their end was not reported."""
        self._ongoing = {
            key_of(one.cause): one
            for one in self.c.book.own()
            if one.is_open and one.cause.kind is FindingKind.STRAGGLER
        }

    def reported(self, finding: Finding, now: Instant) -> list[Action]:
        """A rank slows the job down. What is known of already is no new incident, and what happens while other jobs are
        on its nodes is none."""
        key, live = key_of(finding), self.c.book.live()
        if key in self._ongoing or self.c.shares_nodes:
            return []
        if live is not None and concerns(finding, live):
            self._attached[key] = self.c.job.generation, finding
        actions = self._recovery.found(finding, now)
        for incident in self.c.book.own():
            if incident.is_open and incident.cause is finding:
                self._ongoing[key] = incident
        return actions

    def looked(self, seconds: float, costs: Mapping[str, float], now: Instant) -> list[Action]:
        """Blame looked at so many seconds of steps. `costs`: of those that it named, by `key_of`, what they cost."""
        windows = int(self.c.tuning.limit(FindingKind.STRAGGLER, "windows"))
        actions: list[Action] = []
        for key, (generation, finding) in list(self._attached.items()):
            del self._attached[key]
            if key in costs and generation == self.c.job.generation:  # of a new one it is reported anew
                actions += self.reported(finding, now)
        for key, incident in list(self._ongoing.items()):
            evidence = incident.cause.evidence
            evidence["watched_s"] = evidence.get("watched_s", 0.0) + seconds
            evidence["lost_s"] = evidence.get("lost_s", 0.0) + costs.get(key, 0.0)
            evidence["well_windows"] = 0 if key in costs else evidence.get("well_windows", 0) + 1
            lost, share = evidence["lost_s"], evidence["lost_s"] / max(evidence["watched_s"], 1e-9)
            cost = f"{lost:.3g} s, {share:.1%} of the steps"
            if evidence["well_windows"] >= windows:
                incident.reason = f"the rank is well again; it cost {cost}"
                actions += self._close(key, now)
                continue
            incident.reason = f"ongoing: it has cost {cost} so far; a restart would not help"
            actions.append(books.saved(incident))
        return actions

    def tick(self, now: Instant) -> list[Action]:
        """Close all when the job is over."""
        if self.is_quiet or self.c.active is not None:
            return []
        self._attached.clear()
        actions: list[Action] = []
        for key, incident in list(self._ongoing.items()):
            incident.reason = f"the job ended; {incident.reason.removeprefix('ongoing: ').partition(';')[0]}"
            actions += self._close(key, now)
        return actions

    def _close(self, key: str, now: Instant) -> list[Action]:
        return books.closed(self._ongoing.pop(key), IncidentState.CLOSED, now)


def key_of(finding: Finding) -> str:
    return f"{finding.subject} {finding.signature}"
