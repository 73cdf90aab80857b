"""Fault injection through a worker's probe: what the process does, and what its agent sees."""

import signal
import time
from pathlib import Path

import pytest

from holdfast.agent.probe_file import layout as probe_layout
from holdfast.agent.probe_file.reader import ProbeReader
from holdfast.base.errors import UsageError
from tests.agent.support.processes import STEPS_FOR_EVER, probed, until


def test_a_holder_of_the_gil_stops_ticking_and_its_peer_does_not(tmp_path: Path) -> None:
    with (
        probed(STEPS_FOR_EVER, tmp_path / "sick") as (_, sick),
        probed(STEPS_FOR_EVER, tmp_path / "well") as (_, well),
    ):
        sick.inject("gil")
        until(lambda: sick.sample(time.monotonic_ns()).tick_age > 0.6)
        until(lambda: well.sample(time.monotonic_ns()).tick_age < 0.4)
        assert not sick.sample(time.monotonic_ns()).stopped


def test_a_stopped_process_is_seen_as_stopped(tmp_path: Path) -> None:
    with probed(STEPS_FOR_EVER, tmp_path / "p") as (process, reader):
        process.send_signal(signal.SIGSTOP)
        until(lambda: reader.sample(time.monotonic_ns()).stopped)
        until(lambda: reader.sample(time.monotonic_ns()).tick_age > 0.3)
        process.send_signal(signal.SIGCONT)
        until(lambda: not reader.sample(time.monotonic_ns()).stopped)
        until(lambda: reader.sample(time.monotonic_ns()).tick_age < 0.3)


@pytest.mark.parametrize(
    ("kind", "code"),
    [("exception", 1), ("segfault", -signal.SIGSEGV), ("exit", 7)],
)
def test_injected_ends(kind: str, code: int, tmp_path: Path) -> None:
    with probed(STEPS_FOR_EVER, tmp_path / "p") as (process, reader):
        reader.inject(kind)
        assert process.wait(60) == code
        assert process.stderr
        if kind == "exception":
            last = reader.new_steps()[-1].step
            assert f"RuntimeError: injected exception at step {last}" in process.stderr.read()


def test_slowed_work_takes_that_much_longer_until_set_otherwise(tmp_path: Path) -> None:
    code = """
import time
for n in range(4):
    print("ready", flush=True); input()
    time.sleep(0.05)
    probe.step(n)
    with probe.span("forward", cpu=True):
        sum(range(2_000_000))
    with probe.span("load"):
        pass
print("done", flush=True); input()
"""
    with probed(code, tmp_path / "p") as (process, reader):
        assert process.stdout
        assert process.stdin
        for fault in ("", "slow/forward+900", "slow/forward+0", "slow/load+100"):
            assert process.stdout.readline() == "ready\n"
            if fault:
                reader.inject(fault)
            process.stdin.write("\n")
            process.stdin.flush()
        assert process.stdout.readline() == "done\n"
        spans = reader.new_spans()
        forward = [span.cpu_ns for span in spans if span.kind == "forward"]
        load = [span.end_ns - span.start_ns for span in spans if span.kind == "load"]
        # Ten times as long. What shares the core's caches changes the time of the same work, too, by up to a half.
        assert forward[1] > 5 * max(forward[0], *forward[2:])
        assert load[3] >= 45_000_000, "a step, of which 50 ms were slept"


def test_an_injected_hang_keeps_ticking(tmp_path: Path) -> None:
    with probed(STEPS_FOR_EVER, tmp_path / "p") as (_, reader):
        reader.inject("hang")
        until(lambda: reader.sample(time.monotonic_ns()).progress_age > 0.5)
        until(lambda: reader.sample(time.monotonic_ns()).tick_age < 0.4)


@pytest.mark.parametrize(("place", "operation"), [("tp", "tp:all_reduce"), ("before-tp", "one"), ("after-tp", "two")])
def test_a_fault_waits_for_its_operation(tmp_path: Path, place: str, operation: str) -> None:
    code = """
for n in range(10**9):
    for name in ("dp:reduce", "one", "tp:all_reduce", "two"):
        probe.operation(name)
    probe.step(n)
"""
    with probed(code, tmp_path / "p") as (_, reader):
        reader.inject(f"hang/{place}")

        def is_there() -> bool:
            sample = reader.sample(time.monotonic_ns())
            return sample.still_age > 0.5 and sample.operation == operation

        until(is_there)
        until(lambda: reader.sample(time.monotonic_ns()).tick_age < 0.4)


def test_nan_poisons_exactly_once(tmp_path: Path) -> None:
    code = """
for n in range(10**9):
    probe.step(n)
    if probe.poisoned():
        print(probe.poisoned(), flush=True)
        break
"""
    with probed(code, tmp_path / "p") as (process, reader):
        reader.inject("nan")
        assert process.communicate(timeout=60)[0] == "False\n"


def test_an_unknown_fault_names_the_known_ones(tmp_path: Path) -> None:
    probe_layout.create(str(tmp_path / "p"), 0, 0, 1)
    reader = ProbeReader(str(tmp_path / "p"))
    with pytest.raises(UsageError, match="unknown fault 'meteor': a worker knows exception, segfault"):
        reader.inject("meteor")
    reader.close()
