"""The sampler's sums equal what the counters did, whatever happens between."""

import os
import time
from array import array
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.agent.collectors.nic import BytePair, choose
from holdfast.agent.sampling import sampler as sampler_module
from holdfast.agent.sampling.growth import UINT32_MAX
from holdfast.agent.sampling.sampler import Sampler
from tests.agent.support.loops import LOOPS
from tests.agent.support.sysfs import Sysfs, put


class Clock:
    def __init__(self) -> None:
        self.ns = 5_000_000_000

    def __call__(self) -> int:
        return self.ns

    @property
    def seconds(self) -> float:
        return self.ns / 1e9

    def tick(self, ms: float = 1.0) -> None:
        self.ns += round(ms * 1e6)


def numbers(data: bytes) -> list[int]:
    return list(array("I", data))


def pair(folder: Path, name: str = "eth0") -> BytePair:
    return BytePair(name, "ethernet", f"{folder}/tx_bytes", f"{folder}/rx_bytes")


def build(pairs: tuple[BytePair, ...], clock: Clock, **more: float) -> tuple[Sampler, list[str]]:
    notices: list[str] = []
    sampler = Sampler(pairs, notice=notices.append, clock_ns=clock, wall_ns=lambda: clock.ns + 10**18, **more)
    return sampler, notices


def test_deltas_offsets_totals_and_a_second_frame(tmp_path: Path) -> None:
    folder, clock = Sysfs(tmp_path).net("eth0"), Clock()
    put(folder / "tx_bytes", 1000)
    sampler, _ = build((pair(folder),), clock)
    for value in (1000, 1500, 1700):
        clock.tick()
        put(folder / "tx_bytes", value)
        sampler.sample()
    offsets, (nic,), wall_ns, mono_ns = sampler.take(clock.seconds)
    assert numbers(offsets) == [1000, 2000, 3000]
    assert numbers(nic.tx) == [0, 500, 200]
    assert numbers(nic.rx) == [0, 0, 0]
    assert (nic.tx_total, nic.rx_total) == (1700, 0)
    assert (wall_ns - 10**18, mono_ns) == (5_000_000_000, 5_000_000_000)
    clock.tick(2.5)
    put(folder / "rx_bytes", 9)
    sampler.sample()
    offsets, (nic,), wall_ns, mono_ns = sampler.take(clock.seconds)
    assert (numbers(offsets), numbers(nic.tx), numbers(nic.rx)) == ([2500], [0], [9])
    assert mono_ns == 5_003_000_000
    sampler.close()


def test_rdma_words_become_bytes_and_large_deltas_saturate(tmp_path: Path) -> None:
    port, clock = Sysfs(tmp_path).rdma("mlx5_0"), Clock()
    sampler, _ = build(choose(str(tmp_path)), clock)
    put(port / "counters/port_xmit_data", 100)
    put(port / "counters/port_rcv_data", 2**31)
    sampler.sample()
    _, (nic,), _, _ = sampler.take(clock.seconds)
    assert (nic.name, numbers(nic.tx), numbers(nic.rx)) == ("mlx5_0", [400], [UINT32_MAX])
    assert (nic.tx_total, nic.rx_total) == (400, 2**33)
    sampler.close()


def test_a_nic_that_vanishes_is_dropped_said_once_and_taken_up_again(tmp_path: Path) -> None:
    sysfs, clock = Sysfs(tmp_path), Clock()
    stays, goes = sysfs.net("eth0"), sysfs.net("eth1")
    sampler, notices = build((pair(stays), pair(goes, "eth1")), clock)
    put(goes / "tx_bytes", 50)
    sampler.sample()
    (goes / "tx_bytes").write_text("")  # what an unplugged device reads like
    (goes / "tx_bytes").unlink()
    for _ in range(3):
        clock.tick(600)
        put(stays / "tx_bytes", 7)
        sampler.sample()
    _, nics, _, _ = sampler.take(clock.seconds)
    assert [numbers(n.tx) for n in nics] == [[0, 7, 0], [50, 0, 0]]  # the sweep that failed is no sample
    sampler.sample()
    _, nics, _, _ = sampler.take(clock.seconds)
    assert [n.name for n in nics] == ["eth0"]
    put(goes / "tx_bytes", 1_000_000)
    clock.tick(1100)
    sampler.sample()
    clock.tick()
    put(goes / "tx_bytes", 1_000_005)
    sampler.sample()
    _, nics, _, _ = sampler.take(clock.seconds)
    assert [numbers(n.tx) for n in nics] == [[0, 0], [0, 5]]
    assert notices == [
        "counters of eth1 cannot be read: [Errno 19] No such device",
        "counters of eth1 are readable again",
    ]
    sampler.close()


def test_a_counter_that_is_not_a_number_is_refused_for_good(tmp_path: Path) -> None:
    port, clock = Sysfs(tmp_path).rdma("mlx5_0"), Clock()
    put(port / "counters/port_xmit_data", "N/A (no PMA)")
    sampler, notices = build(choose(str(tmp_path), ["mlx5_0"]), clock)
    put(port / "counters/port_xmit_data", 1)
    for _ in range(3):
        clock.tick(2000)
        sampler.sample()
    assert sampler.take(clock.seconds)[1] == ()
    assert len(notices) == 1
    assert "N/A (no PMA)" in notices[0]
    sampler.close()


def test_text_that_is_not_a_number_is_no_sample_and_then_refused(tmp_path: Path) -> None:
    sysfs, clock = Sysfs(tmp_path), Clock()
    stays, breaks = sysfs.net("eth0"), sysfs.net("eth1")
    sampler, notices = build((pair(stays), pair(breaks, "eth1")), clock)
    for value in ("5", "N/A", "9"):
        clock.tick()
        put(stays / "tx_bytes", 1)
        put(breaks / "tx_bytes", value)
        sampler.sample()
    offsets, nics, _, _ = sampler.take(clock.seconds)
    assert numbers(offsets) == [1000, 3000]
    assert [numbers(n.tx) for n in nics] == [[1, 0], [5, 0]]
    sampler.sample()
    assert [n.name for n in sampler.take(clock.seconds)[1]] == ["eth0"]
    assert len(notices) == 1
    sampler.close()


def test_a_frame_that_is_not_taken_keeps_its_sum(tmp_path: Path) -> None:
    folder, clock = Sysfs(tmp_path).net("eth0"), Clock()
    sampler, _ = build((pair(folder),), clock, interval=0.001, max_frame=0.02)
    for value in range(1, 101):
        clock.tick()
        put(folder / "tx_bytes", value)
        sampler.sample()
    offsets, (nic,), _, _ = sampler.take(clock.seconds)
    assert len(numbers(nic.tx)) == 20
    assert sum(numbers(nic.tx)) == 100
    assert numbers(offsets)[-1] == 100_000
    sampler.close()


def test_slow_counters_stretch_the_interval(tmp_path: Path) -> None:
    folder, clock = Sysfs(tmp_path).net("eth0"), Clock()
    ticks, notices = iter(range(10**9)), list[str]()

    def slow() -> int:  # every look at the clock is 1 ms later: a sweep takes 1 ms
        return clock.ns + next(ticks) * 1_000_000

    sampler = Sampler((pair(folder),), notice=notices.append, clock_ns=slow)
    for _ in range(300):
        sampler.sample()
    sampler.take(clock.seconds)
    assert sampler.interval == pytest.approx(0.004)
    assert notices == ["NIC counters answer slowly: sampling every 4.0 ms from now on"]
    sampler.close()


@pytest.mark.parametrize("compiled", LOOPS)
def test_the_thread_samples_on_a_grid_and_loses_nothing(tmp_path: Path, compiled: bool) -> None:
    folder = Sysfs(tmp_path).net("eth0")
    counter = os.open(folder / "tx_bytes", os.O_WRONLY)
    sampler = Sampler((pair(folder),), interval=0.001, compiled=compiled)
    sampler.start()
    sent = received = samples = 0
    deadline = time.monotonic() + 30
    while (samples < 100 or received < sent) and time.monotonic() < deadline:
        if samples < 100:
            sent += 10
            os.pwrite(counter, b"%08d" % sent, 0)  # one write of one word, as the kernel: never half a number
        for nic in sampler.take(time.monotonic())[1]:
            received += sum(numbers(nic.tx))
            samples += len(numbers(nic.tx))
        time.sleep(0.0002)
    sampler.close()
    sampler.close()
    os.close(counter)
    assert samples >= 100
    assert received == sent


@pytest.mark.parametrize("compiled", LOOPS)
def test_the_thread_goes_on_without_what_breaks_and_takes_it_up_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiled: bool
) -> None:
    monkeypatch.setattr(sampler_module, "REOPEN_AFTER", 0.02)
    sysfs, notices = Sysfs(tmp_path), list[str]()
    stays, goes, breaks = (sysfs.net(name) for name in ("eth0", "eth1", "eth2"))
    pairs = (pair(stays), pair(goes, "eth1"), pair(breaks, "eth2"))
    sampler = Sampler(pairs, interval=0.001, notice=notices.append, compiled=compiled)
    sampler.start()

    def sampled(names: set[str]) -> bool:
        """Whether a frame comes that holds samples of these and no others."""
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            time.sleep(0.005)
            offsets, nics, _, _ = sampler.take(time.monotonic())
            if offsets and {nic.name for nic in nics} == names:
                return True
        return False

    try:
        assert sampled({"eth0", "eth1", "eth2"})
        put(breaks / "rx_bytes", "N/A")
        assert sampled({"eth0", "eth1"})
        (goes / "tx_bytes").write_text("")
        (goes / "tx_bytes").unlink()
        assert sampled({"eth0"})
        put(goes / "tx_bytes", 5)
        assert sampled({"eth0", "eth1"})
    finally:
        sampler.close()
    assert [notice.split(" cannot")[0] for notice in notices] == [
        "counters of eth2", "counters of eth1", "counters of eth1 are readable again"
    ]  # fmt: skip


def test_nothing_to_sample_is_no_thread() -> None:
    sampler = Sampler(())
    sampler.start()
    assert sampler.take(time.monotonic())[:2] == (b"", ())
    sampler.close()


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=40), st.sets(st.integers(0, 40)))
def test_any_frame_boundaries_keep_the_sum(
    tmp_path_factory: pytest.TempPathFactory, steps: list[int], cuts: set[int]
) -> None:
    folder, clock = Sysfs(tmp_path_factory.mktemp("sys")).net("eth0"), Clock()
    sampler, _ = build((pair(folder),), clock)
    total = got = 0
    for at, step in enumerate(steps):
        total += step
        clock.tick()
        put(folder / "rx_bytes", total)
        sampler.sample()
        if at in cuts:
            got += sum(numbers(sampler.take(clock.seconds)[1][0].rx))
    got += sum(numbers(sampler.take(clock.seconds)[1][0].rx))
    sampler.close()
    assert got == total


@settings(deadline=None, max_examples=50)
@given(st.lists(st.sampled_from(["count", "sample", "take", "go", "return"]), max_size=120))
def test_what_is_counted_while_a_nic_is_away_is_in_no_sum(
    tmp_path_factory: pytest.TempPathFactory, moves: list[str]
) -> None:
    """Whatever is taken when: sums are those of the sweeps. Of a NIC that left, samples too old to keep are lost."""
    sysfs, clock = Sysfs(tmp_path_factory.mktemp("sys")), Clock()
    stays, goes = sysfs.net("eth0"), sysfs.net("eth1")
    sampler, _ = build((pair(stays), pair(goes, "eth1")), clock, interval=0.001, max_frame=0.016)
    got, expected, value, seen = [0, 0], [0, 0], [0, 0], [0, 0]
    away = [False, False]
    kept = 0  # sweeps since the last `take`
    exact = True
    for move in [*moves, "sample", "take"]:
        swept = move == "sample" or (move == "return" and away[1])
        match move:
            case "count":
                value = [value[0] + 3, value[1] + 5]
                put(stays / "tx_bytes", value[0])
                if not away[1]:
                    put(goes / "tx_bytes", value[1])
            case "go" if not away[1]:
                (goes / "tx_bytes").write_text("")
                (goes / "tx_bytes").unlink()
                away[1] = True
                sampler.sample()  # finds out
            case "return" if away[1]:
                value[1] = seen[1] = value[1] + 10**6
                put(goes / "tx_bytes", value[1])
                clock.tick(1100)
                away[1] = False
                exact = exact and kept < 16
                sampler.sample()  # takes it up, and counts from here
            case "sample":
                clock.tick()
                sampler.sample()
            case "take":
                for nic in sampler.take(clock.seconds)[1]:
                    got[nic.name == "eth1"] += sum(numbers(nic.tx))
        if swept:
            kept += 1
            exact = exact and (kept <= 16 or not away[1])
            for nic in (0, 1):
                if not away[nic]:
                    expected[nic] += value[nic] - seen[nic]
                    seen[nic] = value[nic]
        elif move == "take":
            kept = 0
    sampler.close()
    assert got[0] == expected[0]
    assert got[1] == expected[1] if exact else got[1] <= expected[1]
