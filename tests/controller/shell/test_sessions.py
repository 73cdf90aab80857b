"""Streams of agents: which one is a node's, what is acknowledged when, and where a new one goes on."""

import pytest

from holdfast.controller.shell import sessions
from holdfast.controller.shell.sessions import Session, Sessions
from holdfast.wire import messages as msg
from holdfast.wire import types as t

COMMAND = msg.Command("c1", "j1", 1, msg.DumpStacks())


def stream(node: str = "node0", incarnation: str = "i1") -> Session:
    return Session(msg.Hello(t.Identity(node, node, incarnation)), "127.0.0.1", 0.0)


def sent(session: Session) -> list[msg.ControllerMessage | None]:
    return [session.out.get_nowait() for _ in range(session.out.qsize())]


def test_a_message_goes_to_the_stream_of_its_node() -> None:
    some, one, other = Sessions(), stream(), stream("node1")
    some.open(one)
    some.open(other)
    assert some.send("node1", COMMAND)
    assert not some.send("node2", COMMAND)
    assert (sent(one), sent(other)) == ([], [COMMAND])


def test_a_frame_is_acknowledged_once_and_when_it_is_durable(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(sessions.time, "monotonic", lambda: clock[0])
    some, one = Sessions(), stream()
    some.open(one)
    one.frames, one.events = 3, 1
    one.acknowledge(0.1)
    assert sent(one) == [msg.Ack(0, 1, 0.1)], "received, and not durable yet"
    some.acknowledge(0.1)
    some.acknowledge(0.1)
    assert sent(one) == [msg.Ack(3, 1, 0.1)]
    one.frames = 4
    some.acknowledge(0.1)
    assert sent(one) == [], "too soon"
    clock[0] += 0.5
    some.acknowledge(0.1)
    assert sent(one) == [msg.Ack(4, 1, 0.1)]


def test_an_agent_that_comes_back_goes_on_where_it_was() -> None:
    some, one = Sessions(), stream()
    assert some.open(one) is None
    one.frames, one.durable_frames, one.events = 9, 7, 2
    assert some.close(one)
    again = stream()
    assert some.open(again) is None
    assert (again.frames, again.durable_frames, again.events) == (9, 7, 2)


def test_a_stream_that_is_replaced_closes_without_its_node() -> None:
    some, one, again = Sessions(), stream(), stream()
    some.open(one)
    one.frames = 5
    assert some.open(again) is one
    assert again.frames == 5
    assert not some.close(one)
    assert some.by_node == {"node0": again}


def test_numbers_of_a_dead_agent_are_forgotten() -> None:
    some, one, other = Sessions(), stream(), stream(incarnation="i2")
    some.open(one)
    one.frames = 5
    assert some.open(other) is one
    assert other.frames == 0
    assert not some.close(one)
    late = stream()
    some.open(late)
    assert late.frames == 0


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "_MOST_REMEMBERED", 2)
    some = Sessions()
    for number in range(4):
        one = stream(f"node{number}", f"i{number}")
        some.open(one)
        one.frames = 1
        some.close(one)
    resumed = []
    for number in range(4):
        again = stream(f"node{number}", f"i{number}")
        some.open(again)
        resumed.append(again.frames)
    assert resumed == [0, 0, 1, 1]
