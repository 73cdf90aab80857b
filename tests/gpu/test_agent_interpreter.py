"""A worker with a real GPU: CUDA's wait for it is no computing, a loop in Python is."""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from holdfast.agent.probe_file.layout import ENV_PATH
from holdfast.agent.probe_file.reader import ProbeReader
from holdfast.wire import types as t
from tests.agent.support.processes import until
from tests.agent.support.standing import standing

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60)]

SCRIPT = str(Path(__file__).parent / "scripts" / "stands.py")


@pytest.mark.parametrize(
    ("does", "moves"), [("synchronizes", False), ("asks", False), ("computes", True), ("launches", None)]
)
def test_only_who_computes_in_python_moves(does: str, moves: bool | None, tmp_path: Path) -> None:
    """What launches one kernel after the other is printed: most of its time it waits for room in CUDA's queue."""
    env = os.environ | {ENV_PATH: str(tmp_path / "probe")}
    with standing("", args=[sys.executable, SCRIPT, does], env=env) as (eye, process):
        reader = ProbeReader(str(tmp_path / "probe"))
        until(lambda: reader.tick_thread)

        def frame() -> t.Activity | None:
            now = time.monotonic()
            sample = t.WorkerSample(0, 0, process.pid)
            seen = eye.activities.attach(sample, reader.path, reader.tick_thread, now).activity
            eye.activities.settle()
            return seen

        eye.frame = frame  # type: ignore[method-assign]
        try:
            match moves:
                case True:
                    seen = eye.when(lambda a: a.watched > 2.0 and a.quiet < 0.3 and a.has_gpu)
                case False:
                    seen = eye.after(2.0)
                case None:
                    seen = eye.when(lambda a: a.watched > 3.0)
            print(f"\n{does}: {seen}")
            drivers = {os.path.basename(link) for link in _links(process.pid) if link.startswith("/dev/")}
            print("devices that it holds:", sorted(drivers))
            assert seen.has_gpu
            assert seen.cpu > 0.5, "both use a core"
        finally:
            reader.close()


def _links(pid: int) -> list[str]:
    found = []
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with suppress(OSError):
            found.append(os.readlink(f"/proc/{pid}/fd/{fd}"))
    return found
