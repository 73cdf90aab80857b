"""Tensors in chunks: each once, none across an edge, and no more waste than the best size has."""

from itertools import pairwise
from math import ceil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.plan.cache.chunks import best_chunk_size, lay_out

SIZES = st.lists(st.integers(1, 40), max_size=30).map(lambda sizes: {f"t{i}": size for i, size in enumerate(sizes)})


@settings(deadline=None)
@given(SIZES, st.integers(40, 90), st.integers(1, 4))
def test_every_tensor_has_a_place_of_its_own(sizes: dict[str, int], chunk_size: int, replicas: int) -> None:
    layout = lay_out(sizes, chunk_size, replicas)

    taken = {(p.chunk, at) for p in layout.places.values() for at in range(p.offset, p.offset + p.size)}
    assert len(taken) == sum(sizes.values())
    assert all(0 <= at < chunk_size and chunk < layout.num_chunks for chunk, at in taken)
    assert [name for chunk in range(layout.num_chunks) for name in layout.tensors_of(chunk)] == list(sizes)
    # No chunk is begun while the next tensor would have fitted in the one before.
    placed = list(layout.places.values())
    for before, after in pairwise(placed):
        assert (after.chunk, after.offset) == (before.chunk, before.offset + before.size) or (
            after.chunk == before.chunk + 1
            and after.offset == 0
            and before.offset + before.size + after.size > chunk_size
        )


@settings(deadline=None)
@given(SIZES.filter(bool), st.integers(40, 90), st.integers(1, 4))
def test_replicas_share_chunks_in_groups(sizes: dict[str, int], chunk_size: int, replicas: int) -> None:
    layout = lay_out(sizes, chunk_size, replicas)

    assert layout.num_chunks % replicas == 0
    for chunk in range(layout.num_chunks):
        group = layout.group(chunk)
        assert chunk in group
        assert [layout.owner(one) for one in group] == list(range(replicas))
    # 6 M (d - 1) / d, of all that is in chunks.
    assert layout.wire_bytes == 6 * layout.elements * (replicas - 1) / replicas


def test_the_example_of_a_page() -> None:
    layout = lay_out({"a": 6, "b": 3, "c": 2, "d": 8}, 10, replicas=2)

    assert [(p.chunk, p.offset) for p in layout.places.values()] == [(0, 0), (0, 6), (1, 0), (1, 2)]
    assert (layout.num_chunks, layout.utilisation) == (2, 0.95)
    assert lay_out({}, 10).utilisation == 1
    with pytest.raises(ValueError, match=r"^a has 11 elements and a chunk 10: "):
        lay_out({"a": 11}, 10)


@settings(deadline=None)
@given(SIZES.filter(bool), st.sets(st.integers(1, 90), min_size=1), st.integers(1, 3))
def test_the_best_size_wastes_least(sizes: dict[str, int], candidates: set[int], replicas: int) -> None:
    usable = [one for one in sorted(candidates) if one >= max(sizes.values())]
    if not usable:
        with pytest.raises(ValueError, match="fewer than the largest"):
            best_chunk_size(sizes, candidates, 10**9, 10**9, replicas)
        return
    found = best_chunk_size(sizes, candidates, 10**9, 10**9, replicas)
    waste = {one: lay_out(sizes, one, replicas).elements - sum(sizes.values()) for one in usable}
    assert found.utilisation == max(lay_out(sizes, one, replicas).utilisation for one in usable)
    assert waste[found.chunk_size] == min(waste.values())


def test_what_does_not_fit_is_said() -> None:
    sizes = {"a": 50, "b": 50}
    # Two chunks of 50 elements in half precision on the device; 14 bytes an element in all.
    assert best_chunk_size(sizes, [50], 200, 14 * 100 - 200).num_chunks == ceil(100 / 50)
    with pytest.raises(ValueError, match="need 200 bytes of a device"):
        best_chunk_size(sizes, [50], 199, 10**6)
    with pytest.raises(ValueError, match="need 1,400 bytes of device and host together"):
        best_chunk_size(sizes, [50], 200, 14 * 100 - 201)
    with pytest.raises(ValueError, match="none was given"):
        best_chunk_size(sizes, [], 200, 200)
    # With two replicas each holds half, and groups are of two chunks.
    assert best_chunk_size(sizes, [50], 400, 14 * 50 - 400, replicas=2).num_chunks == 2
    # In single precision, 16 bytes an element.
    assert best_chunk_size(sizes, [50], 400, 16 * 100 - 400, word=4, held=16).num_chunks == 2
    with pytest.raises(ValueError, match="need 400 bytes of a device"):
        best_chunk_size(sizes, [50], 399, 10**6, word=4, held=16)
    with pytest.raises(ValueError, match="need 1,600 bytes of device and host together"):
        best_chunk_size(sizes, [50], 400, 16 * 100 - 401, word=4, held=16)
