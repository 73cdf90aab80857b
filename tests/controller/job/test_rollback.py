"""Going back to an earlier checkpoint: when, how far, and never in a circle."""

import pytest

from holdfast.base.errors import UsageError
from holdfast.controller.detectors.base.table import Tuning
from holdfast.controller.detectors.workers.spikes import SpikeDetector
from holdfast.controller.state.events import FrameSeen
from holdfast.controller.state.goodput import Account
from holdfast.controller.state.incidents import IncidentState
from holdfast.controller.state.model import JobStatus, Options
from holdfast.wire import types as t
from holdfast.wire.rollback import Rollback, counts, from_environment, to_text
from tests.controller.support.virtual import Virtual, training, trains_again


def report(v: Virtual, step: int, loss: float, rank: int = 6) -> None:
    """One worker ends a step with this loss."""
    record = t.StepRecord(rank, v.job.generation, step, int(v.instant.wall * 1e9), v.step_seconds, loss)
    node = v.job.node_of(rank)
    v.feed(FrameSeen(node, t.Frame(1, int(v.instant.wall * 1e9), int(v.now * 1e9), steps=(record,))))


def stored(v: Virtual, steps: int) -> None:
    """The store has the state after so many steps."""
    host = {"snapshot_step": float(v.job.best_step + 1), "checkpoint_step": float(steps)}
    v.feed(FrameSeen("node0", t.Frame(1, int(v.instant.wall * 1e9), int(v.now * 1e9), host=host)))


def train_to(v: Virtual, step: int) -> None:
    v.run_until(lambda: v.job.best_step >= step)


def test_what_comes_again_from_the_newest_state_goes_back_to_an_older_one() -> None:
    v = training()
    train_to(v, 30)
    stored(v, 30)
    bad = v.job.best_step + 1
    report(v, bad, float("inf"))
    v.run(0.05)
    assert (v.incidents[-1].action, v.rollbacks) == ("restart", ())
    report(v, bad, float("inf"))
    v.run(0.05)
    assert v.rollbacks == (Rollback(bad - 10, 3),)
    assert "the newest state leads to it again" in v.incidents[-1].reason
    assert f"rolling back to a checkpoint of at most {bad - 10} steps" in v.incidents[-1].reason
    v.run(6.0)
    last = v.incidents[-1]
    assert (last.action, last.state) == ("roll-back", IncidentState.CLOSED)
    assert last.step_resumed == (bad - 10) // v.checkpoint_every * v.checkpoint_every
    assert v.job.state is JobStatus.RUNNING
    train_to(v, bad + 5)
    # A later restart is again given the steps not to go on from.
    v.exit(3, signal=9)
    v.run(0.05)
    assert v.rollbacks == (Rollback(bad - 10, 3),)
    trains_again(v, 4)


def test_a_third_time_ends_the_job() -> None:
    v = training()
    train_to(v, 20)
    stored(v, 20)
    bad = v.job.best_step + 1
    for _ in range(2):
        report(v, bad, float("inf"))
        v.run(0.05)
    v.run(1.0)
    report(v, v.job.life_last + 1, float("inf"))
    v.run(1.0)
    assert v.job.state is JobStatus.FAILED
    assert [incident.action for incident in v.incidents] == ["roll-back", "stop-job"]


def test_without_a_checkpoint_there_is_nothing_to_go_back_to() -> None:
    v = training()
    bad = v.job.best_step + 1
    for _ in range(2):
        report(v, bad, float("inf"))
        v.run(0.05)
    assert v.rollbacks == ()


def test_a_loss_that_is_not_finite_is_no_progress() -> None:
    """With a permanently bad state every step is bad: the job does not advance from restart to restart."""
    v = training()
    bad = v.job.best_step + 1
    for life in range(3):
        assert v.job.state is JobStatus.RUNNING
        report(v, bad + life, float("inf"))
        v.run(0.25)
    v.run(1.0)
    assert v.job.state is JobStatus.FAILED


SPIKE = Options(detectors=("loss-spike.action=roll-back",))


def leap(v: Virtual) -> int:
    """Three steps with a loss far above all before; the last of them."""
    first = v.job.best_step + 1
    for step in range(first, first + 3):
        for rank in range(8):
            report(v, step, 30.0, rank)
    return first + 2


def spiking(options: Options) -> Virtual:
    v = Virtual(options=options)
    v.submit(nnodes=2)
    v.run(3.0)
    train_to(v, 40)
    stored(v, 40)
    return v


def test_a_leap_of_the_loss_goes_back_where_that_is_wished() -> None:
    v = spiking(SPIKE)
    seen = leap(v)
    v.run(0.05)
    assert v.rollbacks == (Rollback(seen - 10, 2),)
    v.run(6.0)
    assert [(i.action, i.cause.kind) for i in v.incidents] == [("roll-back", t.FindingKind.LOSS_SPIKE)]
    assert v.incidents[0].state is IncidentState.CLOSED
    assert v.brain.jobs.newest.c.time.totals(v.instant.wall)[Account.RECOMPUTE] > 0


def test_a_leap_that_comes_again_at_the_same_place_is_only_reported() -> None:
    v = spiking(SPIKE)
    seen = leap(v)
    v.run(0.05)
    train_to(v, seen + 2)
    v.run(8.0)
    finding = SpikeDetector(Tuning(), t.FindingKind.LOSS_SPIKE, "loss")
    for step in range(seen + 10):
        found = finding.observe(step, 30.0 if step > seen + 6 else 1.0 + step % 2 / 100, v.instant)
    v.brain.jobs.newest.recovery.found(found[0], v.instant)
    assert [i.action for i in v.incidents] == ["roll-back", "alert"]
    assert "it repeated" in v.incidents[-1].reason
    assert v.job.generation == 2


def test_a_leap_is_only_reported_by_default_and_without_a_checkpoint() -> None:
    for options, have in ((Options(), True), (SPIKE, False)):
        v = Virtual(options=options)
        v.submit(nnodes=2)
        v.run(3.0)
        train_to(v, 40)
        if have:
            stored(v, 40)
        leap(v)
        v.run(2.0)
        assert [i.action for i in v.incidents] == ["alert"]
        assert v.job.generation == 1


def test_a_leap_ends_no_job_that_may_not_be_restarted() -> None:
    v = Virtual(options=SPIKE)
    v.submit(nnodes=2, max_restarts=0)
    v.run(3.0)
    train_to(v, 40)
    stored(v, 40)
    leap(v)
    v.run(2.0)
    assert v.job.state is JobStatus.RUNNING
    assert [i.action for i in v.incidents] == ["alert"]


def test_only_spikes_can_be_set_to_go_back() -> None:
    with pytest.raises(UsageError, match=r"gpu-throttle\.action=roll-back.*: action must be act, alert or off"):
        Tuning(["gpu-throttle.action=roll-back"])
    with pytest.raises(UsageError, match="act, alert, roll-back or off, not 'back'"):
        Tuning(["loss-spike.action=back"])


def test_a_controller_that_comes_back_remembers_it() -> None:
    v = spiking(SPIKE)
    seen = leap(v)
    v.run(0.05)
    v.restart_controller()
    v.run(2.0)
    v.exit(1, signal=9)
    v.run(0.05)
    assert v.rollbacks == (Rollback(seen - 10, 2),)


def test_what_counts_after_going_back() -> None:
    backs = (Rollback(20, 3), Rollback(90, 7))
    assert from_environment({"HOLDFAST_ROLLBACKS": to_text(backs)}) == backs
    assert from_environment({}) == ()
    assert [counts(backs, *one) for one in ((20, 1), (21, 2), (21, 3), (91, 6), (91, 7))] == [
        True,
        False,
        True,
        False,
        True,
    ]
    assert counts((), 5, 0)


def test_steps_that_were_saved_and_left_behind_are_no_longer_productive() -> None:
    v = training()
    time = v.brain.jobs.newest.c.time
    stored(v, v.job.best_step + 1)
    before = time.totals(v.instant.wall)[Account.PRODUCTIVE]
    assert before > 0
    time.resumed(3)
    after = time.totals(v.instant.wall)
    assert after[Account.PRODUCTIVE] < before
    assert time.safe == 2
    assert sum(after.values()) == pytest.approx(time.wall(v.instant.wall))
