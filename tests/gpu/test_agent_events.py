"""Events in a real GPU's stream, as the agent sees them; and the sums by which an unmodified script's NaN is found."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.agent.activity.gpu_use import GpuCounts
from holdfast.agent.probe_file.layout import ENV_PATH
from holdfast.agent.probe_file.reader import ProbeReader
from holdfast.base.errors import HoldfastError
from holdfast.wire.types import SPOILT
from tests.conftest import Until
from tests.gpu.conftest import Child, Start

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60)]

SCRIPTS = Path(__file__).parent / "scripts"
WATCHED = """
import runpy, sys
from holdfast.agent import probe
from holdfast.agent.hooks import torch_hooks
probe.attach()
torch_hooks.install_when_imported()
runpy.run_path(sys.argv[1], run_name="__main__")
"""


@contextmanager
def reading(path: Path, child: Child) -> Iterator[ProbeReader]:
    reader = None
    deadline = time.monotonic() + 40
    while reader is None or not reader.pid:
        assert child.process.poll() is None, child.output[-3000:]
        assert time.monotonic() < deadline, "no probe file"
        try:
            reader = reader or ProbeReader(str(path))
        except HoldfastError:
            time.sleep(0.02)
    try:
        yield reader
    finally:
        reader.close()


def counts(reader: ProbeReader) -> tuple[int, int]:
    reader.sample(time.monotonic_ns())
    return reader.events


def test_events_come_while_steps_go_and_stand_while_a_kernel_does_not_end(
    start: Start, until: Until, tmp_path: Path
) -> None:
    path = tmp_path / "probe"
    child = start(str(SCRIPTS / "timed_steps.py"), str(tmp_path), "steps", env={ENV_PATH: str(path)})
    child.says("ready")
    with reading(path, child) as reader:
        until(lambda: counts(reader)[1] > 5, 10, "no event of the steps has come")
        first = counts(reader)[1]
        until(lambda: counts(reader)[1] > first + 5, 10, "events do not go on")
        print(f"\nwhile steps go: {counts(reader)} recorded and come")
        (tmp_path / "stand").touch()
        child.says("stands")
        until(lambda: counts(reader)[0] == counts(reader)[1] + 1, 2, "the event behind the kernel is not pending")
        seen = GpuCounts()
        stood = time.monotonic()
        while time.monotonic() < stood + 1.5 and "came" not in child.output:
            seen.count(time.monotonic(), *counts(reader))
            time.sleep(0.05)
        print(f"while the kernel runs: {counts(reader)}, pending {seen.pending}, {child.output.split()}")
        assert "came" not in child.output, "the kernel was too short for this test"
        assert seen.pending == 1
        assert math.isnan(seen.moves.last)
        child.says("came True", 30)
        until(lambda: counts(reader)[0] == counts(reader)[1], 2, "the event has come, and is still pending")
        seen.count(time.monotonic(), *counts(reader))
        assert seen.pending == 0
        assert seen.moves.last > stood, "that it came is a move"


@pytest.mark.parametrize("what", ["graph", "graph-unasked"])
def test_asking_for_events_spoils_no_capture_of_a_graph(what: str, start: Start, tmp_path: Path) -> None:
    """The second, without the probe's precaution, is printed: whether this driver and torch need it."""
    child = start(str(SCRIPTS / "timed_steps.py"), str(tmp_path), what, env={ENV_PATH: str(tmp_path / "probe")})
    child.wait()
    print(f"\n{what}: {child.output[-600:]}")
    if what == "graph":
        words = child.output.split()
        assert words[0] == "captured;", child.output[-3000:]
        assert int(words[2]) >= 2, "asked while it was captured"
        assert float(words[4]) == 20.0, "two replays of ten additions"


def test_a_nan_of_an_unmodified_script_is_found_on_the_gpu(start: Start, until: Until, tmp_path: Path) -> None:
    path = tmp_path / "probe"
    child = start("-c", WATCHED, str(SCRIPTS / "turns_to_nan.py"), env={ENV_PATH: str(path)})
    steps: dict[int, float] = {}
    with reading(path, child) as reader:

        def spoilt() -> bool:
            steps.update((one.step, one.loss) for one in reader.new_steps())
            assert child.process.poll() is None, child.output[-3000:]
            return SPOILT in steps.values()

        until(spoilt, 30, "no step was reported as spoilt")
        found = min(step for step, loss in steps.items() if loss == SPOILT)
        print(f"\nspoilt in step 40, found in step {found}; events of its samples: {counts(reader)}")
    assert 40 <= found < 240
    assert all(math.isnan(steps[step]) for step in range(40))
