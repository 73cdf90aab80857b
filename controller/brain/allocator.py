"""Who gets nodes next: the queue of jobs, and which jobs give theirs up for one with a higher priority. Pure.

Jobs wait in order: priority, then submission. A job never gets a free node while one before it waits for nodes, so
that a large job is not starved by small ones; but one that the cluster could not hold even if it were empty holds up
nobody.
"""

from collections.abc import Callable

from holdfast.controller.cluster.placement import place
from holdfast.controller.cluster.state import ClusterState
from holdfast.controller.job.lifecycle import Lifecycle
from holdfast.controller.job.stages import Stage
from holdfast.controller.state.model import Job, Node


class Allocator:
    def __init__(self, cluster: ClusterState, life_of: Callable[[Job], Lifecycle]) -> None:
        self.c, self._life_of = cluster, life_of
        self._turn = 0
        self._first: tuple[int, Job | None] = (-1, None)

    def begin_turn(self) -> None:
        """Something happened: who waits first is to be found out anew. Within a turn it is found out once."""
        self._turn += 1

    def choose(self, job: Job) -> tuple[list[str], str]:
        """Nodes for the job's next generation by group rank; none, and why, when there is no room for it now."""
        free = self.free_nodes(job)
        before = self._before(job)
        if before is not None and not free:
            return [], f"{before.spec.name} ({before.spec.id}) comes first in the queue"
        chosen, missing = place(job.spec, free, job.nodes)
        if not chosen and before is not None:
            missing += f"; {before.spec.name} ({before.spec.id}) comes first in the queue"
        return chosen, missing

    def free_nodes(self, job: Job) -> list[Node]:
        """Nodes that the job may be placed on now: those that it holds, and free ones unless a job before it waits."""
        is_behind = self._before(job) is not None
        if is_behind:
            return [self.c.nodes[name] for name in job.nodes if name in self.c.nodes]
        taken = self._reserved(job)
        found = []
        for node in self.c.nodes.values():
            holder = self.c.holder(node.name)
            if holder is job or (holder is None and node.name not in taken and _is_open(node, job)):
                found.append(node)
        return found

    def _reserved(self, job: Job) -> set[str]:
        """Nodes that were chosen for generations of other jobs which are not launched yet."""
        lives = [self._life_of(one) for one in self.c.active() if one is not job]
        return {name for life in lives if life.stage is Stage.DRAINING for name in life.placement}

    def _before(self, job: Job) -> Job | None:
        """The first job that waits for nodes, if it comes before this one."""
        turn, first = self._first
        if turn != self._turn:
            waiting = (one for one in self.c.active() if self._life_of(one).waiting_since is not None)
            first = next((one for one in waiting if self.could_run(one)), None)
            self._first = self._turn, first
        return first if first is not None and first.order < job.order else None

    def is_queued(self, job: Job) -> bool:
        """Does it wait only because other jobs hold the nodes that it needs?"""
        return not job.nodes and self.could_run(job)

    def could_run(self, job: Job) -> bool:
        """Would it have enough nodes, were it alone?"""
        return bool(place(job.spec, [node for node in self.c.nodes.values() if _is_open(node, job)], job.nodes)[0])

    def victims(self) -> tuple[Job, list[Job]] | None:
        """The first waiting job, if it may take nodes from others, and the jobs that are to give up theirs.

        Those with the lowest priority first, of these the newest; no more of them than it takes.
        """
        waiting = (job for job in self.c.active() if self._life_of(job).waiting_since is not None)
        first = next((job for job in waiting if self.could_run(job)), None)
        if first is None or not first.spec.preempt or place(first.spec, self.free_nodes(first), first.nodes)[0]:
            return None
        lower = [job for job in self.c.active() if job.nodes and job.spec.priority < first.spec.priority]
        taken: list[Job] = []
        for job in reversed(lower):
            taken.append(job)
            if self._fits(first, taken):
                break
        else:
            return None
        for job in taken[:-1]:
            rest = [one for one in taken if one is not job]
            if self._fits(first, rest):
                taken = rest
        return first, taken

    def _fits(self, job: Job, without: list[Job]) -> bool:
        free = {node.name: node for node in self.free_nodes(job)}
        for other in without:
            free |= {name: self.c.nodes[name] for name in other.nodes if name in self.c.nodes}
        return bool(place(job.spec, free.values(), job.nodes)[0])


def _is_open(node: Node, job: Job) -> bool:
    """May this job start there? A node that failed under another job has to pass a diagnosis first."""
    return node.history.failed_job in ("", job.spec.id)
