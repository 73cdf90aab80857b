"""Seconds of each work and transfer, step by step: what ranks are compared by."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from holdfast.diagnostics.steps.graph import Graph
from holdfast.diagnostics.steps.replay import Measured
from holdfast.diagnostics.steps.shape import OTHER, Meeting

Floats = npt.NDArray[np.float64]


class BlameSamples:
    """One column's seconds of each role, step by step."""

    def __init__(self) -> None:
        self.wall: dict[str, list[Floats]] = {}
        self.cpu: dict[str, list[Floats]] = {}
        self.transfers: dict[str, list[Floats]] = {}
        """A row for each step; NaN where a step has no such transfer."""
        self.off: list[Floats] = []
        """Seconds of work without processor time, loading apart: that waits for its data."""
        self.off_of: dict[str, list[Floats]] = {}
        """The same of each role."""
        self.worked: list[Floats] = []
        """Processor seconds of all work."""
        self.is_timed = True
        """Whether the processor's time is known."""
        self.totals: list[Floats] = []

    def add(self, graph: Graph, seen: Measured, c: int, by_element: bool) -> None:
        column = graph.columns[c]
        cpu = column.cpu_spent()
        roles = column.shape.roles[:-1]
        for role in dict.fromkeys(roles):
            rows = [i for i, name in enumerate(roles) if name == role]
            for store, values in ((self.wall, column.spent[rows]), (self.cpu, cpu[rows])):
                store.setdefault(role, []).extend(values if by_element else [values.sum(axis=0)])
        self.wall.setdefault(OTHER, []).append(column.other)
        known = np.isfinite(cpu)
        off = np.where(known, np.clip(column.spent - cpu, 0, None), 0)
        own = [i for i, name in enumerate(roles) if not name.startswith("load")]
        self.off.append(off[own].sum(axis=0))
        for role in dict.fromkeys(roles[i] for i in own):
            rows = [i for i, name in enumerate(roles) if name == role]
            self.off_of.setdefault(role, []).append(off[rows].sum(axis=0))
        self.worked.append(np.nan_to_num(cpu).sum(axis=0))
        self.is_timed &= bool(known.any())
        self.totals.append(column.own.sum(axis=0))
        moved: dict[str, list[Floats]] = {}
        for k, sync in enumerate(column.shape.syncs):
            if sync.how is Meeting.SEND:
                continue
            # Data that was there already says nothing about how long it took.
            took = np.where(
                seen.waited[c][k] | (sync.how is Meeting.COLLECTIVE), np.maximum(seen.transfers[c][k], 0.0), np.nan
            )
            moved.setdefault(sync.key[0], []).append(took)
        nothing = np.full(len(column.ranks), np.nan)
        for name, took_all in moved.items():
            steps = self.transfers.setdefault(name, [nothing] * (len(self.totals) - 1))
            steps.append(_lower_quartile(np.stack(took_all)))
        for name in self.transfers.keys() - moved.keys():
            self.transfers[name].append(nothing)


def _lower_quartile(took: Floats) -> Floats:
    """Of each rank's transfers of one name in a step, (transfers, ranks). A slow link is slow for all that goes over
    it; what a busy host adds, until the receiver has its processor, comes on top of some and is many times as long."""
    ordered = np.sort(took, axis=0)  # those that are not known come last
    known = (~np.isnan(took)).sum(axis=0)
    found: Floats = np.take_along_axis(ordered, np.maximum(known - 1, 0)[None] // 4, axis=0)[0]
    return found


def computes(role: str) -> bool:
    """Whether a role is forward or backward of some stage."""
    return role.partition(" ")[0] in ("forward", "backward", "backward_input", "backward_weight", "recompute")
