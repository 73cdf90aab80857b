"""The rows of waiting threads joined with torch's own record, without torch."""

import math
import mmap
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.agent.probe_file import layout, torch_record
from holdfast.agent.probe_file.memory import Memory
from holdfast.agent.probe_file.open_rows import OpenRow, OpenTable, read_open
from holdfast.agent.probe_file.reader import ProbeReader
from holdfast.agent.probe_file.standing import exact_groups, open_operations, past_operations
from holdfast.agent.probe_file.torch_record import Recorded, TorchRecord, understand, write_record
from holdfast.base import bounds
from holdfast.wire.standing import OpenOperation
from holdfast.wire.types import GroupCount

REDUCE, BROADCAST, RECV = (layout.OPERATION_KINDS.index(name) for name in ("all_reduce", "broadcast", "recv"))
MOVED = 1000
RECORDED, ALL, TIMED = layout.OPEN_IS_RECORDED, layout.OPEN_IS_ALL, layout.OPEN_IS_TIMED
FRESH = TorchRecord(counted_at=2000, read_at=1500, is_complete=True)
ROW = OpenRow(since=900, number=7, thread=41, size=0, root=-1, slot=1, kind=REDUCE, flags=RECORDED)


def joined(record: TorchRecord, *rows: OpenRow, groups: int = 3) -> tuple[tuple[OpenOperation, ...], bool]:
    return open_operations(rows, record, MOVED, groups)


def test_a_row_gets_the_kind_and_the_size_that_torch_has() -> None:
    """An operation that nobody waits for elsewhere has nothing else to be compared by."""
    record = FRESH._replace(under_way=(Recorded(7, 68, 1, BROADCAST),))
    operation = OpenOperation(41, "broadcast", 0, 7, 68, root=2)
    assert joined(record, ROW._replace(root=2)) == ((operation,), True)


def test_what_nobody_waits_for_belongs_to_no_thread() -> None:
    record = FRESH._replace(under_way=(Recorded(7, 0, 1, REDUCE), Recorded(3, 0, 2, REDUCE)))
    found, is_complete = joined(record, ROW)
    assert [(one.thread, one.group, one.number) for one in found] == [(41, 0, 7), (0, 1, 3)]
    assert is_complete


def test_two_threads_may_wait_for_one() -> None:
    record = FRESH._replace(under_way=(Recorded(7, 0, 1, REDUCE),))
    found, is_complete = joined(record, ROW, ROW._replace(thread=42))
    assert [one.thread for one in found] == [41, 42]
    assert is_complete


def test_a_wait_for_all_is_one_for_each_that_is_under_way_in_its_group() -> None:
    row = ROW._replace(flags=ALL, number=-1, kind=0)
    record = FRESH._replace(under_way=(Recorded(7, 5, 1, REDUCE), Recorded(8, 6, 1, REDUCE), Recorded(0, 0, 2, REDUCE)))
    found, is_complete = joined(record, row)
    assert [(one.thread, one.group, one.number, one.size) for one in found] == [
        (41, 0, 7, 5),
        (41, 0, 8, 6),
        (0, 1, 0, 0),
    ]
    assert is_complete
    # A callback of the user that sleeps in there waits for nobody.
    assert joined(FRESH, row) == ((), True)


@pytest.mark.parametrize("field", ["counted_at", "read_at", "is_complete"])
def test_a_record_from_before_the_last_move_or_in_part_is_not_complete(field: str) -> None:
    record = FRESH._replace(
        under_way=(Recorded(7, 68, 1, BROADCAST),), **{field: False if field == "is_complete" else MOVED}
    )
    found, is_complete = joined(record, ROW)
    assert not is_complete
    assert [one.kind for one in found] == ["broadcast" if field == "is_complete" else "all_reduce"]


def test_a_row_that_torch_contradicts_proves_nothing() -> None:
    found, is_complete = joined(FRESH, ROW._replace(size=68))
    assert not is_complete
    assert [(one.thread, one.kind, one.size) for one in found] == [(41, "", 0)]
    # Messages and the like are not in torch's record.
    found, is_complete = joined(FRESH, ROW._replace(kind=RECV, flags=0))
    assert is_complete
    assert [one.kind for one in found] == ["recv"]


@pytest.mark.parametrize(
    ("row", "record"),
    [
        (ROW._replace(slot=0), FRESH),
        (ROW._replace(slot=4), FRESH),
        (ROW._replace(thread=0), FRESH),
        (ROW._replace(flags=0), FRESH._replace(under_way=(Recorded(0, 0, 9, REDUCE),))),
        (ROW._replace(flags=0), FRESH._replace(under_way=(Recorded(0, 0, 2, REDUCE), Recorded(0, 0, 2, BROADCAST)))),
    ],
)
def test_what_has_no_place_makes_it_incomplete(row: OpenRow, record: TorchRecord) -> None:
    assert not joined(record, row)[1]


def test_a_short_timeout_is_the_waits_or_the_groups() -> None:
    record = FRESH._replace(under_way=(Recorded(7, 0, 1, REDUCE), Recorded(8, 0, 2, REDUCE)), timed=1 << 2)
    found, _ = joined(record, ROW, ROW._replace(kind=RECV, slot=3, flags=TIMED))
    assert [(one.group, one.is_timed) for one in found] == [(0, False), (2, True), (1, True)]


def test_torchs_numbers_stand_for_the_probes_unless_they_are_less() -> None:
    counts = [
        GroupCount("world", 1, "0-1", 5),
        GroupCount("dp", 2, "0-1", 5),
        GroupCount("world:0>1", 1, "0-1", 4, is_exact=True),
    ]
    record = FRESH._replace(numbers=(-1, 9, 4, 77, *(-1,) * (layout.GROUPS - 4)))
    world, dp, message = exact_groups(counts, record, MOVED)
    assert (world.begun, world.is_exact) == (9, True)
    assert (dp.begun, dp.is_exact) == (5, False)
    assert (message.begun, message.is_exact) == (4, True)
    assert exact_groups(counts, record, record.counted_at) == tuple(counts)
    assert exact_groups(counts, record._replace(numbers=(-1,) * layout.GROUPS), MOVED) == tuple(counts)


@pytest.fixture
def memory() -> mmap.mmap:
    return mmap.mmap(-1, layout.SIZE)


def test_a_row_is_there_from_begin_to_end(memory: mmap.mmap) -> None:
    table = OpenTable(memory, memoryview(memory).cast("q"))
    first = table.begin(5, 6, 7, 8, 9, 1, REDUCE, TIMED)
    second = table.begin(50, 60, 70, 80, -1, 2, RECV, 0)
    assert read_open(memory) == [OpenRow(5, 6, 7, 8, 9, 1, REDUCE, TIMED), OpenRow(50, 60, 70, 80, -1, 2, RECV, 0)]
    table.end(first)
    assert read_open(memory) == [OpenRow(50, 60, 70, 80, -1, 2, RECV, 0)]
    table.end(second)
    assert read_open(memory) == []


def test_more_threads_than_rows_are_counted_as_unseen(memory: mmap.mmap) -> None:
    words = memoryview(memory).cast("q")
    table = OpenTable(memory, words)
    rows = [table.begin(1, 1, 100 + n, 0, -1, 1, REDUCE, 0) for n in range(layout.OPEN_ROWS + 2)]
    assert words[layout.WORD_UNSEEN] == 2
    for row in rows:
        table.end(row)
    assert words[layout.WORD_UNSEEN] == 0
    assert read_open(memory) == []
    assert table.begin(1, 1, 1, 0, -1, 1, REDUCE, 0) >= 0


def test_a_row_that_is_never_whole_is_no_list(memory: mmap.mmap) -> None:
    memory[layout.AT_OPEN] = 1
    assert read_open(memory) is None


def test_the_record_comes_back_and_what_is_more_than_it_holds_makes_it_incomplete(memory: mmap.mmap) -> None:
    numbers = [-1, *range(layout.GROUPS - 1)]
    rows = [(n, 2 * n, n % 3, REDUCE) for n in range(layout.RECORD_ROWS)]
    at, end = layout.AT_RECORD + 8, layout.AT_RECORD + 8 + layout.RECORD_BYTES

    def back(under_way: list[tuple[int, int, int, int]], over: list[tuple[int, int, int, int]]) -> TorchRecord:
        write_record(memory, 11, 10, 1 << 63, True, numbers, under_way, over)
        return understand(memory[at:end])

    recorded = tuple(Recorded(*row) for row in rows)
    written = TorchRecord(11, 10, 1 << 63, True, tuple(numbers), recorded, recorded)
    assert back(rows, rows) == written
    assert back([*rows, (1, 1, 1, 1)], rows) == written._replace(is_complete=False)
    assert back(rows, [*rows, (1, 1, 1, 1)]) == written
    assert back([], rows) == written._replace(under_way=())
    assert back(rows[:1], []) == written._replace(under_way=recorded[:1], over=())


@given(st.binary(min_size=layout.RECORD_BYTES, max_size=layout.RECORD_BYTES))
def test_any_bytes_are_some_record(payload: bytes) -> None:
    record = torch_record.understand(payload)
    assert all(-1 <= number <= bounds.MAX_COUNT for number in record.numbers)
    rows = [ROW, ROW._replace(flags=ALL, slot=2)]
    found, _ = open_operations(rows, record, MOVED, layout.GROUPS - 1)
    assert len(found) <= bounds.MAX_OPERATIONS
    assert all(0 <= one.number <= bounds.MAX_COUNT and 0 <= one.group < layout.GROUPS - 1 for one in found)
    for one in past_operations((), record, MOVED, 3):
        assert one.kind
        assert 0 <= one.size < 1 << 31
        assert 0 <= one.number <= bounds.MAX_COUNT
        assert 0 <= one.group < 3


@pytest.mark.parametrize("is_recorded", [True, False])
def test_a_worker_that_has_begun_no_operation_is_in_none_if_torch_says_so(tmp_path: Path, is_recorded: bool) -> None:
    path = str(tmp_path / "probe")
    now = time.monotonic_ns()
    layout.create(path, 0, 1, now)
    memory = Memory(path, 0, 1)
    memory.take()
    if is_recorded:
        write_record(memory.map, now, now, 0, True, [-1] * layout.GROUPS, ())
    reader = ProbeReader(path)
    sample = reader.sample(now + 1_000_000_000)
    reader.close()
    assert sample.standing is not None
    assert (sample.standing.operations, sample.standing.is_complete) == ((), is_recorded)
    assert (sample.operation, math.isnan(sample.still_age)) == ("", True)
