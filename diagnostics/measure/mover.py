"""Our own mover of bytes over TCP and echo of packets over UDP: what measures a way where there is no RDMA.

A server answers one session only, whose word both ends got from the controller. Rates are the receiver's: what a
sender hands to its kernel has not arrived.
"""

import json
import select
import socket
import statistics
import struct
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

_CHUNK = 256 << 10
_WARM_S = 0.15  # of a stream: slow start, and the burst that a rate limit lets through
_HEADER = struct.Struct("!16sId")  # session, number, sender's wall time
_REPLY = struct.Struct("!dd")  # server's wall time at arrival and at departure
_PACKET = 1000  # bytes; below every MTU
_WINDOW = 32  # packets on their way at once: few enough for every socket's buffer
_LATE_S = 0.2  # after which a packet no longer holds up the next one; it still counts when it comes
_LINGER_S = 0.5
_FEWEST = 300  # packets below which a loss ratio says nothing


@dataclass(frozen=True, slots=True)
class Echoes:
    """What became of a train of packets. Seconds; `offset`: the other clock less ours, by the fastest packet."""

    sent: int
    lost: int
    round_trip: float
    offset: float


def receive(connection: socket.socket) -> float:
    """Read until the other end closes; bytes per second once the stream ran for a moment. 0 of almost nothing."""
    buffer = memoryview(bytearray(_CHUNK))
    start = last = time.perf_counter()
    counted, since = 0, 0.0
    while count := connection.recv_into(buffer):
        last = time.perf_counter()
        if not since:
            since = last if last - start >= _WARM_S else 0.0
        else:
            counted += count
    return counted / (last - since) if since and last > since else 0.0


def send(connection: socket.socket, seconds: float) -> None:
    chunk = bytes(_CHUNK)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        connection.sendall(chunk)
    connection.shutdown(socket.SHUT_WR)


class MoverServer:
    """`serve()` answers one session's wishes until it says bye, or `timeout` seconds are over."""

    def __init__(self, address: str, port: int, session: str, timeout: float) -> None:
        """OSError when the port cannot be had."""
        self._session, self._end = session, time.monotonic() + timeout
        self._tcp = socket.create_server((address, port), family=_family(address))
        self.port: int = self._tcp.getsockname()[1]
        self._udp = socket.socket(_family(address), socket.SOCK_DGRAM)
        try:
            self._udp.bind((address, self.port))
        except OSError:
            self._tcp.close()
            raise
        self._closing = threading.Event()
        self.wishes: Mapping[str, Callable[[dict[str, Any]], dict[str, Any]]] = {}
        """What else a client may ask for, by name: takes the wish, gives the answer."""

    def serve(self) -> bool:
        """True when a client came and said bye."""
        echo = threading.Thread(target=self._echo, daemon=True)
        echo.start()
        try:
            while (left := self._end - time.monotonic()) > 0:
                self._tcp.settimeout(left)
                with suppress(TimeoutError, ConnectionError):
                    connection, _ = self._tcp.accept()
                    with connection:
                        connection.settimeout(left)
                        if self._answer(connection):
                            return True
            return False
        finally:
            self._closing.set()
            echo.join()
            self._tcp.close()
            self._udp.close()

    def _answer(self, connection: socket.socket) -> bool:
        wish = _read_line(connection)
        if wish.get("session") != self._session:
            return False
        match wish.get("do"):
            case "sink":
                _write_line(connection, {"rate": receive(connection)})
            case "source":
                send(connection, float(wish["seconds"]))
            case "bye":
                return True
            case str(other) if other in self.wishes:
                _write_line(connection, self.wishes[other](wish))
        return False

    def _echo(self) -> None:
        word = _word(self._session)
        while not self._closing.is_set():
            if not select.select([self._udp], [], [], 0.1)[0]:
                continue
            data, sender = self._udp.recvfrom(2048)
            came = time.time()
            if data[:16] == word:
                reply = data[: _HEADER.size] + _REPLY.pack(came, time.time())
                with suppress(OSError):
                    self._udp.sendto(reply, sender)


class MoverClient:
    def __init__(self, address: str, port: int, session: str, timeout: float, source: str = "") -> None:
        """`source`: the own address to measure from."""
        self._address, self._port, self._session = address, port, session
        self._end = time.monotonic() + timeout
        self._source = (source, 0) if source else None

    def there(self, seconds: float) -> float:
        """Bytes per second from us to the server."""
        with self._ask({"do": "sink"}) as connection:
            send(connection, seconds)
            return float(_read_line(connection)["rate"])

    def back(self, seconds: float) -> float:
        with self._ask({"do": "source", "seconds": seconds}) as connection:
            return receive(connection)

    def wish(self, do: str, **more: Any) -> dict[str, Any]:
        with self._ask({"do": do, **more}) as connection:
            return _read_line(connection)

    def bye(self) -> None:
        with self._ask({"do": "bye"}):
            pass

    def echoes(self, packets: int, seconds: float) -> Echoes | None:
        """Send packets, a window at a time, for at most so many seconds; None when too few went out for a result."""
        word = _word(self._session)
        with socket.socket(_family(self._address), socket.SOCK_DGRAM) as udp:
            if self._source:
                udp.bind(self._source)
            udp.connect((self._address, self._port))
            udp.setblocking(False)
            sent, trips, offsets = 0, {}, []
            waiting: dict[int, float] = {}
            end = time.monotonic() + seconds
            padding = bytes(_PACKET - _HEADER.size)
            while sent < packets or waiting:
                now = time.monotonic()
                while sent < packets and len(waiting) < _WINDOW and now < end:
                    with suppress(BlockingIOError, ConnectionRefusedError):
                        udp.send(_HEADER.pack(word, sent, time.time()) + padding)
                        waiting[sent] = now
                        sent += 1
                if sent >= packets and now < end:
                    end = now  # all are out: from here on we only linger
                select.select([udp], [], [], 0.01)
                for number, trip, offset in _drain(udp, word):
                    waiting.pop(number, None)
                    if number not in trips:
                        trips[number] = trip
                        offsets.append((trip, offset))
                for number in [n for n, at in waiting.items() if now - at > _LATE_S]:
                    del waiting[number]
                # Late only after a look at what has come: a host that stood still for a while lost nothing.
                if len(trips) == sent >= packets or now >= end + (_LINGER_S if sent else 0.0):
                    break
            if sent < min(_FEWEST, packets):
                return None
            median = statistics.median(trips.values()) if trips else float("nan")
            return Echoes(sent, sent - len(trips), median, min(offsets)[1] if offsets else float("nan"))

    def _ask(self, wish: dict[str, Any]) -> socket.socket:
        """A connection that carries one wish. OSError when the server is not there in time."""
        while True:
            left = self._end - time.monotonic()
            try:
                connection = socket.create_connection((self._address, self._port), max(0.1, left), self._source)
            except ConnectionRefusedError:
                if left <= 0:
                    raise
                time.sleep(0.02)  # its process starts a little later than ours
                continue
            connection.settimeout(max(0.1, self._end - time.monotonic()))
            _write_line(connection, {**wish, "session": self._session})
            return connection


def _drain(udp: socket.socket, word: bytes) -> list[tuple[int, float, float]]:
    """Number, round trip and clock offset of every reply that is here."""
    found: list[tuple[int, float, float]] = []
    while True:
        try:
            data = udp.recv(2048)
        except (BlockingIOError, ConnectionRefusedError):
            return found
        now = time.time()
        if len(data) >= _HEADER.size + _REPLY.size and data[:16] == word:
            _, number, left = _HEADER.unpack_from(data)
            came, went = _REPLY.unpack_from(data, _HEADER.size)
            found.append((number, (now - left) - (went - came), ((came - left) + (went - now)) / 2))


def _word(session: str) -> bytes:
    return session.encode()[:16].ljust(16, b"\0")


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def _write_line(connection: socket.socket, doc: dict[str, Any]) -> None:
    connection.sendall(json.dumps(doc).encode() + b"\n")


def _read_line(connection: socket.socket) -> dict[str, Any]:
    """One JSON object up to its newline, byte by byte so that nothing of what follows is taken. Empty when there is
    none."""
    line = bytearray()
    while len(line) < 4096 and not line.endswith(b"\n"):
        byte = connection.recv(1)
        if not byte:
            break
        line += byte
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
