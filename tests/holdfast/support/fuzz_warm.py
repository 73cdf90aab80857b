"""The command line many times in few seconds: a fork server with one child for each case.

`python -m tests.holdfast.support.fuzz_warm [MODULE ...]` imports the command line and the modules, then answers
requests, one JSON object a line: {"argv", "cwd", "env"} → {"code", "out", "err", "seconds", "left"}. Each child has
its own session, folder for temporary files and limits, runs `holdfast ARGV` and is gone when its answer is written. A
daemon that comes up ends at once, in order.

What a child had to import is imported here as well, and what a request {"warm": ARGV} caches stays in memory, so that
no other child has to do it again: most of the time went into that.
"""

import asyncio
import contextlib
import faulthandler
import gc
import importlib
import io
import json
import os
import resource
import shutil
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

LIMIT_S = 10.0
"""Of processor time, whatever else runs."""
_HANG_S = 150.0
"""After which a child that has not ended shows where it is, and is killed."""
_AT_ONCE = 4
_MEMORY_BYTES = 4 << 30
_POLL_S = 0.004


def main(modules: list[str]) -> None:
    import typer.main

    from holdfast.cli.main import build

    built = typer.main.get_command(build())
    typer.main.get_command = lambda _: built  # type: ignore[assignment]  # which takes longer than all the rest
    for name in modules:
        importlib.import_module(name)
    asked = [json.loads(line) for line in sys.stdin]
    for case in asked:
        if "warm" in case:
            _warm(case["warm"])
    asked = [case for case in asked if "warm" not in case]
    _freeze()
    running: dict[int, dict[str, Any]] = {}
    while asked or running:
        while asked and len(running) < _AT_ONCE:
            case = asked.pop(0)
            running[_start(case)] = case
        pid, status, used = os.wait4(-1, os.WNOHANG)
        if pid in running:
            case = running.pop(pid)
            new = _new_modules(case)
            _answer(case, os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime)
            _import(new)
        elif not pid:
            _end_late(running)
            time.sleep(_POLL_S)


def _warm(argv: list[str]) -> None:
    """Run a command that is refused, in this process."""
    from holdfast.cli import main as command_line

    with contextlib.redirect_stderr(io.StringIO()):
        assert command_line.main(argv) == 2, argv


def _freeze() -> None:
    """What is here now need not be copied by a child that collects."""
    gc.collect()
    gc.freeze()


def _new_modules(case: dict[str, Any]) -> list[str]:
    """What a child has imported, in order; none of one that was killed."""
    with contextlib.suppress(OSError):
        return (Path(case["cwd"]) / "modules").read_text().split()
    return []


def _import(names: list[str]) -> None:
    missing = [name for name in names if name not in sys.modules]
    for name in missing:
        with contextlib.suppress(ImportError):  # not each is to be had by its name
            importlib.import_module(name)
    if missing:
        _freeze()


def _start(case: dict[str, Any]) -> int:
    folder = Path(case["cwd"])
    for name in ("work", "tmp"):
        (folder / name).mkdir(parents=True)
    case["began"] = time.monotonic()
    pid = os.fork()
    if pid:
        return pid
    try:
        _child(case, folder)
    finally:
        os._exit(70)


def _child(case: dict[str, Any], folder: Path) -> None:
    os.setsid()
    for number, name in ((0, os.devnull), (1, folder / "out"), (2, folder / "err")):
        os.dup2(os.open(name, os.O_RDWR | os.O_CREAT, 0o600), number)
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    os.chdir(folder / "work")
    own = {"HOME": str(folder / "work"), "XDG_STATE_HOME": str(folder / "work"), "TMPDIR": str(folder / "tmp")}
    os.environ.update(own | case["env"])
    import tempfile

    tempfile.tempdir = None
    before = set(sys.modules)
    faulthandler.enable(file=2)
    from holdfast.base import service
    from holdfast.cli import main as command_line

    service._supervise = _briefly  # type: ignore[assignment]
    for instead in case.get("stubs", ()):
        _stub(instead)
    argv = case["argv"]
    sys.argv = ["holdfast", *argv]
    try:
        command_line.entry()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:
        import traceback

        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    (folder / "modules").write_text("\n".join(name for name in sys.modules if name not in before))
    os._exit(code)


async def _briefly(main: Callable[[asyncio.Event], Awaitable[int | None]], grace: float) -> int:
    """In `service._supervise`'s place: a daemon that was asked to stop before it came up."""
    stop = asyncio.Event()
    stop.set()
    return await main(stop) or 0


def _stub(instead: str) -> None:
    """Let the function MODULE:NAME do nothing and return 0, or of MODULE:NAME=MODULE:NAME the second stand for the
    first."""
    name, _, other = instead.partition("=")
    module, _, function = name.partition(":")
    setattr(importlib.import_module(module), function, _function(other) if other else lambda *_, **__: 0)


def _function(name: str) -> Any:
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(module), function)


def _end_late(running: dict[int, dict[str, Any]]) -> None:
    for pid, case in running.items():
        late = time.monotonic() - case["began"] - _HANG_S
        if late > 0:
            # Python shows where it hangs, if it can; else it is killed.
            os.kill(pid, signal.SIGABRT if late < 1 and not case.get("reported") else signal.SIGKILL)
            case["reported"] = True


def _answer(case: dict[str, Any], code: int, seconds: float) -> None:
    folder = Path(case["cwd"])
    answer = {
        "id": case["id"],
        "code": code,
        "out": (folder / "out").read_text(errors="surrogateescape")[:20_000],
        "err": (folder / "err").read_text(errors="surrogateescape")[:20_000],
        "seconds": seconds,
        "left": sorted(str(path.relative_to(folder)) for path in (folder / "tmp").rglob("*")),
    }
    shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
