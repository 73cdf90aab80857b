"""What a thread waits for, in words: from its system call and arguments, its wait channel and its descriptors.

Pure but for what `Look` is asked. Where the kernel does not report it, the words say less; nothing here raises.
"""

import math
import struct
from dataclasses import dataclass
from typing import Protocol

from holdfast.agent.processes.proc_files import NO_CALL, RUNNING, Call, FdInfo
from holdfast.wire.standing import FROZEN

_TIMESPEC = struct.Struct("=qq")
_POLLFD = struct.Struct("=ihh")
_POLLED = 64
"""Descriptors of one poll that are looked at."""
_PATH = 80
_TIMER_ABSTIME = 1
_FUTEX_COMMAND, _FUTEX_REALTIME = 0x7F, 0x100
_FUTEX_RELATIVE = 0  # FUTEX_WAIT; all others that wait have an absolute time
_LOCKS = frozenset({7, 38})  # F_SETLKW, F_OFD_SETLKW
_P_PID, _P_PIDFD = 1, 3
_POLLIN, _POLLOUT = 1, 4

_READS = frozenset({"read", "pread64", "readv", "preadv", "preadv2", "recvfrom", "recvmsg", "recvmmsg"})
_WRITES = frozenset({"write", "pwrite64", "writev", "pwritev", "pwritev2", "sendto", "sendmsg", "sendmmsg"})
_ON_DISK = {
    "fsync": "fsync of", "fdatasync": "fsync of", "sync_file_range": "fsync of", "syncfs": "sync of the file system of",
    "ftruncate": "truncation of", "fallocate": "allocation of",
}  # fmt: skip
_PLAIN = {
    "pause": "a signal", "rt_sigsuspend": "a signal", "rt_sigtimedwait": "a signal", "semop": "a semaphore",
    "semtimedop": "a semaphore", "msgrcv": "a message queue", "msgsnd": "a message queue",
    "mq_timedreceive": "a message queue", "mq_timedsend": "a message queue",
    "io_uring_enter": "input or output (io_uring)", "io_getevents": "input or output (aio)",
    "sync": "a sync of all disks",    "msync": "a sync of mapped memory", "exit_group": "its own end",
}  # fmt: skip
_CHANNELS = (
    ("do_freezer_trap", FROZEN), ("__refrigerator", FROZEN), ("get_signal", FROZEN),
    ("futex", "a lock"), ("nanosleep", "a timer"), ("vfork", "the start of a child (vfork)"), ("do_wait", "a child"),
    ("kernel_wait", "a child"), ("n_tty_read", "input at a terminal"), ("pipe_write", "a write to a pipe"),
    ("pipe_read", "a read from a pipe"), ("do_poll", "poll"), ("do_select", "select"), ("ep_poll", "epoll"),
    ("unix_stream_read", "a read from a unix socket"), ("sk_wait", "a socket"), ("tcp_", "a socket"),
    ("inet_csk_accept", "a connection"), ("handle_userfault", "a page fault"), ("folio_wait", "a page fault"),
    ("do_signal_stop", "a signal to go on"), ("ptrace_stop", "its tracer"),
    ("sigtimedwait", "a signal"), ("pause", "a signal"), ("io_schedule", "the disk"), ("fuse", "a FUSE file system"),
    ("nfs", "an NFS server"), ("rpc_wait", "an NFS server"),
)  # fmt: skip
"""By a part of the wait channel's name, where the call is not known."""
_TERMINAL = ("/dev/pts/", "/dev/tty", "/dev/console")
_TERMINAL_CHANNELS = ("n_tty_read", "wait_woken")


TIMER = "a timer"
LOCK = "a lock"
FREEZER_CHANNELS = ("do_freezer_trap", "__refrigerator")
_STOPPED = {"T": "a signal to go on (it is stopped)", "t": "its tracer", "Z": "", "X": ""}


class Look(Protocol):
    """Questions about the process whose thread waits. Answers are empty where they cannot be had."""

    def link(self, fd: int) -> str:
        """What a descriptor is open on: "/path", "pipe:[7]", "socket:[7]", "anon_inode:[eventfd]"."""
        ...

    def info(self, fd: int) -> FdInfo: ...

    def memory(self, address: int, size: int) -> bytes:
        """So many bytes, or none."""
        ...

    def holders(self, link: str, writes: bool) -> str:
        """Processes that hold the other end of a pipe, to write to it or to read from it: "pid 7 (tar)"."""
        ...

    def socket(self, inode: str) -> str:
        """Where a socket leads: "a socket to 10.0.0.3:443"."""
        ...

    def name(self, pid: int) -> str:
        """A process's command: "tar"."""
        ...


@dataclass(frozen=True, slots=True)
class ThreadWait:
    words: str = ""
    until: float = math.nan
    """When it ends by itself: monotonic seconds."""
    is_prompt: bool = False
    fds: tuple[int, ...] = ()
    """Descriptors that it waits on."""


@dataclass(frozen=True, slots=True)
class Clocks:
    """Seconds, all of one instant. `since`: monotonic, when the thread was first seen in this very wait."""

    monotonic: float
    wall: float
    since: float


def said(wait: ThreadWait, now: float) -> str:
    """Its words at an instant: a timer's with the time that is left."""
    if wait.words != TIMER or math.isnan(wait.until):
        return wait.words
    left = max(wait.until - now, 0.0)
    return f"{TIMER}, for {left:.1f} s more" if left < 600 else f"{TIMER}, for {left / 60:.0f} min more"


def describe(call: Call | None, state: str, channel: str, look: Look, clocks: Clocks) -> ThreadWait:
    """`channel`: the wait channel's name, empty where it is not known. `call` None: not readable."""
    if state == "R" or (call == RUNNING and state not in "DTtZ"):
        return ThreadWait()
    # Where a kernel's compiler inlines the first, "get_signal" is all that is seen: nothing else sleeps there.
    if channel in FREEZER_CHANNELS or (channel == "get_signal" and state == "S"):
        return ThreadWait(FROZEN)
    if state in _STOPPED:
        return ThreadWait(_STOPPED[state])
    if call is None or call.number < 0 or call.name == "restart_syscall":
        words = _by_channel(channel)
        if call == NO_CALL:
            words = "a page fault" + (f" (in {channel})" if channel else "")
        return ThreadWait(_blocked(words, channel) if state == "D" else words)
    wait = _in_call(call, state, channel, look, clocks)
    if state == "D" and call.name not in ("vfork", "clone", "clone3", "fork"):
        return ThreadWait(_blocked(wait.words, channel), fds=wait.fds)
    return wait


def _blocked(words: str, channel: str) -> str:
    where = f"D state in {channel}" if channel else "D state"
    if channel.startswith(("nv", "uvm", "os_acquire")):
        return f"the GPU's driver ({where})"
    server = next((text for part, text in _CHANNELS[-3:] if part in channel), "the disk")
    return f"{server} ({where}{f', {words}' if words and words != server else ''})"


def _by_channel(channel: str) -> str:
    for part, words in _CHANNELS:
        if part in channel:
            return words
    return f"the kernel (in {channel})" if channel else ""


def _in_call(call: Call, state: str, channel: str, look: Look, clocks: Clocks) -> ThreadWait:
    name, args = call.name, call.args
    if name in _PLAIN:
        until = _after(_timespec(look, args[2]), clocks) if name == "rt_sigtimedwait" and args[2] else math.nan
        return ThreadWait(_PLAIN[name], until)
    if name in ("futex", "futex_wait", "futex_waitv"):
        return _lock(name, args, look, clocks)
    if name in ("nanosleep", "clock_nanosleep"):
        return _timer(name, args, look, clocks)
    if name in ("wait4", "waitid"):
        return ThreadWait(_child(name, args, look))
    if name in ("vfork", "clone", "clone3", "fork"):
        # A parent is in state D until the child of its vfork has begun a program of its own.
        return ThreadWait("the start of a child (vfork)" if state == "D" else "the start of a child")
    if name in _READS:
        return _transfer(args[0], look, channel, writes=False)
    if name in _WRITES:
        return _transfer(args[0], look, channel, writes=True)
    if name in ("poll", "ppoll", "select", "pselect6") or name.startswith("epoll"):
        return _polled(name, args, look, channel, clocks)
    if name in ("accept", "accept4", "connect"):
        what = (
            _thing(look.link(_fd(args[0])), look).removeprefix("a socket that listens at ").removeprefix("a socket to ")
        )
        return ThreadWait(f"a connection {'to' if name == 'connect' else 'at'} {what}", fds=(_fd(args[0]),))
    if name == "flock" or (name == "fcntl" and args[1] in _LOCKS):
        return ThreadWait(f"a lock on the file {_thing(look.link(_fd(args[0])), look)}")
    if name in _ON_DISK:
        return ThreadWait(f"{_ON_DISK[name]} {_thing(look.link(_fd(args[0])), look)}")
    if name in ("sendfile", "splice", "copy_file_range"):
        source, target = (1, 0) if name == "sendfile" else (0, 2)
        return ThreadWait(
            f"a copy from {_thing(look.link(_fd(args[source])), look)} to {_thing(look.link(_fd(args[target])), look)}"
        )
    if name == "ioctl":
        return ThreadWait(f"the driver of {_thing(look.link(_fd(args[0])), look)}")
    words = _by_channel(channel)
    called = f"the system call {name or call.number}"
    return ThreadWait(called if not words or words.startswith("the kernel") else words)


def _lock(name: str, args: tuple[int, ...], look: Look, clocks: Clocks) -> ThreadWait:
    if name != "futex":
        pointer, clock = (args[3], args[4]) if name == "futex_waitv" else (args[4], args[5])
        time = _timespec(look, pointer) if pointer else math.nan
        return ThreadWait("a lock", time - (clocks.wall - clocks.monotonic if clock == 0 else 0.0))
    if not args[3]:
        return ThreadWait("a lock")
    time = _timespec(look, args[3])
    if args[1] & _FUTEX_COMMAND == _FUTEX_RELATIVE:
        return ThreadWait("a lock", _after(time, clocks))
    return ThreadWait("a lock", time - (clocks.wall - clocks.monotonic if args[1] & _FUTEX_REALTIME else 0.0))


def _timer(name: str, args: tuple[int, ...], look: Look, clocks: Clocks) -> ThreadWait:
    if name == "nanosleep":
        until = _after(_timespec(look, args[0]), clocks)
    else:
        time = _timespec(look, args[2])
        if args[1] & _TIMER_ABSTIME:
            until = time - (clocks.wall - clocks.monotonic if args[0] == 0 else 0.0)
        else:
            until = _after(time, clocks)
    return ThreadWait(TIMER, until)


def _child(name: str, args: tuple[int, ...], look: Look) -> str:
    pid = 0
    if name == "wait4":
        pid = _signed(args[0])
    elif args[0] == _P_PID:
        pid = args[1]
    elif args[0] == _P_PIDFD:
        pid = look.info(_fd(args[1])).pid
    if pid <= 0:
        return "any of its children"
    called = look.name(pid)
    return f"its child {called} (pid {pid})" if called else f"its child (pid {pid})"


def _transfer(number: int, look: Look, channel: str, writes: bool) -> ThreadWait:
    fd = _fd(number)
    link = look.link(fd)
    verb = "write to" if writes else "read from"
    if _is_terminal(link):
        if writes:
            return ThreadWait("a write to a terminal", fds=(fd,))
        return ThreadWait("input at a terminal", is_prompt=True, fds=(fd,))
    if not writes and fd == 0 and not link and channel in _TERMINAL_CHANNELS:
        return ThreadWait(
            "input at a terminal", is_prompt=True, fds=(fd,)
        )  # it may not look, but the channel is readable
    if link.startswith("pipe:"):
        others = look.holders(link, not writes)
        return ThreadWait(f"a {verb} a pipe" + (f" that {others}" if others else ""), fds=(fd,))
    return ThreadWait(f"a {verb} {_thing(link, look)}", fds=(fd,))


def _polled(name: str, args: tuple[int, ...], look: Look, channel: str, clocks: Clocks) -> ThreadWait:
    fds: list[tuple[int, int]] = []
    until = math.nan
    if name in ("poll", "ppoll"):
        raw = look.memory(args[0], _POLLFD.size * min(args[1], _POLLED)) if 0 < args[1] < 1 << 20 else b""
        fds = [(fd, events) for fd, events, _ in _POLLFD.iter_unpack(raw[: len(raw) // 8 * 8]) if fd >= 0]
        timeout = _milliseconds(args[2]) if name == "poll" else _pointed(look, args[2])
        count = args[1]
    elif name.startswith("epoll"):
        fds = [(fd, _POLLIN) for fd in look.info(_fd(args[0])).watched[:_POLLED]]
        timeout = _pointed(look, args[3]) if name == "epoll_pwait2" else _milliseconds(args[3])
        count = len(fds)
    else:
        fds = [(fd, bit) for at, bit in ((1, _POLLIN), (2, _POLLOUT)) for fd in _bits(look, args[at], args[0])]
        if not fds and args[0] == 1:
            fds = [(0, _POLLIN)]  # the highest is 0: there is but one
        seconds = _pointed(look, args[4])
        # A timeval counts microseconds where a timespec counts nanoseconds.
        timeout = seconds if name == "pselect6" else _timeval(look, args[4])
        count = len(fds)
    until = _after(timeout, clocks) if not math.isnan(timeout) else math.nan
    numbers = tuple(fd for fd, _ in fds)
    links = [look.link(fd) for fd in numbers]
    if any(_is_terminal(link) and events & _POLLIN for link, (_, events) in zip(links, fds, strict=True)):
        return ThreadWait("input at a terminal", until, True, numbers)
    if len(fds) == 1 and count <= 1:
        one = _transfer(numbers[0], look, channel, writes=fds[0][1] & (_POLLIN | _POLLOUT) == _POLLOUT)
        return ThreadWait(one.words, until, one.is_prompt, numbers)
    short = "epoll" if name.startswith("epoll") else "poll" if name.endswith("poll") else "select"
    if not count:
        return ThreadWait(short if math.isnan(until) else TIMER, until)
    kinds = [
        ("sockets" if link.startswith("socket:") else "pipes" if link.startswith("pipe:") else "") for link in links
    ]
    kind = kinds[0] if kinds and all(kind == kinds[0] and kind for kind in kinds) else "descriptors"
    others = look.holders(links[0], fds[0][1] & (_POLLIN | _POLLOUT) != _POLLOUT) if kind == "pipes" else ""
    return ThreadWait(f"{short} on {count} {kind}" + (f" that {others}" if others else ""), until, False, numbers)


def _thing(link: str, look: Look) -> str:
    if link.startswith("socket:["):
        return look.socket(link[8:-1]) or "a socket"
    if link.startswith("pipe:"):
        return "a pipe"
    if link.startswith("anon_inode:"):
        kind = link.partition(":")[2].strip("[]")
        return f"an {kind}" if kind[:1] in "aeiou" else f"a {kind}"
    if not link:
        return "a descriptor"
    return link if len(link) <= _PATH else f"...{link[-_PATH:]}"


def _is_terminal(link: str) -> bool:
    return link.startswith(_TERMINAL)


def _fd(value: int) -> int:
    return value & 0x7FFFFFFF


def _signed(value: int) -> int:
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


def _milliseconds(value: int) -> float:
    """A poll's timeout; NaN for none."""
    return math.nan if _signed(value) < 0 else _signed(value) / 1e3


def _pointed(look: Look, address: int) -> float:
    return _timespec(look, address) if address else math.nan


def _timespec(look: Look, address: int, unit: float = 1e-9) -> float:
    raw = look.memory(address, _TIMESPEC.size)
    if len(raw) != _TIMESPEC.size:
        return math.nan
    seconds, parts = _TIMESPEC.unpack(raw)
    return seconds + parts * unit if 0 <= seconds < 1 << 40 and 0 <= parts < 1 << 40 else math.nan


def _timeval(look: Look, address: int) -> float:
    return _timespec(look, address, 1e-6) if address else math.nan


def _after(timeout: float, clocks: Clocks) -> float:
    """The end of a time that began when the call did. That is not known where the same call was made again."""
    return max(clocks.since + timeout, clocks.monotonic) if not math.isnan(timeout) else math.nan


def _bits(look: Look, address: int, count: int) -> list[int]:
    """Members of a select's set."""
    count = min(count, 1024)
    raw = look.memory(address, (count + 63) // 64 * 8) if address and count > 0 else b""
    return [fd for fd in range(count) if fd // 8 < len(raw) and raw[fd // 8] >> fd % 8 & 1][:_POLLED]
