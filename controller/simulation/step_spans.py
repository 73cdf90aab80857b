"""Steps of a job as its probes would have recorded them, made up: any mesh, any culprits, in virtual time.

It walks the plan by itself, rank by rank of a pipeline coordinate at once, and knows nothing of how blame is found.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from holdfast.diagnostics.steps.shape import REPLICAS
from holdfast.diagnostics.steps.span_table import COLUMNS, SpanTable, from_columns
from holdfast.plan.plan import COMPUTE, RECEIVES, SECOND_ORDER, SENDS, SPANS, Action, Op, Plan

Floats = npt.NDArray[np.float64]
KINDS = ("other", *SPANS.values(), "tp:all_reduce", "dp:reduce_scatter", "world:all_reduce")
GROUPS = ("", "tp", "dp", "world")
_FORWARDS = (Op.FORWARD, Op.RECOMPUTE)
_BY_RANK = ("rank", "start", "end", "cpu")
_ALIKE = tuple(name for name in COLUMNS if name not in _BY_RANK)
_ABSENT = {"stage": -1, "micro_batch": -1, "turn": 0, "group": 0, "seq": -1, "bytes": 0, "generation": 1}


@dataclass(frozen=True)
class Culprit:
    """`what`: forward, backward, compute (both), load, optimizer, factor, invert, link, reduce (of gradients), edge
    (the same, but only of `rank` and the next one of its dp group, as in an exchange of all with all), or between,
    the microsecond after each span. `share` 0.1: a tenth longer."""

    rank: int
    what: str
    share: float


@dataclass
class Timing:
    """A job's mesh, and how long what it does takes: seconds. `stage_work` makes a stage heavier than the others."""

    pp: int = 2
    dp: int = 2
    tp: int = 2
    micro_batches: int = 8
    forward: float = 0.010
    noise: float = 0.02
    message: float = 0.001
    all_reduce: float = 0.001
    load: float = 0.004
    optimizer: float = 0.005
    stage_work: dict[int, float] = field(default_factory=dict)
    stage_bytes: dict[int, float] = field(default_factory=dict)
    """Times the gradients of the others, and as many times as long under way."""
    measures_cpu: bool = False
    wakeup: float = 0.0
    """Mean of what a rank waits for its processor once its data is there, on a host with more ranks than cores."""


class _Recorder:
    """Of a plan with several pipes, replicas of each stage are a group of their own."""

    def __init__(self, plan: Plan) -> None:
        self.rows: dict[str, list[npt.NDArray[np.generic]]] = {name: [] for name in _BY_RANK}
        self.shared: list[tuple[int, ...]] = []
        """What all ranks of a span have alike, in the order of `_ALIKE`."""
        replicas = [f"{REPLICAS}{stage}" for stage in range(len(plan.stages))] if plan.pipes > 1 else []
        self.groups = (*GROUPS, *replicas)
        self.kinds = (*KINDS, *(f"{name}:all_reduce" for name in replicas))
        self._numbers = {kind: number for number, kind in enumerate(self.kinds)}

    def add(
        self,
        ranks: npt.NDArray[np.int64],
        kind: str,
        start: Floats,
        end: Floats,
        own: Floats | None = None,
        **more: int,
    ) -> None:
        """`own`: the seconds of it that the processor worked."""
        given = _ABSENT | more | {"kind": self._numbers[kind]}
        self.shared.append(tuple(given[name] for name in _ALIKE))
        for name, column in zip(
            _BY_RANK, (ranks, start, end, np.zeros(len(ranks)) if own is None else own), strict=True
        ):
            self.rows[name].append(column)

    def table(self, cpu: bool) -> SpanTable:
        types = {"rank": np.int32, "generation": np.int32, "step": np.int32, "kind": np.int16, "stage": np.int16,
                 "micro_batch": np.int32, "turn": np.int16, "group": np.int16, "seq": np.int32}  # fmt: skip
        lengths = [len(ranks) for ranks in self.rows["rank"]]
        whole = {name: np.concatenate(parts) for name, parts in self.rows.items()}
        for name, column in zip(_ALIKE, np.array(self.shared).T, strict=True):
            whole[name] = np.repeat(column, lengths)
        for name in ("start", "end", "cpu"):
            whole[name] = np.round(whole[name] * 1e9)
        whole = {name: whole[name].astype(types.get(name, np.int64)) for name in COLUMNS}
        if not cpu:
            whole["cpu"][:] = 0
        return from_columns(whole, self.kinds, self.groups)


def spans_of(job: Timing, plan: Plan, culprits: Sequence[Culprit], steps: int = 1, seed: int = 0) -> SpanTable:
    """All spans of so many steps of this plan, the first of which is step 0 and begins at 0."""
    rng = np.random.default_rng(seed)
    lanes = job.dp * job.tp
    ranks = np.arange(job.pp * lanes).reshape(job.pp, lanes)
    spans = _Recorder(plan)
    begin = np.zeros((job.pp, lanes))
    for step in range(steps):
        begin = _step(job, plan, culprits, ranks, spans, begin, step, rng)
    return spans.table(job.measures_cpu)


def _step(
    job: Timing, plan: Plan, culprits: Sequence[Culprit], ranks: npt.NDArray[np.int64], spans: _Recorder, begin: Floats,
    step: int, rng: np.random.Generator,
) -> Floats:  # fmt: skip
    lanes = job.dp * job.tp
    now = [begin[p] + 1e-6 for p in range(job.pp)]
    at = [0] * job.pp
    sent: dict[tuple[Op, int, int, int], Floats] = {}
    arrived: dict[tuple[int, int], dict[int, Floats]] = {}

    @functools.cache
    def slow(p: int, *what: str) -> Floats:
        factor = np.ones(lanes)
        for c in culprits:
            if c.rank // lanes == p and c.what in what:
                factor[c.rank % lanes] *= 1 + c.share
        return factor

    @functools.cache
    def edge(p: int) -> Floats:
        factor = np.ones(lanes)
        for c in culprits:
            if c.rank // lanes == p and c.what == "edge":
                lane = c.rank % lanes
                factor[[lane, (lane + job.tp) % lanes]] *= 1 + c.share
        return factor

    def took(p: int, seconds: float, *what: str) -> Floats:
        return seconds * slow(p, *what) * rng.lognormal(0.0, job.noise, lanes)

    def woken() -> Floats:
        return rng.exponential(job.wakeup, lanes) if job.wakeup else np.zeros(lanes)

    def together(p: int, axis: int, group: str, kind: str, seconds: float) -> None:
        start = now[p]
        folded = start.reshape(job.dp, job.tp)
        late = np.broadcast_to(folded.max(axis=axis, keepdims=True), folded.shape)
        factor = slow(p, "link", "reduce") if group == "dp" else slow(p, "link")
        slowest = np.broadcast_to(factor.reshape(job.dp, job.tp).max(axis=axis, keepdims=True), folded.shape)
        jitter = rng.lognormal(0.0, 2 * job.noise, folded.max(axis=axis, keepdims=True).shape)
        apart = edge(p).reshape(job.dp, job.tp) if group == "dp" else 1.0
        end = (late + seconds * slowest * apart * jitter).ravel() + woken()
        spans.add(ranks[p], kind, start, end, group=GROUPS.index(group), step=step, bytes=round(seconds * 1e9))
        now[p] = end + 1e-7

    def replicas_meet(p: int, action: Action) -> bool:
        """The sum of a stage's gradients over pipes and dp: it ends on each rank when the last has come."""
        s, members = action.stage, set(plan.ranks_of(action.stage))
        present = arrived.setdefault((s, action.turn // plan.pipes), {})
        present.setdefault(p, now[p])
        if len(present) < len(members):
            return False
        together = np.max([present[q].reshape(job.dp, job.tp) for q in members], axis=0).max(axis=0, keepdims=True)
        factor = max(float(slow(q, "link", "reduce").max()) for q in members)
        end = np.broadcast_to(together + 5 * job.all_reduce * factor, (job.dp, job.tp)).ravel()
        group = spans.groups.index(f"{REPLICAS}{s}")
        spans.add(ranks[p], f"{REPLICAS}{s}:all_reduce", now[p], end, group=group, step=step)
        now[p] = end + 1e-7
        return True

    def do(p: int, action: Action) -> bool:
        op, s, m = action.op, action.stage, action.micro_batch
        start = now[p]
        named = {"stage": s, "micro_batch": m, "step": step, "turn": action.turn}
        if op in COMPUTE:
            weight = job.stage_work.get(s, 1.0) * (1.0 if op in _FORWARDS else 2.0) * float(action.share)
            kind = SPANS[op]
            own = took(p, job.forward * weight, kind, "compute")
            now[p] = start + own
            if job.tp > 1:
                together(p, 1, "tp", "tp:all_reduce", job.all_reduce)
            spans.add(ranks[p], kind, start, now[p], own=own, **named)
        elif op in SENDS:
            now[p] = start + 20e-6
            sent[op, s, m, action.turn] = start
            spans.add(ranks[p], SPANS[op], start, now[p], own=None, **named)
        elif op in RECEIVES:
            is_forward = op is Op.RECV_FORWARD
            send, sender = (Op.SEND_FORWARD, s - 1) if is_forward else (Op.SEND_BACKWARD, s + 1)
            source = (send, sender, m, action.turn)
            if source not in sent:
                return False
            arrived = sent[source] + took(p, job.message, "link")
            now[p] = np.maximum(start + 10e-6, arrived + woken())
            spans.add(ranks[p], SPANS[op], start, now[p], own=None, **named)
        elif op is Op.REDUCE_GRAD and plan.pipes > 1:
            if not replicas_meet(p, action):
                return False
            spans.add(ranks[p], SPANS[op], start, now[p], own=None, **named)
        elif op is Op.REDUCE_GRAD:
            now[p] = start + took(p, 0.0005)
            if job.dp > 1:
                together(p, 0, "dp", "dp:reduce_scatter", 5 * job.all_reduce * job.stage_bytes.get(s, 1.0))
            spans.add(ranks[p], SPANS[op], start, now[p], own=None, **named)
        else:
            if op in SECOND_ORDER:
                seconds, name = job.forward / 4, SPANS[op]
            else:
                seconds, name = (job.load, "load") if op is Op.LOAD else (job.optimizer, "optimizer")
            own = took(p, seconds, name)
            now[p] = start + own
            spans.add(ranks[p], SPANS[op], start, now[p], own=own, **named)
        now[p] = now[p] + 1e-6 * slow(p, "between")
        return True

    moving = True
    while moving:
        moving = False
        for p in range(job.pp):
            while at[p] < len(plan.orders[p]) and plan.orders[p][at[p]].op is not Op.STEP:
                if not do(p, plan.orders[p][at[p]]):
                    break
                at[p] += 1
                moving = True
    last = max(float(t.max()) for t in now) + job.all_reduce
    for p in range(job.pp):
        spans.add(ranks[p], "world:all_reduce", now[p], np.full(lanes, last), group=GROUPS.index("world"), step=step)
        now[p] = np.full(lanes, last + 1e-6)
        for action in plan.orders[p][at[p] :]:
            do(p, action)
    return np.stack(now)
