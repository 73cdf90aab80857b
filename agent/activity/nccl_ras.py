"""A client of NCCL's RAS: how many operations each rank of each communicator has begun, as a whole job counts them.

Every process of a job with NCCL 2.24 or newer listens on `NCCL_RAS_ADDR`, port 28028 of the loopback by default, and
answers for the whole job. Lines go both ways (NCCL's src/ras/client_support.cc): the client names its protocol, a
timeout and a format, then asks for the status, and the server closes the connection after it. JSON since 2.28 has every
count; the text of older versions names only ranks whose counts differ from most others'.

Counts are of operations that a host has launched, not of those that a GPU has finished. The listener
is not trusted: what comes back is bounded, and names in it are letters and digits.
"""

import json
import re
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from holdfast.base.errors import ProtocolError, Unavailable

ENV_ADDRESS = "NCCL_RAS_ADDR"
ADDRESS = "localhost:28028"
PATIENCE_S = 0.5
"""For a whole conversation."""
LEG_S = 0.3
"""That the server waits for other processes, where it can read fractions; its own 5 s are more than there is."""
MOST_BYTES = 4 << 20
"""Of an answer: as JSON some 7,000 ranks of communicators."""
_MOST_LINE = 1024
_MOST = 1 << 62

TOGETHER = frozenset(
    {"AllGather", "AllReduce", "AlltoAll", "Broadcast", "Gather", "Reduce", "ReduceScatter", "Scatter", "collective"}
)
"""Operations that all ranks of a communicator do: only there is a rank behind when its count is smaller."""


class Absent(Unavailable):
    """No process listens: no process of this host uses NCCL, an older one, or its RAS is switched off."""


class TooLong(ProtocolError):
    """The answer is longer than the client takes."""


@dataclass(frozen=True, slots=True)
class RasMember:
    """A rank of a communicator, and what it has begun there."""

    communicator: str
    rank: int
    """Of the communicator, not of the job."""
    host: str
    """Address of its process in NCCL's bootstrap network."""
    pid: int
    counts: dict[str, int]
    """By kind of operation: "AllReduce"."""


@dataclass(slots=True)
class RasStatus:
    """What a server reported."""

    members: list[RasMember] = field(default_factory=list)
    most: dict[tuple[str, str], int] = field(default_factory=dict)
    """By communicator and kind, the most operations that any rank has begun."""

    def add(self, member: RasMember) -> None:
        self.members.append(member)
        for kind, count in member.counts.items():
            self.reach(member.communicator, kind, count)

    def reach(self, communicator: str, kind: str, count: int) -> None:
        key = communicator, kind
        self.most[key] = max(self.most.get(key, 0), count)


Ask = Callable[..., RasStatus]


def ask(
    address: str = ADDRESS, patience: float = PATIENCE_S, most: int = MOST_BYTES, as_text: bool = False
) -> RasStatus:
    """The status of the job whose process listens there.

    Raises Absent where no process listens, Unavailable where no answer comes in time, TooLong for one of more than
    `most` bytes, ProtocolError for one that is no status.
    """
    deadline = time.monotonic() + patience
    host, _, port = address.rpartition(":")
    if not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise Unavailable(f"{ENV_ADDRESS}={address!r:.80} names no port")
    try:
        with socket.create_connection((host.strip("[]") or "localhost", int(port)), patience) as connection:
            talk = _Talk(connection, deadline)
            talk.say("client protocol 2")
            if not (line := talk.line()).upper().startswith("SERVER PROTOCOL "):
                raise ProtocolError(f"{address} is not an NCCL RAS server: it sent {line!r:.80}")
            talk.say(f"timeout {LEG_S}")
            talk.line()  # an error where it wants whole seconds
            is_json = False
            if not as_text:
                talk.say("set format json")
                is_json = talk.line() == "OK"
            talk.say("verbose status")
            answer = talk.rest(most).decode("utf-8", "replace")
    except ConnectionRefusedError:
        raise Absent(f"no server listens at {address}") from None
    except OSError as error:  # time-outs too
        raise Unavailable(f"NCCL's RAS at {address}: {error}") from None
    return parse_json(answer) if is_json else parse_text(answer)


class _Talk:
    """Lines, and then all the rest, before a deadline."""

    def __init__(self, connection: socket.socket, deadline: float) -> None:
        self._connection, self._deadline = connection, deadline
        self._read = b""

    def say(self, line: str) -> None:
        self._wait()
        self._connection.sendall(line.encode() + b"\n")

    def line(self) -> str:
        while b"\n" not in self._read:
            if len(self._read) > _MOST_LINE:
                raise ProtocolError("NCCL's RAS sent an unterminated line")
            if not (more := self._more()):
                raise Unavailable("NCCL's RAS closed the connection")
            self._read += more
        line, _, self._read = self._read.partition(b"\n")
        return line.decode("utf-8", "replace").strip()

    def rest(self, most: int) -> bytes:
        parts, length = [self._read], len(self._read)
        while more := self._more():
            parts.append(more)
            length += len(more)
            if length > most:
                raise TooLong(f"NCCL's RAS sends more than {most} bytes")
        return b"".join(parts)

    def _more(self) -> bytes:
        self._wait()
        return self._connection.recv(1 << 16)

    def _wait(self) -> None:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("no answer in time")
        self._connection.settimeout(left)


# --- the answers. Pure


def parse_json(text: str) -> RasStatus:
    """Raises ProtocolError for what is no status in JSON."""
    status = RasStatus()
    try:
        for communicator in _list(json.loads(text), "communicators"):
            name = _name(str(communicator["hash"]))
            for entry in _list(communicator, "ranks"):
                counts = {_name(kind): _whole(count) for kind, count in entry["collective_counts"].items()}
                host, pid = str(entry["host"])[:64], _whole(entry["pid"])
                status.add(RasMember(name, _whole(entry["rank"]), host, pid, counts))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ProtocolError(f"NCCL's RAS: no status in JSON: {type(error).__name__}") from None
    return status


def _list(holder: Any, name: str) -> Iterator[Any]:
    found = holder[name]
    if not isinstance(found, list):
        raise TypeError(name)
    return iter(found)


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(value)
    return max(-1, min(value, _MOST))


def _name(text: str) -> str:
    """What a person may read in a terminal."""
    return re.sub(r"[^0-9A-Za-z_:-]", "", text)[:40]


_COMMUNICATOR = re.compile(r"#\d+-\d+ \((?P<hash>[0-9a-fA-F]{1,16})\)")
_KIND = re.compile(r" +Communicator ranks have different (?P<kind>\w{1,32}) operation counts$")
_NONE, _SOME = "not launched any operations", r"launched up to operation (?P<count>\d{1,18})"
_MANY = re.compile(rf" +\d+ ranks have (?:{_SOME}|{_NONE})$")
_RANK = re.compile(
    rf" +Rank (?P<rank>\d{{1,9}})(?P<own> has (?:{_SOME}|{_NONE}))? -- GPU .{{1,40}} managed by process"
    r" (?P<pid>\d{1,9}) on node (?P<host>[0-9A-Za-z.:_-]{1,64})$"
)


def parse_text(text: str) -> RasStatus:
    """Of the communicators of which the counts differ: those of the ranks that it names."""
    status = RasStatus()
    found: dict[tuple[str, int, str, int], dict[str, int]] = {}
    communicator = kind = ""
    count = 0
    for line in text.splitlines():
        if (match := _COMMUNICATOR.match(line)) is not None:
            communicator, kind = f"0x{match['hash']}", ""
        elif (match := _KIND.match(line)) is not None:
            kind, count = match["kind"], 0
        elif not line.strip():
            kind = ""
        elif kind and (match := _MANY.match(line)) is not None:
            count = int(match["count"] or 0)
            status.reach(communicator, kind, count)
        elif kind and (match := _RANK.match(line)) is not None:
            own = int(match["count"] or 0) if match["own"] else count
            key = communicator, int(match["rank"]), match["host"], int(match["pid"])
            found.setdefault(key, {})[kind] = own
    for key, counts in found.items():
        status.add(RasMember(*key, counts))
    return status
