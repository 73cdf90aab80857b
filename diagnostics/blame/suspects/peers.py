"""Ranks that take longer than the peers that do the same work. Robust: medians over steps, against medians of peers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_MAD = 1.4826
"""From a median absolute deviation to a standard deviation."""
_ERROR_OF_MEDIAN, _ERROR_OF_PAIRS = 1.2533, 1.0233
"""Standard error of the two estimates, over that of a mean, where the noise is normal."""
_PAIRS = 1 << 21
"""Most means of pairs that are computed."""
_FLOOR = 0.004
"""Of a relative standard error: a run that never varies is not known any better than this."""
_PASSING, _MOST_PASSING = 0.2, 0.15
"""The same of one second watched, which falls with the square of time, and at most: which ranks share a core's cache or
clock changes by the second, and takes a third of a rank's speed for as long, however many steps fit into it. Of few
ranks only: of more it is seen how far apart they are."""
_STRETCH, _STRETCHES = 8, 10
"""Samples of a stretch at least, and stretches at most."""
_STEADY = 0.3
"""Of what a rank takes longer in a window, each half of it shows so much: what came and went is not the rank's."""
_HALVES = 8
"""Fewest samples for halves."""
_FEW = 7
"""Fewest ranks for a known spread of the peers."""


@dataclass(frozen=True, slots=True)
class Compared:
    """By rank of a column."""

    ratio: Floats
    """What it takes over what the median of its peers takes: 1.1 is 10% slower. NaN: not known."""
    z: Floats
    """How many standard errors the ratio is away from 1."""
    excess: Floats
    """Seconds a step beyond the peers' median; may be negative."""


def floor_of(seconds: float) -> float:
    """Of a relative standard error: how well ranks that were watched for so long can be distinguished."""
    return min(max(_PASSING / max(seconds, 0.1) ** 2, _FLOOR), _MOST_PASSING)


def are_few(ranks: int) -> bool:
    """Whether so many peers are too few to show how far apart they are by themselves."""
    return ranks <= 2 * _FEW


def compare(samples: Floats, floor: float = _FLOOR) -> Compared:
    """`samples` (samples, ranks), seconds of the same work: per step, or per micro-batch of few steps. `floor`: as
    `floor_of`."""
    others = medians_of_others(samples)
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(samples / others)
    logs[~np.isfinite(logs)] = np.nan
    center, factor = _center(logs)
    count = np.maximum((~np.isnan(logs)).sum(axis=0), 1)
    spread = nanmedian(np.abs(logs - center)) * _MAD * factor
    pooled = np.nanmedian(spread) if np.isfinite(spread).any() else np.nan
    error = np.fmax(np.fmax(spread, pooled) / np.sqrt(count), _error_of_stretches(logs))
    ranks = np.isfinite(center).sum()
    between = _between(center) if ranks >= _FEW else np.zeros_like(center)
    if len(samples) < 3:  # too few for an estimate; only the peers' spread gives one, the better the more there are
        error, between = 0.0 * error, between * (1 + 10 / max(ranks, 1))
    if not are_few(ranks):
        floor = _FLOOR  # how far apart they are is seen of the others
    z = center / np.sqrt(error**2 + between**2 + floor**2)
    if len(samples) >= _HALVES:
        halves = np.stack([nanmedian(half) for half in np.array_split(logs, 2)])
        z = np.where((halves >= _STEADY * center).all(axis=0) | (center < 0) | np.isnan(halves).any(axis=0), z, 0.0)
    if ranks < 2 or (len(samples) < 3 and ranks < _FEW):
        z = np.zeros_like(center)
    return Compared(np.exp(center), z, nanmedian(samples - others))


def _center(values: Floats) -> tuple[Floats, float]:
    """A robust middle of each column, and its standard error over that of a mean.

    The median of all means of two (Hodges and Lehmann 1963) is as efficient with two samples as the median with three.
    """
    samples, ranks = values.shape
    if samples < 3 or samples * samples * ranks > _PAIRS or np.isnan(values).any():
        return nanmedian(values), _ERROR_OF_MEDIAN
    first, second = np.triu_indices(samples)
    found: Floats = np.median((values[first] + values[second]) / 2, axis=0)
    return found, _ERROR_OF_PAIRS


def _error_of_stretches(values: Floats) -> Floats:
    """Standard error of each column's middle, from those of stretches of samples: what wanders over many steps is not
    as many samples as it has steps (batch means, Schmeiser 1982). 0 where there are too few."""
    stretches = min(len(values) // _STRETCH, _STRETCHES)
    if stretches < _STRETCHES // 2:
        return np.zeros(values.shape[1])
    middles = np.stack([nanmedian(part) for part in np.array_split(values, stretches)])
    error = np.nan_to_num(np.std(middles, axis=0, ddof=1)) / np.sqrt(stretches)
    found: Floats = np.fmax(error, np.median(error))
    return found


def _between(center: Floats) -> Floats:
    """How far the others are apart, for each rank: what they differ by themselves is nothing that stands out."""
    ranks = len(center)
    if not are_few(ranks):
        return np.full(ranks, np.nanmedian(np.abs(center - np.nanmedian(center))) * _MAD)
    rest = np.stack([np.delete(center, rank) for rank in range(ranks)])
    found: Floats = nanmedian(np.abs(rest - nanmedian(rest, axis=1)[:, None]), axis=1) * _MAD
    return found


def medians_of_others(samples: Floats) -> Floats:
    """`samples` (samples, ranks): for each rank, the median of the other ranks."""
    ranks = samples.shape[1]
    if not are_few(ranks):  # one more or less of them moves their median by less than the noise
        return np.repeat(nanmedian(samples, axis=1)[:, None], ranks, axis=1)
    found = np.full(samples.shape, np.nan)
    for rank in range(ranks):
        rest = np.delete(samples, rank, axis=1)
        if rest.shape[1]:
            found[:, rank] = nanmedian(rest, axis=1)
    return found


def nanmean(values: Floats, weights: Floats | None = None) -> Floats:
    """Over the first axis; NaN without a warning where there are no values."""
    counts = (~np.isnan(values)).astype(np.float64)
    if weights is not None:
        counts *= weights.reshape(-1, *[1] * (values.ndim - 1))
    with np.errstate(invalid="ignore"):
        found: Floats = (np.where(np.isnan(values), 0.0, values) * counts).sum(axis=0) / counts.sum(axis=0)
    return found


def nanmedian(values: Floats, axis: int = 0) -> Floats:
    """As numpy's, and NaN without a warning where there are no values."""
    if not np.isnan(values).any():
        whole: Floats = np.median(values, axis=axis)
        return whole
    empty = np.isnan(values).all(axis=axis)
    filled = np.where(np.expand_dims(empty, axis), 0.0, values)
    found: Floats = np.where(empty, np.nan, np.nanmedian(filled, axis=axis))
    return found
