"""Spans of many ranks as numpy columns, on one clock: the controller's Unix time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from holdfast.base.bounds import MAX_KINDS
from holdfast.plan.plan import SPANS, Action, Op
from holdfast.wire import messages as msg
from holdfast.wire import span_rows

Ints = npt.NDArray[np.int64]

_ROW = np.dtype(
    [
        ("index", "<i8"), ("start", "<i8"), ("end", "<i8"), ("bytes", "<i8"), ("step", "<i4"), ("cpu", "<u4"),
        ("kind", "<i2"), ("stage", "<i2"), ("turn", "<i2"), ("group", "<i2"), ("micro_batch", "<i4"), ("seq", "<i4"),
    ]
)  # fmt: skip
assert _ROW.itemsize == span_rows.ROW.size
_OPS = {name: op for op, name in SPANS.items()}


@dataclass(frozen=True, slots=True)
class SpanTable:
    """One entry of every column is one span. Times in ns."""

    rank: npt.NDArray[np.int32]
    generation: npt.NDArray[np.int32]
    step: npt.NDArray[np.int32]
    kind: npt.NDArray[np.int16]
    """Index into `kinds`."""
    stage: npt.NDArray[np.int16]
    micro_batch: npt.NDArray[np.int32]
    turn: npt.NDArray[np.int16]
    group: npt.NDArray[np.int16]
    """Index into `groups`, of which the first is empty: alone."""
    seq: npt.NDArray[np.int32]
    start: Ints
    end: Ints
    cpu: Ints
    """Processor time of the thread, ns; 0: not measured."""
    bytes: Ints
    kinds: tuple[str, ...]
    groups: tuple[str, ...] = ("",)

    def __len__(self) -> int:
        return len(self.rank)

    def take(self, rows: npt.NDArray[np.bool_] | Ints) -> SpanTable:
        """The spans at an index or a mask."""
        return from_columns({name: getattr(self, name)[rows] for name in COLUMNS}, self.kinds, self.groups)

    def of_steps(self, first: int, last: int) -> SpanTable:
        """Those of the steps from `first` to `last`, both included."""
        return self.take((self.step >= first) & (self.step <= last))

    def is_of(self, *kinds: str) -> npt.NDArray[np.bool_]:
        """A mask of the spans of these kinds."""
        return np.isin(self.kind, [i for i, kind in enumerate(self.kinds) if kind in kinds])

    def without(self, *kinds: str) -> SpanTable:
        """Those of other kinds."""
        gone = self.is_of(*kinds)
        return self.take(~gone) if gone.any() else self

    def newest_generation(self, upto: int = -1) -> SpanTable:
        """Of a step that was done again after a restart, only the last time in generations up to `upto` (-1: all)."""
        if upto >= 0:
            return self.take(self.generation <= upto).newest_generation()
        if not len(self) or (self.generation == self.generation[0]).all():
            return self
        # As many entries as there are steps: their numbers may be anything, also negative.
        steps, place = np.unique(self.step, return_inverse=True)
        newest = np.full(len(steps), -1, np.int32)
        np.maximum.at(newest, place, self.generation)
        return self.take(self.generation == newest[place])

    def actions(self) -> tuple[npt.NDArray[np.int64], list[str]]:
        """For each span a number, and the plan's id of the action with that number; "" for what is no action."""
        key = np.stack([self.kind, self.stage, self.micro_batch, self.turn], axis=1).astype(np.int64)
        unique, numbers = np.unique(key, axis=0, return_inverse=True) if len(self) else (key, np.zeros(0, np.int64))
        ids = []
        for kind, stage, micro_batch, turn in unique.tolist():
            op: Op | None = _OPS.get(self.kinds[kind])
            ids.append("" if op is None or stage < 0 else Action(op, stage, micro_batch, turn).id)
        return numbers.reshape(-1), ids


COLUMNS: tuple[str, ...] = tuple(f.name for f in fields(SpanTable))[:-2]


def from_columns(columns: Mapping[str, Any], kinds: tuple[str, ...], groups: tuple[str, ...]) -> SpanTable:
    """From all of `COLUMNS` by name."""
    return SpanTable(**columns, kinds=kinds, groups=groups)


def empty() -> SpanTable:
    return decode([])


def concatenated(tables: Sequence[SpanTable]) -> SpanTable:
    """All spans of all tables."""
    kinds, groups = _Names(), _Names([""])
    columns: dict[str, list[npt.NDArray[np.generic]]] = {name: [] for name in COLUMNS}
    for table in tables:
        for name in COLUMNS:
            columns[name].append(getattr(table, name))
        columns["kind"][-1] = kinds.numbers(table.kinds)[table.kind]
        columns["group"][-1] = groups.numbers(table.groups)[table.group]
    template = decode([])
    whole = {name: np.concatenate([getattr(template, name), *columns[name]]) for name in COLUMNS}
    return from_columns(whole, tuple(kinds), tuple(groups))


def decode(parts: Iterable[tuple[int, msg.WorkerSpans]]) -> SpanTable:
    """From messages, each with its node's clock offset, ns. ProtocolError for what is malformed."""
    kinds, groups = _Names(), _Names([""])
    maps: dict[tuple[str, ...], tuple[npt.NDArray[np.int16], npt.NDArray[np.int16]]] = {}
    found: list[npt.NDArray[np.void]] = []
    owners: list[tuple[int, int, int, int]] = []
    for offset, spans in parts:
        rows = np.frombuffer(span_rows.unpack(spans.data, spans.count), _ROW).copy()
        if spans.names not in maps:
            maps[spans.names] = kinds.numbers([n or "other" for n in spans.names]), groups.numbers(spans.names)
        of_kind, of_group = maps[spans.names]
        known = len(of_kind) - 1
        rows["kind"] = of_kind[np.clip(rows["kind"], 0, known)]
        rows["group"] = of_group[np.clip(rows["group"], 0, known)]
        found.append(rows)
        owners.append((spans.rank, spans.generation, offset, len(rows)))
    rows = np.concatenate(found) if found else np.zeros(0, _ROW)
    rank, generation, offset_ns, counts = (
        (np.array(c, np.int64) for c in zip(*owners, strict=True)) if owners else (np.zeros((4, 0), np.int64))
    )
    moved = np.repeat(offset_ns, counts)
    return SpanTable(
        rank=np.repeat(rank, counts).astype(np.int32),
        generation=np.repeat(generation, counts).astype(np.int32),
        step=rows["step"].copy(),
        kind=rows["kind"].copy(),
        stage=rows["stage"].copy(),
        micro_batch=rows["micro_batch"].copy(),
        turn=rows["turn"].copy(),
        group=rows["group"].copy(),
        seq=rows["seq"].copy(),
        start=rows["start"] + moved,
        end=rows["end"] + moved,
        cpu=rows["cpu"].astype(np.int64) * 100,
        bytes=rows["bytes"].copy(),
        kinds=tuple(kinds),
        groups=tuple(groups),
    )


def encode(table: SpanTable, job: str, generation: int) -> list[msg.WorkerSpans]:
    """The inverse: one message a rank, in order of rank, as agents would send them."""
    names = ("", *dict.fromkeys((*table.kinds, *table.groups[1:])))
    number = {name: i for i, name in enumerate(names)}
    order = np.lexsort((table.end, table.rank))
    rows = np.zeros(len(order), _ROW)
    for name in ("start", "end", "bytes", "step", "stage", "turn", "micro_batch", "seq"):
        rows[name] = getattr(table, name)[order]
    rows["cpu"] = table.cpu[order] // 100
    rows["kind"] = np.array([number[kind] for kind in table.kinds] or [0])[table.kind[order]]
    rows["group"] = np.array([number[group] for group in table.groups] or [0])[table.group[order]]
    ranks, firsts = np.unique(table.rank[order], return_index=True)
    found = []
    for rank, own in zip(ranks.tolist(), np.split(rows, firsts[1:]), strict=True):
        own["index"] = np.arange(len(own))
        steps = int(own["step"].min()), int(own["step"].max())
        packed = span_rows.pack(own.tobytes())
        found.append(msg.WorkerSpans(rank, generation, len(own), 0, *steps, names, packed, job))
    return found


class _Names(list[str]):
    """Each name once; its place is its number."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        super().__init__(names)
        self._known = {name: i for i, name in enumerate(self)}

    def numbers(self, names: Sequence[str]) -> npt.NDArray[np.int16]:
        for name in names:
            if name not in self._known:
                if len(self) >= MAX_KINDS:  # a program that makes names up has no more of them
                    self._known[name] = self._other()
                    continue
                self._known[name] = len(self)
                self.append(name)
        return np.array([self._known[name] for name in names] or [0], np.int16)

    def _other(self) -> int:
        if "other" not in self._known:
            self._known["other"] = len(self)
            self.append("other")
        return self._known["other"]
