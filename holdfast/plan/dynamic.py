"""A plan without an order: ranks do what is ready when it is there (AxoNN, Singh and Bhatele, IPDPS 2022). Pure.

Only what actions need counts, and how many micro-batches may be under way. The same computations in a fixed order are
simulated by simulate.py: what comes out of both can be compared.
"""

from __future__ import annotations

import heapq
import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum

from holdfast.plan.memory import live
from holdfast.plan.needs import dependencies
from holdfast.plan.plan import COMPUTE, LAST_BACKWARDS, Action, Op, Plan
from holdfast.plan.simulate import Duration, Latency, Size, Timeline, wire


class First(StrEnum):
    """What a rank does first of what is ready."""

    BACKWARD = "backward"
    """A backward before a forward, and the oldest of each."""
    ARRIVAL = "arrival"
    """What became ready first."""


@dataclass(frozen=True, slots=True)
class Dynamic:
    """What happened: the order that came out of it, as a plan, and when."""

    plan: Plan
    timeline: Timeline


def jittered(low: float, high: float, seed: int) -> Callable[[Action], float]:
    """A latency for each message, drawn evenly from `low` to `high`: the same for the same message and seed."""
    return lambda action: random.Random(f"{seed}:{action.id}").uniform(low, high)


def simulate_ready(
    plan: Plan,
    duration: Duration,
    limit: int,
    latency: Latency = 0.0,
    *,
    first: First = First.BACKWARD,
    sizes: Size | None = None,
) -> Dynamic:
    """Run a plan's computations in whatever order they become ready; the order of its lists is ignored.

    `limit` micro-batches of a pipe are under way at most: the first stage begins that many, and one more with each
    whose last backward there has ended. `latency` as in `simulate`. ValueError for a plan with transfers, which have
    an order, and for one that never ends.
    """
    if limit < 1:
        raise ValueError(f"at most {limit} micro-batches under way: nothing could begin; 1 or more")
    if any(action.op not in COMPUTE for _, action in plan.actions()):
        raise ValueError(f"the {plan.schedule} plan has more than computations; what is ready is simulated without")
    engine = _Engine(plan, duration, limit, latency, first)
    engine.run()
    done = replace(plan, orders=tuple(tuple(order) for order in engine.orders))
    if sum(map(len, engine.orders)) < sum(map(len, plan.orders)):
        raise ValueError(f"the {plan.schedule} plan never ends: {len(engine.end)} actions, and nothing more is ready")
    bytes_ = wire(plan, sizes) if sizes else {}
    return Dynamic(done, Timeline(engine.start, engine.end, tuple(engine.busy), live(done), bytes_))


class _Engine:
    """Events in virtual time: something became ready on a rank, or a rank became free."""

    def __init__(self, plan: Plan, duration: Duration, limit: int, latency: Latency, first: First) -> None:
        self.duration, self.first = duration, first
        self.latency = latency if callable(latency) else lambda action: latency
        self.home = {action.id: rank for rank, action in plan.actions()}
        self.actions = {action.id: action for _, action in plan.actions()}
        self.missing: dict[str, int] = {}
        self.users: dict[str, list[str]] = defaultdict(list)
        for action_id, needs in dependencies(plan).items():
            self.missing[action_id] = len(set(needs))
            for need in dict.fromkeys(needs):
                self.users[need].append(action_id)
        self.events: list[tuple[float, int, str]] = []
        self.count = 0
        self.ready: list[list[tuple[tuple[float, ...], str]]] = [[] for _ in plan.orders]
        self.free = [0.0] * len(plan.orders)
        self.busy = [0.0] * len(plan.orders)
        self.orders: list[list[Action]] = [[] for _ in plan.orders]
        self.start: dict[str, float] = {}
        self.end: dict[str, float] = {}
        # First forwards wait for their turn, by pipe, and are let in as earlier micro-batches end.
        self.waiting: dict[int, list[str]] = defaultdict(list)
        self.room: dict[int, float] = defaultdict(lambda: float(limit))
        self.limit = limit
        for action_id, count in self.missing.items():
            if not count:
                self.waiting[self.actions[action_id].pipe].append(action_id)
        for pipe, ids in self.waiting.items():
            ids.sort(key=lambda action_id: self.actions[action_id].micro_batch, reverse=True)
            self._admit(pipe, 0.0)

    def run(self) -> None:
        while self.events:
            now = self.events[0][0]
            touched = set()
            while self.events and self.events[0][0] <= now:
                _, _, action_id = heapq.heappop(self.events)
                rank = self.home[action_id]
                touched.add(rank)
                if action_id not in self.end:
                    self._ready(rank, action_id, now)
            for rank in sorted(touched):
                self._begin(rank, now)

    def _ready(self, rank: int, action_id: str, now: float) -> None:
        self.missing[action_id] -= 1
        if self.missing[action_id] <= 0:
            action = self.actions[action_id]
            turn = (float(action.op is Op.FORWARD), float(action.micro_batch), float(action.turn))
            heapq.heappush(self.ready[rank], (turn if self.first is First.BACKWARD else (now,), action_id))

    def _begin(self, rank: int, now: float) -> None:
        """Do the first of what is ready, if the rank is free."""
        if self.free[rank] > now or not self.ready[rank]:
            return
        _, action_id = heapq.heappop(self.ready[rank])
        action = self.actions[action_id]
        took = self.duration(action)
        end = now + took
        self.start[action_id], self.end[action_id] = now, end
        self.busy[rank] += took
        self.free[rank] = end
        self.orders[rank].append(action)
        self._post(end, action_id)  # the rank is free again
        for user in self.users[action_id]:
            self._post(end if self.home[user] == rank else end + self.latency(action), user)
        if action.op in LAST_BACKWARDS and action.stage == 0:
            self.room[action.pipe] += float(action.share)
            self._admit(action.pipe, end)

    def _admit(self, pipe: int, at: float) -> None:
        """Let the first stage begin more, as far as there is room."""
        waiting = self.waiting[pipe]
        while waiting and self.room[pipe] >= min(float(self.actions[waiting[-1]].share), float(self.limit)):
            action_id = waiting.pop()
            self.room[pipe] -= float(self.actions[action_id].share)
            self._post(at, action_id)

    def _post(self, at: float, action_id: str) -> None:
        self.count += 1
        heapq.heappush(self.events, (at, self.count, action_id))
