"""Random layouts for property tests: meshes that split or repeat tensors, and boxes cut anyhow."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import strategies as st

from holdfast.checkpoint.format.arrays import HeldShard
from holdfast.checkpoint.format.tiles import Box, GlobalTensor, Layout

shapes = st.lists(st.integers(0, 7), max_size=3).map(tuple)


@st.composite
def tensors(draw: st.DrawFn) -> dict[str, GlobalTensor]:
    kinds = draw(st.lists(st.tuples(shapes, st.sampled_from(["F32", "BF16", "U8", "I64"])), min_size=1, max_size=3))
    return {f"t{i}": GlobalTensor(f"t{i}", shape, dtype) for i, (shape, dtype) in enumerate(kinds)}


@st.composite
def cut(draw: st.DrawFn, box: Box, parts: int) -> list[Box]:
    """`parts` boxes that cover `box`, along one dimension, of any sizes, some perhaps empty."""
    if not box.size:
        return [box] * parts
    dim = draw(st.integers(0, len(box.size) - 1))
    edges = sorted(draw(st.lists(st.integers(0, box.size[dim]), min_size=parts - 1, max_size=parts - 1)))
    edges = [0, *edges, box.size[dim]]
    return [
        Box(
            (*box.offset[:dim], box.offset[dim] + low, *box.offset[dim + 1 :]),
            (*box.size[:dim], high - low, *box.size[dim + 1 :]),
        )
        for low, high in itertools.pairwise(edges)
    ]


@st.composite
def layouts(draw: st.DrawFn, of: dict[str, GlobalTensor]) -> Layout:
    """Every tensor split in two ways over a mesh of up to 3 x 2, or repeated over an axis of it; in any order."""
    rows, columns = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    held: list[dict[str, list[Box]]] = [{} for _ in range(rows * columns)]
    order = draw(st.permutations(range(rows * columns)))
    for name, tensor in of.items():
        outer = draw(cut(tensor.box, rows)) if draw(st.booleans()) else [tensor.box] * rows
        for r, part in enumerate(outer):
            inner = draw(cut(part, columns)) if draw(st.booleans()) else [part] * columns
            for c, box in enumerate(inner):
                held[order[r * columns + c]].setdefault(name, []).append(box)
    return Layout(of, held)


def filled(tensor: GlobalTensor, seed: int = 0) -> np.ndarray:
    """A whole tensor of distinct-looking bits."""
    rng = np.random.default_rng([seed, *map(ord, tensor.name)])
    high = 1 << (8 * tensor.item_bytes)
    return rng.integers(0, high, tensor.shape, dtype=f"u{tensor.item_bytes}", endpoint=False)


def share(layout: Layout, worker: int, whole: dict[str, np.ndarray]) -> dict[str, list[HeldShard]]:
    """What a worker holds, cut out of whole tensors."""
    return {
        name: [HeldShard(layout.tensors[name], box, whole[name][(*box.slices, ...)].copy()) for box in boxes]
        for name, boxes in layout.held[worker].items()
    }
