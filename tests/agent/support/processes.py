"""Real processes for the tests of this folder: started, awaited with deadlines, and always ended."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.agent.probe_file.layout import ENV_PATH
from holdfast.agent.probe_file.reader import ProbeReader
from holdfast.base.errors import Unavailable

ROOT = Path(__file__).resolve().parents[3]

STEPS_FOR_EVER = """
import time
n = 0
while True:
    time.sleep(0.005)
    probe.step(n, loss=1.0, tokens=8)
    n += 1
"""
"""For `probed`: a worker that trains until it is ended."""


def until(what: Callable[[], object], deadline_s: float = 60.0) -> None:
    """Poll until true; fails after `deadline_s`."""
    end = time.monotonic() + deadline_s
    while not what():
        assert time.monotonic() < end, "what was waited for did not happen in time"
        time.sleep(0.002)


@contextmanager
def python(code: str, **env: str) -> Iterator[subprocess.Popen[str]]:
    """A Python process that runs `code` and is killed at the end of the block."""
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, **env},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@contextmanager
def probed(code: str, path: Path, **env: str) -> Iterator[tuple[subprocess.Popen[str], ProbeReader]]:
    """A process whose probe writes to `path`, and a reader of it once the process has attached."""
    with python(f"from holdfast.agent import probe\nprobe.attach()\n{code}", **{ENV_PATH: str(path), **env}) as process:
        reader: list[ProbeReader] = []

        def attached() -> bool:
            has_ended = process.poll() is not None  # asked first: it may attach and end
            try:
                reader[:] = reader or [ProbeReader(str(path))]
            except Unavailable:
                pass
            else:
                if reader[0].pid == process.pid:
                    return True
            if has_ended:
                raise AssertionError(process.stderr and process.stderr.read())
            return False

        until(attached)
        try:
            yield process, reader[0]
        finally:
            reader[0].close()
