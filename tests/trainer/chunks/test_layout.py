"""Parameters in chunks: which are needed together, what that takes at the least, and the size of chunks."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.trainer.settings.chunk_layout import UNIT, WARM_UP, Chunks, Words, in_chunks, units_of

FLOAT, BFLOAT = Words(4, 12), Words(2, 12)


def made(
    layers: int, layer: int, table: int, replicas: int = 1, tied: bool = False, words: Words = FLOAT, **more: int
) -> Chunks:
    sizes = {"embed.weight": table, **{f"layers.{n}.{half}.weight": layer for n in range(layers) for half in "ab"}}
    sizes["head.norm.weight"] = 10
    units = units_of(list(sizes), "embed.weight" if tied else "")
    return in_chunks(sizes, units, words, replicas, **{"device_bytes": 0, **more})


@settings(deadline=None)
@given(st.integers(1, 6), st.integers(1, 900), st.integers(1, 900), st.integers(1, 4), st.booleans())
def test_tensors_lie_apart_on_whole_units(layers: int, layer: int, table: int, replicas: int, tied: bool) -> None:
    laid = made(layers, layer, table, replicas, tied)
    placed = sorted((p.chunk, p.offset, laid.sizes[name]) for name, p in laid.layout.places.items())
    assert all(offset % UNIT == 0 for _, offset, _ in placed)
    assert all(a[0] < b[0] or a[1] + a[2] <= b[1] for a, b in itertools.pairwise(placed))
    assert all(offset + size <= laid.layout.chunk_size for _, offset, size in placed)
    assert laid.utilisation == pytest.approx(sum(laid.sizes.values()) / laid.layout.elements)
    # Each replica has one chunk of each group, and each tensor one owner.
    assert laid.num_groups * replicas == laid.layout.num_chunks
    assert sorted(name for r in range(replicas) for name in laid.owned(r)) == sorted(laid.sizes)
    # 6 M (d - 1) / d in half precision, and for a table at both ends its group once more.
    in_words = laid.wire_bytes / 4
    again = tied and laid.group_of("embed.weight") not in laid.groups_of(f"layers.{layers - 1}")
    extra = (replicas - 1) * laid.layout.chunk_size * again
    assert in_words == 3 * laid.layout.elements * (replicas - 1) / replicas + extra


def test_the_example_of_a_page() -> None:
    laid = made(2, 128, 256, chunk_bytes=4 * 256)
    # The table; two matrices of a layer; two of the other; the norm.
    assert [laid.groups_of(unit) for unit in laid.units] == [(0,), (1,), (2,), (3,)]
    assert [laid.names_of(group) for group in range(4)] == [
        ["embed.weight"],
        ["layers.0.a.weight", "layers.0.b.weight"],
        ["layers.1.a.weight", "layers.1.b.weight"],
        ["head.norm.weight"],
    ]
    assert (laid.num_groups, laid.chunk_bytes, laid.least_bytes) == (4, 1024, 1024)
    assert laid.utilisation == (256 + 4 * 128 + 10) / (4 * 256)
    assert laid.text == "4 chunks of 1,024 bytes: 778 parameters fill 76.0% of them; 16 bytes a parameter"
    two = made(2, 128, 256, replicas=2, chunk_bytes=4 * 256)
    # Its own chunk, and both of the group.
    assert [two.groups_of(unit) for unit in two.units] == [(0,), (0,), (1,), (1,)]
    assert (two.num_groups, two.least_bytes) == (2, 3 * 1024)
    # A group whose table waits for its gradient until the end stays beside all others.
    assert made(2, 128, 256, replicas=2, tied=True, chunk_bytes=4 * 256).least_bytes == 2 * 3 * 1024
    assert made(2, 128, 256, tied=True, chunk_bytes=4 * 256).least_bytes == 2 * 1024
    # Layers of two chunks: with replicas layer 1 has its two groups and the table's, alone a layer has its own two.
    assert made(3, 256, 256, replicas=2, tied=True, chunk_bytes=4 * 256).least_bytes == 3 * 3 * 1024
    assert made(3, 256, 256, tied=True, chunk_bytes=4 * 256).least_bytes == 2 * 1024


@pytest.mark.parametrize("words", [FLOAT, BFLOAT])
def test_the_size_wastes_least_of_those_that_leave_most_of_the_device(words: Words) -> None:
    free = made(6, 500, 800, words=words)
    largest = -(-800 // UNIT) * UNIT
    sizes = {UNIT * n for n in range(largest // UNIT, 4 * largest // UNIT + 1)}
    all_made = {size: made(6, 500, 800, words=words, chunk_bytes=size * words.parameter) for size in sizes}
    assert free.utilisation >= max(one.utilisation for one in all_made.values()) - 1e-12
    least = min(one.least_bytes for one in all_made.values())
    short = made(6, 500, 800, words=words, device_bytes=math.ceil(least / WARM_UP))
    assert short.least_bytes <= WARM_UP * math.ceil(least / WARM_UP)
    # Where none leaves so much, what fits at all.
    assert made(6, 500, 800, words=words, device_bytes=least).least_bytes == least
    with pytest.raises(ValueError, match=f"need {least:,} bytes of the device at once, .* there are {least - 1:,}"):
        made(6, 500, 800, words=words, device_bytes=least - 1)


def test_a_chunk_is_up_to_four_times_the_largest_parameter() -> None:
    """1,000 and four of 750 units fill one chunk of 4,000; smaller ones waste a ninth or more, as 750 divide none."""
    sizes = {"a": 1000 * UNIT, **{name: 750 * UNIT for name in "bcde"}}
    found = in_chunks(sizes, {name: (name,) for name in sizes}, FLOAT, 1, device_bytes=0)
    assert (found.layout.chunk_size, found.utilisation) == (4000 * UNIT, 1.0)


def test_a_chunk_holds_the_largest_parameter() -> None:
    with pytest.raises(ValueError, match="a chunk of 1,023 bytes is smaller than the largest parameter: 1,024 or more"):
        made(2, 128, 256, chunk_bytes=1023)
