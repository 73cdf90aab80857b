"""Operations and groups that one process reports through the probe, as the reader in another sees them."""

import time
from pathlib import Path

from holdfast.agent.probe_file import layout as probe_layout
from tests.agent.support.processes import probed


def test_a_worker_that_stands_says_in_which_operation_of_which_group(tmp_path: Path) -> None:
    code = """
from holdfast.agent import open_operations
tp, row = open_operations.group("tp", 7, [0, 1]), open_operations.group("dp", 8, range(0, 32, 4))
assert open_operations.begin(2, row) == 0
with probe.operation("tp:all_reduce"):
    assert [open_operations.begin(2, tp, size) for size in (1000, 0, 2000)] == [0, 1, 2]
    print("begun", flush=True); input()
    with open_operations.wait(2, tp, 2):
        print("handed", flush=True); input()
with open_operations.wait(2, row, 0):
    print("other", flush=True); input()
assert open_operations.group("tp", 7, [0, 1]) == tp
print("left", flush=True); input()
"""
    groups = {"tp": ("0-1", 7), "dp": ("0-28/4", 8)}
    before = time.monotonic_ns()
    with probed(code, tmp_path / "p") as (process, reader):
        assert process.stdout
        assert process.stdin
        for word, name, standing, tp in (
            ("begun", "tp:all_reduce", ("all_reduce", 0, 2, False), 3),
            ("handed", "tp:all_reduce", ("all_reduce", 0, 2, True), 3),
            ("other", "all_reduce", ("all_reduce", 1, 0, True), 3),
            ("left", "", ("", -1, -1, False), 0),
        ):
            assert process.stdout.readline() == word + "\n"
            assert reader.sample(before).pending is None
            sample = reader.sample(time.monotonic_ns() + 600_000_000)
            assert sample.pending is not None
            assert sample.still_age > 0.5
            assert sample.operation == name
            found = sample.pending
            assert (found.kind, found.group, found.number, found.is_handed) == standing
            assert {g.label: (g.members, g.ident) for g in found.groups} == groups
            assert [g.begun for g in found.groups] == [tp, 1]
            assert [g.sizes for g in found.groups] == [((1000 * 16_777_619) ^ 2000) & 0xFFFFFFFF if tp else 0, 0]
            before = time.monotonic_ns()
            process.stdin.write("\n")
            process.stdin.flush()


THREADS = """
import threading
from holdfast.agent import open_operations
from holdfast.agent.probe_file import layout
tp, dp = open_operations.group("tp", 7, [0, 1]), open_operations.group("dp", 8, [0, 1], is_seen=True)
go, at = threading.Event(), threading.Semaphore(0)
def other():
    with probe.operation("a name of the other thread"):
        number = open_operations.begin(2, dp)
        with open_operations.wait(2, dp, number, 1000, 1, layout.OPEN_IS_TIMED):
            print(f"{threading.get_native_id()}\\n", end="", flush=True)
            go.wait()
    at.release()
with probe.operation("all_reduce"):
    number = open_operations.begin(2, tp)
    thread = threading.Thread(target=other); thread.start()
    input()
    with open_operations.wait(2, tp, number):
        print("both", flush=True); input()
    go.set(); thread.join()
    print("place", flush=True); input()
probe.operation("")
for n in range(layout.OPEN_ROWS + 1):
    go.clear() if not n else None
    threading.Thread(target=other, daemon=True).start()
input()
"""


def test_a_threads_operation_hides_no_other_ones_and_leaves_nothing(tmp_path: Path) -> None:
    with probed(THREADS, tmp_path / "p") as (process, reader):
        assert process.stdout
        assert process.stdin

        def standing() -> tuple[str, tuple[tuple[str, int, int], ...]]:
            sample = reader.sample(time.monotonic_ns() + 600_000_000)
            assert sample.pending is not None
            assert sample.standing is not None
            assert not sample.standing.is_complete  # nobody has read torch's record
            what = tuple((one.kind, one.thread, one.group) for one in sample.standing.operations)
            return f"{sample.operation} {sample.pending.kind} {sample.pending.is_handed}", what

        def go_on() -> None:
            assert process.stdin
            process.stdin.write("\n")
            process.stdin.flush()

        other = int(process.stdout.readline())
        assert standing() == ("all_reduce all_reduce False", (("all_reduce", other, 1),))
        sample = reader.sample(time.monotonic_ns() + 600_000_000)
        assert sample.standing is not None
        (row,) = sample.standing.operations
        assert (row.number, row.size, row.root, row.is_timed) == (0, 1000, 1, True)
        assert sample.pending is not None
        assert [(g.begun, g.is_exact) for g in sample.pending.groups] == [(1, False), (1, True)]
        go_on()
        assert process.stdout.readline() == "both\n"
        place, both = standing()
        assert place == "all_reduce all_reduce True"
        assert set(both) == {("all_reduce", other, 1), ("all_reduce", process.pid, 0)}
        go_on()
        assert process.stdout.readline() == "place\n"
        assert standing() == ("all_reduce  False", ())  # a place is left, and no operation
        before = time.monotonic_ns()
        go_on()
        threads = {int(process.stdout.readline()) for _ in range(probe_layout.OPEN_ROWS + 1)}
        # What others do is a move of the process, and no operation of its main thread.
        assert reader.sample(before).still_age == 0
        place, rows = standing()
        assert place == "  False"
        assert len(rows) == probe_layout.OPEN_ROWS
        assert {thread for _, thread, _ in rows} < threads


def test_a_full_table_of_groups_is_no_error(tmp_path: Path) -> None:
    code = """
from holdfast.agent import open_operations
slots = [open_operations.group(f"g{n}", n, [0, 1]) for n in range(100)]
assert slots[:63] == list(range(1, 64)) and set(slots[63:]) == {0}
assert open_operations.begin(1, 0) == -1
with open_operations.wait(1, 0, -1):
    print("done", flush=True); input()
"""
    with probed(code, tmp_path / "p") as (process, reader):
        assert process.stdout
        assert process.stdout.readline() == "done\n"
        standing = reader.sample(time.monotonic_ns() + 10**9).pending
        assert standing is None or len(standing.groups) == 63
