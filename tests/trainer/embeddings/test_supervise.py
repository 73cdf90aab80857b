"""When a run begins again and from which step, without processes; the kills of real ones are in `test_run`."""

from __future__ import annotations

from pathlib import Path

import pytest
from clicks import run_of

from holdfast.base.errors import HoldfastError, Unavailable, UsageError
from holdfast.trainer.embeddings.launch import Outcome
from holdfast.trainer.embeddings.servers import snapshots
from holdfast.trainer.embeddings.settings import Run
from holdfast.trainer.embeddings.supervise import supervised

DONE = Outcome(0, 20, 0.5, 1, 1, 1, 8, 1, 8, 0, 0, 1, 2, 2, 2, 0, 1, "a", "b")
DEAD = HoldfastError("cacher (pid 7) was killed by SIGKILL")


class Attempts:
    """Each call ends with the next of these; a number stores a snapshot of this step first, and then dies."""

    def __init__(self, *ends: int | Exception | Outcome) -> None:
        self._ends = iter(ends)
        self.runs: list[Run] = []
        self.lines: list[str] = []
        self.waits: list[float] = []

    def __call__(self, run: Run) -> Outcome:
        self.runs.append(run)
        end = next(self._ends)
        if isinstance(end, int):
            files = snapshots.write_file(run.store, end, run.name, snapshots.MODEL, b"parameters")
            snapshots.commit(run.store, end, run.name, run.fixed, files)
            raise DEAD
        if isinstance(end, Exception):
            raise end
        return end

    def supervised(self, run: Run, most: int) -> Outcome:
        return supervised(run, self, most, self.lines.append, self.waits.append)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return run_of(tmp_path / "clicks", store=str(tmp_path / "store"))


def test_each_attempt_begins_at_the_newest_snapshot_under_a_new_name(run: Run) -> None:
    attempts = Attempts(DEAD, 7, 14, DONE)
    outcome = attempts.supervised(run, 3)
    assert (outcome.restarts, outcome.loss) == (3, 0.5)
    assert [one.first for one in attempts.runs] == [0, 0, 7, 14]
    assert len({one.name for one in attempts.runs}) == 4
    assert attempts.lines == [
        f"cacher (pid 7) was killed by SIGKILL; restart {n} of 3 from step {at}" for n, at in ((1, 0), (2, 7), (3, 14))
    ]
    assert len(attempts.waits) == 3
    assert min(attempts.waits) > 0


@pytest.mark.parametrize("most", [0, 2])
def test_restarts_have_a_bound(run: Run, most: int) -> None:
    attempts = Attempts(*[DEAD] * 9)
    with pytest.raises(HoldfastError) as raised:
        attempts.supervised(run, most)
    assert raised.value is DEAD
    assert len(attempts.runs) == most + 1


def test_without_a_store_all_begins_anew(tmp_path: Path) -> None:
    attempts = Attempts(DEAD, DONE)
    attempts.supervised(run_of(tmp_path / "clicks"), 1)
    assert [one.first for one in attempts.runs] == [0, 0]


@pytest.mark.parametrize("error", [UsageError("line 3: 1 fields"), Unavailable("10.0.0.7:7090 does not reply")])
def test_what_another_attempt_cannot_mend_ends_the_run_at_once(run: Run, error: HoldfastError) -> None:
    attempts = Attempts(error, DONE)
    with pytest.raises(type(error)) as raised:
        attempts.supervised(run, 3)
    assert raised.value is error
    assert attempts.lines == []


def test_a_server_that_is_being_started_again_is_waited_for(run: Run) -> None:
    attempts = Attempts(DEAD, Unavailable("10.0.0.7:7090 does not reply"), DONE)
    assert attempts.supervised(run, 3).restarts == 2


def test_what_dies_after_the_last_snapshot_is_not_trained_again(run: Run) -> None:
    attempts = Attempts(20, DONE)
    with pytest.raises(HoldfastError, match="SIGKILL, after all 20 steps were in a snapshot"):
        attempts.supervised(run, 3)
    assert len(attempts.runs) == 1
