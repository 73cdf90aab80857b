"""When nobody moves: look at the workers' stacks first, then name who is at fault. Pure as all of the brain."""

from holdfast import messages as msg
from holdfast import types as t
from holdfast.controller import incidents as books
from holdfast.controller.cluster import Cluster
from holdfast.controller.detectors.hang import HangDetector
from holdfast.controller.detectors.table import Response
from holdfast.controller.events import Action
from holdfast.controller.model import Instant, Job, RankState
from holdfast.controller.reach import Reach
from holdfast.controller.recovery import Recovery
from holdfast.controller.stack_dumps import StackDumps

_KINDS = (t.FindingKind.WORKER_HANG, t.FindingKind.WORKER_STOPPED)


class HangWatch:
    def __init__(self, cluster: Cluster, recovery: Recovery) -> None:
        self.c, self.recovery = cluster, recovery
        self.detector = HangDetector(cluster.options)
        self.stacks = StackDumps(cluster)
        self.reach = Reach(cluster)

    def look(self, job: Job, now: Instant) -> list[Action]:
        """At every tick of a job that is up."""
        steps = list(self.c.ledger.recent)
        since = self.detector.standing_since(self.c.ranks, job.generation, steps, now)
        # Stacks are gone once the workers are: they are asked for before anybody is sure.
        actions = [] if since is None else [*self.stacks.ask_once(since, now), *self.reach.ask_once(since, now)]
        if self.reach.is_open(now):
            return actions  # who cannot be reached explains it better than who waits for whom
        stacks = self.stacks.of_standstill(job.generation)
        found = self.detector.observe(self.c.ranks, job.generation, steps, now, stacks)
        for finding in found:
            if finding.rank >= 0 and self.c.tuning.response(finding.kind) is Response.ACT:
                self.c.ranks.mark(finding.rank, RankState.STALLED)
            actions += self.recovery.found(self.recovery.at_node(finding, job), now)
        return [*actions, *(self._keep() if found else [])]

    def answered(self, result: msg.CommandResult) -> list[Action] | None:
        """Take an agent's answer; None when it answers something else."""
        return self._keep() if self.stacks.answered(result) else None

    def _keep(self) -> list[Action]:
        """What the workers did when nobody moved belongs to the incident that came of it."""
        live = self.c.book.live()
        tree = None if live is None else self.stacks.tree(live.generation_from)
        if live is None or tree is None or live.cause.kind not in _KINDS:
            return []
        live.stacks = tree
        return [books.saved(live)]
