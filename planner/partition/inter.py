"""Layers over stages, and stages over parts of the cluster: Alpa's dynamic program over a pipeline. Pure.

Source: Zheng et al., Alpa, OSDI 2022, section 5, and its published code. A pipeline of B micro-batches takes
T = sum t_i + (B - 1) max t_j, t_i being what a stage takes for one micro-batch, forward and back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

GAP = 1e-6
"""Two largest times that are no further apart are taken for one."""
Submesh = tuple[int, int]
"""(nodes, devices of each) of a stage."""


class NoPipeline(ValueError):
    """No stages fit. One line."""


@dataclass(frozen=True, slots=True)
class Option:
    """One way to run some layers on a submesh."""

    seconds: float
    """Of one micro-batch, forward and back."""
    successors: int = 1 << 30
    """The most stages that may come after: with s behind it, a stage holds s + 1 micro-batches in 1F1B. -1: never."""
    label: object = None
    """What the caller knows it by."""


@dataclass(frozen=True, slots=True)
class PipelineStage:
    """Layers first to below stop, on a submesh, run in one way."""

    first: int
    stop: int
    submesh: Submesh
    option: Option


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Stages in their order, and what they take for all micro-batches."""

    stages: tuple[PipelineStage, ...]
    seconds: float


Options = Callable[[int, int, Submesh], Sequence[Option]]
"""By first layer, the one behind the last, and submesh; none where they do not fit."""


def submeshes(nodes: int, per_node: int) -> list[Submesh]:
    """Parts of a cluster that a stage may have: a power of two of the devices of one node, or whole nodes."""
    if nodes < 1 or per_node < 1:
        raise ValueError(f"a cluster of {nodes} nodes with {per_node} devices each: 1 or more of both")
    inside = [(1, 1 << p) for p in range(per_node.bit_length()) if 1 << p <= per_node]
    whole = [(n, per_node) for n in range(1, nodes + 1)]
    return list(dict.fromkeys([*inside, *whole]))


def successors(available: float, peak: float, initial: float, intermediate: float) -> int:
    """The most stages that may come after one, by memory of a device (bytes).

    Alpa's floor((available - peak - initial) / intermediate - 1): `peak` is what computing one micro-batch takes for a
    while, `initial` what is always there, `intermediate` what each micro-batch on its way keeps. -1: it does not fit.
    """
    left = available - peak - initial
    if intermediate <= 0:
        return 1 << 30 if left >= 0 else -1
    return max(-1, math.floor(left / intermediate - 1))


def pipeline_time(times: Sequence[float], micro_batches: int) -> float:
    """sum t + (B - 1) max t."""
    return sum(times) + (micro_batches - 1) * max(times)


def plan_pipeline(
    layers: int, devices: int, sizes: Sequence[Submesh], micro_batches: int, options: Options
) -> Pipeline:
    """The fastest pipeline that uses all devices. NoPipeline, in one line, where there is none.

    F[s, i, d]: least sum of times of layers i and on, in s stages on d devices, no stage taking longer than tmax. For
    each tmax, ascending, T = F + (B - 1) (actual largest); it ends when B tmax is as much as the best T: none
    behind can be better.
    """
    if min(layers, devices, micro_batches) < 1:
        raise ValueError(f"{layers} layers, {devices} devices, {micro_batches} micro-batches: 1 or more of each")
    found = [
        _Candidate(i, k, mesh, mesh[0] * mesh[1], option)
        for i in range(layers)
        for k in range(i + 1, layers + 1)
        for mesh in sizes
        if mesh[0] * mesh[1] <= devices
        for option in options(i, k, mesh)
        if option.successors >= 0 and math.isfinite(option.seconds)
    ]
    found.sort(key=lambda one: (-one.first, one.option.seconds))
    times = sorted({one.option.seconds for one in found})
    limits = _spread(times)
    best: Pipeline | None = None
    for tmax in limits[_first_feasible(found, layers, devices, limits) :]:
        if best is not None and micro_batches * tmax >= best.seconds:
            break
        stages = _least_sum(found, layers, devices, tmax)
        if stages is not None:
            taken = pipeline_time([one.option.seconds for one in stages], micro_batches)
            if best is None or taken < best.seconds:
                best = Pipeline(stages, taken)
    if best is None:
        raise NoPipeline(
            f"{layers} layers fit on no stages over all {devices} devices: allow smaller submeshes or more memory"
        )
    return best


@dataclass(frozen=True, slots=True)
class _Candidate:
    first: int
    stop: int
    submesh: Submesh
    size: int
    option: Option


def _spread(times: Sequence[float]) -> list[float]:
    """Of times that lie within GAP of each other, the largest: so that none is excluded."""
    kept: list[float] = []
    for one in reversed(times):
        if not kept or kept[-1] - one >= GAP:
            kept.append(one)
    return kept[::-1]


def _first_feasible(found: Sequence[_Candidate], layers: int, devices: int, limits: Sequence[float]) -> int:
    """The place of the smallest limit with any stages: those with a larger one have them too."""
    low, high = 0, len(limits)
    while low < high:
        middle = (low + high) // 2
        if _least_sum(found, layers, devices, limits[middle]) is None:
            low = middle + 1
        else:
            high = middle
    return low


def _least_sum(found: Sequence[_Candidate], layers: int, devices: int, tmax: float) -> tuple[PipelineStage, ...] | None:
    import numpy as np

    most = min(layers, devices)
    # By layer: stages from it on, devices. The number of candidates that were chosen lies beside it.
    least = np.full((layers + 1, most + 1, devices + 1), np.inf)
    least[layers, 0, 0] = 0
    chosen = np.full((layers + 1, most + 1, devices + 1), -1, dtype=np.int64)
    for number, one in enumerate(found):
        if one.option.seconds > tmax:
            continue
        stages = min(most, one.option.successors + 1)  # as many behind it as memory allows
        rest = least[one.stop, :stages, : devices + 1 - one.size] + one.option.seconds
        own = least[one.first, 1 : stages + 1, one.size :]
        better = rest < own
        own[better] = rest[better]
        chosen[one.first, 1 : stages + 1, one.size :][better] = number
    ends = least[0, :, devices]
    stage_count = int(np.argmin(ends))
    if not np.isfinite(ends[stage_count]):
        return None
    stages_found, layer, left = [], 0, devices
    while layer < layers:
        one = found[int(chosen[layer, stage_count, left])]
        stages_found.append(PipelineStage(one.first, one.stop, one.submesh, one.option))
        layer, left, stage_count = one.stop, left - one.size, stage_count - 1
    return tuple(stages_found)


def place(sizes: Sequence[Submesh], per_node: int) -> list[tuple[int, ...]]:
    """The devices of each stage, numbered node by node, the largest submesh placed first.

    Sizes that are powers of two, or whole nodes, then never lie across nodes needlessly. ValueError where a node is not
    filled evenly: a submesh of part of a node would lie in two.
    """
    order = sorted(range(len(sizes)), key=lambda i: (-sizes[i][0] * sizes[i][1], i))
    found: dict[int, tuple[int, ...]] = {}
    begin = 0
    for i in order:
        size = sizes[i][0] * sizes[i][1]
        if size < per_node and begin % per_node + size > per_node:
            raise ValueError(f"a submesh of {size} devices would lie across nodes of {per_node}: use powers of two")
        found[i] = tuple(range(begin, begin + size))
        begin += size
    return [found[i] for i in range(len(sizes))]
