"""A thread for what may block: one job at a time, and a job that blocks for good is left behind.

Not asyncio's own pool: its threads are waited for when the process ends, and a read of /proc can block forever.
"""

import threading
import time
from collections.abc import Callable
from queue import SimpleQueue

from holdfast.base import log

MOST_LEFT = 4
"""Threads that may hang before nothing more is done."""


class Aside:
    def __init__(self, name: str, patience: float = 5.0, clock: Callable[[], float] = time.monotonic) -> None:
        """`patience`: seconds after which a job counts as blocked."""
        self._name, self._patience, self._clock = name, patience, clock
        self._lane: _Lane | None = None
        self.left: list[str] = []
        """What the jobs that blocked were at."""

    @property
    def is_free(self) -> bool:
        """Whether a job would be begun now. Gives up a job that has blocked for too long."""
        lane = self._lane
        if lane is not None and lane.since is not None and self._clock() - lane.since > self._patience:
            self.left.append(lane.at)
            lane.is_left = True
            self._lane = lane = None
        return len(self.left) < MOST_LEFT and (lane is None or lane.since is None)

    def begin(self, job: Callable[["_Lane"], None]) -> None:
        """Run a job; only when `is_free`. It says through its lane what it is at."""
        lane = self._lane or _Lane()
        if self._lane is None:
            try:
                threading.Thread(target=_serve, args=(lane,), name=self._name, daemon=True).start()
            except RuntimeError:  # a host without a thread to spare: perhaps the next time
                return
        self._lane = lane
        lane.since, lane.at = self._clock(), ""
        lane.jobs.put(job)

    def close(self) -> None:
        if self._lane is not None:
            self._lane.jobs.put(None)
            self._lane = None


class _Lane:
    """A thread's side: `at` names what it is at, `is_left` says that its results are not wanted any more."""

    def __init__(self) -> None:
        self.jobs: SimpleQueue[Callable[[_Lane], None] | None] = SimpleQueue()
        self.since: float | None = None
        self.at = ""
        self.is_left = False


Lane = _Lane


def _serve(lane: _Lane) -> None:
    while (job := lane.jobs.get()) is not None and not lane.is_left:
        try:
            job(lane)
        except Exception as error:
            log.debug("aside", at=lane.at, error=f"{type(error).__name__}: {error}")
        finally:
            lane.since = None
