"""Books a job's time by what the controller sees: the queue, the phases of its incidents, its steps, its checkpoints,
its end.
"""

import math
from collections.abc import Sequence
from typing import Any

from holdfast.controller.job import policy
from holdfast.controller.job.stages import Stage
from holdfast.controller.job.state import JobState
from holdfast.controller.state.events import Action, Record
from holdfast.controller.state.goodput import Account, Goodput
from holdfast.controller.state.ledger import StepRow
from holdfast.controller.state.model import Instant, Job, JobStatus
from holdfast.wire import types as t

_OF_PHASE = {
    "diagnosing": Account.DIAGNOSE,
    "waiting": Account.STARTING,
    "starting": Account.STARTING,
    "restoring": Account.RESTORE,
    "resuming": Account.RESTORE,
}
_OWN = (t.Phase.SETUP, t.Phase.COMPILE, t.Phase.EVAL)


def keep(c: JobState, now: Instant) -> list[Action]:
    """Called after every event: has time begun to go elsewhere?"""
    job, time = c.job, c.time
    if math.isnan(time.began) or time.ended:
        return []
    if job.state.ended:
        time.end(job.ended_at, job.state is JobStatus.FINISHED)
        return [_saved(job, time)]
    account = _account(c)
    if account is None or account is time.account:
        return []
    live = c.book.live()
    time.fault(live.cause.since if live is not None else now.wall, now.wall, account)
    return [_saved(job, time)]


def _account(c: JobState) -> Account | None:
    """Where the job's time goes now; None: where it went before, or where its steps say."""
    is_queued = c.time.account is Account.QUEUED
    if c.job.state is JobStatus.PENDING or (is_queued and c.life.stage is Stage.IDLE):
        return Account.QUEUED  # idle: after a controller restart, the job enters the queue again with the first tick
    live = c.book.live()
    if live is None or live.action not in policy.RECOVERS:
        return Account.STARTING if is_queued else None
    if live.phase == "replenishing" and not c.job.nodes:
        return Account.STARTING  # it was given nodes, and its launch is prepared
    return _OF_PHASE.get(live.phase, Account.EVICT)


def step(c: JobState, job: Job, record: t.StepRecord, now: Instant) -> None:
    """A step that was not reported before; call it before the job's own notes of it."""
    if record.generation == job.generation and job.life_first < 0 and not record.is_counted:
        c.time.resumed(record.step)
    c.time.step(record.step, record.seconds, record.end_wall_ns / 1e9, now.wall)


def frame(c: JobState, job: Job, node: str, reported: t.Frame) -> None:
    """What a heartbeat says of checkpoints, and of phases of the program's own."""
    if reported.host and job.ranks_on(node):
        stored = reported.host.get("checkpoint_step", -1.0) - 1
        # Of a job that went back, what is reported until it has saved again may be of the steps that it left behind.
        if 0 <= stored <= (job.life_last if job.rollbacks else job.best_step):
            c.time.saved(int(stored))
        elif "snapshot_step" in reported.host:
            c.time.reports = True
    if any(sample.rank == 0 and sample.phase in _OWN for sample in reported.workers):
        c.time.aside = True


def restored(doc: dict[str, Any] | None, job: Job, steps: Sequence[StepRow]) -> Goodput:
    """What an earlier run of the controller had booked, and the steps in its journal since."""
    if doc is None or doc.get("job") != job.spec.id:
        time = Goodput()
        time.begin(job.submitted_at)
    else:
        time = Goodput.from_doc(doc)
    for row in sorted((row for row in steps if row.at > time.at), key=lambda row: row.at):
        time.step(row.step, row.seconds, row.at, row.at)
    return time


def _saved(job: Job, time: Goodput) -> Record:
    return Record("time", job.spec.id, {"job": job.spec.id, **time.to_doc()})
