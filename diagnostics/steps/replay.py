"""A step played again along its graph, as it was or with other durations: what would it have taken?

What was measured is kept apart into own work, waiting and transfer. Played again, work and transfers take what they are
given, and waiting is whatever comes out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from holdfast.diagnostics.steps.graph import Graph
from holdfast.diagnostics.steps.shape import Meeting

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_CLOCKS_S, _CLOCKS_SHARE = 500e-6, 0.25
"""By how much clocks of nodes may differ: seconds, and of a meeting's own time."""


@dataclass(slots=True)
class Measured:
    """By column of the graph, each (syncs, ranks), seconds. NaN for ranks that are incomplete."""

    waits: list[Floats]
    """Until the message was sent, or the last of the group had arrived."""
    transfers: list[Floats]
    """The rest of each meeting. Below 0 by what two clocks differ, at most `_CLOCKS_S`, where all of it was waiting."""
    waited: list[npt.NDArray[np.bool_]]
    """Whether this rank waited for another one at all."""
    arrivals: list[Floats]
    """When what it waits for was there: -inf where it depends on no rank."""

    def shown(self, c: int) -> tuple[Floats, Floats]:
        """(ranks,): seconds of waiting and of transfer, neither below 0."""
        transfers = np.maximum(self.transfers[c], 0.0)
        waits = np.maximum(self.waits[c] + self.transfers[c] - transfers, 0.0)
        return waits.sum(axis=0), transfers.sum(axis=0)


def measured(graph: Graph) -> Measured:
    """Every meeting's time as waiting and transfer."""
    columns = graph.columns
    found = Measured([], [], [], [])
    for column in columns:
        found.arrivals.append(np.full(column.starts.shape, -np.inf))
    for node in graph.nodes:
        if node.how is Meeting.RECEIVE and node.source is not None:
            (c, k), (d, j) = node.members[0], node.source
            found.arrivals[c][k] = columns[d].starts[j]
        elif node.how is Meeting.COLLECTIVE:
            starts = [columns[c].starts[k] for c, k in node.members]
            for (c, k), latest in zip(node.members, _latest(graph, starts, node.axis), strict=True):
                found.arrivals[c][k] = latest
    for column, arrival in zip(columns, found.arrivals, strict=True):
        took = column.ends - column.starts
        # A rank that was through before the last came did not wait for it: a broadcast's source, a buffered send. By
        # the clocks of two nodes a rank that waited may seem to be through a moment before the last came.
        error = np.fmin(_CLOCKS_S, _CLOCKS_SHARE * took)
        depends = np.isfinite(arrival) & (arrival <= column.ends + error)
        arrival[~depends] = -np.inf
        waits = np.where(depends, np.clip(arrival - column.starts, 0, None), 0.0)
        found.waits.append(np.where(np.isnan(took), np.nan, waits))
        found.transfers.append(took - waits)
        found.waited.append(waits > 0)
    return found


def _latest(graph: Graph, values: Sequence[Floats], axis: int | None) -> list[Floats]:
    """The last arrival at a collective, for each member column."""
    if len(values) == 1:
        return [graph.reduced(values[0], axis)]
    together = values[0]
    for value in values[1:]:
        together = np.fmax(together, value)
    together = graph.reduced(together, axis)
    return [together] * len(values)


@dataclass(frozen=True, slots=True)
class Replayed:
    """For each variant that was played (first axis)."""

    ends: list[Floats]
    """By column: (variants, ranks), when each rank's step ended."""
    waits: list[Floats]
    """By column: (variants, ranks), seconds waited in all."""

    def makespan(self) -> Floats:
        """(variants,): when the last rank ended."""
        latest: Floats = np.nanmax(np.concatenate(self.ends, axis=1), axis=1)
        return latest


@dataclass(frozen=True, slots=True)
class Variant:
    """What is different: by column, what to add to `own` (syncs + 1, ranks) and to the transfers (syncs, ranks).

    `rank` limits a change to one rank of the column: then the arrays are (syncs + 1,) and (syncs,).
    """

    own: Mapping[int, Floats]
    transfers: Mapping[int, Floats]
    rank: Mapping[int, int]
    more: tuple[Variant, ...] = ()
    """Differences on top of that, without any of their own."""


def replay(graph: Graph, seen: Measured, variants: Sequence[Variant]) -> Replayed:
    """Play the step once for each variant. One without changes gives what was measured."""
    count = len(variants)
    columns = graph.columns
    now = [np.repeat(column.begin[None], count, axis=0) for column in columns]
    waits = [np.zeros((count, len(column.ranks))) for column in columns]
    sent: dict[tuple[int, int], Floats] = {}
    parts = [(v, part) for v, variant in enumerate(variants) for part in (variant, *variant.more)]
    own_changes = _by_place([(v, part.own, part.rank) for v, part in parts])
    transfer_changes = _by_place([(v, part.transfers, part.rank) for v, part in parts])
    wanted = {node.source for node in graph.nodes if node.source is not None}

    def arrive(c: int, k: int) -> Floats:
        at: Floats = now[c] + columns[c].own[k]
        for v, where, change in own_changes.get(c, ()):
            at[v, where] += change[k]
        return at

    def transfer(c: int, k: int) -> Floats:
        took = np.repeat(seen.transfers[c][k][None], count, axis=0)
        for v, where, change in transfer_changes.get(c, ()):
            took[v, where] += change[k]
        return took

    for node in graph.nodes:
        if node.how is Meeting.COLLECTIVE:
            arrived = [arrive(c, k) for c, k in node.members]
            for (c, k), at, last in zip(node.members, arrived, _latest(graph, arrived, node.axis), strict=True):
                ready = np.where(np.isfinite(seen.arrivals[c][k]), np.maximum(at, last), at)
                waits[c] += ready - at
                now[c] = ready + transfer(c, k)
            continue
        c, k = node.members[0]
        at = arrive(c, k)
        if node.how is Meeting.SEND:
            if (c, k) in wanted:
                sent[c, k] = at
            now[c] = at + transfer(c, k)
            continue
        took = transfer(c, k)
        if node.source is None:
            now[c] = at + took
            continue
        # A receiver that waited had its data `took` after it was sent; one that did not needs its own `took` alone.
        there = sent[node.source] + np.where(seen.waited[c][k], took, 0.0)
        depends = np.isfinite(seen.arrivals[c][k])
        mine = at + np.where(seen.waited[c][k], 0.0, took)
        done = np.where(depends, np.fmax(mine, there), at + took)
        waits[c] += np.where(depends, np.clip(sent[node.source] - at, 0, None), 0.0)
        now[c] = done
    ends = [arrive(c, len(columns[c].shape.syncs)) for c in range(len(columns))]
    return Replayed(ends, waits)


def _by_place(
    changes: Sequence[tuple[int, Mapping[int, Floats], Mapping[int, int]]],
) -> dict[int, list[tuple[int, slice | int, Floats]]]:
    """By column: variant, ranks, change."""
    found: dict[int, list[tuple[int, slice | int, Floats]]] = {}
    for v, change, rank in changes:
        for c, values in change.items():
            where: slice | int = rank.get(c, slice(None)) if values.ndim == 1 else slice(None)
            found.setdefault(c, []).append((v, where, values))
    return found
