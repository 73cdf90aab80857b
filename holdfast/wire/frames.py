"""Frames to messages and back: what is sent often, as columns. Used by `wire` only."""

from collections.abc import Sequence
from dataclasses import fields
from itertools import islice
from operator import attrgetter
from typing import Any

from holdfast.base.errors import ProtocolError
from holdfast.proto import controller_pb2 as c
from holdfast.proto import types_pb2 as p
from holdfast.wire import types as t
from holdfast.wire.standing import OpenOperation, PastOperation, StallFacts, ThreadSight, ThreadState

_OF_WORKER = (
    "rank", "generation", "pid", "step", "phase", "operation", "operation_age", "progress_age", "tick_age", "stopped",
    "loss", "tokens", "median_step", "coordinate", "sizes", "still_age",
)  # fmt: skip
_OF_STEP = ("rank", "generation", "step", "end_wall_ns", "seconds", "loss", "tokens", "is_counted")
_worker_fields, _step_fields = attrgetter(*_OF_WORKER), attrgetter(*_OF_STEP)
_PHASE = _OF_WORKER.index("phase")
_PHASE_INDEX = {phase: index for index, phase in enumerate(t.PHASES)}
_NOWHERE = (-1, -1, -1)


def frame_message(f: t.Frame) -> c.Frame:
    jobs = list(dict.fromkeys([one.job for rows in (f.workers, f.steps) for one in rows]))
    workers: dict[str, Any] = dict(zip(_OF_WORKER, zip(*map(_worker_fields, f.workers), strict=True), strict=False))
    steps: dict[str, Any] = dict(zip(_OF_STEP, zip(*map(_step_fields, f.steps), strict=True), strict=False))
    if len(jobs) > 1:
        index = {job: i for i, job in enumerate(jobs)}
        workers["job"] = [index[w.job] for w in f.workers]
        steps["job"] = [index[s.job] for s in f.steps]
    if f.workers:
        workers["phase"] = [_PHASE_INDEX[phase] for phase in workers["phase"]]
        for name in ("coordinate", "sizes"):
            workers[name] = [v for triple in workers[name] for v in triple or _NOWHERE]
        if any(w.meters is not None for w in f.workers):
            workers["meters"] = _meters(f.workers)
        if any(w.pending is not None for w in f.workers):
            workers["pending"] = _pending(f.workers)
        if any(w.activity is not None for w in f.workers):
            workers["activity"] = _activity(f.workers)
        if any(w.standing is not None for w in f.workers):
            workers["standing"] = standing_message(f.workers)
        if any(w.left for w in f.workers):
            workers["left"] = [w.left for w in f.workers]
    return c.Frame(
        seq=f.seq,
        wall_ns=f.wall_ns,
        mono_ns=f.mono_ns,
        heartbeat_interval=f.heartbeat_interval,
        offsets=f.offsets,
        nics=[p.NicSamples(name=n.name, tx_total=n.tx_total, rx_total=n.rx_total, tx=n.tx, rx=n.rx) for n in f.nics],
        host=f.host,
        gpus=[p.GpuGauges(index=g.index, values=g.values) for g in f.gpus],
        workers=p.Workers(**workers),
        steps=p.Steps(**steps),
        jobs=jobs,
    )


def _meters(workers: Sequence[t.WorkerSample]) -> p.Meters:
    known = [(i, w.meters) for i, w in enumerate(workers) if w.meters is not None]
    return p.Meters(
        worker=[i for i, _ in known],
        mfu=[m.mfu for _, m in known],
        tokens_per_s=[m.tokens_per_s for _, m in known],
        parts=[seconds for _, m in known for seconds in m.parts],
        memory_bytes=[m.memory_bytes for _, m in known],
        grad_norm=[m.grad_norm for _, m in known],
    )


def _from_meters(m: p.Meters, workers: int) -> list[t.Meters | None]:
    parts, each = len(t.STEP_PARTS), m.memory_bytes
    _same_length("meters", len(m.worker), m.mfu, m.tokens_per_s, each)
    _same_length("parts of steps", parts * len(m.worker), m.parts)
    norms = m.grad_norm or [t.NAN] * len(m.worker)  # older agents report none
    _same_length("meters", len(m.worker), norms)
    found: list[t.Meters | None] = [None] * workers
    for row, worker in enumerate(m.worker):
        if worker >= workers:
            raise ProtocolError("frame: meters of a worker that it lacks")
        found[worker] = t.Meters(
            m.mfu[row], m.tokens_per_s[row], tuple(m.parts[row * parts : (row + 1) * parts]), each[row], norms[row]
        )
    return found


def _pending(workers: Sequence[t.WorkerSample]) -> p.PendingCollective:
    known = [(i, w.pending) for i, w in enumerate(workers) if w.pending is not None]
    groups = [group for _, s in known for group in s.groups]
    return p.PendingCollective(
        worker=[i for i, _ in known],
        kind=[s.kind for _, s in known],
        group=[s.group for _, s in known],
        number=[s.number for _, s in known],
        is_handed=[s.is_handed for _, s in known],
        groups=[len(s.groups) for _, s in known],
        label=[g.label for g in groups],
        ident=[g.ident for g in groups],
        members=[g.members for g in groups],
        begun=[g.begun for g in groups],
        sizes=[g.sizes for g in groups],
        is_exact=[g.is_exact for g in groups],
        size=[s.size for _, s in known],
    )


def _from_pending(m: p.PendingCollective, workers: int) -> list[t.PendingCollective | None]:
    _same_length("pending collectives", len(m.worker), m.kind, m.group, m.number, m.is_handed, m.groups)
    histories = m.sizes or [0] * len(m.label)  # older agents report none
    exact = m.is_exact or [False] * len(m.label)  # likewise
    columns = (m.label, m.ident, m.members, m.begun, histories, exact)
    _same_length("groups", sum(m.groups), *columns)
    groups = [t.GroupCount(*row) for row in zip(*columns, strict=True)]
    found: list[t.PendingCollective | None] = [None] * workers
    first = 0
    sizes = m.size or [0] * len(m.worker)  # older agents report none
    _same_length("pending collectives", len(m.worker), sizes)
    rows = zip(m.worker, m.groups, m.kind, m.group, m.number, m.is_handed, sizes, strict=True)
    for worker, count, kind, group, number, is_handed, size in rows:
        if worker >= workers or group >= count:
            raise ProtocolError("frame: a pending collective of a worker or group that it lacks")
        found[worker] = t.PendingCollective(kind, group, number, is_handed, tuple(groups[first : first + count]), size)
        first += count
    return found


_OF_ACTIVITY = tuple(field.name for field in fields(t.Activity))
_activity_fields = attrgetter(*_OF_ACTIVITY)
_NEWER: dict[str, Any] = {"events_pending": 0, "behind": ""}
"""What older agents do not report."""


def _activity(workers: Sequence[t.WorkerSample]) -> p.Activity:
    known = [(i, w.activity) for i, w in enumerate(workers) if w.activity is not None]
    columns: dict[str, Any] = dict(
        zip(_OF_ACTIVITY, zip(*(_activity_fields(a) for _, a in known), strict=True), strict=True)
    )
    return p.Activity(worker=[i for i, _ in known], **columns)


def _from_activity(m: p.Activity, workers: int) -> list[t.Activity | None]:
    rows = len(m.worker)
    columns = [
        column or [_NEWER[name]] * rows if name in _NEWER else column
        for name, column in zip(_OF_ACTIVITY, _activity_fields(m), strict=True)
    ]
    _same_length("activity", rows, *columns)
    found: list[t.Activity | None] = [None] * workers
    for worker, *row in zip(m.worker, *columns, strict=True):
        if worker >= workers:
            raise ProtocolError("frame: activity of a worker that it lacks")
        values = dict(zip(_OF_ACTIVITY, row, strict=True))
        try:
            found[worker] = t.Activity(**{**values, "gpu": t.GpuUse(values["gpu"])})
        except ValueError:
            raise ProtocolError(f"frame: unknown use of a GPU {values['gpu']!r:.40}") from None
    return found


def frame_from(f: c.Frame) -> t.Frame:
    offsets = f.offsets
    nics = tuple(t.NicSamples(x.name, x.tx_total, x.rx_total, x.tx, x.rx) for x in f.nics)
    samples = len(offsets)
    if samples % 4 or any(len(nic.tx) != samples or len(nic.rx) != samples for nic in nics):
        raise ProtocolError("frame: NIC columns and offsets differ in length")
    return t.Frame(
        seq=f.seq,
        wall_ns=f.wall_ns,
        mono_ns=f.mono_ns,
        offsets=offsets,
        nics=nics,
        host=_plain(f.host),
        gpus=tuple(t.GpuGauges(g.index, _plain(g.values)) for g in f.gpus),
        workers=_workers(f.workers, f.jobs),
        steps=_steps(f.steps, f.jobs),
        heartbeat_interval=f.heartbeat_interval,
    )


def _jobs(indices: Sequence[int], jobs: Sequence[str], rows: int) -> list[str]:
    """The job of each row."""
    if not indices:
        return [jobs[0] if len(jobs) == 1 else ""] * rows
    _same_length("jobs", rows, indices)
    if max(indices) >= len(jobs):
        raise ProtocolError("frame: a job that it lacks")
    return [jobs[i] for i in indices]


def _workers(w: p.Workers, jobs: Sequence[str]) -> tuple[t.WorkerSample, ...]:
    # Lists, for a repeated field is walked item by item through protobuf.
    *columns, coordinate, sizes, still_age = (column[:] for column in _worker_fields(w))
    n = len(columns[0])
    _same_length("workers", n, *columns, still_age)
    _same_length("worker coordinates", 3 * n, coordinate, sizes)
    if any(v >= len(t.PHASES) for v in columns[_PHASE]):
        raise ProtocolError("frame: unknown phase")
    columns[_PHASE] = [t.PHASES[v] for v in columns[_PHASE]]
    meters = _from_meters(w.meters, n) if w.HasField("meters") else [None] * n
    standing = _from_pending(w.pending, n) if w.HasField("pending") else [None] * n
    activity = _from_activity(w.activity, n) if w.HasField("activity") else [None] * n
    triples = _triples(coordinate), _triples(sizes)
    threads = standing_from(w.standing, standing) if w.HasField("standing") else [None] * n
    left = w.left[:] or [False] * n
    _same_length("workers", n, left)
    jobs_of = _jobs(w.job, jobs, n)
    rows = zip(*columns, *triples, meters, still_age, standing, activity, jobs_of, threads, left, strict=True)
    return tuple(map(t.WorkerSample._make, rows))


def _steps(s: p.Steps, jobs: Sequence[str]) -> tuple[t.StepRecord, ...]:
    columns = [column[:] for column in _step_fields(s)]
    columns[-1] = columns[-1] or [False] * len(columns[0])  # older agents do not say
    _same_length("steps", len(columns[0]), *columns)
    return tuple(map(t.StepRecord._make, zip(*columns, _jobs(s.job, jobs, len(columns[0])), strict=True)))


def _plain(values: Any) -> dict[str, float]:
    return {key: values[key] for key in values}  # `dict` goes through an abstract view of a message's map


def _triples(values: list[int]) -> list[tuple[int, int, int] | None]:
    triples = zip(values[::3], values[1::3], values[2::3], strict=True)
    return [None if triple[0] < 0 else triple for triple in triples]


def _same_length(what: str, n: int, *columns: Any) -> None:
    if any(len(column) != n for column in columns):
        raise ProtocolError(f"frame: columns of {what} differ in length")


_STATES = {state.value: state for state in ThreadState}


def standing_message(workers: Sequence[t.WorkerSample]) -> p.StallFacts:
    known = [(i, w.standing) for i, w in enumerate(workers) if w.standing is not None]
    threads = [one for _, s in known for one in s.threads]
    operations = [one for _, s in known for one in s.operations]
    past = [one for _, s in known for one in s.past]
    return p.StallFacts(
        worker=[i for i, _ in known],
        is_complete=[s.is_complete for _, s in known],
        holder=[s.holder for _, s in known],
        threads=[len(s.threads) for _, s in known],
        operations=[len(s.operations) for _, s in known],
        tid=[x.tid for x in threads],
        state=[x.state.value for x in threads],
        seconds=[x.seconds for x in threads],
        ends_in=[x.ends_in for x in threads],
        words=[x.words for x in threads],
        count=[x.count for x in threads],
        thread=[o.thread for o in operations],
        kind=[o.kind for o in operations],
        group=[o.group for o in operations],
        number=[o.number for o in operations],
        size=[o.size for o in operations],
        root=[o.root for o in operations],
        is_timed=[o.is_timed for o in operations],
        past=[len(s.past) for _, s in known],
        past_kind=[o.kind for o in past],
        past_group=[o.group for o in past],
        past_number=[o.number for o in past],
        past_root=[o.root for o in past],
        past_size=[o.size for o in past],
    )


def standing_from(m: p.StallFacts, pending: Sequence[t.PendingCollective | None]) -> list[StallFacts | None]:
    """`pending`: of all workers, whose groups the operations refer to. Raises ProtocolError for what does not fit."""
    if any(len(column) != len(m.worker) for column in (m.is_complete, m.holder, m.threads, m.operations)):
        raise ProtocolError("frame: columns of standing workers differ in length")
    thread_columns = (m.tid, m.state, m.seconds, m.ends_in, m.words, m.count)
    operation_columns = (m.thread, m.kind, m.group, m.number, m.size, m.root, m.is_timed)
    if any(len(column) != sum(m.threads) for column in thread_columns):
        raise ProtocolError("frame: columns of threads differ in length")
    if any(len(column) != sum(m.operations) for column in operation_columns):
        raise ProtocolError("frame: columns of open operations differ in length")
    past_counts = m.past[:] or [0] * len(m.worker)  # older agents do not say
    past_columns = (m.past_kind, m.past_group, m.past_number, m.past_root, m.past_size[:] or [0] * len(m.past_kind))
    if len(past_counts) != len(m.worker) or any(len(column) != sum(past_counts) for column in past_columns):
        raise ProtocolError("frame: columns of past operations differ in length")
    threads = [
        ThreadSight(tid, _STATES.get(state, ThreadState.UNKNOWN), *rest)
        for tid, state, *rest in zip(*thread_columns, strict=True)
    ]
    operations = [OpenOperation(*row) for row in zip(*operation_columns, strict=True)]
    past = iter([PastOperation(*row) for row in zip(*past_columns, strict=True)])
    found: list[StallFacts | None] = [None] * len(pending)
    at = begun = 0
    columns = (m.worker, m.is_complete, m.holder, m.threads, m.operations, past_counts)
    for worker, is_complete, holder, many, open_ones, past_ones in zip(*columns, strict=True):
        if worker >= len(pending):
            raise ProtocolError("frame: threads of a worker that it lacks")
        own, passed = operations[begun : begun + open_ones], tuple(islice(past, past_ones))
        groups = len(known.groups) if (known := pending[worker]) is not None else 0
        if any(one.group >= groups for one in own) or any(one.group >= groups for one in passed):
            raise ProtocolError("frame: an operation of a group that its worker lacks")
        found[worker] = StallFacts(tuple(threads[at : at + many]), tuple(own), is_complete, holder, passed)
        at, begun = at + many, begun + open_ones
    return found
