"""Where spans are read from: memory, and disk for what memory let go of."""

from pathlib import Path

import pytest

from holdfast.base.errors import Conflict, NotFound
from holdfast.controller.spans.reader import read
from holdfast.controller.spans.store import SpanStore
from holdfast.controller.spans.window import SpanWindow, SpanWindows, memory_of
from holdfast.diagnostics.steps.job_shape import JobShape
from tests.controller.spans.test_window import spans

SHAPE = JobShape("j1", "demo", ("node0",), 1)


def steps(window: SpanWindow, folder: Path | None, first: int, last: int, is_over: bool = False) -> set[int]:
    table, shape = read(window, SHAPE, folder, "j1", is_over, first, last)()
    assert shape.job == "j1"
    return set(table.step.tolist())


def test_what_memory_let_go_of_is_read_from_disk_while_the_job_runs(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    store = SpanStore(tmp_path, 1 << 30, 1e9, lambda job: SHAPE)
    windows = SpanWindows(10 * memory_of((0, spans(0, 0, 0).workers[0])), sink=store)
    windows.begin("j1")
    for step in range(30):
        windows.add("node0", spans(0, step, step))
    store.close()
    window = windows.of("j1")
    assert steps(window, None, 25, 26) == {25, 26}
    assert steps(window, tmp_path, 3, 5) == {3, 4, 5}
    with pytest.raises(NotFound, match="no spans of steps 3 to 5 in memory, only of"):
        read(window, SHAPE, None, "j1", False, 3, 5)
    assert steps(SpanWindow(0), tmp_path, 3, 5, is_over=True) == {3, 4, 5}
    with pytest.raises(NotFound, match="no spans of steps 300 to 301 in memory"):
        read(window, SHAPE, tmp_path, "j1", False, 300, 301)
    with pytest.raises(NotFound, match="no spans of steps 300 to 301 of job 'j1' are kept"):
        read(SpanWindow(0), SHAPE, tmp_path, "j1", True, 300, 301)()
    with pytest.raises(Conflict):
        read(SpanWindow(0), SHAPE, tmp_path, "j1", False, 3, 5)
