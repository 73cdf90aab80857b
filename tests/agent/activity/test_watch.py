"""External view of real stalled processes, case by case: does it move, and what does it wait for?"""

import contextlib
import math
import os
import pty
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.agent.activity import surroundings
from holdfast.agent.activity.watch import Activities, mark_of
from holdfast.wire import types as t
from tests.agent.support.standing import HEARTBEAT_INTERVAL, LOCK, READY, SLEEP, Eye, standing

GIL_SLEEP = f"import ctypes\n{READY}ctypes.PyDLL(None).sleep(60)"
PIPE = f"import os\nread, write = os.pipe()\n{READY}os.read(read, 1)"
CHILD_SLEEPS = f"import subprocess\n{READY}subprocess.run(['sleep', '60'])"
CHILD_PIPE = f"import subprocess\n{READY}subprocess.check_output(['sleep', '60'])"
WAIT_FOR = f"import threading\nevent = threading.Event()\n{READY}event.wait(60)"
POLL = f"import select, socket\na, b = socket.socketpair()\np = select.poll(); p.register(a, 1)\n{READY}p.poll(60000)"
POLLS = (
    "import select, socket\na, b = socket.socketpair()\np = select.poll(); p.register(a, 1); p.register(b, 1)\n"
    f"{READY}p.poll(60000)"
)
SELECT = f"import select, socket\na, b = socket.socketpair()\n{READY}select.select([a], [], [], 60)"
EPOLL = f"import select, socket\na, b = socket.socketpair()\np = select.epoll(); p.register(a, 1)\n{READY}p.poll(60)"
FILE_LOCK = (
    "import fcntl, tempfile\nfile = tempfile.NamedTemporaryFile(suffix='\\udcff')\n"
    "a = open(file.name); fcntl.flock(a, 2)\n"
    f"b = open(file.name)\n{READY}fcntl.flock(b, 2)"
)
ACCEPT = f"import socket\ns = socket.create_server(('127.0.0.1', 0))\n{READY}s.accept()"
RECEIVE = (
    "import socket\ns = socket.create_server(('127.0.0.1', 0))\nc = socket.create_connection(s.getsockname())\n"
    f"{READY}c.recv(1)"
)
FOR_PEERS = (
    "import ctypes, time\nlibrary, lock = ctypes.CDLL(None), ctypes.create_string_buffer(64)\n"
    f"library.sem_init(lock, 0, 0)\nend = (ctypes.c_long * 2)(int(time.time()) + 1790)\n"
    f"{READY}library.sem_timedwait(lock, end)"
)
"""By the wall clock, with torch's timeout: as gloo."""
PAUSE = f"import signal\n{READY}signal.pause()"


STILL: dict[str, tuple[str, str, float]] = {
    "lock": (LOCK, "a lock", math.nan),
    "sleep": (SLEEP, "a timer, for ", 60),
    "sleep with the GIL": (GIL_SLEEP, "a timer, for ", 60),
    "pipe": (PIPE, "a read from a pipe that it holds itself", math.nan),
    "child": (CHILD_SLEEPS, "its child sleep (pid ", 60),  # the end of the child's own wait
    "output of a child": (CHILD_PIPE, "a read from a pipe that pid ", 60),
    "lock for a time": (WAIT_FOR, "a lock", 60),
    "lock for torch's timeout": (FOR_PEERS, "a lock", math.nan),
    "poll": (POLL, "a read from a unix socket", 60),
    "poll of two": (POLLS, "poll on 2 sockets", 60),
    "select": (SELECT, "a read from a unix socket", 60),
    "epoll": (EPOLL, "a read from a unix socket", 60),
    "file lock": (FILE_LOCK, "a lock on the file /tmp/", math.nan),
    "accept": (ACCEPT, "a connection at 127.0.0.1:", math.nan),
    "receive": (RECEIVE, "a read from a socket to 127.0.0.1:", math.nan),
    "signal": (PAUSE, "a signal", math.nan),
    "T": (SLEEP, "a signal to go on (it is stopped)", math.nan),
    "Z": (f"import os\n{READY}os._exit(0)", "", math.nan),
}


@pytest.fixture(scope="module")
def seen_still() -> dict[str, tuple[t.Activity, float]]:
    """All of them at once, as on a node with as many workers; each with the seconds since it was started."""
    began: dict[str, float] = {}
    with contextlib.ExitStack() as stack:
        pids = {}
        for name, (code, _, _) in STILL.items():
            began[name] = time.monotonic()
            pids[name] = stack.enter_context(standing(code))[1].pid
        os.kill(pids["T"], signal.SIGSTOP)
        activities = Activities()
        found: dict[str, t.Activity] = {}
        end = time.monotonic() + 40

        def stands(name: str, seen: t.Activity) -> bool:
            return seen.quiet > 0.9 and seen.waits_for.startswith(STILL[name][1])

        # On a busy machine the second close look, before which nothing counts as quiet, may be late.
        while len(found) < len(pids) or not all(stands(name, seen) for name, seen in found.items()):
            if time.monotonic() > end:
                break
            for rank, (name, pid) in enumerate(pids.items()):
                seen = activities.attach(t.WorkerSample(rank, 0, pid)).activity
                found |= {name: seen} if seen is not None else {}
            seen_at = time.monotonic()
            activities.settle()
            time.sleep(HEARTBEAT_INTERVAL)
        activities.close()
        return {name: (seen, seen_at - began[name]) for name, seen in found.items()}


@pytest.mark.parametrize("name", STILL)
def test_what_stands_still_is_quiet_and_says_on_what_it_waits(
    name: str, seen_still: dict[str, tuple[t.Activity, float]]
) -> None:
    _, words, ends_in = STILL[name]
    seen, age = seen_still[name]
    assert (seen.waits_for[: len(words)], seen.state) == (words, name if name in ("T", "Z") else "S")
    assert seen.quiet > 0.9
    assert (seen.cpu, seen.children_cpu) == (pytest.approx(0, abs=0.03), pytest.approx(0, abs=0.03))
    assert not seen.is_prompt
    assert not seen.has_gpu
    assert seen.waits_for.encode() or not words  # whatever a file is called, it can go over the wire
    if math.isnan(ends_in):
        assert math.isnan(seen.ends_in)
    else:
        assert ends_in - age - 1 <= seen.ends_in <= ends_in


WORK = f"import random\nx = [random.random() for _ in range(300000)]\n{READY}while True: sorted(x)"
LOOP = f"{READY}while True: pass"
CHILD_WORKS = f"import subprocess, sys\n{READY}subprocess.run([sys.executable, '-c', 'while True: pass'])"
THREAD_SAVES = f"""
import tempfile, threading, time
def save():
    with tempfile.TemporaryFile() as file:
        while True:
            file.write(bytes(1 << 18)); file.flush(); file.seek(0); time.sleep(0.01)
thread = threading.Thread(target=save, daemon=True); thread.start()
{READY}thread.join()
"""
MAIN_ENDED = f"""
import ctypes, threading
def work():
    while True: sum(range(1000))
threading.Thread(target=work).start()
{READY}ctypes.CDLL(None).pthread_exit(None)
"""
SLOW_PIPE = f"""
import os, threading, time
read, write = os.pipe()
def drain():
    while True: os.read(read, 4096); time.sleep(0.05)
if os.fork() == 0: drain()
{READY}
while True: os.write(write, bytes(1 << 20))
"""


@pytest.mark.parametrize(
    ("code", "moves", "words"),
    [
        (WORK, lambda a: a.cpu, ""),
        (LOOP, lambda a: a.cpu, ""),
        (CHILD_WORKS, lambda a: a.children_cpu, "its child python"),
        (THREAD_SAVES, lambda a: a.written / 1e6, "a lock"),
        (MAIN_ENDED, lambda a: a.cpu, ""),
        (SLOW_PIPE, lambda a: (a.read + a.written) / 1e6, "a write to a pipe that pid "),
    ],
)
def test_what_moves_is_not_quiet(code: str, moves: Callable[[t.Activity], float], words: str) -> None:
    with standing(code) as (eye, _):
        eye.when(lambda a: moves(a) > 0.02 and a.quiet < 0.5)
        eye.when(lambda a: a.waits_for.startswith(words) and a.state in ("R", "S"))


THREADS_WAIT = f"""
import os, select, socket, threading, time
read, write = os.pipe()
a, b = socket.socketpair()
poll = select.poll(); poll.register(a, 1); poll.register(b, 1)
works = [lambda: os.read(read, 1), lambda: a.recv(1), lambda: b.recv(1), poll.poll, lambda: time.sleep(60)]
threads = [threading.Thread(target=work, daemon=True) for work in works + [threading.Event().wait] * 80]
for thread in threads: thread.start()
{READY}threads[0].join()
"""


def test_what_other_threads_wait_for_is_reported_where_the_main_one_waits_for_a_lock() -> None:
    """More threads than one look takes. Pools, timers and threads that serve descriptors show nothing."""
    reported = "a lock (other threads: a read from a pipe that it holds itself; a read from a unix socket, 2 times)"
    with standing(THREADS_WAIT) as (eye, _):
        eye.when(lambda a: a.waits_for == reported)
        seen = eye.after(0.9)
        assert (seen.waits_for, seen.thread) == (reported, "")


def test_the_thread_that_moves_is_named() -> None:
    with standing(THREAD_SAVES) as (eye, _):
        eye.when(lambda a: a.thread.startswith("python") and "thread" in a.thread)


VFORK = b'#include <unistd.h>\nint main(){write(1,"ready\\n",6);if(vfork()==0)for(;;)pause();return 0;}\n'


def test_a_parent_that_waits_for_its_vfork_is_blocked_and_quiet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no compiler")
    for name in ("disk_bytes", "network_bytes"):  # in state D what the host moves counts, also for other processes
        monkeypatch.setattr(surroundings, name, lambda proc: 0.0)
    program = str(tmp_path / "vfork")  # of C: Python's own would go on in the child
    subprocess.run([compiler, "-x", "c", "-", "-o", program], input=VFORK, check=True)
    with standing("", args=[program]) as (eye, _):
        seen = eye.when(lambda a: a.quiet >= 0.7 and a.state == "D")
        assert seen.waits_for == "the start of a child (vfork)"


UPLOAD = """
import socket, sys
line = socket.create_connection(("127.0.0.1", int(sys.stdin.readline())))
line.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
line.sendall(bytes(300_000))
print("ready", flush=True)
line.recv(1)
"""


def test_an_upload_to_a_slow_server_moves_although_its_process_does_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        done = threading.Event()
        slow: list[bool] = [True]

        def serve() -> None:
            line, _ = server.accept()
            with line:
                while not done.is_set():
                    if slow[0]:
                        line.recv(2048)
                    done.wait(0.05)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            process = subprocess.Popen(
                [sys.executable, "-c", UPLOAD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
            )
            try:
                assert process.stdin
                assert process.stdout
                process.stdin.write(f"{server.getsockname()[1]}\n".encode())
                process.stdin.flush()
                assert process.stdout.readline() == b"ready\n"
                eye = Eye(process.pid)
                waits_for = "a read from a socket to 127.0.0.1:"
                seen = eye.when(lambda a: a.network > 1000 and a.quiet < 1.2 and a.waits_for.startswith(waits_for))
                assert (seen.read, seen.written) == (0, 0)
                slow[0] = False  # the server takes nothing any more
                eye.when(lambda a: a.quiet > 2 and a.network == 0)
            finally:
                process.kill()
                process.communicate()
        finally:
            done.set()
            thread.join()


@pytest.mark.parametrize("asks", ["input()", "import pdb; pdb.set_trace()"])
def test_a_prompt_at_a_terminal(asks: str) -> None:
    ours, theirs = pty.openpty()
    try:
        # With its output in a pipe readline is not used: with it in the terminal, it is.
        out = theirs if asks == "input()" else subprocess.PIPE
        process = subprocess.Popen(
            [sys.executable, "-c", f"{asks}"], stdin=theirs, stdout=out, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        try:
            seen = Eye(process.pid).when(lambda a: a.is_prompt)
            assert (seen.waits_for, seen.state) == ("input at a terminal", "S")
        finally:
            process.kill()
            process.communicate()
    finally:
        os.close(ours)
        os.close(theirs)


TRACER = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
pid = int(sys.argv[1])
assert libc.ptrace(16, pid, None, None) == 0, os.strerror(ctypes.get_errno())  # PTRACE_ATTACH
os.waitpid(pid, 0)
print("ready", flush=True)
{then}
"""


@pytest.mark.parametrize("at_prompt", [True, False])
def test_a_traced_process_is_at_a_prompt_if_its_tracer_is(at_prompt: bool) -> None:
    then = "sys.stdin.readline()" if at_prompt else "import time; time.sleep(60)"
    ours, theirs = pty.openpty()
    try:
        with standing(SLEEP) as (eye, process):
            code = TRACER.format(then=then)
            tracer = subprocess.Popen(
                [sys.executable, "-c", code, str(process.pid)], stdin=theirs, stdout=subprocess.PIPE
            )
            try:
                assert tracer.stdout
                if tracer.stdout.readline() != b"ready\n":
                    pytest.skip("no process may trace another here")
                # It may be ready a moment before it asks.
                seen = eye.when(lambda a: a.quiet >= 0.9 and a.is_prompt == at_prompt)
                assert seen.state == ("S" if at_prompt else "t")
                assert seen.waits_for.startswith(f"its tracer python (pid {tracer.pid})"), seen.waits_for
            finally:
                tracer.kill()
                tracer.communicate()
    finally:
        os.close(ours)
        os.close(theirs)


LEFT = f"""
import os, subprocess, sys
code = "import os, subprocess, sys, time; os.setsid(); p = subprocess.Popen([sys.executable, '-c', 'while True: pass'])"
subprocess.run([sys.executable, "-c", code])
{READY}
import time; time.sleep(60)
"""


def test_a_descendant_that_left_its_family_is_found_by_its_mark() -> None:
    env = os.environ | {"HOLDFAST_WORKER": f"test{os.getpid()}/1/0"}
    with standing(LEFT, env=env) as (eye, _):
        path = f"/dev/shm/x/test{os.getpid()}-g1-rank0"

        def frame() -> t.Activity | None:
            seen = eye.activities.attach(t.WorkerSample(0, 0, eye.pid), path).activity
            eye.activities.settle()
            return seen

        eye.frame = frame  # type: ignore[method-assign]
        seen = eye.when(lambda a: a.children_cpu > 0.1 and a.quiet < 0.5)
        assert seen.cpu < 0.05
        for name in os.listdir("/proc"):
            if name.isdigit() and f"test{os.getpid()}/1/0".encode() in _environment(name):
                os.kill(int(name), signal.SIGKILL)


def _environment(pid: str) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/environ").read_bytes()
    return b""


def test_a_mark_comes_from_the_probe_files_name() -> None:
    assert mark_of("/dev/shm/h/job-gone-g12-rank3") == "job-gone/12/3"
    assert mark_of("/tmp/probe") == mark_of("") == mark_of("a-gx-rank1") == ""
