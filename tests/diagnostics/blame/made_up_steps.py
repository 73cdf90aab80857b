"""Steps of a few ranks as their spans, made up item by item, with what is true of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from holdfast.diagnostics.steps.span_table import COLUMNS, SpanTable, from_columns

KINDS = ("load", "forward", "backward", "optimizer", "checkpoint", "dp:all_reduce", "world:barrier")
GROUPS = ("", "dp", "world")
MEETINGS = {"dp:all_reduce": 1, "world:barrier": 2}
Ints = npt.NDArray[np.int64]


@dataclass
class MadeUp:
    """Nanoseconds. All ranks do `items` one after the other in each step."""

    items: Sequence[str]
    took: Ints
    """(steps, items, ranks): of a meeting, the transfer."""
    overlap: Ints
    """(items,): by how much a span goes on in the next one's time."""
    offset: Ints
    """(ranks,): what each rank's clock is ahead."""
    missing: frozenset[tuple[int, int]] = frozenset()
    """(step, rank) without spans."""
    ends: Ints = field(init=False)
    """(steps, ranks), true time."""
    waited: Ints = field(init=False)
    moved: Ints = field(init=False)
    """(steps, ranks): true waiting, and transfer."""

    def table(self) -> SpanTable:
        steps, _, world = self.took.shape
        rows: dict[str, list[int]] = {name: [] for name in COLUMNS}
        self.ends, self.waited, self.moved = (np.zeros((steps, world), np.int64) for _ in range(3))
        now = np.zeros(world, np.int64)
        for step in range(steps):
            for n, kind in enumerate(self.items):
                begin = now.copy()
                if kind in MEETINGS:
                    now = np.full(world, now.max()) + self.took[step, n]
                    self.waited[step] += begin.max() - begin
                    self.moved[step] += self.took[step, n]
                else:
                    now = now + self.took[step, n]
                more = 0 if kind in MEETINGS or n + 1 == len(self.items) else int(self.overlap[n])
                for rank in range(world):
                    if (step, rank) not in self.missing:
                        self._add(rows, step, rank, kind, int(begin[rank]), int(now[rank]) + more)
            self.ends[step] = now
        return from_columns({name: np.array(values, np.int64) for name, values in rows.items()}, KINDS, GROUPS)

    def _add(self, rows: dict[str, list[int]], step: int, rank: int, kind: str, start: int, end: int) -> None:
        given = {
            "rank": rank, "generation": 1, "step": step, "kind": KINDS.index(kind), "stage": -1, "micro_batch": -1,
            "turn": 0, "group": MEETINGS.get(kind, 0), "seq": -1, "bytes": 0, "cpu": 0,
            "start": start + int(self.offset[rank]), "end": end + int(self.offset[rank]),
        }  # fmt: skip
        for name in COLUMNS:
            rows[name].append(given[name])

    @property
    def step_s(self) -> float:
        """Mean over the steps."""
        return float(self.ends.max(axis=1)[-1]) * 1e-9 / len(self.ends)


@st.composite
def made_up(draw: st.DrawFn, clocks: int = 0, missing: bool = False, steps: int = 3, tidy: bool = False) -> MadeUp:
    """`clocks`: most nanoseconds that one is ahead. `tidy`: no span is of no length or goes on in the next one's time,
    so which one lies in which is beyond doubt."""
    world = draw(st.integers(1, 5))
    items = draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=6))
    items.append(draw(st.sampled_from(sorted(MEETINGS))))
    lengths = st.integers(1000 if tidy else 0, 20_000_000)
    took = draw(st.lists(lengths, min_size=steps * len(items) * world, max_size=steps * len(items) * world))
    overlap = draw(st.lists(st.integers(0, 0 if tidy else 1_000_000), min_size=len(items), max_size=len(items)))
    offset = draw(st.lists(st.integers(0, clocks), min_size=world, max_size=world))
    lost = st.frozensets(st.tuples(st.integers(0, steps - 1), st.integers(0, world - 1)), max_size=2)
    whole = np.array(took, np.int64).reshape(steps, len(items), world)
    for n, kind in enumerate(items):
        if kind in MEETINGS:
            whole[:, n] = whole[:, n, :1]  # the data are there at once for all
    return MadeUp(items, whole, np.array(overlap), np.array(offset), draw(lost) if missing else frozenset())
