"""A plan whose ranks share the cores of their host: what computes at the same time slows each other down. Pure.

Cores are shared evenly. A rank computes on one core at most; of `cores` that k ranks want, each gets min(1, cores / k).
So a bubble costs nothing while others keep the cores busy: it is why pipelines of processes on few cores show none.
"""

from __future__ import annotations

from holdfast.plan.needs import dependencies
from holdfast.plan.plan import Plan
from holdfast.plan.simulate import Duration


def simulate_shared(plan: Plan, work: Duration, cores: float, ranks: int = 1, latency: float = 0.0) -> dict[str, float]:
    """When each action ends, in seconds, by id.

    `work`: core-seconds of an action on one rank. `ranks`: how many ranks do each action of the plan at once (dp x tp).
    `latency`: seconds of a message to another pipeline rank, which takes no core. Computations alone. ValueError for a
    plan that never ends.
    """
    needs, places = dependencies(plan), plan.places
    at = [0] * len(plan.orders)
    left: dict[int, float] = {}
    """By rank that computes: core-seconds."""
    end: dict[str, float] = {}
    now = 0.0
    while len(end) < len(places):
        soonest = None
        for rank, order in enumerate(plan.orders):
            if rank in left or at[rank] == len(order):
                continue
            action = order[at[rank]]
            wanted = needs[action.id]
            if any(need not in end for need in wanted):
                continue
            ready = max((end[n] + latency * (places[n][0] != rank) for n in wanted), default=0.0)
            if ready <= now:
                left[rank] = work(action)
            else:
                soonest = ready if soonest is None else min(soonest, ready)
        if not left and soonest is None:
            raise ValueError(f"the {plan.schedule} plan never ends: after {len(end)} actions, all wait for each other")
        if not left:
            assert soonest is not None
            now = soonest
            continue
        rate = min(1.0, cores / (len(left) * ranks))
        after = min(left.values()) / rate
        if soonest is not None:
            after = min(after, soonest - now)
        now += after
        for rank in sorted(left):
            left[rank] -= after * rate
            if left[rank] <= 1e-12:
                del left[rank]
                end[plan.orders[rank][at[rank]].id] = now
                at[rank] += 1
    return end
