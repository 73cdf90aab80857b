"""From an incident's cause to what is done about it, with the reason in words. The table is the policy."""

from dataclasses import dataclass
from enum import StrEnum

from holdfast import types as t
from holdfast.controller.model import Finding, Job, Options


class Move(StrEnum):
    RESTART = "restart"
    """End what is left of the generation, start the next one from the newest whole state."""
    WATCH = "watch"
    """Training may well go on: wait for the node to come back, act when progress stops."""
    STOP = "stop-job"
    """Give the job back to its owner: another start would end the same way."""
    ALERT = "alert"
    """Nothing to do for a machine; people are told."""


@dataclass(frozen=True, slots=True)
class Decision:
    move: Move
    reason: str


_OWN = (t.FindingKind.WORKER_EXCEPTION, t.FindingKind.WORKER_EXIT, t.FindingKind.LOSS_NONFINITE)

_TABLE: dict[t.FindingKind, Move] = {
    t.FindingKind.WORKER_EXIT: Move.RESTART,
    t.FindingKind.WORKER_KILLED: Move.RESTART,
    t.FindingKind.WORKER_SEGFAULT: Move.RESTART,
    t.FindingKind.WORKER_OOM: Move.RESTART,
    t.FindingKind.WORKER_EXCEPTION: Move.RESTART,
    t.FindingKind.WORKER_HANG: Move.RESTART,
    t.FindingKind.WORKER_STOPPED: Move.RESTART,
    t.FindingKind.LOSS_NONFINITE: Move.RESTART,
    t.FindingKind.TRAFFIC_STOPPED: Move.RESTART,
    t.FindingKind.AGENT_EXIT: Move.WATCH,
    t.FindingKind.NODE_SILENT: Move.WATCH,
    t.FindingKind.CAPACITY: Move.ALERT,
    t.FindingKind.LOG_RULE: Move.ALERT,
    t.FindingKind.AGENT: Move.ALERT,
    t.FindingKind.STORE: Move.RESTART,
    t.FindingKind.CONTROLLER_RESTART: Move.WATCH,
}


def decide(cause: Finding, job: Job, options: Options) -> Decision:
    """What to do about this cause. `job.tries` counts starts in a row that made no progress, this one included."""
    move = _TABLE[cause.kind]
    if move is not Move.RESTART:
        return Decision(move, _WHY[move])
    if 0 <= job.spec.max_restarts <= job.restarts:
        return Decision(Move.STOP, f"the job may be restarted {job.spec.max_restarts} times and has been")
    limit = options.tries if cause.kind in _OWN else options.tries_fault
    if job.tries >= limit:
        same = "the same traceback" if cause.kind is t.FindingKind.WORKER_EXCEPTION else cause.kind.value
        return Decision(Move.STOP, f"{same} {job.tries} times without a step of progress: {cause.text}")
    return Decision(Move.RESTART, f"start again from the newest whole state (try {job.tries} of {limit})")


_WHY = {
    Move.WATCH: "training may go on without its watcher; recover only if it stops",
    Move.ALERT: "nothing that a restart would mend",
}


def count_try(job: Job, cause: Finding) -> None:
    """Note a failed life of the job before deciding: progress since the last one starts the count anew.

    A script whose steps were counted for it counts from 0 in every life, wherever it resumed. Of such a one a bug that
    strikes at the same place is told by lives of the same length.
    """
    life = job.life_last - job.life_first + 1 if job.life_first >= 0 else 0
    counts_anew = job.generation > 1 and job.life_first == 0 and job.best_step >= job.life_last
    moved = counts_anew and life > 0 and abs(life - job.life_before) > 0.1 * max(life, job.life_before)
    if job.best_step > job.tries_step or moved or job.signature != cause.signature:
        job.tries = 1
    else:
        job.tries += 1
    job.tries_step, job.signature, job.life_before = job.best_step, cause.signature, life


def is_alert(kind: t.FindingKind) -> bool:
    """Is a finding of this kind for people only?"""
    return _TABLE[kind] is Move.ALERT


def is_failure(kind: t.FindingKind) -> bool:
    """Does a finding of this kind end a life of the job?"""
    return _TABLE[kind] is Move.RESTART
