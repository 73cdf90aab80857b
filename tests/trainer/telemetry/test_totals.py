"""What all ranks learn of a step together."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from holdfast.trainer.telemetry import totals

LOSS = st.floats(-1e30, 1e30, allow_subnormal=False).filter(lambda x: x == 0 or abs(x) > 1e-20) | st.sampled_from(
    [math.nan, math.inf, -math.inf, 1e300]
)


def riding(rank: int, world: int, loss: float, votes: list[bool]) -> torch.Tensor:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(dist, "get_rank", lambda: rank)
        patched.setattr(dist, "get_world_size", lambda: world)
        return totals.riding(torch.tensor(loss, dtype=torch.float64), votes)


@given(st.lists(st.tuples(LOSS, st.booleans(), st.booleans()), min_size=1, max_size=12))
def test_a_sum_in_float32_gives_the_losses_to_the_last_bit(ranks: list[tuple[float, bool, bool]]) -> None:
    world = len(ranks)
    sums = torch.zeros_like(riding(0, world, 0.0, [False, False]))
    for rank, (loss, *votes) in enumerate(ranks):
        sums += riding(rank, world, loss, votes)
    assert sums.dtype == torch.float32
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(dist, "get_world_size", lambda: world)
        found = totals.arrived(sums).wait(torch.tensor(4.0, dtype=torch.float64)).read()
    losses = [loss for loss, *_ in ranks]
    bad = [rank for rank, loss in enumerate(losses) if not abs(loss) < 3e38]
    assert found.bad_ranks == bad
    assert found.votes == (sum(one for _, one, _ in ranks), sum(other for _, _, other in ranks))
    assert found.norm == 2.0
    assert found.is_finite == (not bad)
    if not bad:
        exact = sum(map(Fraction, losses), Fraction(0))
        # That of any sum of so many float64: each addition rounds by half a unit of what it gives at most.
        share = (world - 1) * Fraction(2) ** -53
        assert abs(Fraction(found.loss) - exact) <= share / (1 - share) * sum(Fraction(abs(loss)) for loss in losses)
        if world == 1:
            assert found.loss == losses[0]
