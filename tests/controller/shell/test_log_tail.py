"""What is kept of a log: bounded, in order, and not only of the loudest rank or the newest generation."""

from hypothesis import given
from hypothesis import strategies as st

from holdfast.controller.shell.log_tail import (
    PAST_BYTES,
    PAST_GENERATIONS,
    TAIL_BYTES,
    GenerationTail,
    KeptChunk,
    LogTail,
    fair_share,
    size,
)
from holdfast.wire import messages as msg


def kept(text: str, rank: int = 0, generation: int = 1) -> KeptChunk:
    return KeptChunk(0.0, "node0", msg.LogChunk("j1", generation, rank, "out", text))


def held(tail: LogTail, generation: int) -> list[KeptChunk]:
    return [one for one in tail if one.chunk.generation == generation]


def test_a_loud_rank_does_not_push_out_the_words_of_a_quiet_one() -> None:
    tail = LogTail()
    tail.add(kept("ValueError: the cause", rank=3))
    for n in range(4000):
        tail.add(kept(f"{n:05}" + "x" * 1000, rank=0))
    assert next(iter(tail)).chunk.text == "ValueError: the cause"
    assert sum(size(one.chunk) for one in tail) <= TAIL_BYTES
    last = [one.chunk.text[:5] for one in tail][1:]
    assert last == [f"{n:05}" for n in range(4000 - len(last), 4000)]  # its newest, without a gap


def test_earlier_generations_stay_and_are_few_and_small() -> None:
    tail = LogTail()
    for generation in range(20):
        for n in range(1500):
            tail.add(kept(f"{n:05}" + "x" * 1000, rank=n % 4, generation=generation))
    kinds = {one.chunk.generation for one in tail}
    assert kinds == set(range(19 - PAST_GENERATIONS, 20))
    for generation in kinds:
        total = sum(size(one.chunk) for one in held(tail, generation))
        limit = TAIL_BYTES if generation == 19 else PAST_BYTES
        assert limit // 2 < total <= limit
        assert held(tail, generation)[-1].chunk.text.startswith("01499")
    tail.add(kept("last words", generation=17))
    assert held(tail, 17)[-1].chunk.text == "last words"
    tail.add(kept("of long ago", generation=2))
    assert len({one.chunk.generation for one in tail}) == PAST_GENERATIONS + 1


def test_more_ranks_than_fit_leave_the_newest() -> None:
    tail = GenerationTail()
    for rank in range(20_000):
        tail.add(kept(f"rank {rank}", rank=rank))
    assert tail.chunks[-1].chunk.rank == 19_999
    assert TAIL_BYTES // 2 < sum(size(one.chunk) for one in tail.chunks) <= TAIL_BYTES


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=30), st.integers(1, 5000))
def test_shares_use_what_there_is(amounts: list[int], target: int) -> None:
    share = fair_share(amounts, target)
    total = sum(min(amount, share) for amount in amounts)
    if sum(amounts) <= target:
        assert total == sum(amounts)
    else:
        assert target - len(amounts) < total <= target
