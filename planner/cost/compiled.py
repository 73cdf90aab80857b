"""A plan worked out once, to be timed many times: what `simulate` says, some ten times faster. Pure."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.plan.needs import dependencies
from holdfast.plan.plan import Action, Op, Plan

Kind = tuple[int, Op]
"""A stage, and what is done to it."""
Step = tuple[int, int, float, tuple[int, ...], tuple[int, ...]]
"""(rank, number of its kind, how many micro-batches, what it needs of its own rank, and of others)."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """Computations in an order in which each follows what it needs."""

    kinds: tuple[Kind, ...]
    steps: tuple[Step, ...]
    shares: tuple[Mapping[Kind, float], ...]
    """By rank: micro-batches of each kind."""

    def ends(self, seconds: Mapping[Kind, float], latency: float) -> list[float]:
        """By rank, when its last computation ends. `latency`: seconds of a message, while neither end waits for it."""
        of = [seconds[kind] for kind in self.kinds]
        clock = [0.0] * len(self.shares)
        end: list[float] = []
        for rank, kind, scale, own, others in self.steps:
            at = clock[rank]
            for need in own:
                if end[need] > at:
                    at = end[need]
            for need in others:
                if end[need] + latency > at:
                    at = end[need] + latency
            at += of[kind] * scale
            clock[rank] = at
            end.append(at)
        return clock


@functools.lru_cache(maxsize=1024)
def compiled(plan: Plan) -> Compiled:
    """Of a plan of computations alone. ValueError where its lists deadlock."""
    needs = dependencies(plan)
    rank_of = {action.id: rank for rank, action in plan.actions()}
    number: dict[str, int] = {}
    kinds: dict[Kind, int] = {}
    steps: list[Step] = []
    at = [0] * len(plan.orders)
    ready, waiting = list(range(len(plan.orders))), dict[str, list[int]]()
    while ready:
        rank = ready.pop()
        while at[rank] < len(plan.orders[rank]):
            action = plan.orders[rank][at[rank]]
            missing = next((need for need in needs[action.id] if need not in number), None)
            if missing is not None:
                waiting.setdefault(missing, []).append(rank)
                break
            kind = kinds.setdefault((action.stage, action.op), len(kinds))
            own = tuple(number[need] for need in needs[action.id] if rank_of[need] == rank)
            others = tuple(number[need] for need in needs[action.id] if rank_of[need] != rank)
            number[action.id] = len(steps)
            steps.append((rank, kind, _share(action), own, others))
            at[rank] += 1
            ready += waiting.pop(action.id, ())
    if len(steps) < sum(map(len, plan.orders)):
        raise ValueError(f"the {plan.schedule} plan never ends: after {len(steps)} actions, all wait for each other")
    shares: list[dict[Kind, float]] = [{} for _ in plan.orders]
    for rank, action in plan.actions():
        at_kind = action.stage, action.op
        shares[rank][at_kind] = shares[rank].get(at_kind, 0.0) + _share(action)
    return Compiled(tuple(kinds), tuple(steps), tuple(shares))


def _share(action: Action) -> float:
    return len(action.micro_batches) / action.parts
