"""Every second of a job is booked once: as productive, as not yet safe, or as a loss with a name."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.controller.state.events import FrameSeen
from holdfast.controller.state.goodput import DAY, HOUR, LOSSES, Account, Goodput
from holdfast.controller.state.model import JobStatus
from holdfast.wire import types as t
from tests.controller.support.virtual import STEP, Virtual, training, trains_again

T0 = 1_000_000.0


def sums_up(time: Goodput, wall: float) -> None:
    totals = time.totals(wall)
    assert sum(totals.values()) == pytest.approx(time.wall(wall), rel=1e-3, abs=1e-6)
    assert all(seconds >= -1e-6 for seconds in totals.values()), totals


HAPPENINGS = st.one_of(
    st.tuples(st.just("step"), st.floats(0.0, 5.0), st.integers(0, 30)),
    st.tuples(st.just("fault"), st.floats(0.0, 5.0), st.sampled_from([Account.EVICT, Account.DIAGNOSE])),
    st.tuples(st.just("switch"), st.floats(0.0, 5.0), st.sampled_from([Account.STARTING, Account.RESTORE])),
    st.tuples(st.just("saved"), st.floats(0.0, 1.0), st.integers(0, 30)),
    st.tuples(st.just("resumed"), st.floats(0.0, 1.0), st.integers(0, 30)),
    st.tuples(st.just("journal"), st.floats(0.0, 1.0), st.none()),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(HAPPENINGS, max_size=60), st.floats(0.0, 3.0), st.booleans())
def test_all_accounts_add_up_to_wall_time(happenings: list[tuple[str, float, object]], skew: float, ends: bool) -> None:
    """Whatever happens in whatever order, with clocks that differ and a controller that dies."""
    time, now = Goodput(), T0
    time.begin(now)
    for what, later, value in happenings:
        now += later
        match what:
            case "step":
                time.step(int(value), 0.7, now - skew, now)  # type: ignore[call-overload]
            case "fault":
                time.fault(now - skew, now, value)  # type: ignore[arg-type]
            case "switch":
                time.switch(value, now)  # type: ignore[arg-type]
            case "saved":
                time.saved(int(value))  # type: ignore[call-overload]
            case "resumed":
                time.resumed(int(value))  # type: ignore[call-overload]
            case "journal":
                time = Goodput.from_doc(time.to_doc())
        sums_up(time, now)
    if ends:
        time.end(now, finished=True)
        sums_up(time, now + 100.0)
        assert time.booked[Account.TRAINING] == 0.0


def test_a_step_is_productive_when_it_is_saved_and_lost_when_it_was_not() -> None:
    time = Goodput()
    time.begin(T0)
    time.saved(-1)
    time.switch(Account.STARTING, T0)
    for i in range(10):
        time.step(i, 1.0, T0 + 3 + i, T0 + 3 + i)
    assert time.booked[Account.STARTING] == pytest.approx(2.0)
    assert time.booked[Account.PRODUCTIVE] == 0.0
    time.saved(4)
    assert time.booked[Account.PRODUCTIVE] == pytest.approx(5.0)
    time.fault(T0 + 12.5, T0 + 13.0, Account.EVICT)
    time.switch(Account.RESTORE, T0 + 14.0)
    time.resumed(5)
    time.step(5, 1.0, T0 + 17.0, T0 + 17.0)
    assert time.booked[Account.RECOMPUTE] == pytest.approx(5.5)  # five steps, and half of the one that was cut off
    assert time.booked[Account.DETECT] == pytest.approx(0.5)
    assert time.booked[Account.EVICT] == pytest.approx(1.0)
    assert time.booked[Account.RESTORE] == pytest.approx(2.0)
    time.end(T0 + 17.0, finished=True)
    assert time.booked[Account.PRODUCTIVE] == pytest.approx(6.0)
    assert time.ratio(T0 + 99) == pytest.approx(6 / 17)


def test_pauses_and_stragglers_have_names() -> None:
    time = Goodput()
    time.begin(T0)
    wall = T0
    for i in range(20):
        wall += 1.0
        time.step(i, 1.0, wall, wall)
    time.step(20, 1.0, wall + 1.5, wall + 1.5)  # half a second that is no step's
    time.step(21, 3.0, wall + 4.5, wall + 4.5)
    assert time.booked[Account.CHECKPOINT] == pytest.approx(0.5)
    assert time.booked[Account.STRAGGLING] == pytest.approx(1.9)
    time.aside = True
    time.step(22, 1.0, wall + 7.5, wall + 7.5)
    assert time.booked[Account.OTHER] == pytest.approx(2.0)


def test_an_evaluation_is_no_straggler() -> None:
    """Of a script that names its phases, and of one that does not: then the step with the evaluation in it is long."""
    for names, evaluation in ((True, 3.0), (False, 40.0)):
        time, wall = Goodput(), T0
        time.begin(T0)
        for i in range(40):
            evaluates = i in (10, 20, 30)
            seconds = 1.0 + evaluates * evaluation
            wall += seconds
            time.aside = names and evaluates
            time.step(i, seconds, wall, wall)
        assert time.booked[Account.OTHER] == pytest.approx(3 * evaluation, abs=0.4)
        assert time.booked[Account.STRAGGLING] == 0.0


def test_a_rank_that_stays_slow_is_a_straggler() -> None:
    """However slow: a pause is over after one step."""
    time, wall = Goodput(), T0
    time.begin(T0)
    for i in range(30):
        seconds = 1.0 if i < 20 else 8.0
        wall += seconds
        time.step(i, seconds, wall, wall)
    assert time.booked[Account.STRAGGLING] > 9 * 6.8
    assert time.booked[Account.OTHER] < 7.0


def test_time_in_the_queue_is_no_part_of_the_goodput() -> None:
    time = Goodput()
    time.begin(T0)
    time.switch(Account.QUEUED, T0)
    time.switch(Account.STARTING, T0 + 100.0)
    for i in range(8):
        time.step(i, 1.0, T0 + 103.0 + i, T0 + 103.0 + i)
    before, recent = time.ratio(T0 + 110.0), time.recent_ratio(T0 + 110.0, HOUR)
    assert before == pytest.approx(0.8)
    assert recent == pytest.approx(1.0)
    time.fault(T0 + 110.0, T0 + 110.0, Account.QUEUED)
    assert (time.ratio(T0 + 500.0), time.recent_ratio(T0 + 500.0, HOUR)) == (before, recent)
    sums_up(time, T0 + 500.0)
    time = Goodput.from_doc(time.to_doc())
    time.switch(Account.STARTING, T0 + 1000.0)
    assert time.booked[Account.QUEUED] == pytest.approx(990.0)
    assert Account.QUEUED not in LOSSES


def whole(v: Virtual) -> dict[Account, float]:
    sums_up(v.brain.jobs.newest.c.time, v.instant.wall)
    return v.brain.jobs.newest.c.time.totals(v.instant.wall)


def test_a_fault_costs_detection_and_recovery_and_what_is_done_again() -> None:
    v = training()
    v.run_until(lambda: v.job.best_step == 12)  # it goes back to step 10
    frame = t.Frame(1, int(v.instant.wall * 1e9), int(v.now * 1e9), host={"snapshot_step": 5.0, "checkpoint_step": 5.0})
    v.feed(FrameSeen("node0", frame))
    v.exit(3, signal=9)
    trains_again(v, 2)
    totals = whole(v)
    assert totals[Account.RECOMPUTE] > 0
    assert totals[Account.PRODUCTIVE] > 0
    assert totals[Account.TRAINING] > 5  # nothing was saved since
    assert 0 < sum(totals[a] for a in LOSSES) < 3


def test_a_controller_that_was_away_books_what_it_missed() -> None:
    v = training()
    v.restart_controller(away=STEP)
    v.run(3.0)
    totals = whole(v)
    assert sum(totals[a] for a in LOSSES) < 1.0
    v.exit(3, signal=9)
    v.restart_controller(away=1.0)
    trains_again(v, 2)
    whole(v)


def test_the_share_of_a_window_leaves_out_what_was_before_it() -> None:
    time = Goodput()
    time.begin(T0)
    for i in range(3600):
        time.step(i, 1.0, T0 + 1.0 + i, T0 + 1.0 + i)
    time.fault(T0 + 3600.0, T0 + 3600.0, Account.RESTORE)
    for i in range(1800):
        time.step(3600 + i, 1.0, T0 + 5401.0 + i, T0 + 5401.0 + i)
    assert time.recent_ratio(T0 + 7200.0, DAY) == pytest.approx(5400 / 7200, abs=0.01)
    assert time.recent_ratio(T0 + 7200.0, HOUR) == pytest.approx(0.5, abs=0.01)
    for i in range(100):  # of what is older than a day nothing is kept
        time.step(5400 + i, 1.0, T0 + 200_000.0 + i, T0 + 200_000.0 + i)
    assert time.samples[0][0] >= T0 + 200_000.0


def test_quiet_training_is_productive() -> None:
    v = training()
    v.run(60.0)
    ratio, recent = (
        v.brain.jobs.newest.c.time.ratio(v.instant.wall),
        v.brain.jobs.newest.c.time.recent_ratio(v.instant.wall, HOUR),
    )
    assert ratio is not None
    assert recent is not None
    assert ratio > 0.9  # virtual time goes by in ticks, a step does not
    assert recent > 0.9


def test_a_job_that_is_over_stands_still() -> None:
    v = Virtual()
    v.last_step = 9
    v.submit()
    v.run(10.0)
    assert v.job.state is JobStatus.FINISHED
    ratio = v.brain.jobs.newest.c.time.ratio(v.instant.wall)
    v.run(10.0)
    assert v.brain.jobs.newest.c.time.ratio(v.instant.wall) == ratio
    whole(v)
