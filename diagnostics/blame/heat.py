"""Where time goes, as heat maps: rank by phase of the step, node by step, and the worst ranks by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from holdfast.diagnostics.blame.suspects.peers import compare, nanmean
from holdfast.diagnostics.steps.graph import Column, Graph
from holdfast.diagnostics.steps.job_shape import JobShape
from holdfast.diagnostics.steps.replay import Measured, measured
from holdfast.diagnostics.steps.shape import OTHER

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

TRANSFER, WAIT = "transfer", "wait"
"""Time in operations with other ranks, apart from own work: data in transfer, and late peers."""
MOST_RANKS = 64
"""By step: of 12,288 ranks and as many steps there would be a million figures."""
COLLECTIONS = "gc"
"""Python's garbage collector, which runs at any time: its seconds lie in the other phases, too."""


@dataclass(frozen=True, slots=True)
class Heat:
    """All maps. Ratios are over the median of the peers, 1.1 is 10% slower; NaN where there is none."""

    ranks: Ints
    phases: tuple[str, ...]
    """Kinds of own work in the order of the step, then what is outside of all spans, transfers, waiting; collections
    where there were any."""
    seconds: Floats
    """(ranks, phases): per step."""
    ratio: Floats
    """(ranks, phases). None of waiting, for the rank that waits least may be the slow one, nor of collections."""
    nodes: tuple[str, ...]
    steps: Ints
    by_step: Floats
    """(nodes, steps): own work of the node's slowest rank over that of its peers in that step."""
    worst: Ints
    """The ranks that are slowest in most steps, from the worst on."""
    worst_by_step: Floats
    """(worst, steps): own work over that of the peers in that step."""


def heat(graphs: Sequence[Graph], shape: JobShape, garbage: Floats | None = None) -> Heat | None:
    """Over these steps; None where there are none. `garbage` (ranks,): seconds of collections per step."""
    if not graphs:
        return None
    seen = [measured(graph) for graph in graphs]
    columns = graphs[0].columns
    phases = _phases(columns)
    ranks = np.concatenate([column.ranks for column in columns])
    seconds = np.full((len(ranks), len(phases)), np.nan)
    ratio = np.full((len(ranks), len(phases)), np.nan)
    own: list[Floats] = []
    begin = 0
    for c, column in enumerate(columns):
        rows = slice(begin, begin + len(column.ranks))
        begin = rows.stop
        own.append(np.stack([graph.columns[c].own.sum(axis=0) for graph in graphs]))
        for p, phase in enumerate(phases):
            took = [_took(graph.columns[c], parts, c, phase) for graph, parts in zip(graphs, seen, strict=True)]
            known = [values for values in took if values is not None]
            if not known:
                continue
            stacked = np.stack(known)
            seconds[rows, p] = nanmean(stacked)
            if phase != WAIT:
                ratio[rows, p] = compare(stacked).ratio
    if garbage is not None:
        phases = (*phases, COLLECTIONS)
        seconds = np.column_stack([seconds, garbage[ranks]])
        ratio = np.column_stack([ratio, np.full(len(ranks), np.nan)])
    order = np.argsort(ranks)
    over = np.concatenate([_over_peers(took) for took in own], axis=1).T
    nodes, by_step = _by_node(ranks, over, shape)
    worst = _worst(over)
    steps = np.array([graph.step for graph in graphs], np.int64)
    return Heat(ranks[order], phases, seconds[order], ratio[order], nodes, steps, by_step, ranks[worst], over[worst])


def _phases(columns: Sequence[Column]) -> tuple[str, ...]:
    found = dict.fromkeys(role.partition(" ")[0] for column in columns for role in column.shape.roles[:-1])
    return (*found, OTHER, TRANSFER, WAIT)


def _took(column: Column, seen: Measured, c: int, phase: str) -> Floats | None:
    """(ranks,): seconds of one step; None where this column has no such phase."""
    if phase == OTHER:
        return column.other
    if phase in (TRANSFER, WAIT):
        waits, transfers = seen.shown(c)
        if not len(seen.waits[c]):
            return None
        return transfers if phase == TRANSFER else waits
    parts = column.spent[[i for i, role in enumerate(column.shape.roles[:-1]) if role.partition(" ")[0] == phase]]
    total: Floats = parts.sum(axis=0)
    return total if len(parts) else None


def _over_peers(took: Floats) -> Floats:
    """(steps, ranks) of one column of the mesh."""
    with np.errstate(divide="ignore", invalid="ignore"):
        found: Floats = took / _median(took)
    return found


def _by_node(ranks: Ints, over: Floats, shape: JobShape) -> tuple[tuple[str, ...], Floats]:
    """Names of nodes, and (nodes, steps)."""
    number = ranks // max(shape.nproc, 1)
    found = np.full((int(number.max()) + 1, over.shape[1]), -np.inf)
    np.fmax.at(found, number, over)
    found[~np.isfinite(found)] = np.nan
    return tuple(shape.node_of(i * max(shape.nproc, 1)) or f"node {i}" for i in range(len(found))), found


def _worst(over: Floats) -> Ints:
    """Rows of the slowest ranks. A single late step makes none of them."""
    typical = np.full(len(over), -np.inf)
    known = np.isfinite(over).any(axis=1)
    typical[known] = np.nanmedian(np.where(np.isfinite(over[known]), over[known], np.nan), axis=1)
    return np.argsort(-typical, kind="stable")[: min(MOST_RANKS, int(known.sum()))]


def _median(values: Floats) -> Floats:
    """Over ranks, a column; NaN where all are missing."""
    known = ~np.isnan(values).all(axis=1)
    found = np.full((len(values), 1), np.nan)
    found[known, 0] = np.nanmedian(values[known], axis=1)
    return found
