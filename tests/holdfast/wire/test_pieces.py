"""A long message arrives as it was, in pieces that are short; what is no message costs itself only."""

import pytest

from holdfast.base.bounds import MAX_MESSAGE, MAX_PIECE
from holdfast.base.errors import ProtocolError
from holdfast.wire import codec, pieces
from holdfast.wire import messages as msg
from holdfast.wire import types as t
from holdfast.wire.pieces import Pieces

SHORT = msg.ClockRequest(7)


def plan(size: int) -> msg.Numbered:
    return msg.Numbered(3, t.PlanPublished("j1", 1, b"p" * size))


@pytest.mark.parametrize("size", [0, 1000, MAX_PIECE - 100, MAX_PIECE, 5 * MAX_PIECE + 17])
def test_a_message_arrives_as_it_was(size: int) -> None:
    message, parts = plan(size), Pieces()
    sent = list(pieces.cut(codec.encode_agent(message)))
    assert max(map(len, sent)) <= MAX_PIECE
    assert (len(sent) > 1) == (size >= MAX_PIECE)
    for _ in range(2):
        assert [parts.take(one) for one in sent] == [None] * (len(sent) - 1) + [message]
    assert parts.take(codec.encode_agent(SHORT)) == SHORT


def test_what_stands_between_pieces_breaks_them() -> None:
    first, *_ = pieces.cut(codec.encode_agent(plan(3 * MAX_PIECE)))
    parts = Pieces()
    assert parts.take(first) is None
    with pytest.raises(ProtocolError, match="between the pieces"):
        parts.take(codec.encode_agent(SHORT))
    assert parts.take(codec.encode_agent(SHORT)) == SHORT


def test_pieces_without_end_are_not_kept() -> None:
    parts, one = Pieces(), codec.encode_agent(msg.Piece(b"x" * (MAX_PIECE - 64), more=True))
    for _ in range(2 * MAX_MESSAGE // MAX_PIECE):
        assert parts.take(one) is None
        assert sum(map(len, parts._parts)) <= MAX_MESSAGE
    with pytest.raises(ProtocolError, match="in pieces; 67108864 are the most"):
        parts.take(codec.encode_agent(msg.Piece(b"")))
    assert parts.take(codec.encode_agent(SHORT)) == SHORT


def test_a_piece_of_a_piece_or_of_nothing_is_none() -> None:
    parts = Pieces()
    for inner in (codec.encode_agent(msg.Piece(b"x")), b"", b"\xff"):
        with pytest.raises(ProtocolError):
            parts.take(codec.encode_agent(msg.Piece(inner)))
    assert parts.take(codec.encode_agent(SHORT)) == SHORT
