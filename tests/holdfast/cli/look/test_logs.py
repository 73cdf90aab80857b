"""`holdfast logs`: which lines it asks for, and how it prints them."""

import json

import pytest

from holdfast.cli.job import follow
from holdfast.cli.main import main
from tests.holdfast.support.fake_controller import FakeController, Json, job_as

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def log(fake: FakeController) -> FakeController:
    fake.job = job_as("running", generation=3)
    fake.line(0, "step 1\n", generation=2)
    fake.line(1, "ValueError: [x]\nlast words", "err", generation=2)
    fake.line(0, "step 1", generation=3)
    fake.log.put("end")
    return fake


@pytest.mark.parametrize(
    ("argv", "asked"),
    [
        ([], {}),
        (["3"], {"ranks": "3"}),
        (["rank3"], {"ranks": "3"}),
        (["node1"], {"node": "node1"}),
        (["rank3", "--generation", "2"], {"ranks": "3", "generation": "2"}),
        (["--generation", "-1"], {"generation": "2"}),
        (["--since", "2m"], {"seconds": "120.0"}),
    ],
)
def test_it_asks_for_what_is_wanted(log: FakeController, capsys: Capture, argv: list[str], asked: object) -> None:
    assert main(["logs", *argv]) == 0
    assert log.log_asked == [{**asked, "follow": "false"}]  # type: ignore[dict-item]
    captured = capsys.readouterr()
    assert captured.out == "[0] step 1\n[1] ValueError: [x]\n[1] last words\n[0] step 1\n"
    assert captured.err == "holdfast: generation 3\n"


def test_grep_times_and_json(log: FakeController, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["logs", "--grep", r"Error: \[", "--json"]) == 0
    line = json.loads(capsys.readouterr().out)
    assert (line["rank"], line["generation"], line["text"]) == (1, 2, "ValueError: [x]")
    log.line(0, "later")
    log.log.put("end")
    assert main(["logs", "-t"]) == 0
    time, rest = capsys.readouterr().out.split(" ", 1)
    assert (time.count(":"), rest) == (2, "[0] later\n")


def test_where_nothing_is_kept_it_names_the_files(fake: FakeController, capsys: Capture) -> None:
    fake.log.put("end")
    assert main(["logs", "3", "--generation", "0"]) == 0
    assert capsys.readouterr().err == (
        "holdfast: no such lines are kept; all lines are on the node, in state_dir/logs/j1/g0/rank3.out and .err\n"
    )


def test_following_goes_on_after_a_break_without_doubles(
    fake: FakeController, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "BURST_S", 60.0)  # the tail comes when the machine lets it, and ends by itself
    answer = fake.answer

    def ending(method: str, path: str, body: Json | None) -> tuple[int, object]:
        if len(fake.log_asked) == 2:
            fake.job = job_as("finished")
        return answer(method, path, body)

    monkeypatch.setattr(fake, "answer", ending)
    fake.line(1, "a")
    fake.log.put("cut")
    fake.line(1, "a")
    fake.line(1, "b")
    fake.log.put("end")
    assert main(["logs", "1", "--follow"]) == 0
    assert capsys.readouterr().out == "[1] a\n[1] b\n"
    assert fake.log_asked == [{"ranks": "1"}] * 2


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["4"], "job train has ranks 0 to 3, but no rank 4"),
        (["nodeX"], "neither a rank nor a node: 'nodeX'; did you mean node1?"),
        (["--grep", "("], "is no regular expression"),
        (["--since", "soon"], "--since must be a time such as 90s"),
        (["--generation", "2"], "is in generation 1: there is no generation 2"),
        (["--generation", "-2"], "there is no generation -2"),
        (["--job", "gone"], "no job is called 'gone'"),
    ],
)
def test_bad_input_is_one_line(fake: FakeController, capsys: Capture, argv: list[str], says: str) -> None:
    assert main(["logs", *argv]) == 2
    err = capsys.readouterr().err
    assert says in err
    assert err.count("\n") == 1
    assert fake.log_asked == []
