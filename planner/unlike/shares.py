"""How many layers each stage has where stages differ in speed: Holmes's rule, and the exact minimax cut. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from holdfast.base.errors import UsageError

MOST_LAYERS = 1024
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def by_speed(layers: int, speeds: Sequence[float], stages: Sequence[int] = (), alpha: float = 1.0) -> tuple[int, ...]:
    """Layers of each cluster by Holmes's rule: n_i = floor(alpha S_i / sum S x layers), the slowest takes the rest
    (the last of those that are equally slow).

    `speeds`: S_i, what one stage of each cluster reaches, in any one unit. `stages`: how many each cluster has; one
    each if not given. `alpha` above 1 gives the faster clusters more. The paper's value is not published; 26/22 of 48
    layers, its example of InfiniBand and RoCE, is alpha 1 with speeds of 197 and 160. UsageError where a stage gets
    none.
    """
    counts = tuple(stages) or (1,) * len(speeds)
    if len(counts) != len(speeds) or not speeds or min(speeds) <= 0 or min(counts) < 1 or alpha <= 0:
        raise UsageError(f"speeds {list(speeds)} and stages {list(counts)}: one of each a cluster, all above 0")
    total = sum(speed * count for speed, count in zip(speeds, counts, strict=True))
    slowest = max(range(len(speeds)), key=lambda i: (-speeds[i], i))
    # What is whole but for rounding is not to lose a layer.
    found = [int(alpha * s * n * layers / total + 1e-9) for s, n in zip(speeds, counts, strict=True)]
    found[slowest] = layers - sum(found[:slowest]) - sum(found[slowest + 1 :])
    for own, count in zip(found, counts, strict=True):
        if own < count:
            raise UsageError(
                f"{layers} layers by speeds {list(speeds)} leave {own} for {count} stages: take fewer stages"
            )
    return tuple(found)


def evenly(layers: int, stages: int) -> tuple[int, ...]:
    """Layers of each stage of one cluster; the first ones take what is left over."""
    size, extra = divmod(layers, stages)
    return tuple(size + (stage < extra) for stage in range(stages))


def minimax(
    layers: Sequence[float], factors: Sequence[float], ends: Sequence[float] = (), least: int = 1
) -> tuple[int, ...]:
    """Layers of each stage such that the slowest stage takes the least time, and of such cuts all stages together.

    `layers`: seconds of each layer on the fastest devices. `factors`: by stage, how many times as long it takes.
    `ends`: seconds that a stage has besides, as for the embedding and the head. Stage s takes
    factors[s] x (its layers' seconds) + ends[s]. Each has `least` layers or more. Dynamic program over (stage, last
    layer): O(stages x layers^2), at most 1,024 layers. UsageError where layers are too few or too many.
    """
    count, stages = len(layers), len(factors)
    besides = tuple(ends) or (0.0,) * stages
    if stages < 1 or least < 1 or not stages * least <= count <= MOST_LAYERS or len(besides) != stages:
        raise UsageError(
            f"{count} layers in {stages} stages: each needs {max(least, 1)}, and {MOST_LAYERS:,} layers are the most"
        )
    before = np.array([0.0, *accumulate(layers)])
    seconds = before[None, :] - before[:, None]  # of layers i to j - 1
    is_short = np.tri(count + 1, k=least - 1, dtype=bool)

    def stage(number: int) -> Floats:
        return np.where(is_short, np.inf, factors[number] * seconds + besides[number])

    worst = _least(map(stage, range(stages)), np.maximum)[0][-1]
    # The same program once more for the sum, over stages that take no longer than that.
    within = (np.where(one <= worst, one, np.inf) for one in map(stage, range(stages)))
    found, last = [], count
    for firsts in reversed(_least(within, np.add)[1]):
        first = int(firsts[last])
        found.append(last - first)
        last = first
    return tuple(reversed(found))


def _least(stages: Iterable[Floats], join: np.ufunc) -> tuple[Floats, list[Ints]]:
    """The least cost of the first j layers in all stages, and where each stage then begins. `stages[i, j]`: of layers
    i to j - 1 in it."""
    best: Floats | None = None
    firsts = []
    for one in stages:
        if best is None:
            best = np.full(len(one), np.inf)
            best[0] = 0.0
        reached = join(best[:, None], one)
        firsts.append(reached.argmin(axis=0))
        best = reached.min(axis=0)
    assert best is not None, "at least one stage"
    return best, firsts
