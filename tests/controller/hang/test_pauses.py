"""Pauses: reported at once, ended at their limits only, learned where they ended by themselves; never a failed job."""

import dataclasses
import math
from pathlib import Path

import pytest

from holdfast.agent.forkserver import bootstrap
from holdfast.controller.detectors.workers.pause import Pause
from holdfast.controller.hang import places
from holdfast.controller.hang.pauses import PauseWatch, limit_of
from holdfast.controller.job import policy
from holdfast.controller.state.incidents import Finding
from holdfast.controller.state.model import Instant, Job, Options
from holdfast.diagnostics.hang.stack_tree import Stack
from holdfast.diagnostics.hang.stillness import Liveness, Sight
from holdfast.wire import types as t
from tests.controller.support.standstills import QUICK, job


def pause(life: Liveness = Liveness.IDLE, still: float = 3.0, ranks: tuple[int, ...] = (5,), **more: object) -> Pause:
    values: dict[str, object] = {
        "waiting": (0, 1), "quiet": still if life is Liveness.IDLE else 0.0, "ends_in": math.nan,
        "sights": (Sight(life, "waits for a lock"),), "is_training": True,
    }  # fmt: skip
    return Pause(life=life, ranks=ranks, still=still, **{**values, **more})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("life", "has_stepped", "is_training", "seconds", "option"),
    [
        (Liveness.BUSY, True, True, 1800.0, "--pause-limit"),
        (Liveness.UNKNOWN, True, True, 1800.0, "--pause-limit"),
        (Liveness.HELD, True, True, 1800.0, "--pause-limit"),
        (Liveness.IDLE, True, True, 60.0, "--idle-limit"),
        (Liveness.IDLE, False, True, 300.0, "--idle-limit-start"),
        (Liveness.IDLE, True, False, 300.0, "--idle-limit-start"),
    ],
)
def test_each_has_its_limit(life: Liveness, has_stepped: bool, is_training: bool, seconds: float, option: str) -> None:
    found = limit_of(pause(life, is_training=is_training), "here", job(), Options(), has_stepped)
    assert found == (seconds, option)


def test_the_limit_doubles_where_a_restart_brought_the_same_and_follows_what_was_learned() -> None:
    known = job(pauses={"here": [2.0, 0.0], "there": [0.0, 100.0], "ever": [9.0, 0.0]})
    limits = [limit_of(pause(), place, known, Options(), True)[0] for place in ("here", "there", "ever", "new")]
    assert limits == [240.0, 200.0, 1800.0, 60.0]


class Watched:
    """One job under a watch, in virtual time."""

    def __init__(self, options: Options = QUICK, **more: object) -> None:
        self.watch, self.job, self.options, self.now = PauseWatch(), job(**more), options, 100.0

    def run(self, seconds: float, life: Liveness = Liveness.IDLE, still: float = 0.0, **more: object) -> list[str]:
        """What comes of a pause that goes on for so long, from `still` on."""
        said: list[str] = []
        for _ in range(round(seconds / 0.5)):
            self.now, still = self.now + 0.5, still + 0.5
            ends = more.get("until")
            rest = {"ends_in": ends - self.now} if isinstance(ends, float) else more
            found = self.watch.look(
                pause(life, still, **rest), "train.py:8 main", self.job, self.options, True, Instant(self.now, self.now)
            )
            said += [action.name for action in found.actions if hasattr(action, "name")]
            said += ["alert"] * (found.alert is not None) + ["end"] * (found.end is not None)
            self.last = found.end or found.alert
        return said

    def moves(self) -> list[str]:
        self.now += 0.5
        found = self.watch.look(None, "", self.job, self.options, True, Instant(self.now, self.now))
        return [type(action).__name__ for action in found.actions]


def test_a_pause_is_reported_after_two_seconds_alerted_and_ended_once_each() -> None:
    w = Watched()
    assert w.run(1.5) == []
    assert w.run(1.0, still=1.5) == ["job.paused"]
    assert w.run(3.0, still=2.5) == ["alert"]
    assert w.run(20.0, still=5.5) == ["end"]


def test_a_busy_pause_ends_at_the_pause_limit_only() -> None:
    w = Watched()
    assert w.run(19.0, Liveness.BUSY) == ["job.paused", "alert"]
    assert w.run(2.0, Liveness.BUSY, still=19.0) == ["end"]


def test_idleness_counts_since_anything_last_moved() -> None:
    """Retries with long waits between them: each connection that is tried is a movement."""
    w = Watched()
    still = 0.0
    for _ in range(5):
        for step in range(8):
            still, w.now = still + 0.5, w.now + 0.5
            one = dataclasses.replace(pause(still=still), quiet=step * 0.5)
            found = w.watch.look(one, "here", w.job, w.options, True, Instant(w.now, w.now))
            assert found.end is None


def test_a_wait_with_a_known_end_is_not_idle_and_renewed_short_ones_do_not_count() -> None:
    w = Watched()
    assert "end" not in w.run(12.0, until=w.now + 12.0)
    renewed = Watched()
    assert "end" in renewed.run(7.0, ends_in=0.5)
    for_ever = Watched()
    assert "end" in for_ever.run(7.0, ends_in=3600.0)


@pytest.mark.parametrize("then", [{}, {"ends_in": 0.5}, {"quiet": 9.0}], ids=["a read", "short waits", "quiet before"])
def test_after_a_wait_with_a_known_end_the_limit_counts_anew(then: dict[str, float]) -> None:
    """A client that was told to wait asks again, and its answer takes a while: of the moment between two waits nothing
    need have been measured. Such a job was restarted, for it had been idle for as long as it slept."""
    w = Watched()
    assert "end" not in w.run(8.0, until=w.now + 8.0)
    assert "end" not in w.run(6.0, still=8.0, **then)
    assert "end" in w.run(0.5, still=14.0, **then)
    assert w.last is not None
    assert "idle for 6 s" in w.last.text


def test_waits_with_known_ends_have_until_the_pause_limit_together() -> None:
    w, still = Watched(), 0.0
    for _ in range(3):
        assert "end" not in w.run(5.0, still=still, until=w.now + 5.0)
        still += 5.0
    assert "end" in w.run(7.0, still=still, until=w.now + 5.0)


def test_no_pause_outlasts_the_pause_limit_by_small_movements() -> None:
    """Busy for a moment now and then, idle between: neither limit alone would end it."""
    w = Watched()
    assert "end" not in w.run(19.0, quiet=1.0)
    assert "end" in w.run(2.0, still=19.0, quiet=1.0)


def test_what_ended_by_itself_is_learned_for_its_place_and_kept() -> None:
    w = Watched()
    w.run(4.0)
    assert w.moves() == ["Say", "Record"]
    assert w.job.pauses == {"train.py:8 main": [0.0, pytest.approx(4.5)]}
    assert Job.from_doc(w.job.to_doc()).pauses == w.job.pauses
    assert w.run(8.5) == ["job.paused", "alert"]  # longer than half of twice as long ago
    w.moves()
    assert w.run(8.0) == ["job.paused"]  # as long as last time sends no alert


def test_a_job_that_was_stopped_in_a_pause_teaches_the_next_one_nothing() -> None:
    w = Watched()
    w.run(4.0)
    assert w.watch.of(w.job) is not None
    assert w.watch.of(dataclasses.replace(w.job, generation=2)) is None
    w.job = dataclasses.replace(w.job, spec=dataclasses.replace(w.job.spec, id="j2"))
    assert w.watch.of(w.job) is None
    assert w.moves() == []
    assert w.job.pauses == {}


def test_an_ended_pause_says_what_it_rests_on_and_doubles() -> None:
    w = Watched()
    w.run(7.0)
    w = Watched(pauses={"train.py:8 main": [1.0, 0.0]})
    assert "end" not in w.run(11.0)
    w.run(1.5, still=11.0)
    assert w.last is not None
    assert "the limit of 12 s (--idle-limit); restarted 1 times at this place" in w.last.text
    assert w.last.evidence["life"] == "idle"


def test_stacks_that_change_are_a_movement() -> None:
    def seen_at(w: Watched, line: str) -> None:
        stacks = [Stack((5,), "main", ("train.py:8 main", line))]
        w.watch.saw_stacks(stacks, Instant(w.now, w.now))

    w = Watched()
    w.run(4.0)
    seen_at(w, "a.py:1 poll")
    assert "end" not in w.run(1.5, still=4.0)
    seen_at(w, "a.py:7 poll")
    assert "end" not in w.run(5.5, still=5.5)
    assert "end" in w.run(1.0, still=11.0)
    same = Watched()
    same.run(4.0)
    seen_at(same, "a.py:1 poll")
    same.run(1.5, still=4.0)
    seen_at(same, "a.py:1 poll")
    assert "end" in same.run(1.0, still=5.5)


def test_what_speaks_against_the_program_counts_against_no_node() -> None:
    def hang(reason: str, life: str = "dead") -> Finding:
        evidence = {"reason": reason, "life": life}
        return Finding(
            t.FindingKind.WORKER_HANG,
            t.Severity.CRITICAL,
            "rank5",
            "",
            0.0,
            0.0,
            node="node1",
            rank=5,
            evidence=evidence,
        )

    assert [policy.counts_against(hang(reason)) for reason in ("order", "gone", "lock", "mismatch")] == [False] * 4
    assert [policy.counts_against(hang("outside", life)) for life in ("busy", "idle", "held")] == [False] * 3


def test_every_module_between_the_interpreter_and_the_script_is_known_as_none_of_its() -> None:
    """A place is where the script stands: frames of the fork server before it are left out, by file name."""
    names = {loader.rstrip(":") for loader in places._LOADERS}
    folder = Path(bootstrap.__file__).parent
    assert {"bootstrap.py", "fork_server.py", "forked_children.py", "forked_workers.py", "server_forks.py"} <= names
    assert all((folder / name).exists() for name in names if name.startswith(("fork", "boot", "server")))
