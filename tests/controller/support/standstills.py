"""Stalled ranks, their agents' view of them, and a job with such ranks."""

import dataclasses

from holdfast.controller.state.model import Instant, Job, JobSpec, Options
from holdfast.controller.state.ranks import RankState, RankTable
from holdfast.wire import types as t
from holdfast.wire.messages import Program

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
    world = t.GroupCount("world", 7, "0-7", begun)
    return t.PendingCollective(kind, group, number, handed, (world,))


def frozen(seconds: float, mesh: bool = True) -> RankTable:
    """All wait in the same operation but rank 5, which is in none; all are alive."""
    ranks = RankTable(8)
    for rank in range(8):
        ranks.mark(rank, RankState.RUNNING)
        waits = rank != 5
        sample = t.WorkerSample(
            rank, 1, 1, step=9, phase=t.Phase.TRAIN, operation="world:all_reduce" if waits else "", tick_age=0.05,
            progress_age=seconds + 1, still_age=seconds, coordinate=(0, rank, 0) if mesh else None, sizes=(1, 8, 1),
            pending=standing() if waits else standing("", -1, -1, False, begun=4), activity=seen(seconds),
        )  # fmt: skip
        ranks.update(sample, 50.0)
    return ranks


def job(**more: object) -> Job:
    one = Job(JobSpec("j1", "job", Program("train.py"), 1, 8), generation=1, nodes=["node0"])
    for name, value in more.items():
        setattr(one, name, value)
    return one
