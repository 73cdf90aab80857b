"""Which job gets nodes next: the queue of jobs, and which jobs are preempted for one with a higher priority. Pure.

Jobs wait in order: priority, then submission. A job never gets a free node while one before it waits for nodes, so
that a large job is not starved by small ones; but a job too large for the empty cluster delays no
other job. Jobs that share nodes (`cluster.sharing`) wait in the same queue: none joins others while one before it
waits.
"""

from collections import Counter
from collections.abc import Callable, Collection

from holdfast.controller.cluster.placement import largest, place
from holdfast.controller.cluster.sharing import MOST, choose_shared, fits_alone, may_join
from holdfast.controller.cluster.state import ClusterState
from holdfast.controller.job.lifecycle import Lifecycle
from holdfast.controller.job.stages import Stage
from holdfast.controller.state.model import Job, Node

_NAMED = 3
"""Jobs that a reason names; the others are counted."""

Residents = dict[str, list[Job]]
"""By node, jobs that it belongs to."""


class Allocator:
    def __init__(self, cluster: ClusterState, life_of: Callable[[Job], Lifecycle]) -> None:
        self.c, self._life_of = cluster, life_of
        self._turn = 0
        self._first: tuple[int, Job | None] = (-1, None)
        self._census: tuple[int, dict[int, Counter[tuple[str, tuple[str, ...]]]]] = (-1, {})
        """By turn and workers on a node: how many nodes fit, by holder and by the jobs that they failed under."""

    def begin_turn(self) -> None:
        """An event came: determine again which job waits first. Within a turn that is determined once."""
        self._turn += 1

    def choose(self, job: Job) -> tuple[list[str], str]:
        """Nodes for the job's next generation by group rank; none, and why, when there is no room for it now."""
        chosen, missing = self._place(job, self.free_nodes(job), self._beside(job))
        return (chosen, "") if chosen else ([], self._reason(job, missing))

    def _place(self, job: Job, nodes: list[Node], beside: Residents) -> tuple[list[str], str]:
        """On some of these, which the job may be placed on: `placement.place`. One that shares takes nodes of others
        only where there are too few empty ones for its full size, and keeps those that it was given: two jobs would
        else give way to each other without end."""
        if not job.spec.share_bytes:
            return place(job.spec, nodes, job.nodes, self.c.slow)
        chosen, missing = self._place_shared(job, nodes, beside)
        life = self._life_of(job)
        given = life.placement if life.stage is Stage.DRAINING else []
        is_kept = bool(given) and set(given) <= {node.name for node in nodes if node.usable}
        return (list(given), "") if is_kept and len(given) >= len(chosen) else (chosen, missing)

    def _place_shared(self, job: Job, nodes: list[Node], beside: Residents) -> tuple[list[str], str]:
        alone = [node for node in nodes if node.name not in beside or node.name in job.nodes]
        chosen, missing = place(job.spec, alone, job.nodes, self.c.slow)
        if len(chosen) == job.spec.nnodes:
            return chosen, missing
        more = nodes if job.nodes else choose_shared(job, nodes, beside)
        wider, _ = place(job.spec, more, job.nodes, self.c.slow)
        return (wider, "") if len(wider) > len(chosen) else (chosen, missing)

    def _reason(self, job: Job, missing: str) -> str:
        """Why there is no room for the job: `missing`, or, if that is the cause, the other jobs that hold nodes."""
        owners = self._owners(job)
        free, own = owners.pop("", 0), owners.pop(job.spec.id, 0)
        parts = [missing]
        if owners and largest(job.spec, free + own + sum(owners.values())):
            if not job.nodes:
                parts = [f"{_are(free)} free, {job.spec.needs} {'is' if job.spec.needs == 1 else 'are'} wanted"]
            shown = sorted(owners, key=lambda id: self.c.jobs[id].order)
            parts += [f"{self._name(self.c.jobs[id])} holds {owners[id]}" for id in shown[:_NAMED]]
            if rest := shown[_NAMED:]:
                held = sum(owners[id] for id in rest)
                parts.append(f"{len(rest)} more job{'s hold' if len(rest) > 1 else ' holds'} {held}")
        before = self._before(job)
        if job.spec.share_bytes:
            parts.append(
                f"it shares nodes with room for {job.spec.share_bytes / 1e9:.4g} GB a worker, {MOST} jobs on each"
            )
        if before is not None:
            parts.append(f"{before.spec.name} ({before.spec.id}) is first in the queue")
        return "; ".join(parts)

    def _owners(self, job: Job) -> Counter[str]:
        """Nodes that the job could use, by the id of the job that holds them or is about to; "": free."""
        turn, by_size = self._census
        if turn != self._turn:
            by_size = {}
            self._census = self._turn, by_size
        nproc = job.spec.nproc
        if nproc not in by_size:
            reserved = self._reserved(None)
            fit = (node for node in self.c.nodes.values() if node.usable and node.identity.slots >= nproc)
            by_size[nproc] = Counter(
                (holder.spec.id if (holder := self.c.holder(node.name)) else reserved.get(node.name, ""),
                 (node.history.failed_job, *node.history.failed_beside))
                for node in fit
            )  # fmt: skip
        found: Counter[str] = Counter()
        for (owner, failed), many in by_size[nproc].items():
            if failed == ("",) or job.spec.id in failed:
                found[owner] += many
        return found

    @staticmethod
    def _name(job: Job) -> str:
        return f"job {job.spec.name} ({job.spec.id}, priority {job.spec.priority})"

    def free_nodes(self, job: Job) -> list[Node]:
        """Nodes that the job may be placed on now: those that it holds, and free ones unless a job before it waits. For
        one that shares, also those of others that do, where there is room."""
        is_behind = self._before(job) is not None
        if is_behind:
            return [self.c.nodes[name] for name in job.nodes if name in self.c.nodes]
        if job.spec.share_bytes:
            beside = self._beside(job)
            return [
                node
                for node in self.c.nodes.values()
                if node.name in job.nodes or (_is_open(node, job) and may_join(job, node, beside.get(node.name, [])))
            ]
        taken = self._reserved(job)
        found = []
        for node in self.c.nodes.values():
            holder = self.c.holder(node.name)
            if holder is job or (holder is None and node.name not in taken and _is_open(node, job)):
                found.append(node)
        return found

    def _beside(self, job: Job, without: Collection[Job] = ()) -> Residents:
        """By node, the other jobs that hold it or were given it for a generation which is not launched yet; as if those
        `without` held none. Not asked for a job that doesn't share beside others that don't."""
        left_out = {job.spec.id, *(one.spec.id for one in without)}
        if not any(one.spec.share_bytes for one in (job, *without)):
            return {}
        found: Residents = {}
        for other in self.c.active():
            if other.spec.id in left_out:
                continue
            life = self._life_of(other)
            for name in {*other.nodes, *(life.placement if life.stage is Stage.DRAINING else ())}:
                found.setdefault(name, []).append(other)
        return found

    def _reserved(self, job: Job | None) -> dict[str, str]:
        """Nodes that were chosen for generations which are not launched yet, and for which job; not those of `job`."""
        others = [(one.spec.id, self._life_of(one)) for one in self.c.active() if one is not job]
        return {name: id for id, life in others if life.stage is Stage.DRAINING for name in life.placement}

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
        mine = [node for node in self.c.nodes.values() if _is_open(node, job) and fits_alone(job, node)]
        return bool(place(job.spec, mine, job.nodes)[0])

    def victims(self) -> tuple[Job, list[Job]] | None:
        """The first waiting job, if it may take nodes from others, and the jobs that are to give up theirs.

        Those with the lowest priority first, of these the newest; no more of them than it takes.
        """
        waiting = (job for job in self.c.active() if self._life_of(job).waiting_since is not None)
        first = next((job for job in waiting if self.could_run(job)), None)
        if first is None or not first.spec.preempt:
            return None
        if self._place(first, self.free_nodes(first), self._beside(first))[0]:
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
        left = self._beside(job, without)
        for other in without:
            free |= {
                name: self.c.nodes[name]
                for name in other.nodes
                if name in self.c.nodes and may_join(job, self.c.nodes[name], left.get(name, []))
            }
        return bool(self._place(job, [*free.values()], left)[0])


def _are(nodes: int) -> str:
    return f"{nodes} node is" if nodes == 1 else f"{nodes} nodes are"


def _is_open(node: Node, job: Job) -> bool:
    """May this job start there? A node that failed under another job has to pass a diagnosis first."""
    return node.history.is_open_to(job.spec.id)
