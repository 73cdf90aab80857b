"""The open streams of agents, one for each node. Made before the shell, which sends and acknowledges through it, and
before the ingest, which fills it: neither has to know the other for that."""

import asyncio
import time
from dataclasses import dataclass, field

from holdfast.controller.shell.claims import Claim
from holdfast.wire import limits as wire_bounds
from holdfast.wire import messages as msg
from holdfast.wire.pieces import Pieces

_ACK_FLOOR = 0.5  # seconds between acknowledgements of frames, at least; events are acknowledged at once
_ACK_FRAMES = 4  # frames in one acknowledgement: what an agent would send again after a break
_MOST_REMEMBERED = 20_000
"""Agents whose numbers are kept while they have no stream."""


class Session:
    """One agent's stream: what was received, what of it is durable, what goes out."""

    def __init__(self, hello: msg.Hello, peer: str, heard_at: float) -> None:
        """`peer`: the address that it comes from; `heard_at`: when it last said anything, by the loop's clock."""
        self.hello = hello
        self.claim = Claim(hello.identity, peer)
        self.heard_at = heard_at
        self.node = hello.identity.node
        self.incarnation = hello.identity.incarnation
        self.out: asyncio.Queue[msg.ControllerMessage | None] = asyncio.Queue()
        self.frames = self.events = 0  # highest received
        self.durable_frames = 0
        self.acked: tuple[int, int, float] = (0, 0, 0.0)
        self.acked_at = 0.0
        self.pieces = Pieces()

    def send(self, message: msg.ControllerMessage) -> None:
        self.out.put_nowait(message)

    def acknowledge(self, interval: float) -> None:
        """`interval`: the heartbeat interval that the agent is to keep, seconds."""
        self.acked = (self.durable_frames, self.events, interval)
        self.send(msg.Ack(*self.acked))


@dataclass(slots=True)
class Received:
    """What came in from all agents since the controller started."""

    frames: int = 0
    frame_bytes: int = 0
    events: int = 0
    malformed: int = 0
    commands: dict[str, int] = field(default_factory=lambda: {"ok": 0, "error": 0})
    """Answers to commands."""
    refused: wire_bounds.Refused = field(default_factory=lambda: dict.fromkeys(wire_bounds.REASONS, 0))
    """What of agents' messages was left out, by reason."""


class Sessions:
    def __init__(self) -> None:
        self.by_node: dict[str, Session] = {}
        self.received = Received()
        self._progress: dict[str, tuple[int, int, int]] = {}
        """Of agents without a stream, by incarnation: frames received, durable frames, events."""

    def open(self, session: Session) -> Session | None:
        """From now on this is its node's stream; it resumes where the agent's last one ended. Gives the stream that
        the node had till now."""
        before = self.by_node.get(session.node)
        if before is not None and before.incarnation == session.incarnation:
            self._remember(before)  # its stream broke, and that is not noticed yet
        numbers = self._progress.get(session.incarnation, (0, 0, 0))
        session.frames, session.durable_frames, session.events = numbers
        self.by_node[session.node] = session
        return before

    def close(self, session: Session) -> bool:
        """The stream has ended; True if it was its node's until now."""
        newest = self.by_node.get(session.node, session)
        if newest.incarnation != session.incarnation:
            self._progress.pop(session.incarnation, None)  # that agent is dead
        elif self.by_node.get(session.node) is session:
            self._remember(session)
        while len(self._progress) > _MOST_REMEMBERED:
            self._progress.pop(next(iter(self._progress)))
        if self.by_node.get(session.node) is not session:
            return False
        del self.by_node[session.node]
        return True

    def _remember(self, session: Session) -> None:
        self._progress[session.incarnation] = (session.frames, session.durable_frames, session.events)

    def send(self, node: str, message: msg.ControllerMessage) -> bool:
        """False when the node has no stream."""
        session = self.by_node.get(node)
        if session is not None:
            session.send(message)
        return session is not None

    def acknowledge(self, interval: float) -> None:
        """All that came so far is durable: acknowledge it to each agent, not more often than it helps."""
        now = time.monotonic()
        every = max(_ACK_FLOOR, _ACK_FRAMES * interval)
        for session in self.by_node.values():
            session.durable_frames = session.frames
            if now - session.acked_at >= every and session.acked != (session.frames, session.events, interval):
                session.acked_at = now
                session.acknowledge(interval)
