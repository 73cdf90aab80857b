"""The sockets of this host by inode: what TCP has moved, what waits in queues, where they lead.

Asked of the kernel through netlink (sock_diag), which answers for the network namespace of this process. For a process
in another namespace /proc/PID/net/tcp still shows the queues. Nothing here raises.
"""

import contextlib
import ipaddress
import socket
import struct
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from holdfast.agent.processes.proc_files import read_all

_NETLINK_SOCK_DIAG, _BY_FAMILY = 4, 20
_DUMP = 0x301  # NLM_F_REQUEST | NLM_F_DUMP
_DONE, _ERROR = 3, 2
_HEADER = struct.Struct("=IHHII")
_INET_REQUEST = struct.Struct("=BBBxI48x")
_INET = struct.Struct("=BBBB2s2s16s16sI8sIIIII")  # ends: expires, rqueue, wqueue, uid, inode
_UNIX_REQUEST = struct.Struct("=BBHIIIII")
_UNIX = struct.Struct("=BBBBIII")
_ATTRIBUTE = struct.Struct("=HH")
_INFO, _PEER, _QUEUES = 2, 2, 4
_SHOW = 4 | 16  # UDIAG_SHOW_PEER, UDIAG_SHOW_RQLEN
_MOVED = struct.Struct("=QQ")  # tcpi_bytes_acked, tcpi_bytes_received
_MOVED_AT = 120
LISTEN, TIME_WAIT, NEW_SYN_RECV = 10, 6, 12
_STATES = 0xFFF & ~(1 << TIME_WAIT) & ~(1 << NEW_SYN_RECV)
_TIMEOUT = 1.0
_RECEIVE = 1 << 17
MOST = 20_000
"""Sockets of a host that are looked through."""


@dataclass(frozen=True, slots=True)
class Tcp:
    """One socket. Bytes since it was made, as the peer has acknowledged them; -1 where the kernel reports none."""

    acked: int = -1
    received: int = -1
    queues: tuple[int, int] = (0, 0)
    """Bytes that wait to be read, and to be acknowledged by the peer."""
    state: int = 1
    local: str = ""
    remote: str = ""

    @property
    def words(self) -> str:
        if self.state == LISTEN:
            return f"a socket that listens at {self.local}"
        return f"a socket to {self.remote}" if self.remote else "a socket"


@dataclass(frozen=True, slots=True)
class Unix:
    peer: int = 0
    """Its inode; 0: none, or it may not be known."""
    queues: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class Sockets:
    tcp: dict[int, Tcp] = field(default_factory=dict)
    unix: dict[int, Unix] = field(default_factory=dict)

    def moved(self, inodes: Iterable[int]) -> tuple[int, tuple[tuple[int, ...], ...]]:
        """Bytes that these have moved, both directions; and what else of them changes when anything moves."""
        total = 0
        queues: list[tuple[int, ...]] = []
        for inode in sorted(inodes):
            if (tcp := self.tcp.get(inode)) is not None:
                total += max(tcp.acked, 0) + max(tcp.received, 0)
                queues.append((inode, tcp.state, *tcp.queues))
            elif (unix := self.unix.get(inode)) is not None:
                queues.append((inode, *unix.queues))
        return total, tuple(queues)


def dump() -> Sockets:
    """All TCP and Unix sockets of this network namespace; empty where the kernel does not answer."""
    found = Sockets()
    for family in (socket.AF_INET, socket.AF_INET6):
        request = _INET_REQUEST.pack(family, socket.IPPROTO_TCP, 1 << (_INFO - 1), _STATES)
        for payload in _ask(request):
            if (one := parse_tcp(payload)) is not None:
                found.tcp[one[0]] = one[1]
    for payload in _ask(_UNIX_REQUEST.pack(socket.AF_UNIX, 0, 0, 0xFFFFFFFF, 0, _SHOW, 0, 0)[:24]):
        if (pair := parse_unix(payload)) is not None:
            found.unix[pair[0]] = pair[1]
    return found


def _ask(request: bytes) -> Iterator[bytes]:
    """Payloads of the messages with which the kernel answers one request."""
    message = _HEADER.pack(_HEADER.size + len(request), _BY_FAMILY, _DUMP, 1, 0) + request
    with (
        contextlib.suppress(OSError, AttributeError),
        socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG) as line,
    ):
        line.settimeout(_TIMEOUT)
        line.send(message)
        count = 0
        while count < MOST:
            for kind, payload in messages(line.recv(_RECEIVE)):
                if kind in (_DONE, _ERROR):
                    return
                count += 1
                yield payload


def messages(raw: bytes) -> Iterator[tuple[int, bytes]]:
    """Type and payload of each netlink message in `raw`; stops at the first damaged one."""
    at = 0
    while at + _HEADER.size <= len(raw):
        size, kind, *_ = _HEADER.unpack_from(raw, at)
        if size < _HEADER.size or at + size > len(raw):
            yield _ERROR, b""
            return
        yield kind, raw[at + _HEADER.size : at + size]
        at += -(-size // 4) * 4


def parse_tcp(payload: bytes) -> tuple[int, Tcp] | None:
    """Inode and socket of one inet_diag_msg; None when it is cut off or belongs to no process."""
    if len(payload) < _INET.size:
        return None
    family, state, _, _, sport, dport, src, dst, _, _, _, rqueue, wqueue, _, inode = _INET.unpack_from(payload)
    if not inode:
        return None
    info = _attribute(payload[_INET.size :], _INFO)
    acked, received = _MOVED.unpack_from(info, _MOVED_AT) if len(info) >= _MOVED_AT + _MOVED.size else (-1, -1)
    local, remote = _place(family, src, sport), _place(family, dst, dport)
    return inode, Tcp(acked, received, (rqueue, wqueue), state, local, remote)


def parse_unix(payload: bytes) -> tuple[int, Unix] | None:
    if len(payload) < _UNIX.size:
        return None
    inode = _UNIX.unpack_from(payload)[4]
    peer = _attribute(payload[_UNIX.size :], _PEER)
    queues = _attribute(payload[_UNIX.size :], _QUEUES)
    read_bytes, write_bytes = struct.unpack_from("=II", queues) if len(queues) >= 8 else (0, 0)
    return inode, Unix(int.from_bytes(peer[:4], sys.byteorder), (read_bytes, write_bytes))


def _attribute(raw: bytes, wanted: int) -> bytes:
    at = 0
    while at + _ATTRIBUTE.size <= len(raw):
        size, kind = _ATTRIBUTE.unpack_from(raw, at)
        if size < _ATTRIBUTE.size:
            break
        if kind == wanted:
            return raw[at + _ATTRIBUTE.size : at + size]
        at += -(-size // 4) * 4
    return b""


def _place(family: int, address: bytes, port: bytes) -> str:
    number = int.from_bytes(port, "big")
    if family == socket.AF_INET:
        return f"{ipaddress.IPv4Address(address[:4])}:{number}"
    whole = ipaddress.IPv6Address(address)
    return f"{whole.ipv4_mapped}:{number}" if whole.ipv4_mapped else f"[{whole}]:{number}"


def of_namespace(pid: int, proc: str = "/proc") -> dict[int, Tcp]:
    """TCP sockets of the network namespace of a process: queues and places, without bytes."""
    found: dict[int, Tcp] = {}
    for name in ("tcp", "tcp6"):
        for line in read_all(f"{proc}/{pid}/net/{name}", 4 << 20).splitlines()[1 : MOST + 1]:
            if (one := parse_line(line)) is not None:
                found[one[0]] = one[1]
    return found


def parse_line(line: bytes) -> tuple[int, Tcp] | None:
    """One line of /proc/net/tcp or tcp6."""
    words = line.split()
    try:
        local, remote = (_hex_place(word) for word in words[1:3])
        write, _, read_bytes = words[4].partition(b":")
        inode = int(words[9])
        return (
            (inode, Tcp(-1, -1, (int(read_bytes, 16), int(write, 16)), int(words[3], 16), local, remote))
            if inode
            else None
        )
    except (ValueError, IndexError):
        return None


def _hex_place(word: bytes) -> str:
    address, _, port = word.partition(b":")
    raw = bytes.fromhex(address.decode("ascii"))
    # Groups of four bytes in the host's order.
    words = b"".join(raw[at : at + 4][:: -1 if sys.byteorder == "little" else 1] for at in range(0, len(raw), 4))
    if len(words) not in (4, 16):
        raise ValueError(word)
    return _place(socket.AF_INET if len(words) == 4 else socket.AF_INET6, words, int(port, 16).to_bytes(2, "big"))
