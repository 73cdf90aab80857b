"""The jobs' brains by id, in the order of submission; which of them holds a node, and which one a request means."""

from collections.abc import Callable

from holdfast.base.bounds import MAX_JOBS
from holdfast.base.errors import Conflict, NotFound
from holdfast.base.settings import nearest
from holdfast.controller.brain.job_brain import JobBrain
from holdfast.controller.cluster.state import ClusterState
from holdfast.controller.state.model import Job
from holdfast.diagnostics.steps.job_shape import JobShape

_KEPT = 64
"""Jobs that are over and can still be looked at; the journal has them all."""


class Roster:
    def __init__(self, cluster: ClusterState, build: Callable[[Job], JobBrain]) -> None:
        self.c, self._build = cluster, build
        self.brains: dict[str, JobBrain] = {}

    def add(self, job: Job) -> JobBrain:
        """A job that was submitted, or that an earlier run of the controller knew. Conflict: too many."""
        if sum(not brain.c.job.state.ended for brain in self.brains.values()) >= MAX_JOBS:
            raise Conflict(f"{MAX_JOBS} jobs are running or queued, the maximum: stop one first")
        self.c.jobs[job.spec.id] = job
        brain = self.brains[job.spec.id] = self._build(job)
        self._forget()
        return brain

    def _forget(self) -> None:
        over = [brain for brain in self.brains.values() if brain.is_settled]
        for brain in over[: max(0, len(over) - _KEPT)]:
            del self.brains[brain.c.job.spec.id], self.c.jobs[brain.c.job.spec.id]

    @property
    def newest(self) -> JobBrain | None:
        """Of the job that was submitted last."""
        return next(reversed(self.brains.values()), None)

    @property
    def has_active(self) -> bool:
        return any(not brain.c.job.state.ended for brain in self.brains.values())

    def active(self) -> list[JobBrain]:
        """Of jobs that are not over, those that get nodes first in front."""
        return [self.brains[job.spec.id] for job in self.c.active()]

    def shape(self, id: str) -> JobShape:
        """The job as readers of its spans need it; an empty one where it is not known."""
        brain = self.brains.get(id)
        if brain is None:
            return JobShape(id)
        job, plan = brain.c.job, brain.c.plan
        nodes = job.nodes or (job.past[-1][1] if job.past else [])
        return JobShape(id, job.spec.name, tuple(nodes), job.spec.nproc, plan.data if plan is not None else b"")

    def unsettled(self) -> list[JobBrain]:
        """Those with something left to decide, in the same order; of jobs that are over, behind."""
        over = [brain for brain in self.brains.values() if brain.c.job.state.ended and not brain.is_settled]
        return [*self.active(), *over]

    def holder(self, node: str) -> JobBrain | None:
        """Of the active job that this node belongs to; of several that share it, the first."""
        job = self.c.holder(node)
        return self.brains[job.spec.id] if job is not None else None

    def holders(self, node: str) -> list[JobBrain]:
        """Of all active jobs that this node belongs to: one, or several that share it."""
        return [self.brains[job.spec.id] for job in self.c.holders_of(node)]

    def sole(self) -> JobBrain | None:
        """Of the only job that is active: what names no job and no node of another is about it."""
        active = [brain for brain in self.brains.values() if not brain.c.job.state.ended]
        return active[0] if len(active) == 1 else None

    def about(self, node: str, job: str = "") -> JobBrain | None:
        """Of the job that is named, else that holds the node, else the only one that is active."""
        if job:
            return self.brains.get(job)
        return self.holder(node) or self.sole()

    def all_about(self, node: str) -> list[JobBrain]:
        """Of each job that holds the node, else of the only one that is active."""
        sole = self.sole()
        return self.holders(node) or ([sole] if sole is not None else [])

    def wanted(self, job: str) -> JobBrain:
        """The active job that a person means: by id, by name, or the only one. NotFound or Conflict where none is."""
        active = self.active()
        if not job:
            if len(active) > 1:
                names = ", ".join(f"{brain.c.job.spec.name} ({brain.c.job.spec.id})" for brain in active)
                raise Conflict(f"several jobs are active: {names}; name one with --job")
            if not active:
                raise Conflict("no job is running")
            return active[0]
        for brain in active:
            if job in (brain.c.job.spec.id, brain.c.job.spec.name):
                return brain
        if (over := self.brains.get(job)) is not None:
            raise Conflict(f"job {job} is already {over.c.job.state.value}")
        known = [name for brain in active for name in (brain.c.job.spec.id, brain.c.job.spec.name)]
        raise NotFound(f"no job {job!r} is running{nearest(job, known)}; `holdfast jobs` lists them")
