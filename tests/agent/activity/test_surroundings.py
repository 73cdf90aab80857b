"""What a worker waits for is not always its own: a daemon behind a socket, the host's disks, its next attempt."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.agent.activity.host_flow import disk_bytes, is_asked, network_bytes, rdma_bytes
from holdfast.agent.activity.other_ends import far_links
from holdfast.agent.activity.surroundings import Surroundings
from holdfast.agent.activity.waits import TIMER, ThreadWait
from holdfast.agent.activity.watch import Activities
from holdfast.agent.processes.aside import Lane
from holdfast.agent.processes.sockets import Sockets, Tcp, Unix, dump, of_namespace
from holdfast.wire import types as t
from tests.agent.support.processes import until
from tests.agent.support.standing import READY, standing

WAITS = f"""
import os, socket, sys
fd = int(sys.argv[1]) if len(sys.argv) > 1 else 0
{READY}
os.read(fd, 1)
"""
DAEMON = """
import signal, sys, time
print("ready", flush=True)
if sys.argv[1] == "works":
    while True: pass
time.sleep(60)
"""


def _pair(kind: str) -> tuple[int, int]:
    if kind == "pipe":
        return os.pipe()
    if kind == "unix":
        one, two = socket.socketpair()
    else:
        with socket.create_server(("127.0.0.1", 0)) as server:
            one = socket.create_connection(server.getsockname())
            two, _ = server.accept()
    return one.detach(), two.detach()


@pytest.mark.parametrize("kind", ["unix", "tcp", "pipe"])
@pytest.mark.parametrize("does", ["works", "sleeps"])
def test_a_daemon_at_the_other_end_moves_for_the_worker_that_waits_for_it(kind: str, does: str) -> None:
    ours, theirs = _pair(kind)
    ready = subprocess.Popen(
        [sys.executable, "-c", DAEMON, does], pass_fds=[theirs], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
    )
    try:
        assert ready.stdout
        assert ready.stdout.readline() == b"ready\n"
        args = [sys.executable, "-c", WAITS, str(ours)]
        with standing("", args=args, pass_fds=[ours]) as (eye, _):
            os.close(theirs)
            os.close(ours)
            seen = eye.when(lambda a: f"(other end: python, pid {ready.pid})" in a.waits_for)
            assert seen.waits_for.startswith("a read from a ")
            if does == "works":
                eye.activities.leaders = lambda: [ready.pid]
                eye.when(lambda a: "other end" not in a.waits_for)
                eye.activities.leaders = lambda: []
                eye.when(lambda a: a.quiet < 0.5 and a.children_cpu > 0.1)
            else:
                seen = eye.when(lambda a: a.quiet > 1.0)
                assert seen.children_cpu < 0.04
    finally:
        ready.kill()
        ready.communicate()


ATTEMPTS = f"""
import socket, time
{READY}
while True:
    {{}}
    time.sleep(0.6)
"""
TRY = "for _ in range(3):\n        try: socket.create_connection(('127.0.0.1', 1), 1)\n        except OSError: pass"


@pytest.mark.parametrize(("does", "moves"), [(TRY, True), ("pass", False)])
def test_attempts_with_pauses_between_are_movement_and_sleeping_again_is_not(does: str, moves: bool) -> None:
    with standing(ATTEMPTS.format(does)) as (eye, _):
        if moves:
            eye.when(lambda a: a.watched > 1.5 and a.quiet < 0.4)
        else:
            eye.after(2.0)


def test_attempts_are_reported_by_what_they_take() -> None:
    def story(sleep: float, cpu: float, words: str = TIMER) -> bool:
        one, ran = Surroundings(), 0
        found = False
        for turn in range(5):
            ran += int(cpu * 1e9)
            found |= one.attempts(turn * sleep, ThreadWait(words), ran, turn)
        return found

    assert story(1.0, 300e-6)
    assert not story(1.0, 40e-6)
    assert not story(0.1, 300e-6)  # a loop that polls
    assert not story(1.0, 300e-6, "a lock")


def test_the_other_end_of_what() -> None:
    known = Sockets(
        {3: Tcp(local="127.0.0.1:1", remote="127.0.0.1:2"), 4: Tcp(local="127.0.0.1:2", remote="127.0.0.1:1"),
         5: Tcp(local="10.0.0.1:5", remote="10.0.0.2:6")},
        {7: Unix(8), 9: Unix(0)},
    )  # fmt: skip
    links = ["socket:[3]", "socket:[5]", "socket:[7]", "socket:[9]", "pipe:[1]", "/x", "socket:[x]", "socket:[99]"]
    assert far_links(links, known) == ["socket:[4]", "socket:[8]", "pipe:[1]"]


def test_a_daemon_that_is_found_late_has_not_moved_by_what_it_did_before(tmp_path: Path) -> None:
    for name in ("9/fd", "9/fdinfo"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "9" / "stat").write_text("9 (db) S 1 9 9 0 -1 0 0 0 0 0 50000 0 0 0 20 0 1 0 5 0 0")
    (tmp_path / "9" / "io").write_text("rchar: 1000000\nwchar: 1\nread_bytes: 0\nwrite_bytes: 0\n")
    one, known = Surroundings(str(tmp_path)), Sockets({}, {7: Unix(8)})
    assert not one.other_ends(0.0, ["socket:[7]"], known, [])
    (tmp_path / "9" / "fd" / "3").symlink_to("socket:[8]")
    for at in (6.0, 7.0):
        assert not one.other_ends(at, ["socket:[7]"], known, [])
    assert one.ends == (9,)
    (tmp_path / "9" / "io").write_text("rchar: 1100000\nwchar: 1\nread_bytes: 0\nwrite_bytes: 0\n")
    assert one.other_ends(8.0, ["socket:[7]"], known, [])
    assert not one.other_ends(9.0, ["socket:[7]"], known, [9])


def test_sockets_of_this_host_with_what_they_have_moved() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as one:
        two, _ = server.accept()
        one.sendall(bytes(1000))
        two.recv(1000, socket.MSG_WAITALL)
        inodes = [os.fstat(end.fileno()).st_ino for end in (one, two)]
        ends: list[Tcp] = []

        def is_acknowledged() -> bool:
            known = dump().tcp  # sockets of other processes come and go meanwhile: one of ours may be left out
            ends[:] = [known[inode] for inode in inodes if inode in known]
            return len(ends) == 2 and ends[0].acked >= 1000

        until(is_acknowledged)
        assert [(end.acked, end.received) for end in ends] in ([(1001, 0), (0, 1000)], [(1000, 0), (0, 1000)])
        assert (ends[0].local, ends[0].remote) == (ends[1].remote, ends[1].local)
        until(lambda: inodes[0] in (known := of_namespace(os.getpid())) and known[inodes[0]].remote == ends[0].remote)
        two.close()


def test_a_hosts_bytes_are_asked_for_where_a_thread_may_wait_for_them(tmp_path: Path) -> None:
    assert is_asked("a lock", "", "SSD")
    assert is_asked("fsync of /data/x", "", "S")
    assert is_asked("a read from /mnt/x", "request_wait_answer", "S")
    assert not is_asked("a lock", "futex_do_wait", "SS")
    for channel in (
        "do_sys_poll",
        "poll_schedule_timeout.constprop.0",
        "do_select",
        "ep_poll",
        "unix_stream_read_generic",
    ):
        assert not is_asked("a read from a unix socket", channel, "S")
    (tmp_path / "vmstat").write_text("nr_dirty 7\nnr_written 100\npgpgin 10\npgpgout 20\nbroken x\n")
    assert disk_bytes(str(tmp_path)) == 100 * os.sysconf("SC_PAGE_SIZE") + 30 * 1024
    (tmp_path / "net").mkdir()
    line = "{}: 100 1 0 0 0 0 0 0 200 1 0 0 0 0 0 0\n"
    (tmp_path / "net" / "dev").write_text("h\nh\n" + line.format("  lo") + line.format("eth0") + "bad: x\n")
    assert network_bytes(str(tmp_path)) == 300
    assert disk_bytes(str(tmp_path / "no")) == network_bytes(str(tmp_path / "no")) == rdma_bytes(str(tmp_path)) == 0


def test_bytes_of_disks_and_rdma_are_movement(tmp_path: Path) -> None:
    def write(pages: int, words: int) -> None:
        (tmp_path / "vmstat").write_text(f"nr_written {pages}\n")
        port = tmp_path / "class/infiniband/mlx5_0/ports/1/counters"
        port.mkdir(parents=True, exist_ok=True)
        (port / "port_xmit_data").write_text(f"{words}\n")
        (port / "port_rcv_data").write_text("N/A (no PMA)\n")

    one = Surroundings(str(tmp_path), str(tmp_path))
    synced = ThreadWait("the disk (D state, fsync of /x)")
    write(0, 0)
    assert not one.host(0.0, synced, "", "D", False, True)
    assert not one.host(1.0, synced, "", "D", False, True)
    write(10_000, 0)
    assert one.host(2.0, synced, "", "D", False, True)
    assert not one.host(3.0, synced, "", "D", False, True)
    write(20_000, 0)
    assert not one.host(4.0, ThreadWait("a lock"), "", "S", False, True)
    assert not one.host(5.0, synced, "", "D", False, True)  # what was written before is not this wait's
    assert not one.host(5.2, ThreadWait("a lock"), "", "S", False, True, others_ask=True)
    write(30_000, 0)
    assert one.host(5.5, ThreadWait("a lock"), "", "S", False, True, others_ask=True)  # another thread writes them
    write(20_000, 10**6)
    assert not one.host(6.0, ThreadWait("a lock"), "", "S", False, True)  # of another worker, perhaps
    assert not one.host(7.0, ThreadWait("a lock"), "", "S", True, True)
    write(20_000, 2 * 10**6)
    assert one.host(8.0, ThreadWait("a lock"), "", "S", True, True)


class Inline:
    """Close looks at once."""

    left: tuple[str, ...] = ()
    is_free = True

    def begin(self, job: Callable[[Lane], None]) -> None:
        job(Lane())

    def close(self) -> None:
        pass


def test_an_agent_that_was_away_takes_nothing_for_quiet_that_it_has_not_seen(tmp_path: Path) -> None:
    now = [0.0]
    (tmp_path / "7" / "task" / "7").mkdir(parents=True)
    (tmp_path / "7" / "fd").mkdir()
    (tmp_path / "8").mkdir()
    ticks = 0

    def frame(after: float, settles: bool = True) -> t.Activity | None:
        nonlocal ticks
        now[0] += after
        ticks += round(100 * after)
        (tmp_path / "7" / "stat").write_text("7 (x) S 1 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 5 0 0")
        (tmp_path / "8" / "stat").write_text(f"8 (y) R 7 7 7 0 -1 0 0 0 0 0 {ticks} 0 0 0 20 0 1 0 6 0 0")
        seen = activities.attach(t.WorkerSample(0, 0, 7)).activity
        if settles:
            activities.settle()
        return seen

    aside: object = Inline()
    activities = Activities(str(tmp_path), lambda: now[0], aside=aside)  # type: ignore[arg-type]
    frame(0.0)
    for _ in range(80):
        seen = frame(0.1)
    assert seen is not None
    assert seen.children_cpu == pytest.approx(1.0, abs=0.2)
    assert seen.quiet == 0
    seen = frame(30.0)
    assert seen is not None
    assert seen.quiet == 0  # a frame that is late by 30 s: the child may have computed all the time
    for heartbeat_interval in (5.0, 5.0, 5.0, 5.0):  # a big cluster
        seen = frame(heartbeat_interval)
        assert seen is not None
        assert seen.quiet == 0
    activities.close()


def test_a_fifo_or_a_holder_that_ends_is_no_error() -> None:
    ours, theirs = os.pipe()
    holder = subprocess.Popen([sys.executable, "-c", DAEMON, "sleeps"], pass_fds=[theirs], stdout=subprocess.PIPE)
    with standing("", args=[sys.executable, "-c", WAITS, str(ours)], pass_fds=[ours]) as (eye, process):
        os.close(ours)
        eye.when(lambda a: f"pid {holder.pid}" in a.waits_for)
        holder.kill()
        holder.communicate()
        eye.when(lambda a: f"pid {holder.pid}" not in a.waits_for)
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
    os.close(theirs)
