"""Which dimension of an input each dimension of an output comes from. Needs no torch: shapes in, dimensions out."""

from __future__ import annotations

from collections.abc import Sequence

Dims = tuple[int | None, ...]
"""By dimension of the output: the dimension of the input, None if it is from none, or from all of one together."""


def broadcast(output: Sequence[int], source: Sequence[int]) -> Dims | None:
    """Of an operator that does each element alone; None where the shapes do not go together so."""
    offset = len(output) - len(source)
    if offset < 0 or any(size not in (1, output[d + offset]) for d, size in enumerate(source)):
        return None
    return tuple(
        d - offset if d >= offset and source[d - offset] == size and size > 1 else None for d, size in enumerate(output)
    )


def reshaped(output: Sequence[int], source: Sequence[int]) -> Dims:
    """Of the same elements in their order in another shape: a cut of the first of some dimensions that become others
    is a cut of the first of those."""
    found: list[int | None] = [None] * len(output)
    i = o = 0
    while i < len(source) and o < len(output):
        first_in, first_out = i, o
        left, right = source[i], output[o]
        while left != right:
            if left < right:
                i += 1
                left *= source[i]
            else:
                o += 1
                right *= output[o]
        leading_in = next((d for d in range(first_in, i + 1) if source[d] > 1), None)
        leading_out = next((d for d in range(first_out, o + 1) if output[d] > 1), None)
        if leading_in is not None and leading_out is not None:
            found[leading_out] = leading_in
        i, o = i + 1, o + 1
    return tuple(found)


def swapped(rank: int, one: int, other: int) -> Dims:
    """Of two dimensions that change places."""
    order: list[int | None] = list(range(rank))
    order[one], order[other] = order[other], order[one]
    return tuple(order)


def without(rank: int, gone: int) -> Dims:
    """Of one dimension that is gone, because one element of it was selected."""
    return tuple(d for d in range(rank) if d != gone % rank)


def kept(output: Sequence[int], source: Sequence[int]) -> Dims:
    """Of a part: dimensions of which all is left."""
    return tuple(d if size == source[d] and size > 1 else None for d, size in enumerate(output))
