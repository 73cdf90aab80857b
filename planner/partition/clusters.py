"""A model's operators put together to layers, so that cuts between stages need be looked for among few. Pure.

Source: Alpa (OSDI 2022), section 5.2 and its published code: the largest number of bytes that any layer gets from
before it is least, while no layer has more than (1 + delta) of its share of the FLOPs.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Mapping, Sequence

from holdfast.planner.partition.operators import Kind, OperatorGraph

Key = tuple[float, ...]


def cluster(
    flops: Sequence[float],
    arriving: Sequence[Sequence[float]],
    layers: int,
    delta: float = 0.5,
    allowed: Sequence[int] | None = None,
) -> list[int]:
    """Where each of `layers` layers begins, and the number of items behind the last: layers + 1 ascending numbers.

    `flops` are of each item in order; arriving[k][r] is the bytes that items k to below r get from earlier ones.
    `allowed`: where a layer may begin; anywhere by default. Of equals, the least sum of bytes is taken, then the least
    variance of FLOPs over layers. ValueError where no layers are so even: a larger `delta` allows it.

    Two passes over all cuts, O(items^2 layers): G[r, q] = min over k of max(G[k, q-1], arriving[k][r]) gives the
    largest bytes, and among cuts that keep to them sum and squares add up. (One pass with all three would prefer
    beginnings with a small maximum that a later layer exceeds anyway.)
    """
    count = len(flops)
    if not 1 <= layers <= count:
        raise ValueError(f"{count} operators cannot be {layers} layers: from 1 to {count}")
    starts = sorted({0, count, *(range(count) if allowed is None else allowed)})
    before = [0.0]
    for one in flops:
        before.append(before[-1] + one)
    most = (1 + delta) * before[-1] / layers * (1 + 1e-12)
    pairs = [(k, r) for r in starts for k in starts if k < r and before[r] - before[k] <= most]

    def cut(cost: Mapping[tuple[int, int], Key], is_sum: bool) -> list[int]:
        best: list[dict[int, tuple[Key, int]]] = [{0: ((), 0)}]
        for _ in range(layers):
            found: dict[int, tuple[Key, int]] = {}
            for (k, r), own in cost.items():
                if k not in best[-1]:
                    continue
                earlier = best[-1][k][0]
                join = operator.add if is_sum else max
                key = tuple(map(join, earlier, own)) if earlier else own
                if r not in found or key < found[r][0]:
                    found[r] = key, k
            best.append(found)
        if count not in best[-1]:
            raise ValueError(
                f"no {layers} layers have at most {1 + delta:g} of their share of the FLOPs each: raise delta, or take "
                "fewer layers"
            )
        ends = [count]
        for table in reversed(best[1:]):
            ends.append(table[ends[-1]][1])
        return ends[::-1]

    ends = cut({(k, r): (float(arriving[k][r]),) for k, r in pairs}, is_sum=False)
    largest = max(arriving[k][r] for k, r in itertools.pairwise(ends))
    sums = {
        (k, r): (float(arriving[k][r]), (before[r] - before[k]) ** 2) for k, r in pairs if arriving[k][r] <= largest
    }
    return cut(sums, is_sum=True)


def arriving_bytes(graph: OperatorGraph) -> list[list[float]]:
    """arriving[k][r] of a graph's operators: bytes that those from k to below r read of earlier ones' results.

    Each tensor counts once however often it is read; parameters and inputs do not, as they are where they are used.
    """
    count = len(graph.operators)
    table = [[0.0] * (count + 1) for _ in range(count + 1)]
    own = [0 if one.kind in (Kind.PARAMETER, Kind.INPUT) else one.num_bytes for one in graph.operators]
    for k in range(1, count):
        seen: set[int] = set()
        total = 0.0
        for r in range(k, count):
            for name in graph.operators[r].inputs:
                source = graph.index[name]
                if source < k and source not in seen:
                    seen.add(source)
                    total += own[source]
            table[k][r + 1] = total
    return table


def layers_of(graph: OperatorGraph, layers: int, delta: float = 0.5) -> list[int]:
    """`cluster` of a graph's operators."""
    weights = [one.flops for one in graph.operators]
    if not math.fsum(weights):
        raise ValueError("the graph has no FLOPs: nothing says how large its layers are")
    return cluster(weights, arriving_bytes(graph), layers, delta)
