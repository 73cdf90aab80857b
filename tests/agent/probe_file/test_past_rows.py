"""The ring of operations with a root, from the worker's side to the agent's."""

import mmap
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.agent.probe_file import layout
from holdfast.agent.probe_file.memory import Memory
from holdfast.agent.probe_file.past_rows import PastRing, PastRow, read_past
from holdfast.agent.probe_file.standing import past_operations
from holdfast.agent.probe_file.torch_record import Recorded, TorchRecord
from holdfast.base import bounds
from holdfast.wire.standing import PastOperation

BROADCAST, REDUCE = (layout.OPERATION_KINDS.index(name) for name in ("broadcast", "all_reduce"))
ROWS = layout.PAST_ROWS


@pytest.fixture
def memory() -> mmap.mmap:
    return mmap.mmap(-1, layout.SIZE)


def test_the_last_ones_are_kept(memory: mmap.mmap) -> None:
    ring = PastRing(memory)
    assert read_past(memory, 3) == []
    for number in range(ROWS + 3):
        ring.add(1 + number % 2, number, BROADCAST, 7)
    assert sorted(read_past(memory, 3)) == [PastRow(n, 7, 1 + n % 2, BROADCAST) for n in range(3, ROWS + 3)]
    assert {row.slot for row in read_past(memory, 1)} == {1}


def test_a_group_whose_numbers_begin_anew_is_forgotten(memory: mmap.mmap) -> None:
    ring = PastRing(memory)
    for slot in (1, 2, 1):
        ring.add(slot, 4, BROADCAST, 0)
    ring.forget(1)
    assert read_past(memory, 3) == [PastRow(4, 0, 2, BROADCAST)]
    ring.clear()
    assert read_past(memory, 3) == []


def test_rows_that_contradict_each_other_or_are_half_written_say_nothing(memory: mmap.mmap) -> None:
    ring = PastRing(memory)
    ring.add(1, 4, BROADCAST, 0)
    ring.add(1, 4, BROADCAST, 1)
    ring.add(1, 5, BROADCAST, 1)
    ring.add(1, 5, BROADCAST, 1)
    ring.add(1, 6, BROADCAST, 1)
    assert [row.number for row in read_past(memory, 3)] == [5, 6]
    memory[layout.AT_PAST + 4 * layout.PAST_STRIDE + 12] ^= 1
    assert [row.number for row in read_past(memory, 3)] == [5]


def test_what_torch_says_is_over_joins_what_the_hooks_saw_begin() -> None:
    rows = [PastRow(9, 7, 2, BROADCAST), PastRow(8, 0, 2, BROADCAST)]
    over = Recorded(9, 68, 2, BROADCAST), Recorded(8, 68, 2, REDUCE), Recorded(9, 70, 1, REDUCE)
    unknown = Recorded(1, 5, 4, REDUCE), Recorded(2, 5, 1, 0), Recorded(3, 5, 1, 99)
    record = TorchRecord(read_at=1500, over=over + unknown)
    seen = PastOperation("broadcast", 1, 9, 7), PastOperation("broadcast", 1, 8, 0)
    # Of number 8 the two contradict each other.
    assert past_operations(rows, record, 1000, 3) == (
        PastOperation("broadcast", 1, 9, 7, 68),
        PastOperation("all_reduce", 0, 9, -1, 70),
    )
    assert past_operations(rows, record, 1500, 3) == past_operations(rows, TorchRecord(), 0, 3) == seen


def test_another_process_that_takes_the_file_over_has_done_nothing_yet(tmp_path: Path) -> None:
    path = str(tmp_path / "probe")
    layout.create(path, 0, 1, time.monotonic_ns())
    memory = Memory(path, 0, 1)
    memory.past.add(1, 4, BROADCAST, 0)
    memory.take()
    assert read_past(memory.map, 3) == []


@given(
    st.lists(st.tuples(*[st.integers(-(1 << bits - 1), (1 << bits - 1) - 1) for bits in (64, 32, 16, 16)]), max_size=4)
)
def test_any_numbers_are_within_bounds(rows: list[tuple[int, int, int, int]]) -> None:
    memory = mmap.mmap(-1, layout.SIZE)
    for place, row in enumerate(rows):
        at = layout.AT_PAST + place * layout.PAST_STRIDE
        memory[at : at + layout.PAST_STRIDE] = layout.seal(layout.PAST.pack(*row))
    for one in past_operations(read_past(memory, 3), TorchRecord(), 0, 3):
        assert 0 <= one.number <= bounds.MAX_COUNT
        assert 0 <= one.root < bounds.MAX_RANKS
        assert 0 <= one.group < 3
