"""Programs in a process that has imported torch already: a test that runs one does not wait for that again."""

from __future__ import annotations

import contextlib
import io
import json
import os
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forked import Zygote

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"
_OF_A_RANK = ("RANK", "LOCAL_", "WORLD_", "MASTER_", "TORCHELASTIC_", "HOLDFAST_")


def figures(zygote: Zygote, folder: Path, program: str, *words: str) -> Any:
    """What `python benchmarks/PROGRAM WORDS --json` prints."""
    done = ended(zygote, folder, program, *words, "--json")
    assert done["code"] == 0, done["err"]
    return json.loads(done["out"])


def ended(zygote: Zygote, folder: Path, program: str, *words: str) -> dict[str, Any]:
    """Its exit code and what it printed."""
    return in_child(zygote, folder, "benchmark", program=program, words=list(words))


def in_child(zygote: Zygote, folder: Path, task: str, **args: Any) -> dict[str, Any]:
    """Exit code and output of a task of this file."""
    done = zygote.run(f"programs:{task}", 1, folder, args=args)
    assert done["exits"] == [0]
    found: dict[str, Any] = done["results"][0]
    return found


def benchmark(folder: Path, program: str, words: list[str]) -> dict[str, Any]:
    """`python benchmarks/PROGRAM WORDS`."""
    path = BENCHMARKS / program
    sys.path[:0] = [str(path.parent)]
    sys.argv = [str(path), *words]
    return _captured(lambda: runpy.run_path(str(path), run_name="__main__"))


def holdfast(folder: Path, words: list[str]) -> dict[str, Any]:
    """`holdfast WORDS`."""
    from holdfast.cli.main import main

    return _captured(lambda: sys.exit(main(words)))


def _captured(run: Callable[[], object]) -> dict[str, Any]:
    """Without what makes this process a rank."""
    for name in [name for name in os.environ if name.startswith(_OF_A_RANK)]:
        del os.environ[name]
    os.environ["HOLDFAST_CONFIG"] = ""  # no file of this machine
    out, err, code = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            run()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
            if isinstance(end.code, str):
                print(end.code, file=err)
    return {"code": code, "out": out.getvalue(), "err": err.getvalue()}
