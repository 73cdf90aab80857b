"""Stacks of real processes: alive, without the interpreter lock, stopped, without a handler, gone."""

import asyncio
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.agent import forkserver
from holdfast.agent.probe_file import memory
from holdfast.agent.probe_file.layout import ENV_PATH, STACKS_SIGNAL
from holdfast.agent.workers import stacks
from holdfast.agent.workers.stacks import ProcessStacks, Thread
from tests.agent.support.processes import python, until

WORKER = """
import ctypes, sys, time, threading
hold = ctypes.PyDLL(None).sleep  # looked up here: later its frames would be in the stack
from holdfast.agent.forkserver import bootstrap
bootstrap._register_stacks({path!r})
def outer():
    inner()
def inner():
    print("ready", flush=True)
    {body}
{call}
"""
SLOW = """
import os, signal, time
def answer(*_):
    file = os.open({path!r}, os.O_WRONLY | os.O_APPEND)
    os.write(file, b'Current thread 0x1 (most recent call first):\\n  File "a.py", line 3 in inner\\n')
    time.sleep(0.3)
    os.write(file, b'  File "a.py", line 9 in <module>\\n')
open({path!r}, "w").close()
signal.signal({signal}, answer)
print("ready", flush=True)
time.sleep(60)
"""
SPY = Path(sys.executable).with_name("py-spy")
SLEEP, HOLD, LOOP = "time.sleep(60)", "while True: hold(60)", "while True: pass"
PROBE = "from holdfast.agent import probe; probe.attach()"


@contextmanager
def worker(folder: Path, body: str, call: str = "outer()") -> Iterator[int]:
    code = WORKER.format(path=str(folder / "p.stacks"), body=body, call=call)
    with python(code) as process:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        yield process.pid


def read(pid: int, folder: Path) -> ProcessStacks:
    return asyncio.run(stacks.read(pid, folder / "p"))


def functions(thread: Thread) -> list[str]:
    return [frame.rpartition(" ")[2] for frame in thread.frames]


def named(found: ProcessStacks) -> list[tuple[str, list[str]]]:
    """On a busy machine a worker may be stopped in the middle of its answer: the next one is whole."""
    return [(thread.name, functions(thread)) for thread in found.threads]


@pytest.mark.parametrize("body", [SLEEP, HOLD, LOOP])
def test_a_worker_reports_where_it_is_even_without_the_interpreter_lock(tmp_path: Path, body: str) -> None:
    with worker(tmp_path, body) as pid:
        for _ in range(2):  # and goes on, to be asked again
            until(lambda: named(read(pid, tmp_path)) == [("main", ["<module>", "outer", "inner"])])


def test_the_probes_thread_writes_them_with_the_lock_and_no_signal_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A handler without the lock would read frames that a running thread ends: such a worker died of SIGSEGV."""
    monkeypatch.setenv(ENV_PATH, str(tmp_path / "p"))
    sent: list[int] = []
    monkeypatch.setattr(stacks, "_signal", lambda pid, thread: sent.append(pid))
    monkeypatch.setattr(stacks, "_LOCK_S", 20.0)
    monkeypatch.setattr(stacks, "_ANSWER_S", 30.0)
    attached = tmp_path / "attached"
    with worker(tmp_path, f"{PROBE}; open({str(attached)!r}, 'w'); {SLEEP}") as pid:
        until(attached.exists)  # without a probe the main thread gets the signal
        until(lambda: named(read(pid, tmp_path)) == [("main", ["<module>", "outer", "inner"])])
    assert sent == []


def test_while_the_holder_of_the_lock_runs_no_signal_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The probe's thread never gets the lock, and the main thread never sleeps."""
    monkeypatch.setenv(ENV_PATH, str(tmp_path / "p"))
    sent: list[int] = []
    monkeypatch.setattr(stacks, "_signal", lambda pid, thread: sent.append(pid))
    monkeypatch.setattr(stacks, "_spy", silent)
    monkeypatch.setattr(stacks, "_LOCK_S", 0.0)
    loops = tmp_path / "loops"
    with worker(tmp_path, f"{PROBE}; sys.setswitchinterval(1000); open({str(loops)!r}, 'w')\n    {LOOP}") as pid:
        until(loops.exists)
        assert read(pid, tmp_path).threads == ()
    assert sent == []


def test_while_another_thread_runs_no_signal_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks, "_spy", silent)
    with worker(tmp_path, LOOP, "threading.Thread(target=outer, daemon=True).start(); time.sleep(60)") as pid:
        assert read(pid, tmp_path).threads == ()


async def silent(pid: int) -> str:
    return ""


@pytest.mark.skipif(shutil.which("py-spy") is None and not SPY.exists(), reason="needs py-spy")
@pytest.mark.parametrize("body", [SLEEP, LOOP])
def test_where_there_is_time_no_signal_is_sent(tmp_path: Path, body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    async def ask(pid: int, path: Path) -> str:
        asked.append(pid)
        return ""

    monkeypatch.setattr(stacks, "_ask", ask)
    monkeypatch.setattr(stacks, "_SPY_S", 60.0)
    with worker(tmp_path, body) as pid:
        found = asyncio.run(stacks.read(pid, tmp_path / "p", gently=True))
        if not found.threads:
            pytest.skip("py-spy may not look into other processes here")
        assert functions(found.threads[0]) == ["<module>", "outer", "inner"]
        assert asked == []


def test_without_py_spy_the_signal_is_what_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(pid: int) -> str:
        return ""

    monkeypatch.setattr(stacks, "_spy", nothing)
    with worker(tmp_path, SLEEP) as pid:

        def found() -> ProcessStacks:
            return asyncio.run(stacks.read(pid, tmp_path / "p", gently=True))

        until(lambda: named(found()) == [("main", ["<module>", "outer", "inner"])])


def test_who_is_put_aside_in_the_middle_of_its_answer_has_more_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stacks, "_ANSWER_S", 30.0)
    with python(SLOW.format(path=str(tmp_path / "p.stacks"), signal=int(STACKS_SIGNAL))) as process:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        assert named(read(process.pid, tmp_path)) == [("main", ["<module>", "inner"])]


@pytest.mark.parametrize(
    ("text", "is_whole"),
    [
        ('  File "a.py", line 1 in <module>\n', True),
        ('  File "<frozen runpy>", line 198 in _run_module_as_main\n', True),
        ('  File "a.py", line 1 in f\n  ...\n', True),
        ('Thread 0x1 (most recent call first):\n  File "a.py", line 1 in f\n...\n', True),
        ('  File "a.py", line 1 in f\n', False),
        ('  File "a.py", line 1 in <module>', False),
        ('  File "a.py", line 1 in <module>\n  File "b.py", line 2 in f\n', False),
        ('  File "a.py", line 1 in call_me_<module>\n', False),
    ],
)
def test_where_an_answer_ends(tmp_path: Path, text: str, is_whole: bool) -> None:
    path = tmp_path / "answer"
    path.write_text(text * 100)
    with path.open() as file:
        assert stacks._is_whole(file.fileno(), path.stat().st_size) == is_whole


def test_other_threads_come_after_the_main_one(tmp_path: Path) -> None:
    with worker(tmp_path, SLEEP, "threading.Thread(target=outer, daemon=True).start(); time.sleep(60)") as pid:
        expected = [("main", ["<module>"]), ("other", ["outer", "inner"])]  # it has returned from start()
        until(lambda: [(name, calls[-2:]) for name, calls in named(read(pid, tmp_path))] == expected)


def test_a_stopped_worker_is_reported_by_the_kernel_and_read_from_outside(tmp_path: Path) -> None:
    with worker(tmp_path, SLEEP) as pid:
        os.kill(pid, signal.SIGSTOP)
        until(lambda: stacks.kernel_state(pid).startswith("T"))
        found = read(pid, tmp_path)
        assert found.state.startswith("T")
        assert stacks.kernel_state(pid).startswith("T")  # and nothing woke it
        if shutil.which("py-spy") and found.threads:  # it may lack the right to look
            assert functions(found.threads[0]) == ["<module>", "outer", "inner"]


def test_a_process_without_a_handler_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with python("import time; print('ready', flush=True); time.sleep(60)") as process:
        assert process.stdout
        process.stdout.readline()
        (tmp_path / "p.stacks").touch()
        monkeypatch.setattr(sys, "executable", "/nowhere/python")
        assert read(process.pid, tmp_path).threads == ()
        assert process.poll() is None


def test_one_that_is_gone_is_reported_so(tmp_path: Path) -> None:
    with python("pass") as process:
        process.wait(20)
        assert read(process.pid, tmp_path) == ProcessStacks("gone", ())


def test_the_same_stacks_are_reported_once(tmp_path: Path) -> None:
    with worker(tmp_path, SLEEP) as pid:
        answer = asyncio.run(stacks.dump({3: (pid, tmp_path / "p"), 4: (2**30, tmp_path / "q")}))
        (reported,) = json.loads(answer["stacks"])
        assert (reported["ranks"], reported["thread"]) == ("3", "main")
        assert json.loads(answer["states"])["4"] == "gone"


def fill(path: Path) -> None:
    with open(path, "w") as file:
        file.truncate(1 << 40)


def pipe(path: Path) -> None:
    os.mkfifo(path)


def link(path: Path) -> None:
    target = path.with_name("precious")
    target.write_text("kept")
    path.symlink_to(target)


@pytest.mark.parametrize("make", [fill, pipe, link])
def test_a_file_of_stacks_may_be_anything(
    tmp_path: Path, make: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker controls the file: here its handler makes it as large as possible."""
    monkeypatch.setattr(stacks, "_SPY_S", 0.0)
    path = tmp_path / "p.stacks"
    make(path)
    grow = f"""
import os, signal, time
signal.signal({stacks.STACKS_SIGNAL}, lambda *_: os.truncate({str(path)!r}, 1 << 40))
print("ready", flush=True)
while True: time.sleep(1)
"""
    with python(grow) as process:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        answer = asyncio.run(stacks._ask(process.pid, path))
    assert len(answer) <= stacks._MOST_BYTES
    assert not (tmp_path / "precious").exists() or (tmp_path / "precious").read_text() == "kept"


def test_what_looks_like_a_thread_for_ever_costs_nothing_more() -> None:
    """Each line is tried a bounded number of times: this one took hours."""
    assert stacks.parse_faulthandler("Thread 0x" + "a" * stacks._MOST_BYTES) == ()
    assert stacks.parse_faulthandler("Thread 0x1 (most recent call first):\n" + '  File "' * 500_000) == ()


TICKS, FORKS = memory.__file__, str(Path(forkserver.__file__).with_name("fork_server.py"))
FAULTHANDLER = f"""Thread 0x00007f1 [worker] (most recent call first):
  File "/opt/python/threading.py", line 320 in wait
  File "/x/site-packages/torch/a.py", line 9 in run

Thread 0x00007f2 (most recent call first):
  File "{TICKS}", line 70 in tick

Current thread 0x00007f3 (most recent call first):
  File "{TICKS}", line 99 in record_step
  File "/home/me/server.py", line 5 in step
  File "train.py", line 9 in <module>
  File "{FORKS}", line 282 in main
  File "<frozen runpy>", line 88 in _run_code
"""


def test_what_faulthandler_writes() -> None:
    assert stacks.parse_faulthandler(FAULTHANDLER) == (
        Thread("main", ("train.py:9 <module>", "server.py:5 step", "memory.py:99 record_step")),
        Thread("other", ("torch/a.py:9 run", "threading.py:320 wait")),
    )
    only = f'Current thread 0x1 (most recent call first):\n  File "{FORKS}", line 9 in main\n'
    assert stacks.parse_faulthandler(only) == (Thread("main", ("fork_server.py:9 main",)),)
    assert stacks.parse_faulthandler("") == stacks.parse_faulthandler("garbage\n  File x") == ()


def test_what_py_spy_says() -> None:
    frames = [
        {"name": "Outer.inner", "filename": "/a/b/train.py", "line": 5},
        {"name": "f", "filename": "x.py", "line": 1},
        {"name": "Server.serve", "filename": FORKS, "line": 89},
    ]
    tick = [{"name": "Memory.tick", "filename": TICKS, "line": 7}]
    threads = [
        {"thread_name": "t", "frames": frames[:1]},
        {"thread_name": "holdfast-tick", "frames": tick},
        {"thread_name": "MainThread", "frames": frames},
    ]
    assert stacks.parse_spy(json.dumps(threads)) == (
        Thread("main", ("x.py:1 f", "train.py:5 inner")),
        Thread("other", ("train.py:5 inner",)),
    )
    assert stacks.parse_spy("") == stacks.parse_spy("{") == stacks.parse_spy('[{"frames": 1}]') == ()


POLLS = """
import ctypes
from holdfast.agent import probe
from holdfast.agent.forkserver import bootstrap
bootstrap._register_stacks({path!r})
probe.attach()
def inner():
    print("ready", flush=True)
    print(ctypes.CDLL(None).poll(None, 0, 3000), flush=True)
inner()
"""


def test_a_system_call_of_the_program_is_not_interrupted(tmp_path: Path) -> None:
    """The probe's thread answers for all: an extension that takes EINTR for an error sees none."""
    path = tmp_path / "p"
    with python(POLLS.format(path=str(tmp_path / "p.stacks")), **{ENV_PATH: str(path)}) as process:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        found = [read(process.pid, tmp_path) for _ in range(5)]
        assert process.stdout.readline() == "0\n"
    assert [functions(one.threads[0])[-1] for one in found] == ["inner"] * 5
    assert {one.threads[0].name for one in found} == {"main"}
