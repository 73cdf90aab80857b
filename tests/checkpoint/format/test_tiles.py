"""Shards and layouts, and which rank writes what, against plain slicing."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from layouts import filled, layouts, tensors

from holdfast.checkpoint.format.arrays import HeldShard, held, to_bytes
from holdfast.checkpoint.format.tiles import GlobalTensor, Layout, pieces, runs, shards_of_run
from holdfast.checkpoint.format.transfer import balanced, write_shares
from holdfast.plan.tiles import TensorShard, cells

BIG = GlobalTensor("w", (64, 64), "F32")


@st.composite
def nested(draw: st.DrawFn) -> tuple[TensorShard, TensorShard]:
    """A shard and one that it holds."""
    size = tuple(draw(st.lists(st.integers(1, 6), max_size=4)))
    outer = TensorShard(tuple(draw(st.integers(0, 9)) for _ in size), size)
    low = [draw(st.integers(0, n)) for n in size]
    inner = tuple(draw(st.integers(0, n - o)) for n, o in zip(size, low, strict=True))
    return outer, TensorShard(tuple(a + b for a, b in zip(outer.offset, low, strict=True)), inner)


@given(nested())
def test_runs_are_the_elements_of_a_slice(pair: tuple[TensorShard, TensorShard]) -> None:
    outer, shard = pair
    numbers = np.arange(outer.count).reshape(outer.size)
    expected = numbers[(*shard.within(outer).slices, ...)].reshape(-1).tolist()
    found = list(runs(shard, outer))
    assert [i for first, count in found for i in range(first, first + count)] == expected
    assert all(count > 0 for _, count in found)
    # No two runs that could have been one.
    assert all(a[0] + a[1] < b[0] for a, b in itertools.pairwise(found))


@given(nested(), st.data())
def test_a_run_is_a_few_shards(pair: tuple[TensorShard, TensorShard], data: st.DataObject) -> None:
    outer, _ = pair
    first = data.draw(st.integers(0, outer.count))
    stop = data.draw(st.integers(first, outer.count))
    found = shards_of_run(outer, first, stop)
    assert [i for shard in found for f, n in runs(shard, outer) for i in range(f, f + n)] == list(range(first, stop))
    assert len(found) <= max(1, 2 * len(outer.size) - 1)


@given(nested(), st.integers(1, 9))
def test_pieces_cover_evenly(pair: tuple[TensorShard, TensorShard], count: int) -> None:
    outer, _ = pair
    found = pieces(outer, count)
    assert len(found) <= count
    assert sum(shard.count for shard in found) == outer.count
    assert all(a.meet(b) is None for i, a in enumerate(found) for b in found[:i])


@given(st.data())
def test_everything_held_is_written_once(data: st.DataObject) -> None:
    of = data.draw(tensors())
    layout = data.draw(layouts(of))
    written = {name: np.zeros(tensor.shape, int) for name, tensor in of.items()}
    for one in write_shares(layout, grain=data.draw(st.sampled_from([1, 4 << 20]))):
        written[one.tensor][(*one.shard.slices, ...)] += 1
        assert not one.shard.count or any(shard.holds(one.shard) for shard in layout.held[one.worker][one.tensor])
    assert all((count == 1).all() for count in written.values())


@pytest.mark.parametrize("workers", [2, 3, 8])
def test_replicas_share_evenly(workers: int) -> None:
    layout = Layout({"w": BIG}, [{"w": [BIG.shard]}] * workers)
    load = [0] * workers
    for one in write_shares(layout, grain=64):
        load[one.worker] += one.num_bytes
    assert sum(load) == BIG.num_bytes
    assert max(load) - min(load) <= 64 * 4


def test_the_least_laden_takes_the_next() -> None:
    assert balanced([((0, 1), 5), ((0, 1), 9), ((0,), 4), ((1,), 1)], 2) == [0, 1, 0, 1]


def test_groups_that_want_the_same_shard_are_one_cell() -> None:
    halves = [TensorShard((0, 0), (32, 64)), TensorShard((32, 0), (32, 64))]
    source = Layout({"w": BIG}, [{"w": [BIG.shard]}])
    target = Layout({"w": BIG}, [{"w": [halves[i % 2]]} for i in range(6)])
    found = cells(source.holders("w"), target.holders("w"))
    assert [(one.shard, tuple(one.targets)) for one in found] == [(halves[0], (0, 2, 4)), (halves[1], (1, 3, 5))]


def test_plans_of_many_workers_are_quick() -> None:
    """4,096 workers, a tensor split 8 x 512 read by rows into 512: the cells are the cuts, not their product."""
    big = GlobalTensor("w", (4096, 4096), "BF16")
    columns = [TensorShard((0, 512 * i), (4096, 512)) for i in range(8)]
    rows = [TensorShard((8 * i, 0), (8, 4096)) for i in range(512)]
    source = Layout({"w": big}, [{"w": [columns[i % 8]]} for i in range(4096)])
    target = Layout({"w": big}, [{"w": [rows[i % 512]]} for i in range(4096)])
    found = cells(source.holders("w"), target.holders("w"))
    assert len(found) == 4096
    assert all(len(one.sources) == 512 and len(one.targets) == 8 for one in found)


def test_bytes_of_a_view_are_in_order() -> None:
    tensor = GlobalTensor("w", (4, 6), "I16")
    whole = filled(tensor)
    one = HeldShard(tensor, tensor.shard, whole)
    shard = TensorShard((1, 2), (2, 3))
    again = held(tensor, shard, to_bytes(one.part(shard)))
    assert np.array_equal(again.data, whole[1:3, 2:5])
    number = GlobalTensor("n", (), "F64")
    assert bytes(to_bytes(HeldShard(number, number.shard, np.array(7, "u8")).part(number.shard))) == (7).to_bytes(
        8, "little"
    )


def test_cells_along_a_dimension_are_joined_one_after_the_other() -> None:
    # The first and the last third have one holder each, and the middle, cut in two by the targets, a third one.
    sources = {TensorShard((0,), (4,)): [0], TensorShard((4,), (4,)): [1], TensorShard((8,), (4,)): [2]}
    targets = {TensorShard((0,), (12,)): [3], TensorShard((0,), (6,)): [3], TensorShard((6,), (6,)): [3]}
    assert [(c.shard.offset, c.shard.size, c.sources) for c in cells(sources, targets)] == [
        ((0,), (4,), (0,)),
        ((4,), (4,), (1,)),
        ((8,), (4,), (2,)),
    ]
