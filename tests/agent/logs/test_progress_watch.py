"""What programs without step numbers save and print, as their agent reports it."""

import json
import os
from pathlib import Path

import pytest

from holdfast.agent.logs.progress_watch import APART_S, Mark, ProgressWatch
from holdfast.agent.probe_file.layout import SAVED_SUFFIX
from holdfast.wire import types as t

KEY = ("j1", 2, 0)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("line", "number"),
    [
        ("step 12 loss 3.2", 12),
        ("[rank0] Step: 1200/5000", 1200),
        ("global_step=7", 7),
        ("iter 30: loss 1.2", 30),
        ("Iteration #4", 4),
        ("{'train/global_step': 15}", 15),
        ("footsteps 5", -1),
        ("3 steps", -1),
        ("stepping 4", -1),
        ("loss 3.2", -1),
    ],
)
def test_a_printed_step_is_read(line: str, number: int) -> None:
    mark = Mark()
    mark.read(f"noise\n{line}\nnoise\n")
    assert mark.number == number
    assert mark.line == (line if number >= 0 else "")


def test_only_a_greater_number_counts() -> None:
    mark = Mark()
    for n in (1, 2, 2, 1, 5):
        mark.read(f"step {n}\n")
    assert (mark.number, mark.count) == (5, 3)


def test_it_is_reported_now_and_then_and_once_more_at_the_end(tmp_path: Path) -> None:
    reported: list[t.Event] = []
    clock = Clock()
    watch = ProgressWatch(reported.append, clock)
    probe = tmp_path / "j1-g2-rank0"
    saved = probe.with_name(probe.name + SAVED_SUFFIX)

    def save(count: int, number: int = 40) -> None:
        saved.write_text(json.dumps({"count": count, "path": f"out/checkpoint-{number}/x.pt", "number": number}))
        os.utime(saved, ns=(count, count))

    mark = Mark()
    watch.look(KEY, probe, mark)
    assert reported == []
    save(1)
    watch.look(KEY, probe, mark)
    (first,) = reported
    assert isinstance(first, t.ProgressSeen)
    assert (first.source, first.number, first.count, first.text) == ("checkpoint", 40, 1, "out/checkpoint-40/x.pt")
    save(2)
    mark.read("step 9\n")
    watch.look(KEY, probe, mark)
    assert [e.source for e in reported] == ["checkpoint", "log"]  # type: ignore[union-attr]
    clock.now += APART_S
    watch.look(KEY, probe, mark)
    assert reported[2].count == 2  # type: ignore[union-attr]
    save(3)
    mark.read("step 10\n")
    watch.end(KEY, probe, mark)
    assert [(e.source, e.number, e.count) for e in reported[3:]] == [("checkpoint", 40, 3), ("log", 10, 2)]  # type: ignore[union-attr]
    assert not saved.exists()


@pytest.mark.parametrize("said", ["", "{", "[]", '{"count": "x", "path": 1, "number": 2}', '{"count": 1}', "1e999"])
def test_nonsense_is_not_reported(tmp_path: Path, said: str) -> None:
    reported: list[t.Event] = []
    probe = tmp_path / "p"
    probe.with_name(probe.name + SAVED_SUFFIX).write_text(said)
    ProgressWatch(reported.append).end(KEY, probe, None)
    assert reported == []


def test_a_file_that_no_worker_of_ours_wrote_is_read_within_bounds(tmp_path: Path) -> None:
    """Sparse: its size exceeds any memory."""
    reported: list[t.Event] = []
    probe = tmp_path / "p"
    saved = probe.with_name(probe.name + SAVED_SUFFIX)
    saved.write_text("{}")
    os.truncate(saved, 1 << 40)
    ProgressWatch(reported.append).look(KEY, probe, None)
    saved.unlink()
    os.mkfifo(saved)
    ProgressWatch(reported.append).look(KEY, probe, None)
    saved.unlink()
    other = tmp_path / "other"
    other.write_text(json.dumps({"count": 1, "path": "x", "number": 2}))
    saved.symlink_to(other)
    ProgressWatch(reported.append).end(KEY, probe, None)
    assert reported == []
    assert other.exists()
