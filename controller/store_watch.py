"""The store of the checkpoints fails: one incident for all nodes that say so, open until none fails any more. Pure.

Training goes on meanwhile, so it is no incident of the job's: recovery knows nothing of it.
"""

import math

from holdfast.controller import incidents as books
from holdfast.controller import policy
from holdfast.controller.cluster import Cluster
from holdfast.controller.events import Action, Say
from holdfast.controller.model import Finding, Incident, IncidentState, Instant
from holdfast.types import FindingKind

_QUIET_S = 3.0  # gauges come once a second


class StoreWatch:
    def __init__(self, cluster: Cluster) -> None:
        self.c = cluster
        self._open: Incident | None = None
        self._failed_at = -math.inf

    def restore(self, now: Instant) -> None:
        """Take up the incident that an earlier life of the controller left open."""
        left = (i for i in self.c.book.incidents.values() if i.is_open and i.cause.kind is FindingKind.STORE)
        self._open, self._failed_at = next(left, None), now.mono

    def told(self, finding: Finding, now: Instant) -> list[Action]:
        """A node cannot store."""
        self._failed_at = now.mono
        if self._open is not None:
            return []
        said = Say("finding", {"kind": finding.kind.value, "subject": finding.subject, "text": finding.text})
        self._open = incident = self.c.book.open(finding, self.c.job, now)
        incident.action = policy.Move.ALERT.value
        incident.reason = "training goes on; checkpoints wait in memory and are caught up on"
        return [said, books.saved(incident)]

    def tick(self, now: Instant) -> list[Action]:
        """Close it when no node's gauge says that it fails."""
        if self._open is None:
            return []
        if any(node.connected and node.host.get("checkpoint_failing") for node in self.c.nodes.values()):
            self._failed_at = now.mono
        if now.mono - self._failed_at < _QUIET_S:
            return []
        incident, self._open = self._open, None
        incident.reason = f"checkpoints can be stored again, after {now.wall - incident.since:.0f} s"
        return books.closed(incident, IncidentState.CLOSED, now)
