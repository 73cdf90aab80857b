"""JSON lines over a Unix socket, for a loop that may never block: buffered reading and writing of one connection."""

import json
import socket
import struct
from contextlib import suppress
from typing import Any

MODULE = "holdfast.agent.forkserver.fork_server"
SOCKET, LOCK, LOG = "warm.sock", "warm.lock", "warm.log"
"""The fork server, and what lies in its run folder."""
LINE_LIMIT = 8 << 20
"""Bytes of one line: a worker's environment and arguments fit many times."""
BACKLOG_LIMIT = 32 << 20
"""Bytes that a client may leave unread before it is dropped."""


class Connection:
    """One client. `lost` once it is gone or was dropped; then everything else does nothing."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.lost = False
        self._in = bytearray()
        self._out = bytearray()

    def receive(self) -> list[dict[str, Any]]:
        """The complete lines that have arrived. A line that is no JSON object drops the client."""
        try:
            data = self.sock.recv(1 << 18)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        if not data:
            self.lost = True
        self._in += data
        *lines, rest = self._in.split(b"\n")
        self._in = rest
        messages: list[dict[str, Any]] = []
        for line in lines:
            try:
                message = json.loads(line)
            except ValueError:
                message = None
            if not isinstance(message, dict):
                self.lost = True
                break
            messages.append(message)
        self.lost = self.lost or len(rest) > LINE_LIMIT
        return messages

    def send(self, message: dict[str, Any]) -> None:
        """Queue one line and write what the socket takes."""
        self._out += json.dumps(message).encode() + b"\n"
        self.flush()

    def flush(self) -> bool:
        """Write what is queued as far as it goes; True when nothing is left."""
        try:
            while self._out and not self.lost:
                del self._out[: self.sock.send(self._out)]
        except BlockingIOError:
            self.lost = len(self._out) > BACKLOG_LIMIT
        except OSError:
            self.lost = True
        return not self._out

    def has_left(self) -> bool:
        """Whether it has closed its end, even if what it sent before is not all read."""
        with suppress(BlockingIOError):
            try:
                return not self.sock.recv(1, socket.MSG_PEEK)
            except ConnectionError:
                return True
        return False

    def close(self) -> None:
        self.lost = True
        with suppress(OSError):
            self.sock.close()


def peer_uid(sock: socket.socket) -> int:
    """The user id at the other end of a Unix socket, as the kernel knows it."""
    _, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return int(uid)
