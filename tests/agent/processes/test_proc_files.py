"""Kernel files are parsed on both architectures; garbage is never an error."""

import math
import struct
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.agent.activity.close_look import CloseLook
from holdfast.agent.activity.host import HostLook
from holdfast.agent.activity.waits import Clocks, ThreadWait, describe, said
from holdfast.agent.processes import sockets
from holdfast.agent.processes.proc_files import (
    NO_CALL,
    RUNNING,
    TICK_S,
    Call,
    FdInfo,
    Io,
    parse_call,
    parse_fdinfo,
    parse_io,
    parse_runnable,
    parse_schedstat,
    parse_stat,
    parse_status,
)
from holdfast.agent.processes.system_calls import ARCHITECTURES

STAT = "4711 (a (b) c) S 4700 4711 4701 0 -1 4194304 2886 6585 3 7 12 8 3 2 20 0 5 0 57908 16961536 3355 1844674 1 1 0"


def test_a_process_is_read_from_its_line_whatever_its_name() -> None:
    stat = parse_stat(STAT.encode())
    assert stat is not None
    assert (stat.name, stat.state, stat.parent, stat.session) == ("a (b) c", "S", 4700, 4701)
    assert (stat.minor_faults, stat.reaped_faults, stat.major_faults) == (2886, 6585, 3)
    assert (stat.cpu, stat.reaped) == (pytest.approx(20 * TICK_S), pytest.approx(5 * TICK_S))
    assert (stat.threads, stat.start_ticks) == (5, 57908)


IO = b"rchar: 10\nwchar: 20\nsyscr: 1\nsyscw: 1\nread_bytes: 4096\nwrite_bytes: 8\ncancelled_write_bytes: 0\n"


def test_bytes_count_once_whichever_way_they_went() -> None:
    assert parse_io(IO) == Io(10, 20, 4096, 8)
    assert (Io(10, 20, 4096, 8).taken, Io(10, 20, 4096, 8).given) == (4096, 20)


def test_a_system_call_is_named_by_the_architectures_own_numbers() -> None:
    futex = b"%d 0x7f 0x189 0x0 0x0 0x0 0xffffffff 0x7ffe 0x7f14\n"
    assert parse_call(futex % 202, "x86_64") == Call(202, "futex", (0x7F, 0x189, 0, 0, 0, 0xFFFFFFFF))
    assert parse_call(futex % 98, "aarch64") == Call(98, "futex", (0x7F, 0x189, 0, 0, 0, 0xFFFFFFFF))
    assert parse_call(futex % 98, "riscv64") == Call(98, "", (0x7F, 0x189, 0, 0, 0, 0xFFFFFFFF))
    assert parse_call(b"running\n") == RUNNING
    assert parse_call(b"-1 0x7ffe 0x7f14\n") == NO_CALL
    assert parse_call(b"") is parse_call(b"202 0x1 0x2") is parse_call(b"x 0x1") is None
    for names in ARCHITECTURES.values():
        assert len(set(names.values())) == len(names)
    # The same call has the same name on both, but for those that only one has.
    assert set(ARCHITECTURES["aarch64"].values()) - set(ARCHITECTURES["x86_64"].values()) == {"renameat2"}


def test_descriptors_report_their_place_and_what_they_watch() -> None:
    assert parse_fdinfo(b"pos:\t17\nflags:\t0100002\nmnt_id:\t3\n") == FdInfo(17, 0o100002)
    assert parse_fdinfo(b"pos:\t0\nflags:\t02\ntfd:        7 events:       19 data: 7\ntfd: 8 events: 1\n").watched == (
        7,
        8,
    )
    assert parse_fdinfo(b"pos:\t0\nPid:\t99\nNSpid:\t99\n").pid == 99
    assert (FdInfo(flags=0o1).can_read, FdInfo(flags=0o1).can_write) == (False, True)
    assert (FdInfo(flags=0o0).can_read, FdInfo(flags=0o0).can_write) == (True, False)
    assert (FdInfo(flags=0o2).can_read, FdInfo(flags=0o2).can_write) == (True, True)


def test_other_small_files() -> None:
    assert parse_schedstat(b"191720824 1428301 26\n") == (191720824, 26)
    assert parse_schedstat(b"0 0") is None
    assert parse_runnable(b"191720824 1428301 26\n") == 191720824 + 1428301
    assert parse_runnable(b"0") is None
    assert parse_status(b"Name:\tx\nTracerPid:\t12\n", "TracerPid") == 12


# --- waits in words, without a process


@dataclass
class Fake:
    """`waits.Look` from tables."""

    links: dict[int, str] = field(default_factory=dict)
    infos: dict[int, FdInfo] = field(default_factory=dict)
    at: dict[int, bytes] = field(default_factory=dict)
    held: str = ""

    def link(self, fd: int) -> str:
        return self.links.get(fd, "")

    def info(self, fd: int) -> FdInfo:
        return self.infos.get(fd, FdInfo())

    def memory(self, address: int, size: int) -> bytes:
        return self.at.get(address, b"")[:size]

    def holders(self, link: str, writes: bool) -> str:
        return self.held

    def socket(self, inode: str) -> str:
        return f"a socket to 10.0.0.{inode}:443"

    def name(self, pid: int) -> str:
        return {123: "tar"}.get(pid, "")


CLOCKS = Clocks(monotonic=1000.0, wall=5000.0, since=998.0)
ANY = 0x1000


def call(name: str, *args: int) -> Call:
    return Call(1, name, (*args, *(0,) * (6 - len(args))))


def timespec(seconds: int, nanoseconds: int = 0) -> dict[int, bytes]:
    return {ANY: struct.pack("=qq", seconds, nanoseconds)}


def words(which: Call | None, state: str = "S", channel: str = "", **fake: object) -> str:
    return describe(which, state, channel, Fake(**fake), CLOCKS).words  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("which", "at", "left"),
    [
        (call("clock_nanosleep", 1, 1, ANY), timespec(1012, 500_000_000), 12.5),
        (call("clock_nanosleep", 0, 1, ANY), timespec(5012, 500_000_000), 12.5),
        (call("clock_nanosleep", 1, 0, ANY), timespec(10), 8.0),
        (call("nanosleep", ANY), timespec(10), 8.0),
        (call("futex", 0, 0x189, 0, ANY), timespec(5012), 12.0),
        (call("futex", 0, 0x89, 0, ANY), timespec(1012), 12.0),
        (call("futex", 0, 0x80, 0, ANY), timespec(10), 8.0),
        (call("futex", 0, 0x189, 0, 0), {}, math.nan),
        (call("futex_wait", 0, 0, 0, 0, ANY, 1), timespec(1012), 12.0),
        (call("futex_waitv", 0, 0, 0, ANY, 0), timespec(5012), 12.0),
        (call("poll", 0, 0, 10_000), {}, 8.0),
        (call("poll", 0, 0, 0xFFFFFFFF), {}, math.nan),
        (call("ppoll", 0, 0, ANY), timespec(10), 8.0),
        (call("epoll_wait", 3, 0, 64, 10_000), {}, 8.0),
        (call("epoll_pwait", 3, 0, 64, 0xFFFFFFFFFFFFFFFF), {}, math.nan),
        (call("epoll_pwait2", 3, 0, 64, ANY), timespec(10), 8.0),
        (call("select", 0, 0, 0, 0, ANY), timespec(10, 500_000), 8.5),
        (call("pselect6", 0, 0, 0, 0, ANY), timespec(10, 500_000_000), 8.5),
        (call("rt_sigtimedwait", 0, 0, ANY), timespec(10), 8.0),
        (call("clock_nanosleep", 1, 1, ANY), {}, math.nan),
        (call("clock_nanosleep", 1, 1, ANY), {ANY: struct.pack("=qq", -5, 0)}, math.nan),
        (call("poll", 0, 0, 500), {}, 0.0),  # made again: when is not known
    ],
)
def test_when_a_wait_ends_by_itself(which: Call, at: dict[int, bytes], left: float) -> None:
    wait = describe(which, "S", "", Fake(at=at), CLOCKS)
    assert wait.until - CLOCKS.monotonic == pytest.approx(left, nan_ok=True)


def test_words_for_waits() -> None:
    sock = {4: "socket:[3]", 5: "socket:[5]", 0: "/dev/pts/3", 7: "/data/x.bin", 8: "pipe:[9]"}
    assert words(call("futex", 0, 0x189)) == "a lock"
    assert words(call("wait4", 123)) == "its child tar (pid 123)"
    assert words(call("wait4", 0xFFFFFFFFFFFFFFFF)) == "any of its children"
    assert words(call("waitid", 1, 123)) == "its child tar (pid 123)"
    assert words(call("waitid", 3, 6), infos={6: FdInfo(pid=124)}) == "its child (pid 124)"
    assert words(call("read", 8), links=sock, held="pid 77 (python) holds") == (
        "a read from a pipe that pid 77 (python) holds"
    )
    assert words(call("write", 8), links=sock) == "a write to a pipe"
    assert words(call("recvfrom", 4), links=sock) == "a read from a socket to 10.0.0.3:443"
    assert words(call("connect", 4), links=sock) == "a connection to 10.0.0.3:443"
    assert words(call("pread64", 7), "D", "folio_wait_bit", links=sock) == (
        "the disk (D state in folio_wait_bit, a read from /data/x.bin)"
    )
    assert words(call("fsync", 7), "D", "", links=sock) == "the disk (D state, fsync of /data/x.bin)"
    assert words(call("read", 7), "D", "nfs_wait_bit_killable", links=sock).startswith("an NFS server (D state in nfs_")
    assert words(call("ioctl", 7), "D", "uvm_ioctl") == "the GPU's driver (D state in uvm_ioctl)"
    assert words(call("ioctl", 3), links={3: "/dev/nvidia0"}) == "the driver of /dev/nvidia0"
    assert words(NO_CALL, "D", "folio_wait_bit_common") == (
        "the disk (D state in folio_wait_bit_common, a page fault (in folio_wait_bit_common))"
    )
    assert words(NO_CALL, "S", "handle_userfault") == "a page fault (in handle_userfault)"
    assert words(None, "S", "do_freezer_trap") == words(call("read", 0), "S", "do_freezer_trap") == "a frozen cgroup"
    assert words(None, "S", "futex_do_wait") == "a lock"
    assert words(None, "S", "hrtimer_nanosleep") == "a timer"
    assert words(None) == ""
    assert words(None, "S", "some_driver_wait") == "the kernel (in some_driver_wait)"
    assert words(call("restart_syscall"), "S", "do_poll") == "poll"
    assert (
        words(call("flock", 7), links=sock)
        == words(call("fcntl", 7, 7), links=sock)
        == "a lock on the file /data/x.bin"
    )
    assert words(call("", 1)) == "the system call 1"
    assert words(call("sendfile", 4, 7), links=sock) == "a copy from /data/x.bin to a socket to 10.0.0.3:443"
    assert words(call("splice", 7, 0, 4), links=sock) == "a copy from /data/x.bin to a socket to 10.0.0.3:443"
    assert words(call("io_uring_enter", 3)) == "input or output (io_uring)"
    assert words(call("epoll_wait", 9, 0, 64, 0xFFFFFFFF), links=sock, infos={9: FdInfo(watched=(4, 5))}) == (
        "epoll on 2 sockets"
    )
    assert words(call("futex"), "R") == words(RUNNING) == words(None, "Z") == ""


def test_a_prompt_is_a_read_from_a_terminal_by_whatever_call() -> None:
    links = {0: "/dev/pts/3", 4: "socket:[3]"}
    one = {ANY: struct.pack("=ihh", 0, 1, 0) + struct.pack("=ihh", 4, 1, 0)}
    for which, at in (
        (call("read", 0), {}),
        (call("poll", ANY, 2, 0xFFFFFFFF), one),
        (call("select", 1, ANY), {ANY: struct.pack("=q", 1)}),
        (call("pselect6", 1), {}),  # its memory may not be read: the highest descriptor is 0
    ):
        wait = describe(which, "S", "", Fake(links, at=at), CLOCKS)
        assert (wait.words, wait.is_prompt) == ("input at a terminal", True)
    assert describe(call("read", 0), "S", "n_tty_read", Fake(), CLOCKS).is_prompt
    assert not describe(call("write", 0), "S", "", Fake(links), CLOCKS).is_prompt
    assert not describe(call("read", 4), "S", "", Fake(links), CLOCKS).is_prompt


def test_a_timers_words_count_down() -> None:
    wait = ThreadWait("a timer", 1012.34)
    assert said(wait, 1000) == "a timer, for 12.3 s more"
    assert said(wait, 1020) == "a timer, for 0.0 s more"
    assert said(ThreadWait("a timer", 4600), 1000) == "a timer, for 60 min more"
    assert said(ThreadWait("a timer"), 1000) == "a timer"
    assert said(ThreadWait("a lock", 1012.34), 1000) == "a lock"


GARBAGE = st.binary(max_size=300) | st.sampled_from([STAT.encode(), IO]).flatmap(
    lambda whole: st.integers(0, len(whole)).map(lambda cut: whole[:cut])
)
WORD = st.integers(0, 2**64 - 1)


@given(GARBAGE)
def test_garbage_in_a_file_is_no_error(raw: bytes) -> None:
    (
        parse_stat(raw),
        parse_io(raw),
        parse_call(raw, "x86_64"),
        parse_schedstat(raw),
        parse_runnable(raw),
        parse_status(raw, "TracerPid"),
    )
    parse_fdinfo(raw), sockets.parse_tcp(raw), sockets.parse_unix(raw), sockets.parse_line(raw)
    list(sockets.messages(raw))


@given(
    st.sampled_from([*sorted(ARCHITECTURES["x86_64"].values()), ""]),
    st.tuples(WORD, WORD, WORD, WORD, WORD, WORD),
    st.sampled_from("RSDTtZXI?"),
    st.sampled_from(["", "futex_do_wait", "x"]),
    st.binary(max_size=64),
    st.text(max_size=12),
)
def test_no_system_call_is_an_error(
    name: str, args: tuple[int, ...], state: str, channel: str, raw: bytes, link: str
) -> None:
    class Odd(Fake):
        def memory(self, address: int, size: int) -> bytes:
            return raw

        def link(self, fd: int) -> str:
            return link

    wait = describe(Call(1, name, args), state, channel, Odd(), CLOCKS)
    assert math.isnan(wait.until) or wait.until > -1e15
    assert len(wait.words) < 400


FILES = ("stat", "io", "syscall", "wchan", "status", "schedstat", "comm", "environ", "cmdline")


@settings(max_examples=30, deadline=None)
@given(st.dictionaries(st.sampled_from(FILES), GARBAGE), st.dictionaries(st.sampled_from(FILES), GARBAGE))
def test_a_damaged_proc_is_no_error(
    tmp_path_factory: pytest.TempPathFactory, one: dict[str, bytes], two: dict[str, bytes]
) -> None:
    proc = tmp_path_factory.mktemp("proc")
    for pid, files in ((7, one), (8, two)):
        threads = (proc / str(pid) / "task" / name for name in (str(pid), "98", "99"))
        for folder in (proc / str(pid), *threads):
            folder.mkdir(parents=True, exist_ok=True)
            for name, raw in files.items():
                (folder / name).write_bytes(raw)
        (proc / str(pid) / "fd").mkdir()
        (proc / str(pid) / "fd" / "3").symlink_to("socket:[x]")
        (proc / str(pid) / "fd" / "x").symlink_to("/dev/nvidia-uvm")
    (proc / "nonsense").mkdir()
    look = CloseLook(7, HostLook(str(proc), sockets.Sockets), "job/1/0", 99)
    for now in (0.0, 0.5, 11.0):
        look.look(now)
