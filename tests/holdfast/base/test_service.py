"""Start and end of a daemon, as real processes with real signals."""

import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from holdfast.base.errors import HoldfastError, UsageError
from holdfast.base.service import gc_paused, report

ROOT = Path(__file__).parents[3]

ORDERLY = """
async def main(stop):
    print("ready", flush=True)
    await stop.wait()
    print("ended in order", flush=True)
    return 7
"""
DEAF = """
async def main(stop):
    print("ready", flush=True)
    try:
        await stop.wait()
        print("told", flush=True)
        await asyncio.sleep(60)
    finally:
        print("cancelled", flush=True)
"""


def daemon(main: str, grace: float = 10.0, before: str = "") -> "subprocess.Popen[str]":
    code = f"import asyncio, sys\nfrom holdfast.base import service\n{before}\n{main}\n"
    code += f"sys.exit(service.run(main, grace={grace}))"
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_in_its_own_order(number: signal.Signals) -> None:
    process = daemon(ORDERLY)
    process.send_signal(number)
    process.send_signal(number)  # a repeated signal, not a second request
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (7, "ended in order\n"), err


def test_an_echo_that_comes_when_all_is_over_changes_nothing() -> None:
    code = (
        "import asyncio, os, signal, sys\nfrom holdfast.base import service\n"
        "async def main(stop):\n    return 7\n"
        "code = service.run(main)\nos.kill(os.getpid(), signal.SIGTERM)\nsys.exit(code)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=60).returncode == 7


def test_what_does_not_end_is_cancelled_after_the_grace() -> None:
    process = daemon(DEAF, grace=0.2)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=60)
    assert (process.returncode, out) == (1, "told\ncancelled\n")


def test_a_second_signal_cuts_the_grace_short() -> None:
    process = daemon(DEAF, grace=30)
    process.send_signal(signal.SIGTERM)
    assert process.stdout is not None
    assert process.stdout.readline() == "told\n"
    time.sleep(0.8)  # no echo of the first any more
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=60)
    assert (process.returncode, out) == (1, "cancelled\n")


def test_errors_are_one_line_and_an_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    def fail(error: BaseException) -> int:
        raise error

    assert report(lambda: fail(UsageError("wrong"))) == 2
    assert report(lambda: fail(HoldfastError("broken"))) == 1
    assert report(lambda: fail(KeyboardInterrupt())) == 130
    assert report(lambda: None) == 0
    assert capsys.readouterr().err == "holdfast: wrong\nholdfast: broken\n"


def test_it_dies_with_its_parent(until: Callable[..., None]) -> None:
    """Even if the parent is killed outright: the middle process is, and the daemon must follow."""
    code = (
        "import os, subprocess, sys, time\n"
        f"code = '''import asyncio, sys\\nfrom holdfast.base import service\\nservice.follow_parent()\\n{ORDERLY}\\n"
        "sys.exit(service.run(main))'''\n"
        "env = {**os.environ, 'HOLDFAST_PARENT_PID': str(os.getpid())}\n"
        "child = subprocess.Popen([sys.executable, '-c', code], env=env)\n"
        "print(child.pid, flush=True)\ntime.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=ROOT) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert parent.stdout.readline() == "ready\n"
        parent.kill()
        assert parent.stdout.readline() == "ended in order\n"

    def is_over() -> bool:
        try:
            return "State:\tZ" in Path(f"/proc/{pid}/status").read_text()
        except OSError:
            return True

    until(is_over)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may come first")
@pytest.mark.parametrize("own", [0, 5])
def test_a_watcher_comes_first_and_what_it_starts_does_not(own: int) -> None:
    code = (
        "import os, subprocess, sys\n"
        "from holdfast.base import service\n"
        "def here(): return os.getpriority(os.PRIO_PROCESS, 0), service.NICENESS in os.environ\n"
        "if len(sys.argv) > 1:\n"
        "    service.give_way()\n"
        "    print(*here())\n"
        "else:\n"
        "    service.raise_priority()\n"
        "    print(*here(), flush=True)\n"
        "    subprocess.run([sys.executable, '-c', sys.orig_argv[2], 'child'], check=True, start_new_session=True)\n"
    )
    command = ["nice", "-n", str(own), sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT, start_new_session=True)
    given = min(19, os.getpriority(os.PRIO_PROCESS, 0) + own)  # these tests may be niced themselves
    assert done.stdout.splitlines() == ["-10 True", f"{given} False"]


@pytest.mark.parametrize("was_enabled", [True, False])
def test_no_garbage_is_looked_for_while_a_process_imports(was_enabled: bool) -> None:
    try:
        (gc.enable if was_enabled else gc.disable)()
        with suppress(ImportError), gc_paused():
            assert not gc.isenabled()
            raise ImportError
        assert gc.isenabled() == was_enabled
    finally:
        gc.enable()
