"""Connections of the HTTP server: how many there may be, and how long one may keep the server waiting.

A client that connects and sends nothing, or a header a byte at a time, or reads no answer, holds a descriptor and some
memory for as long as it likes. Here it has a deadline, counted from the moment it connects, so that the TLS handshake
is under it too. When all places are taken, the connection that has waited longest without a request makes room.
"""

import asyncio
import contextlib
import socket
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

MOST = 512
"""Connections at the same time. An open page has one or two, each command line one."""
_SLACK = 64
"""Those beyond it that may be there while the ones that made room close."""
_ENDS_S = 1.0
"""An ended connection is closed by then. If not, new ones are refused: waiting on would take the whole processor."""
HEAD_S = 10.0
"""From the connection, or the end of the last answer, to the end of the next request's header."""
WRITE_S = 10.0
"""How long a client may read nothing of what waits for it."""


class AcceptedSocket(socket.socket):
    """One accepted connection. It ends itself when the next request's header does not come in time."""

    listener: "Listener"
    deadline: asyncio.TimerHandle | None = None
    sent = 0
    """Bytes that the client's side has made room for."""

    def send(self, data: Any, flags: int = 0) -> int:
        count = super().send(data, flags)
        self.sent += count
        return count

    def sendmsg(self, buffers: Any, *rest: Any) -> int:
        count = super().sendmsg(buffers, *rest)
        self.sent += count
        return count

    def wait(self) -> None:
        """From now on a request is due."""
        self.begun()
        if self.fileno() < 0:
            return
        self.listener.idle[self.fileno()] = self
        self.deadline = asyncio.get_running_loop().call_later(HEAD_S, self.end)

    def begun(self) -> None:
        """A request has come: nothing is due until it is answered."""
        self.listener.idle.pop(self.fileno(), None)
        if self.deadline is not None:
            self.deadline.cancel()
            self.deadline = None

    def end(self) -> None:
        """Both ways at once; the event loop sees it as the client's going, and closes."""
        self.begun()
        if self.fileno() >= 0:
            self.listener.ending[self.fileno()] = asyncio.get_running_loop().time()
        with contextlib.suppress(OSError):
            self.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        if self.fileno() >= 0:
            self.begun()
            self.listener.open.pop(self.fileno(), None)
            self.listener.ending.pop(self.fileno(), None)
        super().close()


class Listener(socket.socket):
    """A listening socket that counts what it accepts."""

    def __init__(self, family: int, most: int = MOST) -> None:
        super().__init__(family, socket.SOCK_STREAM)
        self.most = most
        self.open: dict[int, AcceptedSocket] = {}
        """By descriptor."""
        self.idle: dict[int, AcceptedSocket] = {}
        """Those from which a request is due, the longest waiting first."""
        self.ending: dict[int, float] = {}
        """Those that have ended, and that the event loop has not closed yet: when they did, by its clock."""

    def accept(self) -> tuple[socket.socket, Any]:
        """ConnectionAbortedError, which the event loop takes for nothing to do, when there is no place."""
        if len(self.open) >= self.most + _SLACK and self._has_just_ended():
            # More have come at once than there is room for. A turn of the loop gives back what has ended: until then
            # the next one, which may have a request, waits with the kernel.
            raise BlockingIOError
        accepted, address = super().accept()
        if len(self.open) >= self.most:
            longest = next(iter(self.idle.values()), None)
            if longest is None or len(self.open) >= self.most + _SLACK:
                accepted.close()
                raise ConnectionAbortedError
            longest.end()
        taken = AcceptedSocket(accepted.family, accepted.type, accepted.proto, fileno=accepted.detach())
        taken.listener = self
        self.open[taken.fileno()] = taken
        taken.wait()
        return taken, address

    def _has_just_ended(self) -> bool:
        newest = next(reversed(self.ending.values()), None)
        return newest is not None and asyncio.get_running_loop().time() - newest < _ENDS_S


class Protocol(H11Protocol):
    """Notifies a connection when its requests begin and end, and closes one that reads nothing."""

    def __init__(self, *, listener: Listener, **given: Any) -> None:
        super().__init__(**given)
        self._listener = listener
        self._taken: AcceptedSocket | None = None
        self._stalled: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's own
        super().connection_made(transport)
        self._taken = self._listener.open.get(transport.get_extra_info("socket").fileno())

    def handle_events(self) -> None:
        before = self.cycle
        super().handle_events()
        if self.cycle is not before and self._taken is not None:
            self._taken.begun()

    def on_response_complete(self) -> None:
        if self._taken is not None:
            self._taken.wait()  # also one that closes: it may never read what is left to send
        super().on_response_complete()  # may begin the next request, if that is here already

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._taken is not None:
            self._forget_stall()
            self._stalled = self.loop.call_later(WRITE_S, self._look_at_stall, self._taken.sent)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._forget_stall()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_stall()
        super().connection_lost(exc)

    def _look_at_stall(self, before: int) -> None:
        assert self._taken is not None
        if self._taken.sent == before:
            self.transport.abort()
        else:  # slow, and reading
            self._stalled = self.loop.call_later(WRITE_S, self._look_at_stall, self._taken.sent)

    def _forget_stall(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None
