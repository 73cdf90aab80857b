"""A worker ended: with 0, by a fault of its own, or because a rank had left; and when all of them did."""

from holdfast.controller.cluster import incidents as books
from holdfast.controller.detectors.base.table import finding
from holdfast.controller.detectors.hardware.host import has_full_disk
from holdfast.controller.detectors.workers.exits import exit_finding
from holdfast.controller.job.ending.finish import Ending
from holdfast.controller.job.leavers import Leavers
from holdfast.controller.job.recovery import Recovery
from holdfast.controller.job.stages import Stage
from holdfast.controller.job.state import JobState
from holdfast.controller.state.events import Action, Record
from holdfast.controller.state.incidents import Finding
from holdfast.controller.state.model import Instant, Job
from holdfast.controller.state.ranks import RankState
from holdfast.wire import types as t

_GRACE_S = 10.0  # from SIGTERM to SIGKILL, of ranks that did not end by themselves


class WorkerExits:
    def __init__(self, job: JobState, recovery: Recovery, ending: Ending) -> None:
        self.c, self.recovery, self.ending = job, recovery, ending
        self.leavers = Leavers()

    def exited(self, exited: t.WorkerExited, node: str, now: Instant) -> list[Action]:
        job = self.c.job
        if exited.generation != job.generation or job.state.ended:
            return []
        clean = exited.code == 0 and not exited.signal
        found = exit_finding(exited, node, now)
        is_along = exited.ordered or found.secondary
        self.c.ranks.mark(exited.rank, RankState.DONE if clean else RankState.ENDED if is_along else RankState.EXITED)
        if clean:
            self.leavers.note(exited, node, self.c.ranks)
            self.c.end_phase.left(job, self.c.ranks, now)
        if self.c.life.stage is Stage.ENDING:
            return []
        if clean:
            # The agent forgets what is acknowledged: without a record a restarted controller would miss this rank.
            done = Record("exit", f"{exited.job}:{exited.rank}", {"job": exited.job, "generation": exited.generation})
            echo = self.recovery.settling  # which may have come before the report of another node
            return [done, *self.finish_if_done(job, now), *(self._left_before(echo, job, now) if echo else [])]
        if self.c.life.stage is Stage.DRAINING:
            # The controller ended them; only an exit for another reason is evidence of the cause.
            live = self.c.book.live()
            if live is not None and not exited.ordered and self.c.book.attach(live, found):
                return [books.saved(live)]
            return []
        return [
            *self.recovery.found(found, now),
            *self._left_before(found, job, now),
            *self._without_room(found, now),
        ]

    def _without_room(self, exited: Finding, now: Instant) -> list[Action]:
        """It ended because its node's disk is full: that is the cause, and not its traceback."""
        node = self.c.nodes.get(exited.node)
        if not exited.evidence["no_room"] or node is None or not has_full_disk(node, now):
            return []
        text = f"a disk of {node.name} is full; {exited.text}"
        seconds = max(0.0, now.wall - exited.since) + 1e-3  # just before what came of it
        full = finding(t.FindingKind.DISK_FULL, node.name, text, now, seconds=seconds,
                       severity=t.Severity.CRITICAL, node=node.name, signature="worker")  # fmt: skip
        return self.recovery.found(full, now)

    def _left_before(self, echo: Finding, job: Job, now: Instant) -> list[Action]:
        """Did it fail because a rank had ended with 0?"""
        leaving = [node.name for node in self.c.nodes.values() if node.leaving]
        cause = self.leavers.cause_of(echo, job, self.c.ranks, leaving, now)
        return self.recovery.found(cause, now) if cause is not None else []

    def finish_if_done(self, job: Job, now: Instant) -> list[Action]:
        why = self.ending.look(job, now)
        if why is not None:
            return self.recovery.finished(job, now, why)
        why = self.ending.overdue(job, now)
        return [] if why is None else self.recovery.finished(job, now, why, _GRACE_S)
