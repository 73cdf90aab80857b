"""Findings that only alert: evidence in a live incident, else an alert, and not the same one every time. Pure."""

import math

from holdfast.controller.cluster import incidents as books
from holdfast.controller.cluster.quota import Quota, suppressed_finding
from holdfast.controller.cluster.state import ClusterState
from holdfast.controller.detectors.agents.lemons import lemon_finding
from holdfast.controller.detectors.base.table import Response
from holdfast.controller.state.events import Action, Record, Say
from holdfast.controller.state.history import KEPT, SAME_FAULT_S, History
from holdfast.controller.state.incidents import Finding, Incident, IncidentState
from holdfast.controller.state.model import Instant, Job
from holdfast.wire import types as t

_AGAIN_S = 600.0
"""Seconds between two alerts of the same."""
_MOST_KNOWN = 10_000
WATCHED = (t.FindingKind.AGENT_EXIT, t.FindingKind.NODE_SILENT)


class Alerts:
    def __init__(self, cluster: ClusterState) -> None:
        self.c = cluster
        self.quota = Quota()
        self._raised: dict[tuple[str, t.FindingKind, str, str], float] = {}  # job, kind, subject, signature -> mono

    @property
    def suppressed(self) -> int:
        """Alerts beyond what is kept."""
        return self.quota.suppressed

    def noted(self, finding: Finding, job: Job | None, now: Instant) -> list[Action]:
        """Evidence in the live incident of the job, if it may be about that; else an alert."""
        live = self.c.book.live(job.spec.id if job is not None else "")
        if live is not None and concerns(finding, live):
            known = len(live.findings)
            self.c.book.attach(live, finding)
            return [books.saved(live)] if len(live.findings) != known else []
        key = job.spec.id if job is not None else "", finding.kind, finding.subject, finding.signature
        if now.mono - self._raised.get(key, -math.inf) < _AGAIN_S:
            return []
        self._raised.pop(key, None)
        self._raised[key] = now.mono
        while len(self._raised) > _MOST_KNOWN:
            self._raised.pop(next(iter(self._raised)))
        said = Say("finding", {"kind": finding.kind.value, "subject": finding.subject, "text": finding.text})
        return [said, *self.alert(finding, job, now)]

    def alert(self, finding: Finding, job: Job | None, now: Instant) -> list[Action]:
        """A finding that no action follows: kept as an incident that is over at once, if there is room for it.
        A straggler's lasts until it is well: `StragglerWatch`."""
        if finding.kind is not t.FindingKind.ALERTS_SUPPRESSED and not self.quota.takes(finding, now.mono):
            self.c.book.count(finding)
            return self.noted(suppressed_finding(finding, self.quota.suppressed), job, now)
        if finding.severity is t.Severity.INFO:
            return [Say("notice", {"node": finding.node, "text": finding.text})]
        incident = self.c.book.open(finding, job, now)
        incident.action, incident.reason = "alert", "reported as an alert; a restart would not help"
        if finding.kind is t.FindingKind.STRAGGLER and job is not None:
            incident.enter("ongoing", now.wall)  # until the rank is well
            return [books.saved(incident)]
        return books.closed(incident, IncidentState.CLOSED, now)

    def found(self, finding: Finding, now: Instant) -> list[Action]:
        """What is known of a node that no job holds, or of the controller itself."""
        return [] if self.c.tuning.response(finding.kind) is Response.OFF else self.noted(finding, None, now)

    def evict(
        self, name: str, reason: str, now: Instant, quarantined: bool, by_hand: bool = False, job: str = ""
    ) -> list[Action]:
        """No later generation starts on this node. `job`: whose generation it failed."""
        history = self.c.history(name)
        history.evict(reason, 0.0 if by_hand else now.wall, quarantined)
        if job:
            beside = self.c.others_on(name, job)
            if not (beside and any(at > now.wall - SAME_FAULT_S for at, _ in history.outs)):
                history.outs = [*history.outs, (now.wall, job)][-KEPT:]
            history.failed(job, beside)
        actions: list[Action] = self._quarantine(name, history, now) if job else []
        node = self.c.nodes.get(name)
        if node is not None:
            node.state, node.reason = t.NodeState.FAULTY, reason
        said = Say("node.evicted", {"node": name, "reason": reason})
        return [Record("node", name, history.kept()), said, *actions]

    def _quarantine(self, name: str, history: History, now: Instant) -> list[Action]:
        """Keep a node that fails repeatedly out until an operator lets it in, and alert once for each time."""
        found = lemon_finding(name, history, self.c.tuning.limits(t.FindingKind.NODE_LEMON), now)
        if found is None or self.c.tuning.response(found.kind) is Response.OFF:
            return []
        history.quarantined = history.quarantined or self.c.tuning.response(found.kind) is Response.ACT
        return self.noted(found, None, now)


def concerns(found: Finding, incident: Incident) -> bool:
    """May it be evidence in this incident? What happens at another host is nothing about one that went silent; the
    ranks there may wait for it, but none of them gets slow itself. Nothing is about a controller that was gone."""
    if incident.cause.kind is t.FindingKind.CONTROLLER_RESTART:
        return False
    waits = found.rank >= 0 and found.kind is not t.FindingKind.STRAGGLER
    return waits or incident.cause.kind not in WATCHED or found.node in ("", incident.cause.node)
