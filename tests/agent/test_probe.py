"""The probe in one process, the reader in another."""

import math
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from holdfast.agent import probe
from holdfast.agent.probe_file import layout as probe_layout
from holdfast.agent.probe_file.reader import ProbeReader
from holdfast.base.errors import ProtocolError, Unavailable
from holdfast.wire.types import Meters, Phase
from tests.agent.support.processes import ROOT, STEPS_FOR_EVER, probed, python, until


def test_without_the_variable_every_call_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(probe_layout.ENV_PATH, raising=False)
    assert not probe.attach()
    probe.step(1, loss=2.0, tokens=3)
    probe.phase("train")
    probe.mesh(pp=1, sizes=(2, 1, 1))
    with probe.operation("all_reduce"), probe.span("forward", micro_batch=1):
        pass
    assert not probe.poisoned()


def test_an_unknown_phase_is_an_error_even_unwatched() -> None:
    with pytest.raises(ValueError, match="unknown phase 'trian': one of start, setup"):
        probe.phase("trian")


def test_a_process_that_cannot_be_watched_runs_on(tmp_path: Path) -> None:
    bad = tmp_path / "probe"
    bad.write_bytes(b"not a probe")
    done = subprocess.run(
        [sys.executable, "-c", "from holdfast.agent import probe; print(probe.attach()); probe.step(1)"],
        cwd=ROOT,
        env={**os.environ, probe_layout.ENV_PATH: str(bad)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (0, "False\n")
    assert done.stderr.startswith("holdfast: this process is not watched: ")
    assert done.stderr.count("\n") == 1


def test_state_as_the_agent_sees_it(tmp_path: Path) -> None:
    code = """
probe.mesh(pp=1, dp=2, tp=3, sizes=(2, 4, 8))
probe.phase("train")
probe.step(0, loss=2.5, tokens=100)
probe.meters(0.5, 1000.0, [0.1, 0.2, 0.3, 0.4, 0.5], 1 << 40, 1.5)
probe.step(1, loss=2.25, tokens=100)
with probe.operation("all_reduce"):
    with probe.span("forward", stage=2, micro_batch=7, num_bytes=9):
        pass
    with probe.operation("x" * 80):
        print("inner", flush=True); input()
    print("outer", flush=True); input()
print("none", flush=True); input()
"""
    with probed(code, tmp_path / "p", RANK="5", HOLDFAST_GENERATION="3") as (process, reader):
        assert process.stdout
        assert process.stdin
        assert process.stdout.readline() == "inner\n"
        sample = reader.sample(time.monotonic_ns())
        assert (sample.rank, sample.generation, sample.pid) == (5, 3, process.pid)
        assert (sample.step, sample.phase, sample.loss, sample.tokens) == (1, Phase.TRAIN, 2.25, 200)
        assert (sample.coordinate, sample.sizes) == ((1, 2, 3), (2, 4, 8))
        assert sample.meters == Meters(0.5, 1000.0, (0.1, 0.2, 0.3, 0.4, 0.5), 1 << 40, 1.5)
        assert sample.operation == "x" * probe_layout.OPERATION_NAME
        assert 0 <= sample.operation_age < 5
        assert 0 <= sample.progress_age < 5
        assert not sample.stopped
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "outer\n"
        later = reader.sample(time.monotonic_ns())
        assert (later.operation, later.meters) == ("all_reduce", None)  # no step since
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "none\n"
        sample = reader.sample(time.monotonic_ns())
        assert sample.operation == ""
        assert math.isnan(sample.operation_age)
        steps = reader.new_steps()
        assert [(s.rank, s.generation, s.step, s.loss, s.tokens) for s in steps] == [
            (5, 3, 0, 2.5, 100),
            (5, 3, 1, 2.25, 100),
        ]
        assert abs(steps[-1].end_wall_ns - time.time_ns()) < 60e9
        assert reader.new_steps() == []
        (span,) = reader.new_spans()
        assert (span.kind, span.stage, span.micro_batch, span.turn, span.step) == ("forward", 2, 7, 0, 2)
        assert (span.num_bytes, span.start_ns <= span.end_ns) == (9, True)
        assert (span.group, span.seq, span.cpu_ns) == ("", -1, 0)
        assert reader.new_spans() == []


def test_a_request_is_heard_once(tmp_path: Path) -> None:
    code = """
print(probe.requested(), flush=True); input()
print(probe.requested(), probe.requested(), flush=True)
"""
    with probed(code, tmp_path / "p") as (process, reader):
        assert process.stdout
        assert process.stdin
        assert process.stdout.readline() == "False\n"
        reader.request_checkpoint()
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "True False\n"


def test_a_span_says_its_peers_and_how_long_it_computed(tmp_path: Path) -> None:
    code = """
with probe.span("forward", 0, 1, cpu=True):
    sum(range(1_000_000))
probe.record("tp:all_reduce", 5, 9, group="tp", seq=12, step=3, cpu_ns=1500)
print("done", flush=True); input()
"""
    with probed(code, tmp_path / "p") as (process, reader):
        assert process.stdout
        assert process.stdout.readline() == "done\n"
        timed, reported = reader.new_spans()
        assert 0 < timed.cpu_ns <= timed.end_ns - timed.start_ns + 1_000_000
        assert reported == ("tp:all_reduce", -1, -1, 0, 3, 5, 9, 0, "tp", 12, 1500)


def test_spans_that_were_overwritten_are_counted(tmp_path: Path) -> None:
    code = f"""
for n in range({probe_layout.SPANS} * 2):
    with probe.span("forward", micro_batch=n):
        pass
print("done", flush=True); input()
"""
    with probed(code, tmp_path / "p") as (process, reader):
        assert process.stdout
        assert process.stdout.readline() == "done\n"
        found = reader.new_spans()
        assert [span.micro_batch for span in found] == list(
            range(probe_layout.SPANS * 2 - len(found), probe_layout.SPANS * 2)
        )
        assert len(found) + reader.lost_spans == probe_layout.SPANS * 2


def test_seconds_run_from_the_last_step_or_the_start_of_training(tmp_path: Path) -> None:
    code = """
import time
time.sleep(0.2)
start = time.monotonic()
probe.phase("train")
probe.step(0)
middle = time.monotonic()
time.sleep(0.05)
probe.step(1)
print(middle - start, time.monotonic() - start)
"""
    with probed(code, tmp_path / "p") as (process, reader):
        out, _ = process.communicate(timeout=60)
        until_first, in_all = map(float, out.split())
        first, second = reader.new_steps()
        assert first.seconds <= until_first
        assert 0.05 <= second.seconds <= in_all


def test_no_step_is_lost_while_one_writer_races_one_reader(tmp_path: Path) -> None:
    # Each step's loss and tokens follow from its number, so a torn or mixed record cannot pass for a good one.
    # The writer may be up to 2,000 steps ahead, which the ring holds, however slow this machine lets the reader be.
    total, chunk = 25_000, 1000
    code = f"""
for n in range({total}):
    if n % {chunk} == 0:
        input()
    with probe.operation("ab"[n % 2] * 40):
        probe.step(n, loss=n * 0.5, tokens=n)
"""
    with probed(code, tmp_path / "p") as (process, reader):
        assert process.stdin
        seen = allowed = 0
        deadline = time.monotonic() + 60
        while seen < total:
            assert time.monotonic() < deadline
            while allowed < min(seen + 2 * chunk, total) // chunk:
                process.stdin.write("\n")
                process.stdin.flush()
                allowed += 1
            for record in reader.new_steps():
                assert (record.step, record.loss, record.tokens) == (seen, seen * 0.5, seen)
                seen += 1
            sample = reader.sample(time.monotonic_ns())
            assert sample.loss == sample.step * 0.5 or sample.step == -1
            assert sample.tokens == sample.step * (sample.step + 1) // 2
            assert sample.operation in ("", "a" * 40, "b" * 40)
        assert reader.lost == 0


def test_a_reader_that_was_away_too_long_says_how_much_it_lost(tmp_path: Path) -> None:
    with probed("for n in range(5000): probe.step(n)", tmp_path / "p") as (process, reader):
        process.wait(60)
        steps = [record.step for record in reader.new_steps()]
        assert steps[-1] == 4999
        assert steps == list(range(steps[0], 5000))
        assert reader.lost == steps[0]
        assert len(steps) > 1024


def test_the_median_follows_the_last_steps(tmp_path: Path) -> None:
    code = "import time\nfor n in range(40): time.sleep(0.02 if n >= 25 else 0.001); probe.step(n)"
    with probed(code, tmp_path / "p") as (process, reader):
        assert math.isnan(reader.sample(time.monotonic_ns()).median_step)
        process.wait(60)
        reader.new_steps()
        assert reader.sample(time.monotonic_ns()).median_step >= 0.02


def test_a_file_made_ahead_reads_as_not_started(tmp_path: Path) -> None:
    path = str(tmp_path / "p")
    probe_layout.create(path, 4, 2, time.monotonic_ns())
    reader = ProbeReader(path)
    sample = reader.sample(time.monotonic_ns())
    assert (sample.rank, sample.generation, sample.pid, sample.step, sample.phase) == (4, 2, 0, -1, Phase.START)
    assert reader.new_steps() == []
    reader.close()
    reader.close()


@pytest.mark.parametrize("damage", ["empty", "short", "foreign", "cut"])
def test_a_damaged_file_is_one_clear_line(damage: str, tmp_path: Path) -> None:
    path = tmp_path / "p"
    probe_layout.create(str(path), 0, 0, 1)
    good = path.read_bytes()
    path.write_bytes({"empty": b"", "short": good[:20], "foreign": b"x" * len(good), "cut": good[:5000]}[damage])
    with pytest.raises(ProtocolError, match=r"probe file") as caught:
        ProbeReader(str(path))
    assert "\n" not in str(caught.value)


def test_no_file_yet_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="cannot open the probe file"):
        ProbeReader(str(tmp_path / "nothing"))


def test_a_block_torn_for_ever_reads_as_its_last_good_value(tmp_path: Path) -> None:
    with probed("probe.step(7, loss=1.5)\ninput()", tmp_path / "p") as (process, reader):
        until(lambda: reader.sample(time.monotonic_ns()).step == 7)
        process.kill()
        process.wait(60)
        raw = bytearray((tmp_path / "p").read_bytes())
        raw[probe_layout.AT_STATE + 12] ^= 0xFF
        with open(tmp_path / "p", "r+b") as file:
            file.write(raw)
        assert reader.sample(time.monotonic_ns()).step == 7
        fresh = ProbeReader(str(tmp_path / "p"))
        assert fresh.sample(time.monotonic_ns()).step == -1
        assert [record.step for record in fresh.new_steps()] == [7]
        fresh.close()


def test_children_do_not_write_into_their_parents_file(tmp_path: Path) -> None:
    code = """
import os, subprocess, sys
probe.step(0)
if os.fork() == 0:
    probe.step(100)
    os._exit(0)
os.wait()
subprocess.run([sys.executable, "-c", "from holdfast.agent import probe; assert not probe.attach(); probe.step(200)"])
probe.step(1)
"""
    with probed(code, tmp_path / "p") as (process, reader):
        assert process.wait(60) == 0
        assert [record.step for record in reader.new_steps()] == [0, 1]


def test_a_new_process_takes_over_the_file_of_a_dead_one(tmp_path: Path) -> None:
    with probed("probe.step(0)", tmp_path / "p") as (process, reader):
        process.wait(60)
        with python(
            "from holdfast.agent import probe; assert probe.attach(); probe.step(1)",
            **{probe_layout.ENV_PATH: str(tmp_path / "p")},
        ) as second:
            assert second.wait(60) == 0
        assert [record.step for record in reader.new_steps()] == [0, 1]


def test_reading_costs_next_to_nothing(tmp_path: Path) -> None:
    with probed(STEPS_FOR_EVER, tmp_path / "p") as (_, reader):
        rounds, costs = 40, []
        for _ in range(10):
            start = time.thread_time()
            for _ in range(rounds):
                reader.sample(time.monotonic_ns())
                reader.new_steps()
            costs.append((time.thread_time() - start) / rounds)
        each = min(costs)  # what else runs makes it longer, never shorter
        # 8 workers, 10 samples a second each. benchmarks/agent_cost.py measures it; this is for what costs far more.
        assert 80 * each < 0.025
