"""Messages of a restore: each element reaches each holder once, on the planner's way, and the planner's order helps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from file_stores import CountingStore
from hypothesis import given, settings
from hypothesis import strategies as st
from jobs import STATE, assert_step, save_all
from layouts import layouts, tensors
from threads import ThreadGroup, on_ranks

from holdfast.checkpoint.commit.fence import claim
from holdfast.checkpoint.format.arrays import HeldShard
from holdfast.checkpoint.format.tiles import GlobalTensor, Layout
from holdfast.checkpoint.restore import exchange, routes
from holdfast.checkpoint.restore.reading import ByteSpan, Delivery, read_plan
from holdfast.checkpoint.restore.restore import Restored, restore
from holdfast.checkpoint.restore.routes import PIECE_BYTES, Route, arranged, line_of, route, route_time, tree_time
from holdfast.plan.moves.strategies import Message, Strategy, messages
from holdfast.plan.moves.units import Unit
from holdfast.plan.tiles import TensorShard

SMALL = 8
"""Bytes of a piece, so that small tensors are cut."""


def sent(way: Route) -> list[tuple[int, int, int, int]]:
    """Every message of a route: source, target, first byte and end."""
    return [(one, target, *piece) for piece in way.pieces for one in way.line for target in way.targets(one)]


@given(st.permutations(range(9)), st.integers(1, 9), st.integers(0, 40 * SMALL))
@settings(deadline=None)
def test_every_worker_of_a_line_gets_every_byte_once_from_one_that_has_it(
    order: list[int], size: int, num_bytes: int
) -> None:
    line = order[:size]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(routes, "PIECE_BYTES", SMALL)
        way = route(line, num_bytes)
        assert sum(stop - start for start, stop in way.pieces) == num_bytes
        got: dict[int, Counter[int]] = {worker: Counter() for worker in line}
        got[line[0]].update(range(num_bytes))
        for source, target, start, stop in sent(way):
            assert way.source(target) == source
            assert all(got[source][at] for at in range(start, stop)), "sends what it does not have"
            got[target].update(range(start, stop))
        assert all(got[worker] == Counter(range(num_bytes)) for worker in line)
        assert all(count == 1 for worker in line for count in got[worker].values())


@given(st.integers(2, 9), st.integers(4 * SMALL, 90 * SMALL))
@settings(deadline=None)
def test_a_chain_is_the_planners_ring(size: int, num_bytes: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(routes, "PIECE_BYTES", SMALL)
        way = route(range(size), num_bytes)
        if way.is_chain:
            unit = Unit("part", TensorShard((0,), (num_bytes,)), 1, (0,), tuple(range(1, size)))
            ring = messages(unit, 0, Strategy.RING, num_bytes // SMALL, range(size))
            assert sent(way) == [_plain(message) for message in ring]


def _plain(message: Message) -> tuple[int, int, int, int]:
    return message.source, message.target, message.start, message.stop


def test_the_faster_way_is_taken() -> None:
    """K pieces over A hosts: 1 + (A - 1) / K in a chain; a binary tree counted by hand."""
    assert [tree_time(receivers) for receivers in (0, 1, 2, 3, 4, 5, 6, 7, 14)] == [0, 1, 2, 2, 3, 3, 4, 4, 6]
    long = 16 * PIECE_BYTES
    for receivers in (2, 4, 7, 14):
        assert route(range(receivers + 1), long).is_chain
        assert route_time(receivers, long) == pytest.approx(long * (1 + (receivers - 1) / 16))
    assert len(route(range(5), long).pieces) == 16
    # Too short to be cut, or too many hosts for so few pieces.
    for receivers, num_bytes in ((7, PIECE_BYTES), (7, 100), (200, 2 * PIECE_BYTES)):
        assert not route(range(receivers + 1), num_bytes).is_chain
        assert route_time(receivers, num_bytes) == num_bytes * tree_time(receivers)
    # One receiver: one message, as pieces would only cost.
    assert route((3, 8), long).pieces == ((0, long),)


def test_a_line_has_one_worker_of_each_host_and_begins_behind_its_reader() -> None:
    hosts = ["a", "a", "b", "b", "c", "d"]
    assert line_of(0, (0, 1, 2, 3, 4, 5), hosts) == [0, 2, 4, 5]
    assert line_of(3, (5, 4, 2, 1, 0), hosts) == [3, 4, 5, 0]
    assert line_of(5, (1, 3), hosts) == [5, 1, 3]
    assert line_of(1, (0,), hosts) == [1]
    assert line_of(2, (0, 1, 3), ()) == [2, 3, 0, 1]


T = GlobalTensor("t", (64,), "U8")


def span(reader: int, *targets: int, num_bytes: int = 8) -> ByteSpan:
    shard = TensorShard((0,), (num_bytes,))
    return ByteSpan(0, 0, num_bytes, reader, (Delivery(T, shard, T.shard, 0, targets),))


def over(plan: Sequence[ByteSpan]) -> float:
    """When the last message is there: each worker is its own host, and does one span at a time, in order."""
    free: dict[int, float] = {}
    for one in plan:
        hosts = {one.reader, *(target for d in one.deliveries for target in d.targets)}
        end = max(free.get(host, 0.0) for host in hosts) + one.stop - one.start
        free.update(dict.fromkeys(hosts, end))
    return max(free.values())


def test_hosts_that_would_wait_for_one_another_work_side_by_side() -> None:
    ring = [span(reader, (reader + 1) % 4) for reader in range(4)]
    found = arranged(ring * 3, ("a", "b", "c", "d"))
    assert over(ring) == 4 * 8  # each waits for the one before it
    assert over(found[:4]) == 2 * 8
    assert [sorted(one.reader for one in found[at : at + 4]) for at in (0, 4, 8)] == [[0, 1, 2, 3]] * 3


@given(st.data())
@settings(deadline=None)
def test_any_order_keeps_every_span_and_every_readers_order(data: st.DataObject) -> None:
    world = data.draw(st.integers(1, 6))
    workers = st.integers(0, world - 1)
    drawn = st.tuples(workers, st.lists(workers, min_size=1, max_size=4, unique=True), st.integers(1, 64))
    plan = [span(reader, *sorted(to), num_bytes=size) for reader, to, size in data.draw(st.lists(drawn, max_size=20))]
    hosts = data.draw(
        st.sampled_from(([], [f"h{rank}" for rank in range(world)], [f"h{r // 2}" for r in range(world)]))
    )
    found = arranged(plan, hosts)
    assert Counter(map(id, found)) == Counter(map(id, plan))
    done: Counter[int] = Counter()
    for one in found:
        done[one.reader] += 1
        # Nobody reads its next one before all read this one, or have no more.
        left = Counter(p.reader for p in plan)
        assert all(done[reader] >= min(done[one.reader] - 1, left[reader]) for reader in left)
    for reader in range(world):
        assert [p for p in found if p.reader == reader] == [p for p in plan if p.reader == reader]


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_each_element_reaches_each_holder_once_and_none_is_read_twice(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    of = data.draw(tensors())
    before, after = data.draw(layouts(of)), data.draw(layouts(of))
    hosts = [data.draw(st.sampled_from("abc")) for _ in after.held]
    store = CountingStore(tmp_path_factory.mktemp("any"))
    assert all(saved.ok for saved in save_all(store, claim(store, "job", 0), 7, before))
    written: Counter[tuple[int, int]] = Counter()
    put = exchange._put

    def counted(delivery: Delivery, array: Any, places: Mapping[str, Sequence[HeldShard]]) -> None:
        for place in places[delivery.tensor.name]:
            both = place.shard.meet(delivery.shard)
            if both is not None:
                step = place.part(both)
                first = step.__array_interface__["data"][0]
                offsets = sum(
                    (np.arange(n).reshape([-1 if d == axis else 1 for d in range(step.ndim)]) * step.strides[axis]
                     for axis, n in enumerate(step.shape)),
                    np.zeros((1,) * step.ndim, int),
                )  # fmt: skip
                written.update((id(place), int(first + at)) for at in np.ravel(offsets))
        put(delivery, array, places)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(routes, "PIECE_BYTES", SMALL)
        patch.setattr(exchange, "_put", counted)

        def work(group: ThreadGroup) -> Restored | None:
            return restore(store, group, layout=after, state=STATE, warn=print)

        found = on_ranks(len(after.held), work, hosts)
    assert_step(found, 7, after)
    assert set(written.values()) <= {1}, "an element came twice"
    assert sum(written.values()) == sum(s.count for held in after.held for shards in held.values() for s in shards)
    assert sum(one.bytes_read for one in found if one) == store.given
    # Files are smaller than a chunk here, so each that has anything that is wanted is read whole, once.
    assert store.given <= store.written
    assert sum(one.bytes_sent for one in found if one) == crossed(after, hosts, found)


def crossed(layout: Layout, hosts: Sequence[str], found: Sequence[Restored | None]) -> int:
    """Bytes that have to cross: each element into each host that wants it and has not read it, counted one by one."""
    manifest = next(one.manifest for one in found if one)
    readers = {part: plan.reader for plan in read_plan(manifest, layout) for part in [manifest.parts[plan.part].file]}
    at: dict[tuple[str, tuple[int, ...]], str] = {}
    for part in manifest.parts:
        for entry in part.entries:
            if part.file in readers:
                for index in np.ndindex(*entry.shard.size):
                    key = (entry.tensor, tuple(o + i for o, i in zip(entry.shard.offset, index, strict=True)))
                    at.setdefault(key, hosts[readers[part.file]])
    total = 0
    for host in set(hosts):
        wanted = {
            (name, tuple(o + i for o, i in zip(shard.offset, index, strict=True)))
            for rank, held in enumerate(layout.held)
            if hosts[rank] == host
            for name, shards in held.items()
            for shard in shards
            for index in np.ndindex(*shard.size)
        }
        total += sum(layout.tensors[name].item_bytes for name, index in wanted if at[name, index] != host)
    return total


def test_hosts_that_all_want_the_same_send_evenly() -> None:
    """Four readers of a message each, for four hosts: each host sends three times its own, and none is a bottleneck."""
    sends: Counter[int] = Counter()
    for reader in range(4):
        for source, _, start, stop in sent(route(line_of(reader, (0, 1, 2, 3), "abcd"), 8 << 20)):
            sends[source] += stop - start
    assert set(sends.values()) == {3 * (8 << 20)}
