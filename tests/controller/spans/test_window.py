"""The newest spans in memory and all on disk: what came is what is read, within the bounds."""

import asyncio
import os
import time
from pathlib import Path

import pytest

from holdfast.controller.spans.store import SpanStore, sweep
from holdfast.controller.spans.window import SpanSink, SpanWindows, decoded, memory_of
from holdfast.controller.state.model import Job, JobSpec
from holdfast.diagnostics.steps.job_shape import JobShape
from holdfast.wire import messages as msg
from holdfast.wire import span_rows
from tests.controller.support.stage import agent, eventually, stage, with_job

NAMES = ("", "forward", "tp:all_reduce", "tp")


def spans(rank: int, first: int, last: int, generation: int = 1, offset: int = 0, job: str = "j1") -> msg.Spans:
    rows = b"".join(
        span_rows.ROW.pack(s, 10 * s, 10 * s + 5, 0, s, 7, 1, 0, 0, 0, 2, -1) for s in range(first, last + 1)
    )
    worker = msg.WorkerSpans(rank, generation, last - first + 1, 0, first, last, NAMES, span_rows.pack(rows), job)
    return msg.Spans((worker,), offset, 5, 0)


def begun(budget: int = 1 << 20, sink: SpanSink | None = None) -> SpanWindows:
    windows = SpanWindows(budget, sink)
    windows.begin("j1")
    return windows


def test_only_steps_that_all_ranks_have_notified_of_are_whole() -> None:
    windows = begun()
    window = windows.of("j1")
    assert window.whole_steps() is None
    windows.add("node0", spans(0, 0, 4))
    windows.add("node1", spans(1, 0, 2))
    assert window.whole_steps() == (1, 1)
    windows.add("node1", spans(1, 2, 6))
    assert window.whole_steps() == (1, 3)
    table = decoded(window.parts_of(1, 3)).of_steps(1, 3)
    assert sorted(zip(table.rank.tolist(), table.step.tolist(), strict=True)) == [
        (0, 1), (0, 2), (0, 3), (1, 1), (1, 2), (1, 2), (1, 3)
    ]  # fmt: skip
    windows.end("j1")
    assert windows.of("j1").whole_steps() == (1, 3), "until another job begins"
    windows.begin("j2")
    windows.add("node0", spans(0, 0, 4))
    assert windows.of("j1").is_empty
    assert windows.of("j2").is_empty, "spans of another job are not its"


def test_times_are_on_the_controllers_clock_and_a_step_done_again_counts_once() -> None:
    window = begun()
    window.add("node0", spans(0, 0, 3, generation=1, offset=1000))
    window.add("node0", spans(0, 2, 3, generation=2, offset=2000))
    table = decoded(window.of("j1").parts_of(0, 9)).newest_generation()
    assert table.start.tolist() == [1000, 1010, 2020, 2030]
    assert table.cpu.tolist() == [700] * 4
    before = decoded(window.of("j1").parts_of(0, 9)).newest_generation(upto=1)
    assert set(before.generation.tolist()) == {1}
    assert len(before) == 4


def test_the_oldest_go_when_memory_is_full_and_what_is_lost_is_counted() -> None:
    size = len(spans(0, 0, 0).workers[0].data)
    windows = begun(10 * size)
    for step in range(30):
        message = spans(0, step, step)
        windows.add("node0", msg.Spans(message.workers, 0, 5, dropped=step // 10))
    assert windows.of("j1").parts_of(0, 19) == []
    assert windows.received == 30
    assert windows.lost == 2


def test_jobs_share_the_memory() -> None:
    size = memory_of((0, spans(0, 0, 0).workers[0]))
    windows = begun(21 * size)
    windows.begin("j2")
    for step in range(30):
        windows.add("node0", spans(0, step, step))
        windows.add("node1", spans(0, step, step, job="j2"))
    assert [len(windows.of(job).parts_of(0, 99)) for job in ("j1", "j2")] == [10, 10]


def test_what_is_looked_at_is_bounded_by_leaving_out_the_oldest_steps() -> None:
    window = begun()
    for step in range(20):
        window.add("node0", spans(0, step, step))
        window.add("node1", spans(1, step, step))
    assert window.of("j1").first_within(3, 18, 1000) == 3
    assert window.of("j1").first_within(3, 18, 8) == 15
    assert window.of("j1").first_within(3, 18, 0) == 18, "one step at the least"


def test_malformed_spans_cost_only_themselves() -> None:
    window = begun()
    window.add("node0", msg.Spans((msg.WorkerSpans(0, 1, 5, 0, 0, 9, NAMES, b"nonsense", "j1"),), 0, 5))
    window.add("node0", spans(1, 0, 3))
    assert set(decoded(window.of("j1").parts_of(0, 9)).rank.tolist()) == {1}


def test_what_came_is_on_disk_by_job_for_any_reader(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    from holdfast.diagnostics.files import span_files

    shape = JobShape("j1", "train.py", ("a", "b"), 1, b"")
    store = SpanStore(tmp_path, 1 << 20, 60.0, lambda _: shape)
    window = begun(sink=store)
    window.begin("j2")
    window.add("a", spans(0, 0, 4, offset=100))
    window.add("b", spans(1, 0, 4))
    store.close()
    assert store.written == 10
    table, read = span_files.read(tmp_path / "j1", 1, 2)
    assert read == shape
    assert sorted(zip(table.rank.tolist(), table.start.tolist(), strict=True)) == [(0, 110), (0, 120), (1, 10), (1, 20)]
    assert [table.kinds[k] for k in table.kind.tolist()] == ["forward"] * 4


def test_a_new_job_has_files_of_its_own(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    store = SpanStore(tmp_path, 1 << 20, 60.0, JobShape)
    windows = begun(sink=store)
    windows.begin("j2")

    async def story() -> None:
        writing = asyncio.create_task(store.run())
        windows.add("a", spans(0, 0, 4))
        windows.add("b", spans(0, 0, 2, job="j2"))
        store.close()
        windows.add("b", spans(0, 3, 4, job="j2"))
        writing.cancel()

    asyncio.run(story())
    store.close()
    assert sorted(folder.name for folder in tmp_path.iterdir()) == ["j1", "j2"]


def test_files_too_old_and_beyond_the_budget_go_the_oldest_first(tmp_path: Path) -> None:
    now = time.time()
    for age in range(6):
        file = tmp_path / f"j{age // 3}" / f"{age}.parquet"
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(bytes(100))
        os.utime(file, (now - 100 * age, now - 100 * age))
    (tmp_path / "j1" / "7.part").touch()  # left by a controller that was killed
    assert sweep(tmp_path, 250, now - 450) == 4
    assert sorted(file.name for file in tmp_path.glob("*/*")) == ["0.parquet", "1.parquet"]
    assert [folder.name for folder in tmp_path.iterdir()] == ["j0"], "an empty folder goes too"


def test_spans_travel_and_the_clock_is_reported(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path) as here, agent(here.port) as one:
            reported: list[msg.ClockReply] = []
            one.link._on_clock = reported.append
            await eventually(lambda: one.link.connected)
            job = Job(JobSpec("j1", "job", msg.Program("x"), 2, 4), generation=1, nodes=["node0", "node1"])
            with_job(here.brain, job)
            here.shell.listen("j1")
            before = time.time_ns()
            one.link.send(msg.ClockRequest(17))
            one.link.send(spans(4, 0, 4))  # another node's rank
            one.link.send(spans(3, 0, 4))
            await eventually(lambda: reported and here.shell.spans.received)
            assert here.shell.spans.received == 5
            assert here.shell.sessions.received.refused["foreign"] == 1
            assert reported[0].sent_ns == 17
            assert abs(reported[0].wall_ns - before) < 60e9
            assert here.shell.spans.clock_error_ns == {"node0": 5}

    asyncio.run(story())
