"""Training jobs as lists of operations, run until no rank moves: a frozen job, with one worker held up."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from holdfast.diagnostics.hang.graph import Group, WaitState
from holdfast.plan.plan import COMPUTE, Mesh, Op
from holdfast.plan.schedules.gpipe import gpipe
from holdfast.plan.schedules.interleaved import interleaved
from holdfast.plan.schedules.one_f_one_b import one_f_one_b
from holdfast.trainer.pipeline.transfers import add_transfers

SCHEDULES = {
    "gpipe": lambda ranks, count: gpipe(ranks, count),
    "1f1b": lambda ranks, count: one_f_one_b(ranks, count),
    "interleaved": lambda ranks, count: interleaved(ranks, 2, count),
}


class How(StrEnum):
    BEFORE = "before"
    IN = "in"
    AFTER = "after"


@dataclass(frozen=True)
class Item:
    """`begin` begins an operation of the group, `wait` waits for the oldest that has not been waited for; "compute"
    is neither."""

    what: Literal["compute", "begin", "wait", "both"]
    name: str = ""
    kind: str = ""
    group: Group | None = None


@dataclass
class Worker:
    rank: int
    items: list[Item]
    at: int = 0
    is_inside: bool = False
    begun: Counter[Group] = field(default_factory=Counter)
    waited: Counter[Group] = field(default_factory=Counter)


@dataclass(frozen=True)
class Victim:
    rank: int
    item: int
    how: How
    is_alive: bool


class Groups:
    """The groups of a mesh, each made once."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self._of: dict[tuple[str, tuple[int, ...]], Group] = {}

    def get(self, label: str, members: tuple[int, ...]) -> Group:
        return self._of.setdefault((label, members), Group(label, len(self._of), members))

    def axis(self, axis: str, rank: int) -> Group:
        return self.get(axis, next(g for g in self.mesh.groups(axis) if rank in g))

    def message(self, source: int, target: int) -> Group:
        return self.get(f"pp:{source}>{target}", (source, target))


def step_of(rank: int, groups: Groups, schedule: str, micro_batches: int, overlap: bool) -> list[Item]:
    """One rank's items of one training step: 3D-parallel, two tp operations a computation, dp sums at the end."""
    mesh = groups.mesh
    pp = mesh.size("pp")
    chunks = 2 if schedule == "interleaved" else 1
    rank_of = [stage % pp for stage in range(pp * chunks)]
    place = mesh.coordinate(rank)
    order = add_transfers(SCHEDULES[schedule](pp, micro_batches), rank_of)[place["pp"]]
    tp, dp = groups.axis("tp", rank), groups.axis("dp", rank)

    def peer(stage: int) -> int:
        return mesh.rank(**{**place, "pp": rank_of[stage]})

    items: list[Item] = []
    for action in order:
        forward = action.op in (Op.SEND_FORWARD, Op.RECV_FORWARD)
        if action.op in COMPUTE:
            for _ in range(2):
                items.append(Item("compute"))
                if len(tp.members) > 1:
                    items.append(Item("both", "tp:all_reduce", "all_reduce", tp))
        elif action.op in (Op.SEND_FORWARD, Op.SEND_BACKWARD):
            target = peer(action.stage + (1 if forward else -1))
            items.append(Item("begin", "pp:send", "send", groups.message(rank, target)))
        elif action.op in (Op.RECV_FORWARD, Op.RECV_BACKWARD):
            source = peer(action.stage + (-1 if forward else 1))
            items.append(Item("both", "pp:recv", "recv", groups.message(source, rank)))
    if len(dp.members) > 1:
        sums = Item("begin", "dp:all_reduce", "all_reduce", dp), Item("wait", "dp:all_reduce", "all_reduce", dp)
        items += [sums[0], sums[0], Item("compute"), sums[1], sums[1]] if overlap else [*sums, *sums]
    world = groups.get("world", tuple(range(mesh.world)))
    return [*items, Item("compute"), Item("both", "world:all_reduce", "all_reduce", world)]


def run(programs: dict[int, list[Item]], victim: Victim | None = None) -> list[Worker]:
    """All workers as far as they come."""
    workers = {rank: Worker(rank, items) for rank, items in programs.items()}
    while any([_advance(worker, workers, victim) for worker in workers.values()]):
        pass
    return list(workers.values())


def _advance(worker: Worker, workers: dict[int, Worker], victim: Victim | None) -> bool:
    """As far as this one comes now; whether it moved."""
    moved = False
    while worker.at < len(worker.items):
        item = worker.items[worker.at]
        is_held = victim is not None and victim.rank == worker.rank and victim.item == worker.at
        if is_held and victim is not None and victim.how is How.BEFORE:
            return moved
        group = item.group
        if group is not None and not worker.is_inside:
            worker.is_inside = True
            worker.begun[group] += item.what != "wait"
            moved = True
        if is_held and victim is not None and victim.how is How.IN:
            return moved
        if group is not None and item.what != "begin":
            number = worker.waited[group]
            # A message needs its sender only.
            needed = group.members[:1] if item.kind == "recv" else group.members
            if any(not workers[rank].begun[group] > number for rank in needed):
                return moved
            if (
                victim is not None
                and victim.rank in needed
                and _is_stuck_in(workers[victim.rank], victim, group, number)
            ):
                return moved
            worker.waited[group] += 1
        worker.is_inside = False
        worker.at += 1
        moved = True
        if is_held:
            worker.at, worker.items = len(worker.items), worker.items  # held up after it, in no operation
            return True
    return moved


def _is_stuck_in(worker: Worker, victim: Victim, group: Group, number: int) -> bool:
    """Whether the victim counts as having begun this operation and yet has not handed it over."""
    item = worker.items[victim.item] if worker.at == victim.item else None
    is_there = item is not None and worker.is_inside and item.group is group and item.what != "wait"
    return victim.how is How.IN and is_there and worker.begun[group] - 1 == number


def states(workers: list[Worker], victim: Victim | None = None) -> list[WaitState]:
    """What a controller hears of them."""
    found = []
    for worker in workers:
        is_victim = victim is not None and worker.rank == victim.rank
        is_alive = not is_victim or (victim is not None and victim.is_alive)
        begun = dict(worker.begun)
        item = worker.items[worker.at] if worker.is_inside else None
        if item is None or item.group is None:
            found.append(WaitState(worker.rank, is_alive, begun=begun))
            continue
        number = worker.waited[item.group] if item.what != "begin" else worker.begun[item.group] - 1
        found.append(
            WaitState(worker.rank, is_alive, item.name, item.kind, item.group, number, not is_victim, begun)
        )  # fmt: skip
    return found
