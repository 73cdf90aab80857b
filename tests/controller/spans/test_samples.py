"""Millisecond samples within a budget: each node has its share, the newest stay."""

import sys

import numpy as np
import pytest

from holdfast.controller.spans.samples import Samples
from holdfast.wire import types as t

SECOND = 1_000_000_000


def frame(wall_ns: int, count: int = 100, nics: tuple[str, ...] = ("eth0",)) -> t.Frame:
    offsets = (np.arange(count, dtype="<u4") * 1000).tobytes()
    column = np.arange(count, dtype="<u4").tobytes()
    samples = tuple(t.NicSamples(name, 0, 0, column, column) for name in nics)
    return t.Frame(1, wall_ns, wall_ns, offsets=offsets, nics=samples)


def test_what_goes_in_comes_out() -> None:
    samples = Samples(1 << 20)
    for tenth in range(10):
        samples.add("node0", frame(5 * SECOND + tenth * SECOND // 10))
    [nic] = samples.read("node0", 60)
    assert (nic["name"], nic["t0"]) == ("eth0", 5000.0)
    assert nic["t"] == [float(ms) for ms in range(1000)]
    assert nic["tx"] == nic["rx"] == list(range(100)) * 10


def test_only_the_last_seconds_are_read() -> None:
    samples = Samples(1 << 20)
    for tenth in range(40):
        samples.add("node0", frame(tenth * SECOND // 10))
    [nic] = samples.read("node0", 1)
    assert nic["t0"] == 2900.0
    assert len(nic["t"]) == 1100  # the newest frame and those that began in the second before it


def test_nothing_known_is_nothing_read() -> None:
    samples = Samples(1 << 20)
    assert samples.read("ghost", 5) == []
    samples.add("node0", t.Frame(1, 1, 1))
    assert samples.read("node0", 5) == []


def test_older_than_a_minute_goes() -> None:
    samples = Samples(1 << 30)
    for second in range(200):
        samples.add("node0", frame(second * SECOND, count=10))
    [nic] = samples.read("node0", 1000)
    assert nic["t0"] == 139_000.0


def test_a_nic_that_comes_and_goes() -> None:
    samples = Samples(1 << 20)
    samples.add("node0", frame(1 * SECOND, nics=("eth0", "gone")))
    samples.add("node0", frame(2 * SECOND, nics=("eth0", "new")))
    found = {nic["name"]: len(nic["t"]) for nic in samples.read("node0", 60)}
    assert found == {"eth0": 200, "new": 100}


@pytest.mark.parametrize("nodes", [1, 8, 64])
def test_the_budget_is_kept_however_many_nodes_share_it(nodes: int) -> None:
    budget = 1 << 20
    samples = Samples(budget)
    for tenth in range(300):
        for node in range(nodes):
            samples.add(f"node{node}", frame(tenth * SECOND // 10))
    # Another look than its own book-keeping: the columns that are really there.
    held = sum(
        sum(map(sys.getsizeof, (f.offsets, *(c for nic in f.nics for c in (nic.tx, nic.rx)))))
        for ring in samples._rings.values()
        for f in ring.frames
    )
    assert held <= budget
    # And it is used: no rank starves.
    kept = [len(samples.read(f"node{node}", 60)[0]["t"]) for node in range(nodes)]
    assert min(kept) >= min(30_000, budget // nodes // 25)


def test_nodes_that_join_later_take_from_those_that_were_there() -> None:
    samples = Samples(200_000)
    for tenth in range(100):
        samples.add("node0", frame(tenth * SECOND // 10))
    alone = len(samples.read("node0", 60)[0]["t"])
    for tenth in range(100, 110):
        for node in range(4):
            samples.add(f"node{node}", frame(tenth * SECOND // 10))
    assert len(samples.read("node0", 60)[0]["t"]) < alone / 2
