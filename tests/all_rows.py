"""All rows of all techniques, measured once a session: that takes many seconds, and several tests look at them.

In a process of its own: rows count what a process does, and that of the tests has done other things before.
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from typing import Any

DEADLINE_S = 240.0


@functools.cache
def all_rows() -> tuple[int, list[dict[str, Any]]]:
    """The exit code of `holdfast rows --json`, and what it prints: for each technique in order its `id` and `rows`."""
    command = [sys.executable, "-m", "holdfast", "rows", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode in (0, 1), done.stderr[-4000:]
    return done.returncode, json.loads(done.stdout)
