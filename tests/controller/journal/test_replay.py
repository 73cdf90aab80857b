"""Recordings: replayed, they lead to the same decisions; where they would not, that is reported."""

import gzip
import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.base.errors import UsageError
from holdfast.cli.main import main
from holdfast.controller.journal.recording import Recorder, Reported, Start, read
from holdfast.controller.journal.replay import replay
from holdfast.controller.state.events import CordonRequested, FaultRequested, StopRequested, Tick
from holdfast.controller.state.model import Instant, Options
from tests.controller.support.recorded import RECORDINGS, Recorded
from tests.controller.support.virtual import trains_again


def story(path: Path) -> Recorded:
    v = Recorded(path, nodes=3)
    v.submit(nnodes=2, faults=("kill@5:rank1",))
    v.run(3.0)
    v.exit(3, signal=9)
    trains_again(v, 2)
    v.feed(FaultRequested("kill@500:rank2"))
    with pytest.raises(UsageError):
        v.feed(CordonRequested("ghost", True))
    v.restart_controller()
    v.run(2.0)
    v.lose_node("node0")
    v.run(12.0)
    v.feed(StopRequested(0.0))
    v.run(1.0)
    v.recorder.close()
    return v


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return story(tmp_path_factory.mktemp("recorded") / "run.jsonl")


@pytest.mark.parametrize("name", ["run.jsonl", "run.jsonl.gz"])
def test_a_recording_leads_to_the_same_decisions(
    name: str, recorded: Recorded, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    v = recorded if name == recorded.path.name else story(tmp_path / name)
    counts: list[int] = []
    found = replay(v.path, progress=counts.append)
    assert counts == list(range(1, found.events + 1))
    assert found.difference is None
    assert found.runs == 2
    assert found.decisions > 50
    assert [(i.id, i.action, i.reason) for i in found.incidents] == [(i.id, i.action, i.reason) for i in v.incidents]
    if v is recorded:  # the command, of one of them
        assert main(["replay", str(v.path)]) == 0
        assert "the same decisions" in capsys.readouterr().out


def test_another_policy_is_distinguished_from_the_recorded_one(
    recorded: Recorded, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = Path(shutil.copy(recorded.path, tmp_path))
    lines = path.read_text().splitlines()
    wanted = next(i for i, line in enumerate(lines) if '"did":["say finding' in line)
    doc = json.loads(lines[wanted])
    doc["did"] = doc["did"][:1]
    lines[wanted] = json.dumps(doc)
    path.write_text("\n".join(lines) + "\n")
    found = replay(path)
    assert found.difference is not None
    assert (found.difference.line, found.difference.then) == (wanted + 1, "")
    assert main(["replay", str(path), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["difference"]["line"] == wanted + 1


def test_a_recording_may_be_cut_off_and_nothing_else(recorded: Recorded, tmp_path: Path) -> None:
    path, whole = tmp_path / "run.jsonl", recorded.path.read_bytes()
    path.write_bytes(whole[:-20])
    assert replay(path).difference is None
    path.write_bytes(whole[: len(whole) // 2] + b"\nnonsense\n")
    with pytest.raises(UsageError, match="not a line of a recording"):
        replay(path)
    path.write_text("{}\n")
    with pytest.raises(UsageError, match="line 1"):
        replay(path)


def a_life(path: Path, boot: str, ticks: int) -> None:
    recorder = Recorder(path, Start(boot, Options(), [], [], Instant(1.0, 2.0)))
    for tick in range(ticks):
        recorder.add(Tick(), Instant(float(tick), 3.0), [f"say {'x' * tick}"])
        if tick % 5 == 4:
            recorder.flush()
    recorder.close()


@pytest.mark.parametrize("name", ["run.jsonl", "run.jsonl.gz", "日.gz"])
def test_a_controller_that_was_killed_while_it_wrote_is_followed_by_another(name: str, tmp_path: Path) -> None:
    """Wherever the kill cut its line off: the next run is read whole, and of the one before all complete lines."""
    a_life(tmp_path / name, "one", 7)
    whole = (tmp_path / name).read_bytes()
    assert [len(life) for life in runs(tmp_path / name)] == [7]
    before = 0
    for cut in range(len(whole)):
        path = tmp_path / str(cut) / name
        path.parent.mkdir()
        path.write_bytes(whole[:cut])
        a_life(path, "two", 3)
        a_life(path, "three", 0)
        *first, second, third = runs(path)
        assert (len(second), len(third)) == (3, 0)
        length = len(first[0]) if first else -1
        assert length >= before - 1
        before = length
    assert before >= 6


@pytest.mark.parametrize("at", [0.3, 0.6, 0.99])
def test_a_damaged_recording_is_reported_and_not_taken_for_one_that_was_cut_off(at: float, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl.gz"
    a_life(path, "one", 12)
    content = bytearray(path.read_bytes())
    content[int(at * len(content))] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(UsageError, match=r"run\.jsonl\.gz: damaged|not a line of a recording"):
        runs(path)


def runs(path: Path) -> list[list[Reported]]:
    found: list[list[Reported]] = []
    for one in read(path):
        if isinstance(one, Reported):
            found[-1].append(one)
        else:
            found.append([])
    return found


@pytest.mark.parametrize("name", ["notes.jsonl", "notes.gz"])
@pytest.mark.parametrize(
    "content", [b"my notes\n", b"{", gzip.compress(b"my notes"), gzip.compress(b"")[:10] + b"\xff\xff"]
)
def test_nothing_is_written_to_what_is_no_recording(name: str, content: bytes, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    if content != b"{" or path.suffix == ".gz":
        with pytest.raises(UsageError, match=f"{name}: it has other content; name another file"):
            a_life(path, "one", 1)
        assert path.read_bytes() == content
    else:  # what is left of a first line
        a_life(path, "one", 1)
        assert [len(life) for life in runs(path)] == [1]


@pytest.mark.parametrize("content", [None, b"", b"no newline", b"{", b"\x1f\x8b"])
def test_what_is_no_recording_is_said_with_what_would_be_one(
    tmp_path: Path, content: bytes | None, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.jsonl"
    if content is not None:
        path.write_bytes(content)
    assert main(["replay", str(path)]) == 2
    err = capsys.readouterr().err
    assert err.count(str(path)) == 1
    assert "recording" in err


@settings(max_examples=8, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["kill", "stop", "agent", "controller"]), st.integers(0, 7)), max_size=4))
def test_whatever_happened_it_happens_again(
    tmp_path_factory: pytest.TempPathFactory, faults: list[tuple[str, int]]
) -> None:
    path = tmp_path_factory.mktemp("replay") / "run.jsonl"
    v = Recorded(path)
    v.submit()
    v.run(2.5)
    for kind, rank in faults:
        alive = [w for w in v.all_workers() if w.running and w.rank == rank]
        if kind == "controller":
            v.restart_controller(away=0.5)
        elif kind == "agent":
            v.kill_agent(f"node{rank % 2}")
            v.run(0.5)
            v.join(f"node{rank % 2}")
        elif alive:
            v.exit(rank, signal=9) if kind == "kill" else v.stop_worker(rank)
        v.run(2.0)
    v.recorder.close()
    assert replay(path).difference is None


def test_options_come_back_as_they_were(tmp_path: Path) -> None:
    options = Options(restart_attempts=7, detectors=("worker-hang.action=alert",))
    recorder = Recorder(tmp_path / "r", Start("b", options, [], [], Instant(1.0, 2.0)))
    recorder.close()
    (start,) = read(tmp_path / "r")
    assert isinstance(start, Start)
    assert start.options == options


def test_recordings_of_earlier_versions_lead_to_the_same_decisions() -> None:
    """But for verdicts on hangs from before agents reported what threads do: these have no proof (test_changes.py)."""
    paths = sorted(RECORDINGS.glob("*.jsonl.gz"))
    assert len(paths) >= 4
    for path in paths:
        if path.name not in ("before_evidence.jsonl.gz", "hangs_and_an_eviction.jsonl.gz"):
            found = replay(path)
            assert (path.name, found.difference, found.changed) == (path.name, None, [])
            assert found.events > 1000
            assert found.then
