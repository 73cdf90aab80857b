"""A program without step numbers: what counts as progress, when it is marked failed, and what is unknown."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.controller.state.events import EventSeen, FrameSeen
from holdfast.controller.state.incidents import Incident
from holdfast.controller.state.model import Job, JobStatus
from holdfast.controller.state.progress import FEW_STEPS, STARTUP_S, Progress
from holdfast.wire import types as t
from tests.controller.support.virtual import STEP, Virtual

BUG = 'Traceback (most recent call last):\n  File "train.py", line 3, in main\nValueError: a bug'


def counted(**more: object) -> Virtual:
    v = Virtual()
    v.counts_from_zero = True
    v.submit(**more)
    v.run(3.0)
    assert v.job.state is JobStatus.RUNNING
    assert v.job.progress.counted
    return v


def spoilt(v: Virtual) -> None:
    """The hook reports that the parameters of rank 0 hold NaN."""
    wall = int(v.instant.wall * 1e9)
    record = t.StepRecord(0, v.job.generation, v.job.life_steps, wall, STEP, t.SPOILT, 0, True)
    v.feed(FrameSeen("node0", t.Frame(1, wall, 1, steps=(record,))))


def patterns(v: Virtual) -> list[Incident]:
    return [i for i in v.incidents if i.cause.kind is t.FindingKind.LIVES_ALIKE]


def saw(v: Virtual, source: str, number: int = -1, count: int = 1, text: str = "out/checkpoint-40") -> None:
    event = t.ProgressSeen(v.job.spec.id, v.job.generation, 0, int(v.instant.wall * 1e9), source, number, count, text)
    v.feed(EventSeen("node0", event))


def test_it_may_be_killed_often_while_its_runs_are_longer_than_a_start() -> None:
    v = counted()
    for generation, life in enumerate((2.0, 3.5, 2.2, 4.0, 2.5, 3.7, 2.0, 4.2), start=2):
        v.exit(2, signal=9)
        v.run(life)
        assert v.job.state is JobStatus.RUNNING
        assert v.job.generation == generation


def test_equally_long_attempts_are_reported_and_not_ended() -> None:
    v = counted()
    for generation in range(2, 9):
        v.exit(2, code=1, error=BUG)
        v.run_until(lambda generation=generation: v.job.generation == generation and v.job.life_steps >= 10)
    assert v.job.state is JobStatus.RUNNING
    first, second = patterns(v)
    assert first.action == "alert"
    assert "the last 3 restart attempts ended alike after" in first.cause.text
    assert "ValueError: a bug" in first.cause.text
    assert "none of them finished a checkpoint" in first.cause.text
    assert "the last 6 restart attempts" in second.cause.text


def test_such_a_loop_ends_with_the_restarts_that_the_job_may_have() -> None:
    v = counted(max_restarts=4)
    for generation in range(2, 7):
        v.exit(2, code=1, error=BUG)
        v.run_until(lambda generation=generation: v.job.generation == generation or v.job.state.ended)
        v.run_until(lambda: v.job.life_steps >= 10 or v.job.state.ended)
    assert v.job.state is JobStatus.FAILED
    assert v.job.restarts == 4
    assert "has used its 4 restarts" in v.job.reason


def test_the_same_error_within_few_steps_of_the_start_ends_it() -> None:
    v = counted()
    for _ in range(4):
        v.exit(2, code=1, error=BUG)
        if v.job.state.ended:
            break
        v.run_until(lambda: v.job.life_steps >= 2)
    assert v.job.state is JobStatus.FAILED
    assert "ValueError" in v.job.reason


def test_short_attempts_that_save_go_on() -> None:
    v = counted()
    for _ in range(7):
        v.exit(2, code=1, error=BUG)
        v.run_until(lambda: v.job.life_steps >= 2)
        saw(v, "checkpoint", text="last.pt")
    assert v.job.state is JobStatus.RUNNING
    assert "each of them finished a checkpoint" in patterns(v)[-1].cause.text


def test_short_attempts_that_save_the_same_step_again_do_not() -> None:
    v = counted()
    for _ in range(5):
        v.exit(2, code=1, error=BUG)
        if v.job.state.ended:
            break
        v.run_until(lambda: v.job.life_steps >= 2)
        saw(v, "checkpoint", 40)
    assert v.job.state is JobStatus.FAILED


def test_a_loop_of_attempts_that_save_says_that_they_do() -> None:
    v = counted()
    for _ in range(4):
        saw(v, "checkpoint", 40, 2)
        v.exit(2, signal=9)
        v.run_until(lambda: v.job.life_steps >= 10)
    (reported,) = patterns(v)
    assert "each of them finished a checkpoint" in reported.cause.text
    assert v.job.progress.reported == "checkpoint out/checkpoint-40"


def test_attempts_without_progress_are_counted_and_one_that_gets_further_begins_anew() -> None:
    progress = Progress(counted=True)
    for generation, (steps, seconds, save, idle) in enumerate(
        [
            (12, 1.0, -1, 1),  # the first
            (12, 1.0, -1, 2),
            (9, 1.0, -1, 3),
            (12, 1.0, -1, 4),
            (13, 1.0, -1, 1),  # more steps
            (13, 1.0, -1, 2),
            (13, 1.0, 10, 1),  # a newer checkpoint
            (13, 1.0, 10, 2),  # the same one again
            (13, STARTUP_S + 1.0, -1, 1),  # minutes of work
            (13, 1.0, -1, 2),
        ],
        1,
    ):
        progress.launch(generation, 0, 0.0)
        if save >= 0:
            progress.saw("checkpoint", save, 1, "x")
        progress.count_idle(progress.end(generation, "x", steps, seconds), by_steps=False, is_newer=False)
        assert progress.idle == idle, generation


def test_what_was_saved_with_nan_is_no_progress() -> None:
    progress = Progress(counted=True, idle=1, longest=12)
    progress.saw("checkpoint", 40, 1, "x")
    progress.count_idle(progress.end(2, "x", 12, 1.0), by_steps=True, is_newer=False)
    assert progress.idle == 2


def test_printed_numbers_are_progress_of_a_program_whose_steps_are_unseen() -> None:
    progress = Progress()
    for generation in range(1, 9):
        progress.launch(generation, 0, 100.0 * generation)
        progress.saw("log", 10 * generation, 3, f"step {10 * generation}")
        assert not progress.ended_at_its_start(progress.end(generation, "x", 0, 100.0 * generation + 20))
    progress.launch(9, 0, 900.0)
    progress.saw("log", 12, 2, "step 12")  # again
    assert progress.ended_at_its_start(progress.end(9, "x", 0, 910.0))


def test_a_long_attempt_without_a_step_is_a_start_up_only_where_steps_are_seen_otherwise() -> None:
    silent, stepping = Progress(), Progress(counted=True)
    for progress in (silent, stepping):
        progress.launch(2, 0, 0.0)
    assert not silent.ended_at_its_start(silent.end(2, "x", 0, STARTUP_S + 1))
    assert stepping.ended_at_its_start(stepping.end(2, "x", 0, STARTUP_S + 1))


def test_starts_that_the_program_ends_with_another_error_each_time_are_given_up() -> None:
    v = Virtual()
    v.counts_from_zero = True
    v.submit()
    for life in range(5):
        v.run_until(lambda life=life: v.job.generation == life + 1 and v.job.state is JobStatus.RUNNING)
        v.exit(0, code=1, error=BUG.replace("ValueError: a bug", ("KeyError", "OSError", "E", "F", "G")[life] + ": x"))
    v.run(1.0)
    assert v.job.state is JobStatus.FAILED
    assert "5 restart attempts in a row ended before the first step" in v.job.reason


def test_steps_are_added_up_over_attempts_and_none_of_them_is_called_repeated() -> None:
    v = counted()
    before = v.job.best_step
    assert before >= 6
    v.exit(2, signal=9)
    v.run_until(lambda: v.job.generation == 2 and v.job.life_steps >= 4)
    assert v.job.best_step == before + v.job.life_steps
    rows = v.brain.jobs.newest.c.ledger.sorted_rows()
    assert [row.step for row in rows] == list(range(len(rows)))
    assert {row.generation for row in rows[: before + 1]} == {1}
    assert v.brain.jobs.newest.c.ranks.step.max() == v.job.best_step
    incident = v.incidents[-1]
    assert (incident.state.value, incident.step_resumed, incident.generation_to) == ("closed", None, 2)
    assert not v.job.is_repeat_known


def test_a_controller_that_comes_back_counts_on() -> None:
    v = counted()
    v.exit(2, signal=9)
    v.run_until(lambda: v.job.generation == 2 and v.job.life_steps >= 8)
    best, life = v.job.best_step, v.job.life_steps
    saw(v, "checkpoint")
    v.restart_controller()
    assert v.job.progress.counted
    assert v.job.progress.saves == 1
    v.run_until(lambda: v.job.best_step > best + 2)
    assert v.job.life_steps >= life + 2  # else its next fault would seem to be at the start of an attempt
    steps = sorted(row.step for row in v.brain.jobs.newest.c.ledger.sorted_rows())
    assert steps == list(range(v.job.best_step + 1))


def test_last_words_of_an_earlier_attempt_keep_their_place() -> None:
    v = counted()
    v.exit(2, signal=9)
    v.run_until(lambda: v.job.generation == 2 and v.job.life_steps >= 3)
    best = v.job.best_step
    late = t.StepRecord(0, 1, 0, int(v.instant.wall * 1e9), STEP, is_counted=True)
    v.brain.jobs.newest.frames.step(late, "node0", v.instant)
    assert v.job.best_step == best
    assert v.brain.jobs.newest.c.ledger.rows[0].generation == 1


def test_a_script_that_numbers_its_steps_after_the_hook_saw_one_numbers_them_itself() -> None:
    """As seen: each attempt's first step comes from the hook, without a loss, and again from the script, with one."""
    v = counted()
    v.exit(2, signal=9)
    v.run_until(lambda: v.job.generation == 2 and v.job.life_steps >= 1)
    wall = int(v.instant.wall * 1e9)
    v.feed(FrameSeen("node0", t.Frame(1, wall, 1, steps=(t.StepRecord(0, 2, 0, wall, STEP, 2.5),))))
    assert (v.job.progress.counted, v.job.progress.bases) == (False, [])
    row = v.brain.jobs.newest.c.ledger.rows[0]
    assert (row.loss, row.generation) == (2.5, 2)
    assert v.saved["job", v.job.spec.id]["progress"]["counted"] is False


def test_after_a_restart_it_is_only_known_which_step_of_this_life_it_is_at() -> None:
    v = counted()
    assert v.job.step_of_life is None  # the first attempt began at 0, as its job
    done = v.job.best_step + 1
    v.exit(2, signal=9)
    v.run_until(lambda: v.job.generation == 2)
    assert v.job.step_of_life == -1
    v.run_until(lambda: v.job.life_steps >= 3)
    assert v.job.step_of_life == 2
    assert v.job.best_step == done + 2
    assert Job.from_doc(v.job.to_doc()).step_of_life == 2


def test_a_program_that_numbers_its_steps_is_at_a_step_of_the_job() -> None:
    v = Virtual()
    v.submit()
    v.run(3.0)
    v.exit(2, signal=9)
    v.run_until(lambda: v.job.generation == 2 and v.job.life_steps >= 2)
    assert v.job.step_of_life is None


def test_a_job_written_by_another_version_is_read() -> None:
    v = counted()
    doc = v.job.to_doc() | {"life_before": 3}
    del doc["progress"]
    assert Job.from_doc(doc).progress == Progress()


ATTEMPTS = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(0, 200), st.floats(0, 1000), st.integers(0, 2)),
    min_size=1,
    max_size=40,
)


@given(ATTEMPTS)
def test_any_attempts_add_up_and_patterns_are_of_attempts_alike(attempts: list[tuple[str, int, float, int]]) -> None:
    progress, done, wall = Progress(counted=True), 0, 0.0
    for generation, (signature, steps, seconds, saves) in enumerate(attempts, start=1):
        progress.launch(generation, done, wall)
        assert progress.base(generation) == done
        if saves:
            progress.saw("checkpoint", -1, saves, "x")
        life = progress.end(generation, signature, steps, wall + seconds)
        if saves or steps > FEW_STEPS:
            assert not progress.ended_at_its_start(life)
        else:
            assert progress.ended_at_its_start(life)
        row = progress.pattern()
        assert not row or (len(row) >= 3 and len({one.signature for one in row}) == 1)
        assert Progress.from_doc(dataclasses.asdict(progress)) == progress
        done, wall = done + steps, wall + seconds + 1


@pytest.mark.parametrize("count", range(1, 30))
def test_a_pattern_is_reported_whenever_it_has_doubled(count: int) -> None:
    progress = Progress(counted=True)
    reported = []
    for generation in range(1, count + 1):
        progress.launch(generation, 0, 0.0)
        progress.end(generation, "x", 100, 50.0)
        if progress.pattern():
            reported.append(generation)
    assert reported == [n for n in (3, 6, 12, 24) if n <= count]


def test_a_nan_that_was_saved_is_no_progress() -> None:
    """Each attempt begins with it: no step is reported until it is sure, and what it saved and printed is of no use."""
    v = counted()
    spoilt(v)
    for generation in (2, 3):
        v.run_until(lambda generation=generation: v.job.generation == generation and v.job.life_steps >= 1)
        saw(v, "checkpoint", 100 + generation)
        saw(v, "log", 100 + generation, count=20, text="step 100 loss nan")
        spoilt(v)
    v.run(1.0)
    assert v.job.state is JobStatus.FAILED
    assert v.job.reason.startswith("loss-nonfinite 3 times without progress: the parameters are not finite: at step ")


def test_a_nan_after_many_steps_is_found_again_and_again() -> None:
    v = counted()
    for generation in range(2, 7):
        spoilt(v)
        v.run_until(lambda generation=generation: v.job.generation == generation and v.job.life_steps > FEW_STEPS)
    assert v.job.state is JobStatus.RUNNING
