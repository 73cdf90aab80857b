"""The fork server with real workers: started, ended in many ways, reported, killed as process trees."""

import asyncio
import glob
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.agent.forkserver import error_file
from holdfast.agent.forkserver.client import ForkServer
from holdfast.agent.forkserver.preloading import ASKED_FOR_GPUS
from holdfast.agent.probe_file.reader import ProbeReader
from holdfast.base.errors import Unavailable
from holdfast.wire.messages import Program
from tests.agent.support.warm_node import alive, eventually, node

STEPS = "from holdfast.agent import probe\nimport time\nn = 0\nwhile True:\n probe.step(n); n += 1; time.sleep(0.005)"
SLEEP = "import time\nprint('here')\nwhile True: time.sleep(60)"


def test_a_worker_is_like_a_process_of_its_own(tmp_path: Path) -> None:
    code = """
import os, sys, signal, __main__
print(sys.argv, os.getcwd(), os.environ["RANK"], os.environ["MINE"], sorted(os.environ)[:2])
print(os.getsid(0) == os.getpid() == os.getpgid(0), open("/proc/self/oom_score_adj").read().strip())
print(__name__, __main__.__file__ == __file__, __main__.answer if hasattr(__main__, "answer") else None)
answer = 42
fds = [f"/proc/self/fd/{n}" for n in range(3, 64)]
print(__main__.answer, sys.path[0], [os.readlink(fd) for fd in fds if os.path.lexists(fd)])
print(signal.getsignal(signal.SIGTERM) == signal.SIG_DFL, signal.getsignal(signal.SIGINT).__name__)
print("to stderr", file=sys.stderr)
"""

    async def story() -> None:
        async with node(tmp_path) as one:
            env = {"MINE": "yes"}
            program = Program(str(tmp_path / "script0.py"), ("--lr", "1"), cwd=str(tmp_path), hooks=False)
            pid = await one.start(code, env=env, program=program)
            ended = await one.ended()
            assert (ended.pid, ended.code, ended.signal, ended.job, ended.generation) == (pid, 0, 0, "j", 1)
            lines = one.out().splitlines()
            assert lines[0] == (
                f"['{tmp_path}/script0.py', '--lr', '1'] {tmp_path} 0 yes ['HOLDFAST_GENERATION', 'HOLDFAST_PROBE']"
            )
            assert lines[1] == "True 500"
            assert lines[2] == "__main__ True None"
            # No descriptor of the fork server: where it dumps its stacks, and its probe.
            assert lines[3] == f"42 {tmp_path} ['{tmp_path}/probe0.stacks', '{tmp_path}/probe0']"
            assert lines[4] == "True default_int_handler"
            assert one.err() == "to stderr\n"

    asyncio.run(story())


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("import sys; sys.exit(3)", (3, 0, "")),
        ("import sys; sys.exit()", (0, 0, "")),
        ("import sys; sys.exit('no luck')", (1, 0, "no luck\n")),
        ("import os; os._exit(9)", (9, 0, "")),
        ("import os; os.kill(os.getpid(), 15)", (-1, 15, "")),
        ("import atexit; atexit.register(print, 'bye'); print('hi')", (0, 0, "")),
        ("import threading, time; threading.Thread(target=lambda: print('bye')).start()", (0, 0, "")),
    ],
)
def test_ends(code: str, expected: tuple[int, int, str], tmp_path: Path) -> None:
    async def story() -> None:
        async with node(tmp_path) as one:
            await one.start(code)
            ended = await one.ended()
            assert (ended.code, ended.signal, one.err()) == expected
            if "bye" in code:
                assert one.out().endswith("bye\n")

    asyncio.run(story())


@pytest.mark.parametrize("warm", [True, False])
def test_an_exception_leaves_the_users_traceback_and_nothing_of_ours(warm: bool, tmp_path: Path) -> None:
    async def story() -> None:
        async with node(tmp_path) as one:
            spec = one.spec("def f():\n    raise ValueError('bad batch')\nf()")
            spec = replace(spec, program=replace(spec.program, warm=warm))
            assert one.warm
            await one.warm.start_worker(spec)
            ended = await one.ended()
            assert (ended.code, ended.signal) == (1, 0)
            expected = one.err()
            assert expected.startswith(f'Traceback (most recent call last):\n  File "{tmp_path}/script0.py", line 3')
            assert expected.endswith("ValueError: bad batch\n")
            assert "bootstrap" not in expected
            assert error_file.read(spec.error_file) == expected

    asyncio.run(story())


def test_injected_faults_are_distinguished(tmp_path: Path) -> None:
    async def story() -> None:
        async with node(tmp_path) as one:
            kinds = ["exception", "segfault", "oom", "exit"]
            for rank, kind in enumerate(kinds):
                await one.start(STEPS, rank)
                await eventually(lambda rank=rank: (tmp_path / f"probe{rank}").exists())
                reader = ProbeReader(str(tmp_path / f"probe{rank}"))
                await eventually(lambda reader=reader: reader.sample(0).step > 0)
                reader.inject(kind)
                reader.close()
            ends = [await one.ended(rank) for rank in range(4)]
            assert [(e.code, e.signal) for e in ends[:2]] == [(1, 0), (-1, signal.SIGSEGV)]
            assert "injected exception" in one.err(0)
            assert "Fatal Python error: Segmentation fault" in one.err(1)
            if "no writable memory cgroup" not in one.err(2):
                assert (ends[2].code, ends[2].signal, ends[2].oom_killed) == (-1, signal.SIGKILL, True)
            assert ends[3].code == 7
            assert not any(e.oom_killed for e in (ends[0], ends[1], ends[3]))
            # Not by `Path.glob`: a group of another process that goes away meanwhile is an error there.
            assert not glob.glob(f"/sys/fs/cgroup/**/holdfast-oom-{ends[2].pid}", recursive=True)
            # A plain SIGKILL just after an OOM kill is no OOM kill.
            pid = await one.start(SLEEP, 5)
            os.kill(pid, signal.SIGKILL)
            ended = await one.ended(5)
            assert not ended.oom_killed
            assert not ended.ordered

    asyncio.run(story())


def test_eight_workers_in_quick_succession(tmp_path: Path) -> None:
    async def story() -> None:
        async with node(tmp_path) as one:
            pids = [await one.start(SLEEP, rank) for rank in range(8)]
            assert len(set(pids)) == 8
            assert await one.start(SLEEP, 3) == pids[3]  # asked twice, started once
            for rank in range(8):
                await one.printed("here", rank)
            assert one.warm
            assert await one.warm.kill("j", 1, -1, signal.SIGKILL) >= 8
            ends = [await one.ended(rank) for rank in range(8)]
            assert {(e.code, e.signal) for e in ends} == {(-1, signal.SIGKILL)}

    asyncio.run(story())


def test_a_tree_is_killed_with_its_runaways(tmp_path: Path) -> None:
    code = """
import os, subprocess, sys, time
sleep = [sys.executable, "-c", "import time; time.sleep(300)"]
pids = [subprocess.Popen(sleep).pid, subprocess.Popen(sleep, start_new_session=True).pid]
# The grandchild of a child that is gone: neither its parents nor its session lead here any more.
runaway = "import subprocess, sys; print(subprocess.Popen(sys.argv[1:], start_new_session=True, stdout=2).pid)"
pids.append(int(subprocess.run([sys.executable, "-c", runaway, *sleep], stdout=subprocess.PIPE).stdout))
forked = os.fork()
if forked == 0:
    os.setsid()
    time.sleep(300)
print(*pids, forked, "all")
time.sleep(300)
"""

    async def story() -> None:
        async with node(tmp_path) as one:
            leader = await one.start(code)
            await one.printed("all")
            pids = [leader, *map(int, one.out().split()[:4])]
            assert all(map(alive, pids))
            assert one.warm
            assert await one.warm.kill("j", 1, 0, signal.SIGKILL) == 5
            assert (await one.ended()).ordered
            await eventually(lambda: not any(map(alive, pids)))

    asyncio.run(story())


def test_what_a_crashed_worker_leaves_behind_is_ended_too(tmp_path: Path) -> None:
    code = """
import os, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"], start_new_session=True)
print(child.pid, flush=True)
os.abort()
"""

    async def story() -> None:
        async with node(tmp_path) as one:
            await one.start(code)
            assert (await one.ended()).signal == signal.SIGABRT
            await eventually(lambda: not alive(int(one.out())))

    asyncio.run(story())


def test_stop_and_stack_dump(tmp_path: Path) -> None:
    async def story() -> None:
        async with node(tmp_path) as one:
            await one.start("import time\ndef stuck():\n    print('here')\n    time.sleep(60)\nstuck()")
            await one.printed("here")
            assert one.warm
            reader = ProbeReader(str(tmp_path / "probe0"))
            await one.warm.kill("j", 1, 0, signal.SIGSTOP)
            await eventually(lambda: reader.sample(time.monotonic_ns()).stopped)
            await one.warm.kill("j", 1, 0, signal.SIGCONT)
            await one.warm.kill("j", 1, 0, signal.SIGUSR1)
            await eventually(lambda: "in stuck" in one.err())
            assert not reader.sample(time.monotonic_ns()).stopped
            reader.close()

    asyncio.run(story())


def test_a_module_that_cannot_be_imported_is_reported_and_harms_no_worker(tmp_path: Path) -> None:
    async def story() -> None:
        (tmp_path / "warm_me.py").write_text("ready = []\ndef preload(): ready.append('hot')")
        async with node(tmp_path) as one:
            assert one.warm
            await one.warm.shutdown()
            one.warm = await ForkServer.open(
                tmp_path / "run",
                preload=["no_such_module", "warm_me"],
                env={**os.environ, "PYTHONPATH": str(tmp_path)},
                on_exit=one.heard,
            )
            error = "ModuleNotFoundError: No module named 'no_such_module'"
            assert one.warm.preload_errors == {"no_such_module": error}
            await one.start("import sys; print(sys.modules['warm_me'].ready)")
            await one.ended()
            assert one.out() == "['hot']\n"

    asyncio.run(story())


def test_a_module_that_asks_for_gpus_is_left_to_the_workers(tmp_path: Path) -> None:
    """No GPU here: what torch would report to a child, and the driver's file, are made up."""

    async def story() -> None:
        (tmp_path / "fine.py").write_text("")
        (tmp_path / "asks_torch.py").write_text(
            "import sys, types\n"
            "cuda = types.SimpleNamespace(_is_in_bad_fork=lambda: True)\n"
            "sys.modules['torch'] = types.SimpleNamespace(cuda=cuda)"
        )
        (tmp_path / "cannot_know.py").write_text(
            "import sys, types\n"
            "cuda = types.SimpleNamespace(_is_in_bad_fork=lambda: 1 / 0)\n"
            "sys.modules['torch'] = types.SimpleNamespace(cuda=cuda)"
        )
        (tmp_path / "nvidia-uvm").touch()
        (tmp_path / "asks_driver.py").write_text(
            "from holdfast.agent.forkserver import forked_children\n"
            f"forked_children.GPU_DRIVERS = ({str(tmp_path / 'nvidia-uvm')!r},)\n"
            f"kept = open({str(tmp_path / 'nvidia-uvm')!r})"
        )
        async with node(tmp_path) as one:
            assert one.warm
            await one.warm.shutdown()
            one.warm = await ForkServer.open(
                tmp_path / "run",
                preload=["asks_torch", "fine", "cannot_know", "asks_driver"],
                env={**os.environ, "PYTHONPATH": str(tmp_path)},
                on_exit=one.heard,
            )
            left_out = ["asks_torch", "cannot_know", "asks_driver"]
            assert one.warm.preload_errors == dict.fromkeys(left_out, ASKED_FOR_GPUS)
            await one.start("import sys; print({'asks_torch', 'fine', 'asks_driver', 'torch'} & set(sys.modules))")
            await one.ended()
            assert one.out() == "{'fine'}\n"

    asyncio.run(story())


def test_a_job_with_interpreter_settings_gets_a_fresh_interpreter(tmp_path: Path) -> None:
    async def story() -> None:
        async with node(tmp_path) as one:
            code = "import sys, os; print(sys.flags.hash_randomization, os.environ['PYTHONHASHSEED'], sys.path[0])"
            await one.start(code, env={"PYTHONHASHSEED": "0"})
            assert (await one.ended()).code == 0
            assert one.out() == f"0 0 {tmp_path}\n"
            assert not list((tmp_path / "run").glob("spec-*"))

    asyncio.run(story())


def test_requests_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    async def story() -> None:
        async with node(tmp_path) as one:
            assert one.warm
            with pytest.raises(Unavailable, match="unknown or without"):
                await one.warm._ask("dance", 5)
            with pytest.raises(Unavailable, match="cannot start_worker: FileNotFoundError"):
                await one.start("pass", out_path="/nonexistent/folder/out")
            assert await one.warm.kill("nobody", 1, 0, signal.SIGKILL) == 0
            await one.warm.ack_exit("nobody", 1, 0)

    asyncio.run(story())
