"""Where in a step a rank's own time lies: in which work, or between which two spans."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from holdfast.diagnostics.blame.suspects.peers import medians_of_others
from holdfast.diagnostics.steps.graph import Column
from holdfast.diagnostics.steps.shape import OTHER, Shape

Floats = npt.NDArray[np.float64]

_NAMES = {"ddp:all_reduce": "backward"}
"""The wait at its end is part of it for whoever calls it."""


def works_of(column: Column) -> dict[str, Floats]:
    """(ranks,): seconds of each kind of work, and outside of all."""
    found: dict[str, Floats] = {}
    for role, took in zip(column.shape.roles, column.spent, strict=False):
        found[role] = found[role] + took if role in found else took
    return found | {OTHER: column.other}


def computed_of(column: Column) -> dict[str, Floats]:
    """The same in processor seconds, 0 where they are not known."""
    found: dict[str, Floats] = {}
    for role, took in zip(column.shape.roles, np.nan_to_num(column.cpu_spent()), strict=False):
        found[role] = found[role] + took if role in found else took
    return found


def gaps_of(column: Column) -> dict[str, Floats]:
    """(ranks,): seconds between two spans, by their names, of all places where one follows the other."""
    shape, intervals = column.shape, np.diff(column.at, axis=0)
    names = _names(shape)
    first, last = names[shape.edges[0][0]], names[shape.edges[-1][0]]
    found = {f"between {last} and {first}": column.at[0] - column.begin}
    for b in np.flatnonzero(shape.owner < 0).tolist():
        place = f"between {names[shape.edges[b][0]]} and {names[shape.edges[b + 1][0]]}"
        found[place] = found[place] + intervals[b] if place in found else intervals[b]
    return found


def gap_of(columns: Iterable[Column], lane: int) -> str:
    """Between which two spans a rank takes longest beyond its peers, by its median over these steps."""
    beyond: dict[str, list[float]] = {}
    for column in columns:
        for place, took in gaps_of(column).items():
            beyond.setdefault(place, []).append(float((took - medians_of_others(took[None])[0])[lane]))
    usual = {place: float(np.nanmedian(some)) for place, some in beyond.items() if not np.isnan(some).all()}
    return max(usual, key=lambda place: usual[place], default="")


def _names(shape: Shape) -> dict[int, str]:
    """By span, those that lie outside of all others."""
    roles = {int(i): role.partition(" ")[0] for i, role in zip(shape.works, shape.roles, strict=False)}
    names = roles | {sync.span: sync.key[0] for sync in shape.syncs}
    return {span: _NAMES.get(name, name) for span, name in names.items()}
