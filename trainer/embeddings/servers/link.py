"""Messages with keys and rows between the processes of a run: a JSON object, and behind it the arrays as bytes."""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from holdfast.base.address import format_address, parse_address
from holdfast.base.errors import HoldfastError, ProtocolError, Unavailable
from holdfast.checkpoint.daemon.peer_wire import PeerRefused, PeerWire, be_greeted, greet
from holdfast.trainer.embeddings.servers.keys import DTYPES, Keys, Rows, dtype_of

SERVICE = "embeddings"
SECRET = "HOLDFAST_EMBEDDINGS_SECRET"
"""Environment variable with the secret of a run, for the processes that the command starts."""
HEADER_BYTES = 256 << 20
"""Of a message; the plan of a batch with its samples is the largest."""
PAYLOAD_BYTES = 4 << 30
CONNECT_S = 10.0
NO_KEYS: Keys = np.empty(0, dtype=np.uint64)
NO_ROWS: Rows = np.empty((0, 0), dtype=np.float32)


class Message(NamedTuple):
    head: dict[str, Any]
    keys: Keys
    rows: Rows


class Link:
    """One connected socket. OSError when the connection breaks or its timeout passes, ProtocolError for a message that
    cannot be one."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.wire = PeerWire(sock)

    def send(self, head: dict[str, Any], keys: Keys = NO_KEYS, rows: Rows = NO_ROWS) -> None:
        shape = {"keys": len(keys), "rows": rows.shape[0], "dim": rows.shape[1], "dtype": rows.dtype.name}
        self.wire.send({"head": head, "shape": shape})
        for array in (keys, rows):
            if array.size:
                self.wire.sock.sendall(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)

    def receive(self) -> Message:
        try:
            message = self.wire.receive(HEADER_BYTES)
            head, shape = message["head"], message["shape"]
            count, rows, dim = (int(shape[name]) for name in ("keys", "rows", "dim"))
            if not isinstance(head, dict) or shape["dtype"] not in DTYPES or min(count, rows, dim) < 0:
                raise ValueError("its head or shape is wrong")
            dtype = dtype_of(shape["dtype"])
            if count * 8 + rows * dim * dtype.itemsize > PAYLOAD_BYTES:
                raise ValueError(f"{count:,} keys and {rows:,} rows of {dim:,} are more than {PAYLOAD_BYTES:,} bytes")
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise ProtocolError(f"a message that is none: {error}") from None
        found = np.empty(count, dtype=np.uint64), np.empty((rows, dim), dtype=dtype)
        for array in found:
            if array.size:
                self.wire.receive_into(array.reshape(-1).view(np.uint8).data)
        return Message(head, *found)

    def shut(self) -> None:
        """End the connection: also what another thread waits for in it."""
        with suppress(OSError):  # it was not connected any more
            self.wire.sock.shutdown(socket.SHUT_RDWR)
        self.wire.sock.close()


def connect(address: str, secret: bytes, timeout_s: float) -> Link:
    """A connection to a process of the run. `timeout_s`: of each later send and receive.

    OSError when there is none to have now, Unavailable for a process that does not know the secret.
    """
    link = Link(socket.create_connection(parse_address(address), CONNECT_S))
    try:
        greet(link.wire, SERVICE, secret)
        link.wire.sock.settimeout(timeout_s)
        return link
    except PeerRefused:
        link.shut()
        raise Unavailable(f"{address} has another secret, or is no embedding server") from None
    except BaseException:
        link.shut()
        raise


def accept(sock: socket.socket, secret: bytes) -> Link:
    """The other end of `connect`. Raises PeerRefused, OSError, ValueError."""
    link = Link(sock)
    be_greeted(link.wire, lambda service: secret if service == SERVICE else None)
    link.wire.sock.settimeout(None)  # a trainer may compute for long between two requests
    return link


def ask(address: str, secret: bytes, head: dict[str, Any], timeout_s: float = 60.0) -> Message:
    """One request on a connection of its own. Unavailable without a reply, HoldfastError for a refusal."""
    try:
        link = connect(address, secret, timeout_s)
        try:
            link.send(head)
            return checked(link.receive())
        finally:
            link.shut()
    except OSError as error:
        raise Unavailable(f"{address} does not reply: {error.strerror or error}") from None


def checked(message: Message) -> Message:
    """`message`, unless it is a refusal. HoldfastError with its text."""
    if "error" in message.head:
        raise HoldfastError(str(message.head["error"]))
    return message


def address_of(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return format_address(host, port)
