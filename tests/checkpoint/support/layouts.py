"""Random layouts for property tests: meshes that split or repeat tensors, and shards cut anyhow."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import strategies as st

from holdfast.checkpoint.format.arrays import HeldShard
from holdfast.checkpoint.format.tiles import GlobalTensor, Layout
from holdfast.plan.tiles import TensorShard

shapes = st.lists(st.integers(0, 7), max_size=3).map(tuple)


@st.composite
def tensors(draw: st.DrawFn) -> dict[str, GlobalTensor]:
    kinds = draw(st.lists(st.tuples(shapes, st.sampled_from(["F32", "BF16", "U8", "I64"])), min_size=1, max_size=3))
    return {f"t{i}": GlobalTensor(f"t{i}", shape, dtype) for i, (shape, dtype) in enumerate(kinds)}


@st.composite
def cut(draw: st.DrawFn, shard: TensorShard, parts: int) -> list[TensorShard]:
    """`parts` shards that cover `shard`, along one dimension, of any sizes, some perhaps empty."""
    if not shard.size:
        return [shard] * parts
    dim = draw(st.integers(0, len(shard.size) - 1))
    edges = sorted(draw(st.lists(st.integers(0, shard.size[dim]), min_size=parts - 1, max_size=parts - 1)))
    edges = [0, *edges, shard.size[dim]]
    return [
        TensorShard(
            (*shard.offset[:dim], shard.offset[dim] + low, *shard.offset[dim + 1 :]),
            (*shard.size[:dim], high - low, *shard.size[dim + 1 :]),
        )
        for low, high in itertools.pairwise(edges)
    ]


@st.composite
def layouts(draw: st.DrawFn, of: dict[str, GlobalTensor]) -> Layout:
    """Every tensor split in two ways over a mesh of up to 3 x 2, or repeated over an axis of it; in any order."""
    rows, columns = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    held: list[dict[str, list[TensorShard]]] = [{} for _ in range(rows * columns)]
    order = draw(st.permutations(range(rows * columns)))
    for name, tensor in of.items():
        outer = draw(cut(tensor.shard, rows)) if draw(st.booleans()) else [tensor.shard] * rows
        for r, part in enumerate(outer):
            inner = draw(cut(part, columns)) if draw(st.booleans()) else [part] * columns
            for c, shard in enumerate(inner):
                held[order[r * columns + c]].setdefault(name, []).append(shard)
    return Layout(of, held)


def filled(tensor: GlobalTensor, seed: int = 0) -> np.ndarray:
    """A whole tensor of distinct-looking bits."""
    rng = np.random.default_rng([seed, *map(ord, tensor.name)])
    high = 1 << (8 * tensor.item_bytes)
    return rng.integers(0, high, tensor.shape, dtype=f"u{tensor.item_bytes}", endpoint=False)


def share(layout: Layout, worker: int, whole: dict[str, np.ndarray]) -> dict[str, list[HeldShard]]:
    """What a worker holds, cut out of whole tensors."""
    return {
        name: [HeldShard(layout.tensors[name], shard, whole[name][(*shard.slices, ...)].copy()) for shard in shards]
        for name, shards in layout.held[worker].items()
    }
