"""A node that failed under one job is tested before another job gets it, as soon as one waits for it. Pure."""

import math

from holdfast.base.errors import UsageError
from holdfast.controller.brain.roster import Roster
from holdfast.controller.cluster.alerts import Alerts
from holdfast.controller.cluster.state import ClusterState
from holdfast.controller.diagnosis.diagnoses import Diagnoses
from holdfast.controller.state.events import Action, Say
from holdfast.controller.state.model import Instant, Node
from holdfast.diagnostics.catalog.catalog import INCIDENT_PASSES

_LOOK_S = 1.0
_AGAIN_S = 600.0
"""Seconds after a diagnosis without a result before the next one."""


class Quarantine:
    def __init__(self, cluster: ClusterState, roster: Roster, diagnoses: Diagnoses, alerts: Alerts) -> None:
        self.c, self.roster, self.diagnoses, self.alerts = cluster, roster, diagnoses, alerts
        self._looked_at = -math.inf
        self._tests: dict[str, str] = {}  # diagnosis -> node
        self._tested_at: dict[str, float] = {}  # node -> mono
        self._count = 0

    def tick(self, now: Instant) -> list[Action]:
        """Begin a diagnosis of each such node that a waiting job could use; evict for good what fails it."""
        if now.mono < self._looked_at + _LOOK_S:
            return []
        self._looked_at = now.mono
        actions = self._judge(now)
        waiting = [brain.c.job for brain in self.roster.active() if brain.c.life.waiting_since is not None]
        for node in self.c.nodes.values() if waiting else ():
            failed = node.history.failed_job
            if failed and any(job.spec.id != failed for job in waiting) and self._may_test(node, now):
                actions += self._test(node, now)
        return actions

    def _may_test(self, node: Node, now: Instant) -> bool:
        is_free = node.usable and self.c.holder(node.name) is None and node.name not in self._tests.values()
        return is_free and now.mono >= self._tested_at.get(node.name, -math.inf) + _AGAIN_S

    def _test(self, node: Node, now: Instant) -> list[Action]:
        self._count += 1
        id, why = f"{self.c.commands.boot}-q{self._count}", f"node failure in job {node.history.failed_job}"
        self._tested_at[node.name] = now.mono
        try:
            begun = self.diagnoses.begin(id, (node.name,), "quick", (), False, why, now, INCIDENT_PASSES)
        except UsageError as error:
            return [Say("diagnose.refused", {"node": node.name, "error": str(error)})]
        self._tests[id] = node.name
        return begun

    def _judge(self, now: Instant) -> list[Action]:
        actions: list[Action] = []
        for id, name in list(self._tests.items()):
            outcome = self.diagnoses.outcome(id)
            if outcome is None and id in self.diagnoses.running:
                continue
            del self._tests[id]
            if outcome is not None and name in outcome.failed:
                bad = next(v for v in outcome.verdicts if v.node == name and v.grade == "fail")
                actions += self.alerts.evict(
                    name, f"failed its diagnosis: {bad.check}: {bad.text}", now, quarantined=True
                )
        return actions
