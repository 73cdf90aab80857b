"""Who fetches, sums and writes back which row, against what follows from the batches themselves."""

from __future__ import annotations

from collections.abc import Sequence

from clicks import expected_fetches
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.trainer.embeddings.batch import decode, encode
from holdfast.trainer.embeddings.criteo import CATEGORIES, NUMBERS, Sample
from holdfast.trainer.embeddings.plans import FetchFormula, iterations, share
from holdfast.trainer.embeddings.servers.link import Message

Data = list[list[Sample]]


def sample(values: Sequence[int]) -> Sample:
    return Sample(values[0] % 2, tuple(map(float, range(NUMBERS))), tuple(values))


SAMPLES = st.lists(st.integers(0, 9), min_size=3, max_size=3).map(sample)
"""With few categories, so that rows meet; a plan does not count them."""
DATA = st.integers(1, 5).flatmap(
    lambda size: st.lists(st.lists(SAMPLES, min_size=size, max_size=size), min_size=1, max_size=9)
)


def users(batch: Sequence[Sample], trainers: int, key: int) -> list[int]:
    """The trainer of each sample that needs a row."""
    return [r for r in range(trainers) for at in share(len(batch), trainers, r) if key in batch[at].keys]


@settings(deadline=None)
@given(DATA, st.integers(1, 5), st.integers(1, 3))
def test_a_plan_does_what_the_batches_need(data: Data, window: int, trainers: int) -> None:
    """Each trainer's cache is played through: what it holds, and which rows would be stale."""
    caches: list[set[int]] = [set() for _ in range(trainers)]
    fetched: dict[int, list[set[int]]] = {}
    written: dict[int, int] = {}
    count = 0
    for number, found in enumerate(iterations(data, window, trainers)):
        assert found.number == number
        for needed, by_trainer in found.fetch.items():
            assert needed < number + window
            fetched[needed] = [set(rows) for rows in by_trainer]
            for trainer, rows in enumerate(by_trainer):
                count += len(rows)
                for row in rows:
                    assert users(data[needed], trainers, row)[0] == trainer
                    # No fetch overtakes a write-back of a row's last use.
                    last = max((n for n in range(needed) if users(data[n], trainers, row)), default=None)
                    assert last is None or written[row] == last < number
        needs = {key for one in data[number] for key in one.keys}
        # Through a window of one batch nothing stays for the next: it is fetched again.
        following = (
            {key for one in data[number + 1] for key in one.keys} if window > 1 and data[number + 1 :] else set()
        )
        now, later = set(found.sync_now), set(found.sync_later)
        alone = {key for rows in found.alone for key in rows}
        assert now == needs & following
        assert now | later | alone == needs
        assert len(now) + len(later) + len(alone) == len(needs)
        for trainer in range(trainers):
            own = fetched[number][trainer]
            assert set(found.arriving[trainer]) | set(found.lone[trainer]) == own
            for row in found.alone[trainer]:
                assert users(data[number], trainers, row) == [trainer]
            others = {row for rows in found.arriving for row in rows}
            assert not caches[trainer] & (others | set(found.lone[trainer])), "held already"
            caches[trainer] |= others | set(found.lone[trainer])
            mine = {key for at in share(len(data[number]), trainers, trainer) for key in data[number][at].keys}
            assert mine | now | later <= caches[trainer], "a trainer trains what it holds, and changes all it holds"
        back = [row for rows in (*found.alone, *found.evict) for row in rows]
        assert len(back) == len(set(back)), "written back once"
        for row in back:
            written[row] = number
            upcoming = data[number + 1 : number + window]
            assert not any(users(batch, trainers, row) for batch in upcoming), "it would have stayed"
        for cache in caches:
            cache -= set(back)
        assert all(cache == caches[0] for cache in caches)
    assert not any(caches)
    assert count == expected_fetches(data, window)
    formula = FetchFormula()
    for number, batch in enumerate(data):
        formula.add(number, (key for one in batch for key in one.keys), number - window + 1)
    assert formula.total == count


@settings(deadline=None)
@given(DATA, st.integers(1, 4), st.integers(1, 3))
def test_shares_are_all_samples_and_alike(data: Data, window: int, trainers: int) -> None:
    size = len(data[0])
    shares = [share(size, trainers, rank) for rank in range(trainers)]
    assert [at for one in shares for at in one] == list(range(size))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_evictions_are_shared_out_and_snapshots_come_behind_their_steps() -> None:
    # Rows 10 to 35 are in both samples, and no later batch needs them: 26 rows, none of one sample.
    batch = [sample(range(10, 36)), sample(range(10, 36))]
    found = list(iterations([batch] * 7, 1, 2, first=3, snapshot_every=4))
    assert [one.number for one in found] == [3, 4, 5, 6, 7, 8, 9]
    assert [one.number + 1 for one in found if one.flush] == [4, 8]
    assert list(found[0].evict) == [list(range(10, 36, 2)), list(range(11, 36, 2))]
    assert list(found[1].fetch) == [4]


def test_a_message_holds_a_trainers_part() -> None:
    one, two = sample(range(26)), sample([*range(25), 99])
    found = next(iterations([[one, two], [two, two]], 2, 2))
    batch = decode(Message(*encode(found, 1)))
    assert (batch.number, batch.size, batch.flush) == (0, 2, False)
    assert batch.keys.tolist() == [list(two.keys)]
    assert batch.keys.shape == (1, CATEGORIES)
    assert batch.numbers.tolist() == [list(two.numbers)]
    assert batch.labels.tolist() == [two.label]
    assert [(number, keys.tolist()) for number, keys in batch.fetch] == [(0, [99]), (1, [])]
    assert [keys.tolist() for keys in batch.arriving] == [list(range(25)), [99]]
    assert batch.lone.tolist() == []
    assert batch.sync_now.tolist() == [*range(25), 99]
    assert batch.sync_later.tolist() == []
    assert batch.alone.tolist() == []  # row 25 is the other trainer's
    assert batch.evict.tolist() == []
    assert batch.leaving.tolist() == [25]
