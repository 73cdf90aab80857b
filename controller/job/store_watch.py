"""The store of the checkpoints fails: one incident for all nodes that say so, open until each has written again. Pure.

Training goes on meanwhile, so it is no incident of the job, and recovery does not see it.
"""

import math

from holdfast.controller.cluster import incidents as books
from holdfast.controller.job import policy
from holdfast.controller.job.state import JobState
from holdfast.controller.state.events import Action, Say
from holdfast.controller.state.incidents import Finding, Incident, IncidentState
from holdfast.controller.state.model import Instant
from holdfast.wire.types import FindingKind

_QUIET_S = 3.0  # gauges come once a second


class StoreWatch:
    def __init__(self, job: JobState) -> None:
        self.c = job
        self._open: Incident | None = None
        self._failing: dict[str, float] = {}
        """Nodes that could not write, and when that was last known."""
        self._failed_at = -math.inf

    @property
    def is_quiet(self) -> bool:
        """Is no incident of the store open?"""
        return self._open is None

    def restore(self, now: Instant) -> None:
        """Take up the incident that an earlier run of the controller left open: its end was not reported."""
        left = (i for i in self.c.book.own() if i.is_open and i.cause.kind is FindingKind.STORE)
        self._open, self._failed_at = next(left, None), now.mono
        if self._open is not None and self.c.active is not None:
            self._failing = dict.fromkeys(self.c.active.nodes, now.mono)

    def reported(self, node: str, finding: Finding, now: Instant) -> list[Action]:
        """A node cannot store."""
        self._failing[node] = self._failed_at = now.mono
        if self._open is not None:
            return []
        said = Say("finding", {"kind": finding.kind.value, "subject": finding.subject, "text": finding.text})
        self._open = incident = self.c.book.open(finding, now)
        incident.action = policy.Move.ALERT.value
        incident.reason = "training continues; checkpoints wait in memory and are uploaded later"
        return [said, books.saved(incident)]

    def tick(self, now: Instant) -> list[Action]:
        """Close it when all nodes of the job that failed have written since, or the job is over."""
        if self._open is None:
            return []
        self._look()
        if self._failing:
            self._failed_at = now.mono
        if now.mono - self._failed_at < _QUIET_S:
            return []
        incident, self._open = self._open, None
        after = f"after {now.wall - incident.since:.0f} s"
        over = self.c.active is None
        incident.reason = f"the job ended, {after}" if over else f"checkpoints can be stored again, {after}"
        return books.closed(incident, IncidentState.CLOSED, now)

    def _look(self) -> None:
        """What the gauges say. A node that says nothing, or is away, has not written."""
        for name, node in self.c.nodes.items():
            if node.connected and self.c.holds(name) and node.host.get("checkpoint_failing"):
                self._failing[name] = max(node.host_at, self._failing.get(name, -math.inf))
        for name, known_at in list(self._failing.items()):
            there = self.c.nodes.get(name)
            works = there is not None and there.host_at > known_at and there.host.get("checkpoint_failing") == 0.0
            if works or not self.c.holds(name):
                del self._failing[name]
