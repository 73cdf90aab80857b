"""Steps of an unmodified DDP script on a busy host, as the hooks would have recorded them, made up, in virtual time.

Ranks share processors with other programs: each span is delayed by what runs beside it, in bursts, at rates that change
by the second and differ between ranks. The kernel counts that wait for each rank's thread. Processor time itself
wanders, too: a cache or a clock is shared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from holdfast.diagnostics.steps.span_table import COLUMNS, SpanTable, from_columns
from holdfast.wire.span_rows import THREAD

Floats = npt.NDArray[np.float64]

KINDS = ("forward", "backward", "ddp:all_reduce", "optimizer", THREAD)
PARTS = ("forward", "backward", "backward optimizer", "optimizer", "optimizer forward")
"""Where a rank spends its own time: in spans, and between two of them."""
_SECOND = 12
"""Steps after which other programs run beside other ranks."""
_GIVEN = ("rank", "step", "kind", "start", "end", "cpu", "bytes")
_NOTHING: Floats = np.zeros(1)
_TYPES = {
    "rank": np.int32, "generation": np.int32, "step": np.int32, "kind": np.int16, "stage": np.int16,
    "micro_batch": np.int32, "turn": np.int16, "group": np.int16, "seq": np.int32,
}  # fmt: skip


@dataclass(frozen=True)
class Extra:
    """A rank does more than its peers: `part` is one of `PARTS`, in one of `every` steps."""

    rank: int
    part: str
    seconds: float
    every: int = 1
    computes: bool = False


@dataclass(frozen=True)
class DdpJob:
    """Seconds."""

    ranks: int = 3
    steps: int = 100
    computes: float = 0.5
    """Share of work that is computation; the rest is asleep, as on an accelerator that is waited for."""
    load: float = 0.0
    """Mean seconds that a rank is kept from running in a step, beside what it computes in that time."""
    counts_delay: bool = True
    """Whether the kernel counts that."""
    work: Mapping[str, float] = field(
        default_factory=lambda: {
            "forward": 0.030, "backward": 0.050, "backward optimizer": 0.001, "optimizer": 0.004,
            "optimizer forward": 0.002,
        }
    )  # fmt: skip


def spans_of(job: DdpJob, extras: tuple[Extra, ...] = (), seed: int = 0) -> SpanTable:
    """All spans and rows of threads of these steps, from step 0 on."""
    host = _Host(job, extras, seed)
    for step in range(job.steps):
        host.step(step)
    return _table(host.rows)


class _Host:
    """Its ranks, and the time of each."""

    def __init__(self, job: DdpJob, extras: tuple[Extra, ...], seed: int) -> None:
        self._job, self._extras = job, extras
        self._rng = np.random.default_rng(seed)
        self.rows: dict[str, list[Floats]] = {name: [] for name in _GIVEN}
        self._number = 0
        self._now, self._delayed, self._used = (np.zeros(job.ranks) for _ in range(3))
        self._rate, self._speed = np.ones(job.ranks), np.zeros(job.ranks)

    def step(self, number: int) -> None:
        job, rng = self._job, self._rng
        self._number = number
        self._delayed, self._used = np.zeros(job.ranks), np.zeros(job.ranks)
        if number % _SECOND == 0:
            self._rate = rng.gamma(1.0, 1.0, job.ranks)
        self._speed = 0.9 * self._speed + rng.normal(0.0, 0.01 if job.load else 0.003, job.ranks)
        self._own("optimizer forward")
        self._span("forward")
        self._span("backward")
        woken = self._slices(job.load / 4)
        self._delayed += woken
        self._add("ddp:all_reduce", self._now, self._now.max() + 0.001 + woken, np.zeros(job.ranks))
        self._own("backward optimizer")
        self._span("optimizer")
        self._add(THREAD, self._now, self._now, self._used, self._delayed if job.counts_delay else None)

    def _span(self, part: str) -> None:
        begin = self._now
        cpu = self._own(part)
        self._add(part, begin, self._now, cpu)

    def _own(self, part: str) -> Floats:
        """Lets this part pass; what it took of the processor."""
        job, rng = self._job, self._rng
        cpu = job.work[part] * job.computes * np.exp(self._speed + rng.normal(0.0, 0.01, job.ranks))
        asleep = job.work[part] * (1 - job.computes) * np.exp(rng.normal(0.0, 0.005, job.ranks))
        for extra in self._extras:
            if extra.part == part and self._number % extra.every == extra.every - 1:
                (cpu if extra.computes else asleep)[extra.rank] += extra.seconds
        kept = self._slices(job.load / len(PARTS)) * self._rate
        self._delayed += kept
        self._used += cpu
        self._now = self._now + cpu + asleep + kept
        return cpu

    def _slices(self, mean: float) -> Floats:
        """Seconds for which other programs have the processor: often none, or some slices."""
        found: Floats = self._rng.poisson(0.6, self._job.ranks) * self._rng.exponential(mean / 0.6, self._job.ranks)
        return found

    def _add(self, kind: str, start: Floats, end: Floats, cpu: Floats, delayed: Floats | None = _NOTHING) -> None:
        """`delayed`: None where the kernel does not count it."""
        ranks = self._job.ranks
        values = (np.arange(ranks), np.full(ranks, self._number), np.full(ranks, KINDS.index(kind)), start, end, cpu,
                  np.full(ranks, -1e-9) if delayed is None else np.broadcast_to(delayed, ranks))  # fmt: skip
        for name, column in zip(_GIVEN, values, strict=True):
            self.rows[name].append(column.astype(np.float64))
        if kind == "ddp:all_reduce":
            self._now = end


def _table(rows: dict[str, list[Floats]]) -> SpanTable:
    found = {name: np.concatenate(parts) for name, parts in rows.items()}
    count = len(found["rank"])
    for name in ("start", "end", "cpu", "bytes"):
        found[name] = np.round(found[name] * 1e9)
    is_wait, is_thread = found["kind"] == KINDS.index("ddp:all_reduce"), found["kind"] == KINDS.index(THREAD)
    absent = {"generation": 1.0, "stage": -1.0, "turn": 0.0}
    found |= {name: np.full(count, value) for name, value in absent.items()}
    found |= {"group": is_wait.astype(np.float64), "micro_batch": np.full(count, -1.0)}
    found["seq"] = np.where(is_thread, -1.0, np.where(is_wait, found["step"] + 1, -1.0))
    columns = {name: found[name].astype(_TYPES.get(name, np.int64)) for name in COLUMNS}
    return from_columns(columns, KINDS, ("", "world"))
