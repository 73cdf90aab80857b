"""Messages of agents that are longer than what is read at once: cut into pieces, and put together again. Pure.

Most are short. Before an agent has identified itself, a controller reads one short message of it: so no peer can
make it keep much.
"""

from collections.abc import Iterator

from holdfast.base.bounds import MAX_MESSAGE, MAX_PIECE
from holdfast.base.errors import ProtocolError
from holdfast.wire import codec
from holdfast.wire import messages as msg

_ROOM = MAX_PIECE - 64
"""Bytes of a piece, which has a head of its own."""


def cut(data: bytes) -> Iterator[bytes]:
    """An encoded message as it is sent: as it is, if it is short."""
    if len(data) <= MAX_PIECE:
        yield data
        return
    for at in range(0, len(data), _ROOM):
        yield codec.encode_agent(msg.Piece(data[at : at + _ROOM], at + _ROOM < len(data)))


class Pieces:
    """Joins the pieces of a stream's messages."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0
        self._is_too_long = False

    def take(self, data: bytes) -> msg.AgentMessage | None:
        """The message that is whole now; None while more of it is to come. ProtocolError for what is none."""
        message = codec.decode_agent(data)
        if not isinstance(message, msg.Piece):
            if self._parts:
                self._forget()
                raise ProtocolError("a message between the pieces of another")
            return message
        self._size += len(message.data)
        if self._size > MAX_MESSAGE:
            self._parts, self._is_too_long = [], True
        elif not self._is_too_long:
            self._parts.append(message.data)
        if message.more:
            return None
        whole, size, is_too_long = b"".join(self._parts), self._size, self._is_too_long
        self._forget()
        if is_too_long:
            raise ProtocolError(f"{size} bytes in pieces; {MAX_MESSAGE} are the most")
        inner = codec.decode_agent(whole)
        if isinstance(inner, msg.Piece):
            raise ProtocolError("a piece within a piece")
        return inner

    def _forget(self) -> None:
        self._parts, self._size, self._is_too_long = [], 0, False
