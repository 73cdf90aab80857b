"""Events that timers recorded in a GPU's streams: how many, and how many of them the GPU has passed.

A host thread that waits for its GPU spins inside of CUDA and shows nothing; the GPU goes on, or waits for a peer in a
kernel that spins as well. Events that complete distinguish the two. So another thread of the process asks for them, and
leaves both counts in the probe file, where the agent sees them grow or stand.
"""

import ctypes
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from holdfast.agent.probe_file import layout
from holdfast.agent.probe_file.service_threads import start_thread

EVERY_S = 0.25
YOUNG_S = 0.2
"""Until an event is that old it is not asked for: in steps that go by, its timer does so itself."""
MOST_OPEN, MOST_ASKED = 4096, 64
"""Events that are kept, and asked for in one turn."""
_DRIVER = "libcuda.so.1"
_THREAD_LOCAL = 1  # CU_STREAM_CAPTURE_MODE_THREAD_LOCAL


class Event(Protocol):
    """As `torch.cuda.Event`."""

    def query(self) -> bool: ...


class Recorded:
    """An event in a stream. Its timer sets `done` when it sees that it has come, before it uses the event again."""

    __slots__ = ("at", "done", "event")

    def __init__(self, event: Event, at: float) -> None:
        self.event, self.at, self.done = event, at, False


class DeviceEvents:
    """Of this process. `add` belongs to the threads that record events; it takes no lock and makes no call of CUDA."""

    def __init__(
        self,
        words: Any,
        may_ask: Callable[[], bool] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`words`: of the probe file. `may_ask`: see `spoils_no_capture`; called in the thread that asks."""
        self._words, self._clock = words, clock
        self._may_ask = may_ask or spoils_no_capture
        self._open: deque[Recorded] = deque()
        self._begun = self._done = 0
        self._device = -1
        self._is_started = False

    def add(self, event: Event) -> Recorded:
        """One that was just recorded."""
        recorded = Recorded(event, self._clock())
        if len(self._open) >= MOST_OPEN:
            with suppress(IndexError):
                self._open.popleft()
                self._done += 1
        self._open.append(recorded)
        self._begun += 1
        if not self._is_started:
            self._is_started = True
            with suppress(RuntimeError):  # no thread to spare
                start_thread(self._run, "holdfast-events")
        return recorded

    def _run(self) -> None:
        if not self._may_ask():
            return
        while self.ask():
            time.sleep(EVERY_S)

    def ask(self) -> bool:
        """Count those that have come, and write both counts down. False once that is over for good."""
        now = self._clock()
        asked = 0
        while self._open and asked < MOST_ASKED:
            first = self._open[0]
            if not first.done:
                if now - first.at < YOUNG_S:
                    break
                asked += 1
                try:
                    self._turn_to(first.event)
                    if not first.event.query():
                        break
                except Exception:  # a GPU that is lost: what is left of the counts would be no evidence
                    self._words[layout.WORD_EVENTS] = self._words[layout.WORD_EVENTS_DONE] = 0
                    return False
            with suppress(IndexError):
                self._open.popleft()
                self._done += 1
        self._words[layout.WORD_EVENTS] = max(self._begun, self._done)
        self._words[layout.WORD_EVENTS_DONE] = self._done
        return True

    def _turn_to(self, event: Event) -> None:
        """Work with the event's device from now on: a new thread would make itself a context on the first one."""
        index = getattr(getattr(event, "device", None), "index", None)
        if index is not None and index != self._device:
            sys.modules["torch"].cuda.set_device(index)
            self._device = index


def spoils_no_capture() -> bool:
    """Have this thread ask as NCCL's watchdog in torch does; whether that succeeded: without it, asking for an
    event makes a capture of a CUDA graph fail that another thread is in the middle of."""
    try:
        mode = ctypes.c_int(_THREAD_LOCAL)
        return int(ctypes.CDLL(_DRIVER).cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))) == 0
    except (OSError, AttributeError):
        return False
