"""Incidents on any width: what matters is whole."""

import pytest

from holdfast.cli.main import main
from tests.holdfast.support.fake_controller import INCIDENT, FakeController

Capture = pytest.CaptureFixture[str]
STORY = (
    "rank 5 on node-17.rack-3.example failed with ValueError: tokens must lie below the vocabulary of 32000, in "
    "train.py:214 forward, after 3 restart attempts with the same traceback"
)


@pytest.fixture
def story(fake: FakeController) -> FakeController:
    fake.incidents = [
        INCIDENT | {
            "id": "i12", "kind": "worker-exception", "culprit": "rank5", "summary": STORY, "source": "store",
            "findings": [{"kind": "worker-exception", "severity": "critical", "subject": "rank5", "text": STORY,
                          "at": 10.0, "evidence": {}}],
        },
        INCIDENT,
    ]  # fmt: skip
    return fake


@pytest.mark.parametrize("width", [40, 80, 120, 200])
@pytest.mark.parametrize("argv", [["incidents"], ["incidents", "i12"]])
def test_nothing_is_cut(
    story: FakeController, capsys: Capture, monkeypatch: pytest.MonkeyPatch, width: int, argv: list[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    assert main(argv) == 0
    out = capsys.readouterr().out
    assert max(len(line.rstrip()) for line in out.splitlines()) <= width
    if width < 150 or len(argv) == 2:
        assert STORY in " ".join(out.split())
    else:
        assert all(word in out for word in STORY.split())
    assert "…" not in out


def test_an_entry_on_80_columns(story: FakeController, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TZ", "UTC")
    assert main(["incidents"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:2] == ["i12", "closed"]
    assert lines[0].endswith("worker-exception on rank5")
    assert lines[1].split("  ·  ") == [
        "    seen after 0.02 s", "training again after 1.50 s", "restart",
    ]  # fmt: skip
    assert lines[2] == "    state from store"
    assert lines[-1] == "    rank 3 was killed [by SIGKILL]"
    assert len(lines) == 10


def test_a_verdict_of_a_dead_worker_shows_its_proof_line_by_line(story: FakeController, capsys: Capture) -> None:
    proof = ["rank 5, main thread: waits for a lock, for 0.7 s [the kernel]", "rank 5, 2 more threads: the same"]
    story.incidents[0]["findings"][0]["evidence"] = {"proof": proof}
    assert main(["incidents", "i12"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert f"proof: {proof[0]} proof: {proof[1]}" in out


def test_of_several_jobs_each_says_which(
    story: FakeController, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    story.incidents[1] = story.incidents[1] | {"job": "j2"}
    assert main(["incidents"]) == 0
    heads = [line for line in capsys.readouterr().out.splitlines() if line.startswith("i")]
    assert [head.rsplit(" of ", 1)[1] for head in heads] == ["j1", "j2"]
