"""Why work took more time than the processor spent on it: kept from running by the host, or left by itself.

A thread that is ready and has no processor waits on a run queue, and the kernel counts for how long. Asleep, at a lock
or in a read it does not wait there. So what a rank's work takes longer is the host's as far as its run-queue wait is
longer than its peers'.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from holdfast.diagnostics.blame.model import Slowness
from holdfast.diagnostics.blame.peers import compare
from holdfast.diagnostics.steps.span_table import SpanTable

Floats = npt.NDArray[np.float64]

_EXPLAINS = 0.5
"""Of an excess: run-queue wait, or processor time, of so much explains it."""


@dataclass(frozen=True, slots=True)
class Threads:
    """Of the threads that make the steps. (steps, ranks), seconds in a step; NaN where not known."""

    cpu: Floats
    delayed: Floats
    """Ready to run, and kept from it."""

    def kept(self, ranks: npt.NDArray[np.int64], lane: int, excess: float) -> Slowness:
        """Who is at fault that the work of the rank at `lane` of `ranks` lasted `excess` seconds a step longer than its
        peers', without more processor time. HOST also where the kernel does not tell."""
        delayed = self.delayed[:, ranks]
        if not np.isfinite(delayed[:, lane]).any():
            return Slowness.HOST
        return Slowness.HOST if compare(delayed).excess[lane] >= _EXPLAINS * excess else Slowness.WAIT

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
    cpu, delayed = np.full((2, len(steps), world), np.nan)
    cpu[at, rows.rank] = rows.cpu * 1e-9
    delayed[at, rows.rank] = np.where(rows.bytes < 0, np.nan, rows.bytes * 1e-9)
    return Threads(cpu, delayed)
