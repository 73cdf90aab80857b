"""An agent's messages arrive once and in order, whatever breaks in between."""

import dataclasses

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.agent.stream.outbox import Outbox
from holdfast.base import bounds
from holdfast.wire import messages as msg
from holdfast.wire import types as t


def frame(*steps: int) -> t.Frame:
    nics = (t.NicSamples("eth0", 10, 20, b"\1\0\0\0", b"\2\0\0\0"),)
    records = tuple(t.StepRecord(0, 1, step, 0, 0.1) for step in steps)
    return t.Frame(0, 1, 1, offsets=b"\0\0\0\0", nics=nics, steps=records)


def exited(rank: int) -> t.WorkerExited:
    return t.WorkerExited("j", 1, rank, 100 + rank, 1, 0)


NOTICE = t.AgentNotice(1, "test", t.Severity.INFO, "x")


def test_numbers_go_up_and_acknowledged_ones_are_forgotten() -> None:
    box = Outbox(10)
    assert [box.frame(frame(), True).seq for _ in range(3)] == [1, 2, 3]
    assert [box.event(exited(rank)).seq for rank in range(3)] == [1, 2, 3]
    assert box.acknowledged(2, 1) == [exited(0)]
    assert box.acknowledged(2, 1) == []
    assert box.unacknowledged() == [
        dataclasses.replace(frame(), seq=3),
        *(msg.Numbered(1 + n, exited(n)) for n in (1, 2)),
    ]


def test_a_break_changes_no_order() -> None:
    """An exit that came before the steps of its worker would end a job whose last steps nobody knows yet."""
    box = Outbox(10)
    said = [box.frame(frame(0), True), box.event(exited(0)), box.event(NOTICE), box.frame(frame(1), True)]
    said += [box.frame(frame(2), True), box.event(exited(1))]
    assert box.unacknowledged() == said
    box.acknowledged(1, 1)
    assert box.unacknowledged() == said[2:]


def test_without_a_stream_only_totals_are_kept() -> None:
    box = Outbox(10)
    assert box.frame(frame(), False).offsets  # what is returned still has them
    [kept] = box.unacknowledged()
    assert isinstance(kept, t.Frame)
    assert (kept.offsets, kept.nics[0].tx, kept.nics[0].rx, kept.nics[0].tx_total) == (b"", b"", b"", 10)


def test_a_dropped_frame_leaves_its_steps_to_the_next() -> None:
    box = Outbox(2)
    for step in range(5):
        box.frame(frame(step), False)
    kept = [one for one in box.unacknowledged() if isinstance(one, t.Frame)]
    assert [one.seq for one in kept] == [4, 5]
    assert [record.step for one in kept for record in one.steps] == [0, 1, 2, 3, 4]


def test_too_many_events_cost_log_lines_and_no_exit() -> None:
    box = Outbox(1)
    box.event(exited(0))
    for _ in range(10_005):
        box.event(NOTICE)
    kept = [one.event for one in box.unacknowledged() if isinstance(one, msg.Numbered)]
    assert len(kept) == 10_000
    assert kept[0] == exited(0)


class Peer:
    """A controller as the protocol has it: takes what is new to it, and holds as durable what it had flushed."""

    def __init__(self) -> None:
        self.frames = self.events = self.durable_frames = 0
        self.steps: list[int] = []
        self.heard: list[t.Event] = []

    def take(self, message: msg.AgentMessage) -> None:
        if isinstance(message, t.Frame) and message.seq > self.frames:
            self.frames = message.seq
            self.steps += [record.step for record in message.steps]
        elif isinstance(message, msg.Numbered) and message.seq > self.events:
            self.events = message.seq
            self.heard.append(message.event)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.sampled_from(["frame", "event", "flush", "ack", "break", "connect"]), max_size=60), st.integers(1, 5)
)
def test_no_step_and_no_event_is_lost(moves: list[str], max_frames: int) -> None:
    """Any interleaving of sends, acknowledgements and disconnects: all messages arrive in order and once."""
    box, peer = Outbox(max_frames), Peer()
    line: list[msg.AgentMessage] | None = None  # on the way; lost with the stream
    steps = events = 0
    durable: list[t.Event] = []
    for move in [*moves, "break", "connect", "flush", "ack"]:
        match move:
            case "frame":
                made = box.frame(frame(steps), line is not None)
                steps += 1
                if line is not None:
                    line.append(made)
            case "event":
                numbered = box.event(exited(events))
                events += 1
                if line is not None:
                    line.append(numbered)
            case "flush" if line is not None:  # what was sent arrives, and becomes durable
                for message in line:
                    peer.take(message)
                line.clear()
                peer.durable_frames = peer.frames
            case "ack" if line is not None:
                durable += box.acknowledged(peer.durable_frames, peer.events)
            case "break" if line is not None:
                for message in line[: len(line) // 2]:  # some got through before it broke
                    peer.take(message)
                line = None
            case "connect" if line is None:
                peer.frames = max(peer.frames, peer.durable_frames)
                durable += box.acknowledged(peer.durable_frames, peer.events)
                line = box.unacknowledged()
    assert peer.heard == [exited(rank) for rank in range(events)]
    assert sorted(set(peer.steps)) == list(range(steps))
    assert durable == peer.heard
    assert box.unacknowledged() == []


def test_a_kept_frame_is_the_frame() -> None:
    box = Outbox(3)
    made = box.frame(frame(1), True)
    assert box.unacknowledged() == [made]
    assert dataclasses.replace(made, seq=0) == frame(1)


def test_steps_for_a_controller_that_stays_away_are_bounded_in_a_message_and_in_all() -> None:
    """A fast script and a controller that is away for a day: one frame that got all steps could never be sent."""
    box, total, each = Outbox(50), 300_000, 500
    for first in range(0, total, each):
        box.frame(frame(*range(first, first + each)), connected=False)
    kept = [one for one in box.unacknowledged() if isinstance(one, t.Frame)]
    assert len(kept) <= 50
    assert max(len(one.steps) for one in kept) <= bounds.MAX_FRAME_STEPS
    steps = [record.step for one in kept for record in one.steps]
    assert steps == list(range(total - len(steps), total))  # the newest, in order, each once
    assert bounds.MAX_KEPT_STEPS - 2 * bounds.MAX_FRAME_STEPS <= len(steps) <= bounds.MAX_KEPT_STEPS + each
    assert box.lost_steps == total - len(steps)
    box.acknowledged(kept[-1].seq, 0)
    assert box.unacknowledged() == []
    assert box._steps == 0
