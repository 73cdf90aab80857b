"""When a job is over although not every agent has reported it, or not every rank has ended. Pure.

A clean end of all visible ranks implies that of the others: an agent that is gone leaves its workers
running, and where one of them had failed, the ranks that wait for it would not have ended with 0.
"""

from holdfast.controller.job.ending import end_phase
from holdfast.controller.job.stages import Stage
from holdfast.controller.job.state import JobState
from holdfast.controller.state.model import Instant, Job
from holdfast.controller.state.ranks import RankState


class Ending:
    def __init__(self, job: JobState) -> None:
        self.c = job
        self._since: float | None = None  # mono since which all visible ranks have ended

    def look(self, job: Job, now: Instant) -> str | None:
        """Why the job is finished, empty when every rank reported its end; None while it is not. Call it often."""
        if self.c.life.stage is not Stage.UP:
            self._since = None
            return None
        unreported = self.unreported(job)
        if unreported is None:
            self._since = None
            return None
        if not unreported:
            return ""
        if self._since is None:
            self._since = now.mono
        grace = self.c.options.agent_grace
        if now.mono - max(self._since, self.c.reconcile_until - grace) < grace:
            return None
        ranks = sum(len(job.ranks_on(name)) for name in unreported)
        return (
            f"all visible ranks ended with 0; {ranks} of {job.world} did not report: the agent of "
            f"{', '.join(unreported)} never reconnected"
        )

    def overdue(self, job: Job, now: Instant) -> str | None:
        """Why the job is finished although ranks still run; None while they are waited for."""
        since = self.c.ending_since(now)
        return None if since is None else end_phase.overdue(job, self.c.ranks, since, self.c.options, now)

    def unreported(self, job: Job) -> list[str] | None:
        """The absent nodes whose ranks have not reported their end, once all others have ended with 0; else None."""
        done = self.c.ranks.is_in(RankState.DONE)
        if len(done) != job.world or 2 * int(done.sum()) < job.world:
            return None
        open_nodes = [name for name in job.nodes if not done[_part(job, name)].all()]
        return None if any(self.c.present(name) for name in open_nodes) else open_nodes

    def is_over_at(self, job: Job, name: str) -> bool:
        """Did all ranks of this node end with 0? Then nothing there is worth a wait or a restart."""
        done = self.c.ranks.is_in(RankState.DONE)
        return len(done) == job.world and bool(job.ranks_on(name)) and bool(done[_part(job, name)].all())


def _part(job: Job, name: str) -> slice:
    ranks = job.ranks_on(name)
    return slice(ranks.start, ranks.stop)
