"""Virtual time for ranks in processes of their own: an action takes what it is said to take, and all else nothing.

A rank's clock goes on by what it sleeps. A message brings the time at which it was sent, and a rank that waits for it
goes on from then, if its own time is earlier. So the executor's own order over real messages gives an exact makespan,
whatever else the machine does. A schedule that is driven by messages chooses by what has arrived: its ranks take turns,
the one whose time is least first, and see what was sent to them until then (`Turns`).
"""

from __future__ import annotations

import math
import multiprocessing
import time
from typing import Any

from holdfast.trainer.pipeline.message_driven import MessageDrivenExecutor
from holdfast.trainer.pipeline.messages import Receive

WAIT_S = 60.0
"""Of real time, after which a turn or a message that does not come is an error."""


class WallClock:
    """The host's clock, which all ranks read."""

    is_virtual = False

    def now(self) -> float:
        return time.monotonic()

    def wait_until(self, at: float) -> None:
        time.sleep(max(0.0, at - self.now()))

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class VirtualClock:
    """A rank's own clock."""

    is_virtual = True

    def __init__(self) -> None:
        self._now = 0.0

    def now(self) -> float:
        return self._now

    def wait_until(self, at: float) -> None:
        self._now = max(self._now, at)

    def sleep(self, seconds: float) -> None:
        self._now += seconds

    def reset(self) -> float:
        """Its time, which is 0 again."""
        self._now = 0.0
        return self._now


Clock = WallClock | VirtualClock


class Turns:
    """Which rank goes on: the one whose virtual time is least. In memory that forked processes share."""

    def __init__(self, ranks: int) -> None:
        forked = multiprocessing.get_context("fork")
        self._changed = forked.Condition()
        self._due: Any = forked.RawArray("d", ranks)
        """When each rank chooses next; of one that waits: when a message is there, infinity if none has been sent."""
        self._waits: Any = forked.RawArray("b", ranks)
        self._sent: Any = forked.RawArray("q", ranks)
        """Messages to each rank in this step."""
        self._first: Any = forked.RawArray("d", ranks)
        """When the first of those is there that the rank has not looked at: one may be sent before it waits."""

    def begin(self, rank: int) -> None:
        """A step begins; a barrier has to follow."""
        with self._changed:
            self._due[rank], self._waits[rank], self._sent[rank], self._first[rank] = 0.0, False, 0, math.inf

    def sent(self, target: int, at: float) -> None:
        """A message has been sent that will be there `at`."""
        with self._changed:
            self._sent[target] += 1
            self._first[target] = min(self._first[target], at)
            if self._waits[target]:
                self._due[target] = min(self._due[target], at)
                self._changed.notify_all()

    def wait(self, rank: int, due: float, waits: bool) -> tuple[float, int]:
        """Until no other rank's time is earlier; then this rank's, and how many messages have been sent to it.

        Actions take time, so nothing that is sent after that is there by then. TimeoutError when all wait.
        """
        with self._changed:
            self._due[rank], self._waits[rank] = min(due, self._first[rank]) if waits else due, waits
            self._changed.notify_all()
            if not self._changed.wait_for(lambda: math.inf > self._due[rank] <= min(self._due), WAIT_S):
                raise TimeoutError(f"rank {rank} has no turn: times of the ranks are {list(self._due)}")
            self._waits[rank], self._first[rank] = False, math.inf
            return self._due[rank], self._sent[rank]

    def end(self, rank: int) -> None:
        """It has nothing left to do in this step."""
        with self._changed:
            self._due[rank] = math.inf
            self._changed.notify_all()


class TurnTakingExecutor(MessageDrivenExecutor):
    """Chooses in virtual time. `enter` comes before its first step."""

    def enter(self, turns: Turns, rank: int, clock: Clock, latency_s: float) -> None:
        self._order, self._me, self._clock, self._latency_s = turns, rank, clock, latency_s

    def _run(self) -> None:
        self._received = 0
        self._early: list[tuple[float, Receive]] = []
        try:
            super()._run()
        finally:
            self._order.end(self._me)

    def _take(self) -> None:
        self._look(*self._order.wait(self._me, self._clock.now(), waits=False))

    def _wait(self) -> None:
        first = min((at for at, _ in self._early), default=math.inf)
        self._look(*self._order.wait(self._me, first, waits=True))

    def _look(self, now: float, sent: int) -> None:
        """Take what has arrived by `now`, of all that has been sent."""
        self._clock.wait_until(now)
        while self._received < sent:
            found = self._news.get(timeout=WAIT_S)
            if isinstance(found, BaseException):
                raise found
            self._received += 1
            self._early.append((stamp(next(iter(found.rooms.values()))) + self._latency_s, found))
        for at, found in self._early:
            if at <= now:
                self._note(found, time.monotonic_ns())
        self._early = [one for one in self._early if one[0] > now]


def stamped(tensor: Any, at: float) -> Any:
    """A copy whose first element is the time at which it is sent. What the stages compute does not matter."""
    copy = tensor.clone()
    copy.view(-1)[0] = at
    return copy


def stamp(tensor: Any) -> float:
    return float(tensor.view(-1)[0])
