"""A transfer brings every rank what slicing the whole tensor gives, once, and no more bytes than the strategy needs."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from holdfast.plan.moves.order import Algorithm
from holdfast.plan.moves.shard_spec import ShardSpec
from holdfast.plan.moves.simulate import TransferTimeline, simulate
from holdfast.plan.moves.strategies import Strategy, duration
from holdfast.plan.moves.transfer_plan import TransferPlan, make_plan
from holdfast.plan.moves.units import Unit, units
from holdfast.plan.plan import Mesh
from holdfast.plan.tiles import TensorShard
from tests.holdfast.support.random_moves import Case, execute, random_case

ITEM = 8


def units_of(case: Case) -> list[Unit]:
    return units("w", ITEM, case.source.held(case.shape), case.target.held(case.shape))


def chunked(case: Case, spec: ShardSpec) -> dict[int, tuple[slice, ...]]:
    """What each rank holds, as torch cuts it, dimension by dimension."""
    found = {}
    for place, rank in enumerate(spec.ranks):
        at = spec.mesh.coordinate(place)
        slices = []
        for length, axes in zip(case.shape, spec.dims, strict=True):
            index = torch.arange(length)
            for axis in axes:
                parts = index.chunk(spec.mesh.size(axis)) if len(index) else ()
                index = parts[at[axis]] if at[axis] < len(parts) else index[:0]
            slices.append(slice(int(index[0]), int(index[-1]) + 1) if len(index) else slice(0, 0))
        found[rank] = tuple(slices)
    return found


@pytest.mark.parametrize("block", range(3))
def test_received_parts_equal_slices_of_the_whole_and_each_element_comes_once(block: int) -> None:
    for seed in range(block * 40, block * 40 + 40):
        case = random_case(seed)
        whole = np.random.default_rng(seed).integers(0, 2**62, case.shape)
        have, want = chunked(case, case.source), chunked(case, case.target)
        mine = {place: case.source.shard(place, case.shape) for place in range(case.source.mesh.world)}
        source = {case.source.ranks[place]: (shard, whole[shard.slices]) for place, shard in mine.items()}
        for rank, (_, array) in source.items():
            assert np.array_equal(array, whole[have[rank]]), seed
        held = {
            case.target.ranks[place]: case.target.shard(place, case.shape) for place in range(case.target.mesh.world)
        }
        found = units_of(case)
        for strategy in (None, *Strategy):
            target = {rank: (shard, np.full(shard.size, -1)) for rank, shard in held.items()}
            # Messages do not depend on how the order was found, and the best one takes most of the time.
            algorithm = None if strategy is None else Algorithm.LOAD
            written = execute(make_plan(found, case.hosts, strategy, 3, algorithm, seed), source, target)
            for rank, (_, array) in target.items():
                assert array.tobytes() == whole[want[rank]].tobytes(), (seed, strategy, rank)
                assert (written[rank] == 1).all(), (seed, strategy, rank)


def receiving_hosts(unit: Unit, hosts: tuple[int, ...]) -> set[int]:
    return {hosts[rank] for rank in unit.receivers} - {hosts[rank] for rank in unit.senders}


@pytest.mark.parametrize("strategy", [Strategy.RING, Strategy.LOCAL_ALL_GATHER])
def test_a_unit_crosses_once_into_each_receiving_host(strategy: Strategy) -> None:
    moved = 0
    for seed in range(120):
        case = random_case(seed)
        found = units_of(case)
        expected = sum(np.prod(u.shard.size, dtype=int) * ITEM * len(receiving_hosts(u, case.hosts)) for u in found)
        plan = make_plan(found, case.hosts, strategy, 5, Algorithm.LOAD)  # whose order changes no bytes
        assert simulate(plan, 1.0).crossed_bytes == expected, seed
        moved += expected > 0
    assert moved > 80, "most of the cases move something"


def to_hosts(receivers: int, per_host: int, count: int = 6720) -> tuple[Unit, tuple[int, ...]]:
    """One unit from rank 0 to so many hosts with so many ranks each; rank 0 has a host of its own."""
    ranks = range(1, receivers * per_host + 1)
    unit = Unit("w", TensorShard((0,), (count,)), ITEM, (0,), tuple(ranks))
    return unit, (0, *((rank - 1) // per_host + 1 for rank in ranks))


@pytest.mark.parametrize(("a", "b"), [(1, 1), (1, 3), (2, 1), (4, 1), (4, 2), (3, 4)])
@pytest.mark.parametrize("k", [8, 64])
def test_time_and_bytes_of_each_strategy(a: int, b: int, k: int) -> None:
    unit, hosts = to_hosts(a, b)
    t = 6720 * ITEM / 1e6
    expected = {
        Strategy.SEND_RECV: a * b * t,
        Strategy.LOCAL_ALL_GATHER: a * t,
        Strategy.RING: t + (a - 1) * t / k,
        Strategy.GLOBAL_ALL_GATHER: t if a == 1 else 2 * t - t / (a * b),
    }
    times_over = {
        Strategy.SEND_RECV: a * b,
        Strategy.LOCAL_ALL_GATHER: a,
        Strategy.RING: a,
        Strategy.GLOBAL_ALL_GATHER: 1 if a == 1 else 1 + a * (1 - 1 / (a * b)),
    }
    for strategy, seconds in expected.items():
        found = simulate(make_plan([unit], hosts, strategy, k), 1e6).makespan
        assert found == pytest.approx(seconds, rel=0.05 if strategy is Strategy.RING else 1e-9), strategy
        assert duration(strategy, t, unit.far(hosts), k) == pytest.approx(seconds)
        crossed = simulate(make_plan([unit], hosts, strategy, k), 1e6).crossed_bytes / (6720 * ITEM)
        assert crossed == pytest.approx(times_over[strategy]), strategy
    best = simulate(make_plan([unit], hosts, None, k), 1e6).makespan
    assert best == pytest.approx(min(expected.values()), rel=0.05)


@pytest.mark.parametrize(("k", "factor"), [(8, 1.375), (64, 1.046875)])
def test_a_ring_over_four_hosts_as_published(k: int, factor: float) -> None:
    unit, hosts = to_hosts(4, 2, count=6400)
    assert simulate(make_plan([unit], hosts, Strategy.RING, k), 6400 * ITEM).makespan == pytest.approx(factor, rel=1e-9)


def test_a_host_takes_part_in_one_unit_at_a_time() -> None:
    three = [Unit("w", TensorShard((i,), (1,)), 100, (i,), (3 + i,)) for i in range(3)]
    apart, together = ((0, 1, 2, 3, 4, 5), (0, 0, 0, 3, 4, 5))
    assert simulate(make_plan(three, apart), 100.0).makespan == 1
    assert sorted(simulate(make_plan(three, together), 100.0).end) == [1, 2, 3]


def test_replicas_share_the_sending() -> None:
    units_of_two = [Unit("w", TensorShard((i,), (1,)), 100, (0, 1), (2 + i,)) for i in range(2)]
    plan = make_plan(units_of_two, range(4))
    assert {move.sender for move in plan.moves} == {0, 1}
    assert simulate(plan, 100.0).makespan == 1


def test_a_single_element_is_no_ring_of_many_chunks() -> None:
    unit = Unit("w", TensorShard((), ()), 100, (0,), (1, 2))
    assert make_plan([unit], range(3), chunks=64).moves[0].strategy is Strategy.SEND_RECV


def test_a_receiver_beside_a_holder_gets_it_from_there() -> None:
    unit = Unit("w", TensorShard((0,), (4,)), ITEM, (0, 2), (1, 3, 4))
    plan = make_plan([unit], (0, 0, 1, 1, 2), Strategy.SEND_RECV)
    assert {(m.source, m.target) for m in plan.messages(plan.moves[0])} == {(0, 1), (2, 3), (0, 4)}
    assert simulate(plan, 1.0).crossed_bytes == 4 * ITEM


def test_what_stays_where_it_is_moves_nothing() -> None:
    spec = ShardSpec(Mesh.of(dp=2, tp=2), (("tp",), ()))
    plan = make_plan(units("w", ITEM, spec.held((5, 3)), spec.held((5, 3))), (0, 1, 2, 3))
    assert [plan.messages(move) for move in plan.moves] == [[], []]


def test_plans_of_one_seed_are_equal() -> None:
    case = random_case(7)

    def made(seed: int) -> TransferPlan:
        return make_plan(units_of(case), case.hosts, seed=seed)

    assert made(3) == made(3)


def test_four_shards_become_two_in_four_units() -> None:
    """Tensor parallelism 4 to 2 between the stages of a pipeline, beside two replicas."""
    source = ShardSpec(Mesh.of(dp=1, tp=4), ((), ("tp",)))
    target = ShardSpec(Mesh.of(dp=1, tp=2), ((), ("tp",)), (4, 5))
    found = units("x", 2, source.held((8, 16)), target.held((8, 16)))
    assert [(u.senders, u.receivers, u.num_bytes) for u in found] == [
        ((rank,), (4 + rank // 2,), 8 * 4 * 2) for rank in range(4)
    ]


@pytest.mark.parametrize(
    ("dims", "ranks", "match"),
    [
        ((("dp",), ("dp",)), (), "every axis once"),
        ((("up",), ()), (), "every axis once"),
        (((), ()), (0, 1), "a mesh of 4 needs"),
        (((), ()), (0, 1, 2, 2), "a mesh of 4 needs"),
    ],
)
def test_impossible_layouts(dims: tuple[tuple[str, ...], ...], ranks: tuple[int, ...], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        ShardSpec(Mesh.of(dp=2, tp=2), dims, ranks)


def test_a_layout_of_another_tensor_and_a_part_that_no_rank_has() -> None:
    spec = ShardSpec(Mesh.of(dp=2), (("dp",),))
    with pytest.raises(ValueError, match="of 2 dimensions"):
        spec.shard(0, (4, 4))
    with pytest.raises(ValueError, match=r"no rank holds the part of w at \[2\]"):
        units("w", ITEM, {TensorShard((0,), (2,)): [0]}, {TensorShard((0,), (4,)): [1]})


def test_nothing_to_send_takes_no_time() -> None:
    for strategy in Strategy:
        assert duration(strategy, 3.0, (), 4) == 0
    assert TransferTimeline((), (), 0).makespan == 0
