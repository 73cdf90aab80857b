"""Stalled ranks, their agents' view of them, and a job with such ranks."""

import dataclasses

from holdfast.controller.state.model import Instant, Job, JobSpec, Options
from holdfast.controller.state.ranks import RankState, RankTable
from holdfast.wire import types as t
from holdfast.wire.messages import Program
from holdfast.wire.standing import OpenOperation, StallFacts, ThreadSight, ThreadState

OPTIONS = Options()
STEPS = [0.3] * 30
QUICK = dataclasses.replace(Options(), idle_limit=6.0, pause_limit=20.0, idle_limit_start=10.0, pause_alert=5.0)
"""Limits of pauses that a test need not wait long for."""


def at(mono: float) -> Instant:
    return Instant(mono, 1e6 + mono)


def seen(quiet: float, state: str = "S", **more: object) -> t.Activity:
    """What an agent saw of a worker of which nothing moved for so long."""
    return t.Activity(quiet, quiet, state, **{"waits_for": "a lock", **more})  # type: ignore[arg-type]


def standing(
    kind: str = "all_reduce", group: int = 0, number: int = 4, handed: bool = True, begun: int = 5
) -> t.PendingCollective:
    world = t.GroupCount("world", 7, "0-7", begun, is_exact=True)
    return t.PendingCollective(kind, group, number, handed, (world,))


def in_a_lock(seconds: float) -> StallFacts:
    """No thread can let the main one go on."""
    return StallFacts((ThreadSight(1, ThreadState.OWN, seconds, words="a lock"),), is_complete=True)


def stopped_alone(seconds: float) -> StallFacts:
    """By a signal to this process only; nobody is known to hold it."""
    return StallFacts((ThreadSight(1, ThreadState.HELD, seconds, words="a signal to go on (it is stopped)"),))


def outside(seconds: float, words: str = "a read from a socket") -> StallFacts:
    return StallFacts((ThreadSight(1, ThreadState.OUTSIDE, seconds, words=words),), is_complete=True)


def in_operation(
    seconds: float, kind: str = "all_reduce", number: int = 4, group: int = 0, **more: object
) -> StallFacts:
    """The main thread waits for its end."""
    one = OpenOperation(1, kind, group, number, **more)  # type: ignore[arg-type]
    return StallFacts((ThreadSight(1, ThreadState.OWN, seconds, words="a lock"),), (one,), True)


def frozen(seconds: float, dead: bool = True) -> RankTable:
    """All wait in the same operation but rank 5, which waits for a lock of its own, or (not `dead`) for a socket."""
    ranks = RankTable(8)
    for rank in range(8):
        ranks.mark(rank, RankState.RUNNING)
        waits = rank != 5
        own = in_a_lock(seconds) if dead else outside(seconds)
        sample = t.WorkerSample(
            rank, 1, 1, step=9, phase=t.Phase.TRAIN, operation="all_reduce" if waits else "", tick_age=0.05,
            progress_age=seconds + 1, still_age=seconds,
            pending=standing() if waits else standing("", -1, -1, False, begun=4), activity=seen(seconds),
            standing=in_operation(seconds) if waits else own,
        )  # fmt: skip
        ranks.update(sample, 50.0)
    return ranks


def job(**more: object) -> Job:
    one = Job(JobSpec("j1", "job", Program("train.py"), 1, 8), generation=1, nodes=["node0"])
    for name, value in more.items():
        setattr(one, name, value)
    return one
