"""A step as it might have been: with a suspect as fast as its peers, with all ranks so, with all stages alike."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from holdfast.diagnostics.blame.model import BlameSuspect, Slowness
from holdfast.diagnostics.blame.peers import nanmedian
from holdfast.diagnostics.blame.samples import computes
from holdfast.diagnostics.steps.graph import Graph
from holdfast.diagnostics.steps.replay import Measured, Variant
from holdfast.diagnostics.steps.shape import OTHER

Floats = npt.NDArray[np.float64]


def without_suspect(graph: Graph, seen: Measured, s: BlameSuspect) -> Variant:
    """The suspect takes no longer than its peers."""
    column = graph.columns[s.column]
    shape = column.shape
    if s.kind is Slowness.LINK:
        moved: dict[int, Floats] = {}
        for move in s.moves:
            syncs = graph.columns[move.column].shape.syncs
            change = moved.setdefault(move.column, np.zeros(seen.transfers[move.column].shape))
            rows = [k for k, sync in enumerate(syncs) if sync.key[0] == move.name]
            place = np.ix_(np.array(rows), np.array(move.lanes))
            change[place] -= np.array(move.shares) * seen.transfers[move.column][place]
        return Variant({}, moved, {})
    if s.whole:
        own = column.own[:, s.lane]
        share = min(s.self_s / max(float(own.sum()), 1e-12), 0.99)
        return Variant({s.column: -share * own}, {}, {s.column: s.lane})
    share_of = {int(i): s.works.get(role, 0.0) for i, role in zip(shape.works, shape.roles, strict=False)}
    share_of[-1] = s.works.get(OTHER, 0.0)
    spared = np.diff(column.at[:, s.lane]) * np.array([share_of.get(int(i), 0.0) for i in shape.owner])
    change = np.zeros(len(shape.syncs) + 1)
    mine = shape.segment >= 0
    np.subtract.at(change, shape.segment[mine], spared[mine])
    change[0] -= (column.at[0, s.lane] - column.begin[s.lane]) * share_of[-1]
    return Variant({s.column: change}, {}, {s.column: s.lane})


def ideal(graph: Graph, seen: Measured) -> Variant:
    """Every rank takes what the median of its peers does."""
    own = {c: nanmedian(column.own, axis=1)[:, None] - column.own for c, column in enumerate(graph.columns)}
    moved = {c: nanmedian(took, axis=1)[:, None] - took for c, took in enumerate(seen.transfers)}
    return Variant(own, moved, {})


def balanced(graph: Graph) -> tuple[Variant, Floats]:
    """The step had all stages the same to do; and what each column has, seconds."""
    works = []
    for column in graph.columns:
        rows = [i for i, role in enumerate(column.shape.roles[:-1]) if computes(role)]
        works.append(float(nanmedian(column.spent[rows].sum(axis=0))) if rows else 0.0)
    mean = float(np.mean(works))
    own: dict[int, Floats] = {}
    for c, column in enumerate(graph.columns):
        if works[c] <= 0:
            continue
        busy = {int(i) for i, r in zip(column.shape.works, column.shape.roles, strict=False) if computes(r)}
        mine = np.array([int(i) in busy for i in column.shape.owner]) & (column.shape.segment >= 0)
        change = np.zeros_like(column.own)
        np.add.at(change, column.shape.segment[mine], np.diff(column.at, axis=0)[mine] * (mean / works[c] - 1))
        own[c] = change
    return Variant(own, {}, {}), np.array(works)
