"""The client side of zygote.py: run jobs of ranks forked from a fork server."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[3]
RANKS_S = float(os.environ.get("HOLDFAST_TEST_RANKS_S", "240"))
"""After so long a job's ranks are killed, unless its test says otherwise. Set lower by `.ci/mutants.py`."""


class Zygote:
    """Runs jobs of ranks forked from a fork server; see zygote.py."""

    def __init__(self, around: Sequence[str] = ()) -> None:
        """`around`: a command that runs the fork server as its arguments."""
        self._process = subprocess.Popen(
            [*around, sys.executable, str(Path(__file__).with_name("zygote.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"},
        )
        assert self._answer(max(60.0, RANKS_S)) == {"ready": True}

    def run(self, task: str, world: int, folder: Path, **job: Any) -> dict[str, Any]:
        """Run `task` on `world` ranks; their exit codes, results and the seconds it took."""
        deadline_s = job.pop("deadline_s", RANKS_S)
        folder.mkdir(exist_ok=True)
        job |= {"world": world, "folder": str(folder), "deadline_s": deadline_s}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"task": task, "job": job}) + "\n")
        self._process.stdin.flush()
        return self._answer(deadline_s + 30)

    def imported(self, module: str) -> None:
        """Have the fork server import a module that lies beside it: no rank forked from then on has to."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"imported": module}) + "\n")
        self._process.stdin.flush()
        assert self._answer(max(60.0, RANKS_S)) == {"imported": module}

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _answer(self, deadline_s: float) -> Any:
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], deadline_s)
        assert ready, f"the fork server said nothing for {deadline_s:g} s"
        return json.loads(self._process.stdout.readline())
