"""What a device does in order, and what it does side by side: copies in, computation, copies out."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from typing import Any, Protocol

import torch

Mark = Any
"""A point in a lane's work."""


class Lane(Enum):
    """Work in one lane is done in order."""

    IN = auto()
    COMPUTE = auto()
    OUT = auto()


class Lanes(Protocol):
    """Where work goes. It may be done later, but for what `settle` waits for."""

    def do(self, lane: Lane, work: Callable[[], None]) -> None:
        """Put `work` behind all that the lane has."""

    def mark(self, lane: Lane) -> Mark:
        """The end of what the lane has by now."""

    def wait(self, lane: Lane, mark: Mark) -> None:
        """What `lane` gets from here on begins when all before the mark is done."""

    def settle(self) -> None:
        """Return when all is done that was put into `Lane.OUT`."""


class AtOnce:
    """On a CPU: everything is done when it is asked for."""

    def do(self, lane: Lane, work: Callable[[], None]) -> None:
        work()

    def mark(self, lane: Lane) -> Mark:
        return None

    def wait(self, lane: Lane, mark: Mark) -> None:
        pass

    def settle(self) -> None:
        pass


class Streams:
    """On a GPU: two side streams copy while the current one computes. The host waits for none of them."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._side = {
            lane: torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch's
            for lane in (Lane.IN, Lane.OUT)
        }

    def do(self, lane: Lane, work: Callable[[], None]) -> None:
        with torch.cuda.stream(self._stream(lane)):
            work()

    def mark(self, lane: Lane) -> Mark:
        return self._stream(lane).record_event()

    def wait(self, lane: Lane, mark: Mark) -> None:
        self._stream(lane).wait_event(mark)

    def settle(self) -> None:
        self._side[Lane.OUT].synchronize()

    def _stream(self, lane: Lane) -> torch.cuda.Stream:
        return self._side.get(lane) or torch.cuda.current_stream(self._device)


def lanes_of(device: torch.device) -> Lanes:
    """Those that the device has."""
    return Streams(device) if device.type == "cuda" else AtOnce()
