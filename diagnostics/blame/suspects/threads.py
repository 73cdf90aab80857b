"""Why work took more time than the processor spent on it: kept from running by the host, or left by itself.

A thread that is ready and has no processor waits on a run queue, and the kernel counts for how long. Asleep, at a lock
or in a read it does not wait there. So what a rank's work takes longer is the host's as far as its run-queue wait is
longer than its peers'. Where the kernel does not count that, involuntary context switches stand for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from holdfast.diagnostics.blame.model import Slowness
from holdfast.diagnostics.blame.suspects.peers import compare
from holdfast.diagnostics.steps.span_table import SpanTable

Floats = npt.NDArray[np.float64]

_EXPLAINS = 0.5
"""Of an excess: run-queue wait, or processor time, of so much explains it."""
_LONGEST_SLICE = 0.1
"""Seconds for which one involuntary switch may keep a thread from running: a period of a cgroup's quota."""


@dataclass(frozen=True, slots=True)
class Threads:
    """Of the threads that make the steps. (steps, ranks), seconds in a step; NaN where not known."""

    steps: npt.NDArray[np.int64]
    cpu: Floats
    delayed: Floats
    """Runnable, but not running."""
    voluntary: Floats
    """Context switches in a step, where `delayed` is not known."""
    involuntary: Floats

    def of(self, steps: Sequence[int]) -> Threads:
        """In these steps, in this order."""
        at = np.searchsorted(self.steps, steps)
        at[at == len(self.steps)] = 0
        missing = self.steps[at] != np.asarray(steps)
        rows = [column[at] for column in (self.cpu, self.delayed, self.voluntary, self.involuntary)]
        for row in rows:
            row[missing] = np.nan
        return Threads(np.asarray(steps), *rows)

    def kept(self, ranks: npt.NDArray[np.int64], lane: int, excess: float) -> Slowness:
        """What caused that the work of the rank at `lane` of `ranks` lasted `excess` seconds a step longer than its
        peers', without more processor time. HOST also where the kernel does not say."""
        delayed = self.delayed[:, ranks]
        if np.isfinite(delayed[:, lane]).any():
            return Slowness.HOST if compare(delayed).excess[lane] >= _EXPLAINS * excess else Slowness.WAIT
        left = self.voluntary[:, ranks[lane]]
        if not np.isfinite(left).any() or np.nanmedian(left) < 1:
            return Slowness.HOST  # it never left by itself
        # Not the voluntary ones of peers: those wait in collectives, which the slow rank enters last.
        forced = compare(self.involuntary[:, ranks]).excess[lane]
        return Slowness.HOST if forced >= _EXPLAINS * excess / _LONGEST_SLICE else Slowness.WAIT

    def computes(self, rank: int, measured: Floats, excess: float) -> bool:
        """Did the rank compute for `excess` seconds a step outside of its work? `measured` (steps,): its processor
        seconds in the work."""
        spent = self.cpu[:, rank]
        if not np.isfinite(spent).any() or not np.isfinite(measured).any():
            return True
        return float(np.nanmedian(spent) - np.nanmedian(measured)) >= _EXPLAINS * excess


def threads_of(rows: SpanTable, world: int) -> Threads | None:
    """From the rows of kind `span_rows.THREAD`; None where there are none."""
    if not len(rows):
        return None
    steps, at = np.unique(rows.step, return_inverse=True)
    found = np.full((4, len(steps), world), np.nan)
    columns: tuple[npt.NDArray[np.signedinteger[Any]], ...] = (rows.cpu, rows.bytes, rows.micro_batch, rows.seq)
    for column, values in zip(found, columns, strict=True):
        column[at, rows.rank] = np.where(values < 0, np.nan, values)
    found[:2] *= 1e-9
    return Threads(steps.astype(np.int64), *found)
