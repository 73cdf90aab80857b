"""All rows of all techniques, measured once a session: that takes many seconds, and several tests look at them.

In a process of its own: rows count what a process does, and that of the tests has done other things before.
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from typing import Any

DEADLINE_S = 270.0
"""Less than pytest gives a test."""


def all_rows() -> tuple[int, list[dict[str, Any]]]:
    """The exit code of `holdfast rows --json`, and what it prints: for each technique in order its `id` and `rows`."""
    done = _run()
    assert done is not None, f"no end of all rows within {DEADLINE_S:g} s"
    assert done.returncode in (0, 1), done.stderr[-4000:]
    return done.returncode, json.loads(done.stdout)


@functools.cache
def _run() -> subprocess.CompletedProcess[str] | None:
    """None if it did not end in time, which is not tried again for the next test."""
    command = [sys.executable, "-m", "holdfast", "rows", "--json"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
    except subprocess.TimeoutExpired:
        return None
