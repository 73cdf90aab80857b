"""A plan that is timed anew gives what `simulate` gives."""

import random

import pytest

from holdfast.plan.plan import Action, Layers, Mesh, Plan
from holdfast.plan.schedules.table import SCHEDULES
from holdfast.plan.simulate import simulate
from holdfast.planner.cost.compiled import compiled


@pytest.mark.parametrize("name", [name for name, one in SCHEDULES.items() if not one.is_message_driven])
@pytest.mark.parametrize("latency", [0.0, 0.3])
def test_ends_and_shares_are_those_of_the_simulation(name: str, latency: float) -> None:
    known = SCHEDULES[name]
    first, *replicas = known.placement.places(4, known.chunks)
    stages = tuple(Layers(stage, stage + 1, rank) for stage, rank in enumerate(first))
    plan = Plan(name, Mesh.of(pp=4), stages, 8, tuple(known.build(4, known.chunks, 8)), tuple(replicas))
    once = compiled(plan)
    for seed in range(3):
        rng = random.Random(seed)
        seconds = {kind: rng.uniform(0.5, 2.0) for kind in once.kinds}

        def duration(action: Action, seconds: dict = seconds) -> float:  # type: ignore[type-arg]
            return float(seconds[action.stage, action.op] * len(action.micro_batches) / action.parts)

        found = simulate(plan, duration, latency)
        ends = [max(found.end[action.id] for action in order) for order in plan.orders]
        assert once.ends(seconds, latency) == pytest.approx(ends, rel=1e-12)
        busy = [sum(seconds[kind] * scale for kind, scale in shares.items()) for shares in once.shares]
        assert busy == pytest.approx(found.busy)


def test_lists_that_wait_for_each_other_are_refused() -> None:
    known = SCHEDULES["1f1b"]
    orders = [order[::-1] for order in known.build(2, 1, 2)]
    plan = Plan("turned", Mesh.of(pp=2), (Layers(0, 1, 0), Layers(1, 2, 1)), 2, tuple(orders))
    with pytest.raises(ValueError, match="turned plan never ends"):
        compiled(plan)
