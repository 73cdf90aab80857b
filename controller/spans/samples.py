"""Millisecond traffic samples of all nodes, within one budget of memory: the more nodes, the less of each is kept."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from holdfast.wire import types as t

_SECONDS = 60.0
_SILENT_S = 600.0
"""After so long without a sample a node has no share of the memory any more."""


class _Kept(NamedTuple):
    """Of a frame, its samples."""

    wall_ns: int
    offsets: bytes
    nics: tuple[t.NicSamples, ...]


@dataclass(slots=True)
class _Ring:
    frames: deque[_Kept] = field(default_factory=deque)
    held: int = 0
    added_at: float = 0.0  # monotonic


class Samples:
    def __init__(self, budget_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._budget, self._clock = budget_bytes, clock
        self._looked_at = clock()
        self._rings: dict[str, _Ring] = {}

    def add(self, node: str, frame: t.Frame) -> None:
        if not frame.offsets:
            return
        now = self._clock()
        if now - self._looked_at > _SECONDS:
            self._looked_at = now
            self._rings = {name: ring for name, ring in self._rings.items() if now - ring.added_at < _SILENT_S}
        ring = self._rings.setdefault(node, _Ring())
        ring.added_at = now
        kept = _Kept(frame.wall_ns, frame.offsets, frame.nics)
        ring.frames.append(kept)
        ring.held += _size(kept)
        share = self._budget // len(self._rings)
        oldest = frame.wall_ns - int(_SECONDS * 1e9)
        while len(ring.frames) > 1 and (ring.held > share or ring.frames[0].wall_ns < oldest):
            ring.held -= _size(ring.frames.popleft())

    def read(self, node: str, seconds: float) -> list[dict[str, Any]]:
        """The last `seconds` of a node, per NIC: {name, t0 (Unix ms), t: [ms since t0], tx, rx: bytes per sample}."""
        ring = self._rings.get(node)
        if ring is None or not ring.frames:
            return []
        newest = ring.frames[-1].wall_ns
        frames = [f for f in ring.frames if f.wall_ns >= newest - int(seconds * 1e9)]
        t0 = frames[0].wall_ns / 1e6
        names = [n.name for n in frames[-1].nics]
        columns: dict[str, tuple[list[float], list[int], list[int]]] = {n: ([], [], []) for n in names}
        for frame in frames:
            at = frame.wall_ns / 1e6 - t0 + np.frombuffer(frame.offsets, "<u4") / 1e3
            for nic in frame.nics:
                if nic.name in columns:
                    times, tx, rx = columns[nic.name]
                    times += np.round(at, 2).tolist()
                    tx += np.frombuffer(nic.tx, "<u4").tolist()
                    rx += np.frombuffer(nic.rx, "<u4").tolist()
        return [{"name": n, "t0": t0, "t": c[0], "tx": c[1], "rx": c[2]} for n, c in columns.items()]


def _size(kept: _Kept) -> int:
    return len(kept.offsets) * (1 + 2 * len(kept.nics)) + 200 * len(kept.nics)
