"""What a cache holds, who leaves it, and what that copies."""

import functools
import itertools
from collections.abc import Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast.plan.cache.arena import Arena, ArenaFullError
from holdfast.plan.cache.cache import Cache, Copy, moved
from holdfast.plan.cache.policy import POLICIES, Belady, FirstInFirstOut, LeastRecentlyUsed
from holdfast.plan.cache.uses import Trace
from holdfast.plan.plan import Op

SIZE = 7


def cache_of(
    trace: Trace[str], capacity: int, policy: str = "belady", sizes: dict[str, int] | None = None
) -> Cache[str]:
    every = sizes or {key: SIZE for keys in trace.accesses for key in keys}
    return Cache(every, Arena("device", capacity), POLICIES[policy](trace))


def fewest(accesses: Sequence[frozenset[int]], slots: int) -> int:
    """Fetches of the best of all possible choices, by trying them all."""

    @functools.cache
    def rest(at: int, held: frozenset[int]) -> int:
        if at == len(accesses):
            return 0
        missing = accesses[at] - held
        others = held - accesses[at]
        leaving = max(0, len(held | accesses[at]) - slots)
        choices = (frozenset(c) for c in itertools.combinations(sorted(others), leaving))
        return len(missing) + min(rest(at + 1, (held | accesses[at]) - choice) for choice in choices)

    return rest(0, frozenset())


TRACES = st.lists(st.frozensets(st.integers(0, 5), min_size=1, max_size=3), min_size=1, max_size=9)


@settings(deadline=None)
@given(TRACES, st.integers(3, 5))
@example([frozenset({k}) for k in (0, 1, 2, 3, 0, 1, 4, 0, 1, 2, 3, 4)], 3)
def test_belady_copies_as_little_as_any_choice_could(accesses: list[frozenset[int]], slots: int) -> None:
    trace = Trace(accesses)
    sizes = dict.fromkeys(range(6), SIZE)
    fetches = fewest(accesses, slots)
    left = min(slots, len(frozenset().union(*accesses)))

    # All that came in and is not there at the end went out.
    assert moved(trace, sizes, slots * SIZE, Belady(trace)) == (2 * fetches - left) * SIZE
    for policy in (LeastRecentlyUsed[int](), FirstInFirstOut[int]()):
        assert moved(trace, sizes, slots * SIZE, policy) >= (2 * fetches - left) * SIZE


def test_the_classic_sequence() -> None:
    trace = Trace([[k] for k in "701203042303212017 01".replace(" ", "")])
    sizes = dict.fromkeys("0123456789", 1)

    # Silberschatz et al., Operating System Concepts, 10.4: faults with 3 frames.
    faults = {"belady": 9, "lru": 12, "fifo": 15}
    for name, expected in faults.items():
        assert moved(trace, sizes, 3, POLICIES[name](trace), written=False) == expected


def test_room_is_made_before_it_is_used() -> None:
    cache = cache_of(Trace(["a", "b", "c", "a"]), 2 * SIZE)

    cache.need("a", 0, written=True)
    cache.need("b", 1)
    copies = cache.need("c", 2)

    assert copies == [Copy(Op.EVICT, "b", 0), Copy(Op.FETCH, "c", SIZE)]
    assert list(cache.held) == ["a", "c"]


def test_only_what_was_written_is_copied_back_and_only_once() -> None:
    cache = cache_of(Trace(["a", "b", "a", "b"]), SIZE)

    assert cache.need("a", 0, written=True) == [Copy(Op.FETCH, "a", SIZE)]
    assert cache.need("b", 1) == [Copy(Op.EVICT, "a", SIZE), Copy(Op.FETCH, "b", SIZE)]
    assert cache.need("a", 2) == [Copy(Op.EVICT, "b", 0), Copy(Op.FETCH, "a", SIZE)]
    assert cache.need("b", 3) == [Copy(Op.EVICT, "a", 0), Copy(Op.FETCH, "b", SIZE)]
    assert (cache.fetched, cache.evicted) == (4 * SIZE, SIZE)


def test_what_is_created_is_not_fetched_but_copied_out() -> None:
    cache = cache_of(Trace(["a", "b"]), SIZE)

    assert cache.need("a", 0, created="a") == [Copy(Op.FETCH, "a", 0)]
    assert cache.need("b", 1) == [Copy(Op.EVICT, "a", SIZE), Copy(Op.FETCH, "b", SIZE)]


def test_what_is_needed_together_stays_together() -> None:
    cache = cache_of(Trace(["ab", "c", "ab"]), 2 * SIZE)
    cache.need("ab", 0)
    cache.need("c", 1)

    copies = cache.need("ab", 2)

    assert sorted(cache.held) == ["a", "b"]
    assert [c.key for c in copies if c.op is Op.EVICT] == ["c"]


@pytest.mark.parametrize("limit", [None, 2 * SIZE])
def test_what_can_never_fit_changes_nothing(limit: int | None) -> None:
    cache = cache_of(Trace(["a", "abc"]), 2 * SIZE if limit is None else 5 * SIZE)
    cache.need("a", 0)

    with pytest.raises(ArenaFullError, match=r"3 things of cache are needed at once, 21 bytes together; .* 14$"):
        cache.need("abc", 1, limit=limit)

    assert list(cache.held) == ["a"]
    assert cache.fetched == SIZE


def test_other_bytes_of_the_arena_leave_less_room() -> None:
    arena = Arena("device", 3 * SIZE)
    trace = Trace(["a", "b", "c", "a"])
    cache = Cache(dict.fromkeys("abc", SIZE), arena, Belady(trace))
    cache.need("a", 0)
    cache.need("b", 1)
    arena.take("activations", SIZE)

    cache.need("c", 2)

    assert list(cache.held) == ["a", "c"]
    assert arena.peak == 3 * SIZE


def test_a_limit_that_falls_takes_out_what_is_needed_last() -> None:
    cache = cache_of(Trace(["abc", "a", "b", "c"]), 3 * SIZE)
    cache.need("abc", 0)

    copies = cache.need("a", 1, limit=2 * SIZE)

    assert [c.key for c in copies] == ["c"]
    assert sorted(cache.held) == ["a", "b"]


def test_a_prefetch_takes_nobody_out() -> None:
    cache = cache_of(Trace(["a", "b", "c"]), 2 * SIZE)
    cache.need("a", 0)

    assert cache.prefetch("abc", 0) == [Copy(Op.FETCH, "b", SIZE)]
    assert list(cache.held) == ["a", "b"]


def test_sizes_differ() -> None:
    sizes = {"small": 1, "large": 10, "middle": 5}
    cache = cache_of(Trace([["small"], ["middle"], ["large"], ["small"]]), 12, sizes=sizes)
    cache.need(["small"], 0)
    cache.need(["middle"], 1)

    copies = cache.need(["large"], 2)

    # The one that is needed last leaves first: that is enough.
    assert [c.key for c in copies] == ["middle", "large"]


def test_what_is_made_in_the_cache_grows_until_it_is_whole() -> None:
    trace = Trace([["a"], ["b"], ["c"], ["c"], ["a"], ["b"]])
    cache: Cache[str] = Cache({}, Arena("device", 10), Belady(trace))
    assert cache.grow("a", 3, 0) == []
    assert cache.grow("a", 1, 0) == []
    assert cache.grow("b", 5, 1) == []
    # Needed last of the others, and it was made here: its 5 bytes have to be copied.
    assert cache.grow("c", 2, 2) == [Copy(Op.EVICT, "b", 5)]
    assert cache.grow("c", 4, 2) == []
    with pytest.raises(ArenaFullError, match=r"1 bytes more of cache are made, and there is room for 0"):
        cache.grow("c", 1, 2, kept=("a",))
    assert list(cache.held) == ["a", "c"]
    cache.forget("c")
    assert cache.need(["b"], 4) == [Copy(Op.FETCH, "b", 5)]
    assert (cache.fetched, cache.evicted) == (5, 5)
    assert cache.drop("b") == Copy(Op.EVICT, "b", 0), "its copy outside is still the same"
    cache.forget("b")
    cache.forget("a")
    assert not cache.held
    assert cache.evicted == 5


def test_room_for_something_else_is_made_of_what_may_leave() -> None:
    arena = Arena("device", 4 * SIZE)
    cache = Cache(dict.fromkeys("abc", SIZE), arena, Belady(Trace(["abc", "b", "a", "c"])))
    cache.need("abc", 0, written=True)

    assert cache.clear(SIZE, 0) == []
    # c is needed last, but is kept.
    assert cache.clear(2 * SIZE, 0, kept="c") == [Copy(Op.EVICT, "a", SIZE)]
    with pytest.raises(ArenaFullError, match=r"22 bytes are needed beside cache; 14 are free, and 7 "):
        cache.clear(3 * SIZE + 1, 0, kept="c")
    assert list(cache.held) == ["b", "c"]


def test_what_is_worthless_leaves_without_a_copy() -> None:
    cache = cache_of(Trace(["ab"]), 2 * SIZE)
    cache.need("ab", 0, written=True)
    cache.forget("a")
    cache.forget("z")

    assert list(cache.held) == ["b"]
    assert cache.evicted == 0
    assert cache.need("a", 0) == [Copy(Op.FETCH, "a", SIZE)]
    assert cache.drop("a") == Copy(Op.EVICT, "a", 0)
