"""What papers say a step of a schedule takes. Pure: nothing is simulated here.

Times are those of a rank's layers for one micro-batch: a forward takes 1, a backward 2, each half of a backward 1, and
recomputing 1. Messages take no time.
"""

from __future__ import annotations

FORWARD, BACKWARD = 1, 2
WEIGHT = BACKWARD / 2
"""The half of a backward that makes gradients of weights."""
BOTH = FORWARD + BACKWARD


def makespan(schedule: str, ranks: int, chunks: int, micro_batches: int) -> float | None:
    """Of a step; None where the source has no formula for these numbers.

    `chunks` are the stages of a rank (V), for Chimera the pipes (2f). Sources: GPipe (Huang et al., NeurIPS 2019); 1F1B
    (Narayanan et al., SOSP 2019), which eager 1F1B (Zhuang et al., MLSys 2023) and AxoNN (Singh and Bhatele, IPDPS
    2022) equal where messages are free; interleaved (Narayanan et al., SC 2021); breadth-first (Lamy-Poirier, MLSys
    2023); zero bubble (Qi et al., ICLR 2024; see `_zero_bubble`); Chimera (Li and Hoefler, SC 2021; see `_chimera`);
    Merak (Lai et al., TPDS 2023).
    """
    d, n, v = ranks, micro_batches, chunks
    if schedule in ("gpipe", "1f1b", "eager-1f1b", "axonn"):
        return (n + d - 1) * BOTH
    if schedule in ("interleaved", "bfs"):
        return (n + (d - 1) / v) * BOTH
    if schedule in ("zbv", "interleaved-zero-bubble", "dualpipev"):
        return _zero_bubble(schedule, d, v, n)
    if schedule in ("chimera", "chimera-doubling", "chimera-halving"):
        return _chimera(schedule, d, v, n)
    late = (d - 1) * FORWARD
    saved = {"merak-baseline": 0, "merak-early": late, "merak-last-kept": late + 2, "merak": late + 3}
    return (n + d - 1) * (BOTH + FORWARD) - saved[schedule] if schedule in saved else None


def _zero_bubble(schedule: str, d: int, v: int, n: int) -> float | None:
    """Where both halves of a backward take as long as a forward, and micro-batches fill the pipeline twice.

    ZBV: no rank is idle between its first and its last computation, and the last rank begins behind D-1 forwards of a
    chunk. Interleaved: the bubble of ZB-H1, (D-1)(F + B - 2W), over V. DualPipeV: its authors' formula,
    (D-1)(F&B + B - 3W)/V, is for pairs that take F&B and have no result before. Where a pair is done one after the
    other, what stands here is the least of any schedule of this placement, D-1 forwards of a chunk.
    """
    if n < 2 * d:
        return None
    idle = FORWARD + BACKWARD - 2 * WEIGHT if schedule == "interleaved-zero-bubble" else FORWARD
    return n * BOTH + (d - 1) * idle / v


def _chimera(schedule: str, d: int, pipes: int, n: int) -> float | None:
    """Units of D micro-batches, of which each but the first begins behind a gap where a backward takes longer than a
    forward. Doubling and halving have no such gap; doubling counts in pairs in every pipe."""
    slots = 2 * d // pipes - 2
    if schedule == "chimera-halving":
        return n * BOTH + slots * FORWARD
    if schedule == "chimera-doubling":
        return n * BOTH + slots * 2 * FORWARD if n % (2 * d) == 0 else None
    units = -(-n // d)
    return n * BOTH + (units - 1) * slots * (BACKWARD - FORWARD) + slots * BACKWARD
