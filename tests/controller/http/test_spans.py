"""Blame and timeline over HTTP, of a job that runs and of one that is over."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from pydantic import TypeAdapter

from benchmarks.simulated_spans import Culprit
from holdfast.base.errors import UsageError
from holdfast.controller.http.spans import Blame, BlameBrief, Heat, Lanes, Predicted, parse_ranks
from holdfast.controller.shell.blame_watch import BlameWatch
from holdfast.controller.shell.report import Report
from holdfast.controller.shell.shell import Shell
from holdfast.controller.spans.store import SpanStore
from tests.controller.shell.test_blame_watch import look, training
from tests.controller.support.asking import app_of, error, talk
from tests.controller.support.stage import make_shell


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    shell, _ = training(tmp_path, [Culprit(5, "forward", 0.3)], 12)
    yield shell
    shell.journal.close()


def ask(shell: Shell, path: str, watch: BlameWatch | None = None) -> httpx.Response:
    return talk(app_of(Report(shell, -1, watch)), lambda client: client.get(f"/api/v1{path}"))


def test_the_running_job_is_analysed_as_far_as_it_is_whole(shell: Shell) -> None:
    answer = ask(shell, "/blame")
    assert answer.status_code == 200
    found = answer.json()
    TypeAdapter(Blame).validate_python(found)
    # The first and the last step of what is in memory may be incomplete.
    assert (found["job"], found["first"], found["last"]) == ("j1", 1, 10)
    assert [(c["rank"], c["node"], c["kind"]) for c in found["culprits"]] == [(5, "node1", "compute")]
    assert found["ranks"]["rank"] == list(range(8))
    assert {len(column) for column in found["ranks"].values()} == {8}
    some = ask(shell, "/blame?first=3&last=9").json()
    assert (some["first"], some["last"], some["steps"]) == (3, 9, 7)


def test_heat_maps_of_the_running_job(shell: Shell) -> None:
    found = ask(shell, "/blame/heat?first=3&last=9").json()
    TypeAdapter(Heat).validate_python(found)
    assert (found["job"], found["first"], found["last"], found["steps"]) == ("j1", 3, 9, list(range(3, 10)))
    assert found["nodes"] == ["node0", "node1"]
    forward = [row[found["phases"].index("forward")] for row in found["ratio"]]
    assert max(range(8), key=forward.__getitem__) == 5
    assert min(found["by_step"][1]) > 1.05 > max(found["by_step"][0])


def test_the_timeline_has_the_steps_that_were_asked_for(shell: Shell) -> None:
    events = ask(shell, "/timeline?first=4&last=5").json()["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    assert {event["args"]["step"] for event in slices} == {4, 5}
    assert {event["tid"] for event in slices} == set(range(8))


def test_spans_of_some_ranks_come_as_columns(shell: Shell) -> None:
    found = ask(shell, "/spans?ranks=1,4-5&steps=2").json()
    TypeAdapter(Lanes).validate_python(found)
    assert (found["first"], found["last"], found["ranks"], found["left_out"]) == (9, 10, [1, 4, 5], 0)
    assert set(found["arrows"]["source"]) <= {1, 4, 5}


def test_a_step_comes_beside_its_prediction(shell: Shell) -> None:
    found = ask(shell, "/spans/predicted?step=7&times_of=5&ranks=1,4-5").json()
    TypeAdapter(Predicted).validate_python(found)
    assert (found["job"], found["step"], found["times_of"], found["schedule"]) == ("j1", 7, 5, "1f1b")
    assert [row["rank"] for row in found["ranks"]] == [1, 4, 5]
    assert 0 < found["predicted_s"] <= found["measured_s"]
    newest = ask(shell, "/spans/predicted").json()
    assert (newest["step"], newest["times_of"], len(newest["ranks"])) == (10, 10, 8)


def test_the_watchers_last_look_costs_nothing_to_ask_for(tmp_path: Path) -> None:
    shell, watch = training(tmp_path, [Culprit(5, "forward", 0.3)], 12)
    assert ask(shell, "/blame/newest", watch).json() is None
    assert look(shell, watch)
    found = ask(shell, "/blame/newest", watch).json()
    TypeAdapter(BlameBrief).validate_python(found)
    assert [c["rank"] for c in found["culprits"]] == [5]
    assert "ranks" not in found, "not a column for each of 12,288 ranks"
    shell.journal.close()


def test_a_look_is_notified_of_its_job_only(tmp_path: Path) -> None:
    shell, watch = training(tmp_path, [], 12)
    assert look(shell, watch)
    assert watch.found("j1") is not None
    assert watch.found("j2") is None
    shell.journal.close()


def test_ranks_are_named_one_by_one_or_by_range() -> None:
    assert parse_ranks("") == []
    assert parse_ranks("0-3, 8,2") == [0, 1, 2, 3, 8]
    for text, says in [("a", "neither a rank nor a range"), ("3-", "write 0-3,8"), ("0-99999", "request fewer")]:
        with pytest.raises(UsageError, match=says):
            parse_ranks(text)


def test_an_earlier_job_is_read_from_disk(shell: Shell, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    store = SpanStore(tmp_path / "spans", 1 << 30, 1e9, shell.brain.jobs.shape)
    for part in shell.spans.of("j1").parts_of(0, 99):
        store.add(part)
    store.close()
    (store.folder / "j1").rename(store.folder / "j0")
    (tmp_path / "later").mkdir()
    later = make_shell(tmp_path / "later", span_store=store)
    found = ask(later, "/blame?job=j0&first=2").json()
    later.journal.close()
    assert (found["first"], found["last"]) == (2, 11)
    assert [c["rank"] for c in found["culprits"]] == [5]


@pytest.mark.parametrize(
    ("path", "status", "says"),
    [
        ("/blame?job=nosuch", 404, "no spans of a job 'nosuch' are kept"),
        ("/blame?job=../../etc", 404, "no spans of a job '../../etc' are kept"),
        ("/timeline?first=500&last=501", 404, "no spans of steps 500 to 501 in memory, only of 1 to 10"),
        ("/blame?first=-5", 400, "first"),
        ("/blame/heat?job=nosuch", 404, "no spans of a job 'nosuch' are kept"),
        ("/spans?ranks=x", 400, "'x' is neither a rank nor a range"),
        ("/spans?ranks=77", 404, "no spans of these ranks"),
        ("/spans/predicted?step=500", 404, "no spans of steps 500 to 500 in memory, only of 1 to 10"),
        ("/spans/predicted?step=7&times_of=500", 404, "no spans of steps 500 to 500 in memory"),
        ("/spans/predicted?ranks=77", 404, "the job's plan has ranks 0 to 7"),
        ("/spans/predicted?step=-5", 400, "step"),
    ],
)
def test_what_is_not_there_is_one_clear_line(shell: Shell, path: str, status: int, says: str) -> None:
    answer = ask(shell, path)
    assert answer.status_code == status
    assert says in error(answer)


def test_before_the_first_job_there_is_nothing(tmp_path: Path) -> None:
    shell = make_shell(tmp_path)
    answer = ask(shell, "/blame")
    assert answer.status_code == 409
    assert "no job has been submitted" in error(answer)
    shell.journal.close()
