"""How long a plan takes when each action takes a given time. Pure, in virtual time.

The rule: a rank does its list in order; an action begins when the rank is free and what it needs has ended, plus
the link's latency if that was on another rank. Sends and receives take no time of the rank unless a time is given.
"""

from collections.abc import Callable
from dataclasses import dataclass

from holdfast.plan.check import dependencies
from holdfast.plan.plan import COMPUTE, Action, Op, Plan

Duration = Callable[[Action], float]
"""Seconds (or any unit) that an action keeps its rank busy."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """When everything began and ended, by action id; busy time and bubble by pipeline rank."""

    start: dict[str, float]
    end: dict[str, float]
    busy: tuple[float, ...]
    """Time spent computing."""

    @property
    def makespan(self) -> float:
        return max(self.end.values(), default=0.0)

    @property
    def bubble(self) -> tuple[float, ...]:
        """Share of the makespan in which a rank computed nothing."""
        return tuple(1 - busy / self.makespan for busy in self.busy)


def durations(forward: float, backward: float, chunks: int = 1) -> Duration:
    """A rank's layers take `forward` and `backward` for one micro-batch, split evenly over its `chunks` stages.

    Halves of a backward take half of it; recomputing takes a forward; everything else takes no time.
    """
    table = {
        Op.FORWARD: forward,
        Op.RECOMPUTE: forward,
        Op.BACKWARD: backward,
        Op.BACKWARD_INPUT: backward / 2,
        Op.BACKWARD_WEIGHT: backward / 2,
    }
    return lambda action: table.get(action.op, 0) / chunks


def simulate(plan: Plan, duration: Duration, latency: float = 0.0) -> Timeline:
    """Run a plan. `latency` is what a message takes after its computation, without occupying either end.

    A message moves once it has been sent and its receive posted, if the plan has transfers. ValueError when the
    lists deadlock; `verify` says where.
    """
    needs = dependencies(plan)
    home = {action_id: rank for action_id, (rank, _) in plan.places.items()}
    start: dict[str, float] = {}
    end: dict[str, float] = {}
    clock = [0.0] * len(plan.orders)
    busy = [0.0] * len(plan.orders)
    at = [0] * len(plan.orders)
    ready = list(range(len(plan.orders)))
    waiting: dict[str, list[int]] = {}
    while ready:
        rank = ready.pop()
        order = plan.orders[rank]
        while at[rank] < len(order):
            action = order[at[rank]]
            missing = next((need for need in needs[action.id] if need not in end), None)
            if missing is not None:
                waiting.setdefault(missing, []).append(rank)
                break
            started = max(clock[rank], _arrived(action, needs[action.id], rank, home, end, latency))
            took = duration(action)
            start[action.id], end[action.id] = started, started + took
            clock[rank] = started + took
            busy[rank] += took if action.op in COMPUTE else 0
            at[rank] += 1
            ready += waiting.pop(action.id, ())
    if len(end) < sum(map(len, plan.orders)):
        raise ValueError(f"the {plan.schedule} plan never ends: after {len(end)} actions, all wait for each other")
    return Timeline(start, end, tuple(busy))


def _arrived(
    action: Action, needs: tuple[str, ...], rank: int, home: dict[str, int], end: dict[str, float], latency: float
) -> float:
    """When the last of what an action needs is there. A message counts from the later of its two ends."""
    if not needs:
        return 0.0
    at = max(end[need] for need in needs)
    if action.op in COMPUTE and any(home[need] != rank for need in needs):
        moved = max(end[need] for need in needs if home[need] != rank or "RECV_" in need)
        at = max(at, moved + latency)
    return at
