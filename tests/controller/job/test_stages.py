"""The table of stages: complete, reachable, without dead rows, and an illegal event leaves the stage as it is."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.controller.job.stages import (
    HISTORY,
    TRANSITIONS,
    IllegalTransitionError,
    Stage,
    StageEvent,
    StageMachine,
    Transition,
)
from holdfast.controller.state.events import FrameSeen, ResultSeen, Send, StopRequested
from holdfast.controller.state.model import JobStatus, Options
from holdfast.wire import messages as msg
from holdfast.wire import types as t
from tests.controller.support.virtual import Virtual, training

PAIRS = [(stage, event) for stage in Stage for event in StageEvent]


@pytest.mark.parametrize(("stage", "event"), PAIRS)
def test_every_pair_is_in_the_table_or_raises_and_changes_nothing(stage: Stage, event: StageEvent) -> None:
    machine = StageMachine(stage)
    if (stage, event) in TRANSITIONS:
        machine.apply(event)
        assert machine.stage is TRANSITIONS[stage, event]
        return
    with pytest.raises(IllegalTransitionError):
        machine.apply(event)
    assert machine.stage is stage
    assert machine.history == ()


@given(st.lists(st.sampled_from(StageEvent), max_size=60))
def test_any_events_follow_the_table_and_the_history_is_bounded(events: list[StageEvent]) -> None:
    machine = StageMachine()
    taken: list[Transition] = []
    for event in events:
        before = machine.stage
        if (before, event) in TRANSITIONS:
            machine.apply(event)
            taken.append(Transition(before, event, machine.stage))
            assert machine.stage is TRANSITIONS[before, event]
            continue
        with pytest.raises(IllegalTransitionError) as caught:
            machine.apply(event)
        assert machine.stage is before
        assert caught.value.history == tuple(taken[-HISTORY:])
    assert machine.history == tuple(taken[-HISTORY:])


def test_every_stage_is_reachable() -> None:
    reached, edge = set(), {Stage.IDLE}
    while edge:
        reached |= edge
        edge = {after for (before, _), after in TRANSITIONS.items() if before in edge} - reached
    assert reached == set(Stage)


def test_an_illegal_event_names_the_stage_and_what_led_there() -> None:
    machine = StageMachine()
    with pytest.raises(IllegalTransitionError, match=r"event gone is illegal in stage idle; .*: none"):
        machine.apply(StageEvent.GONE)
    machine.apply(StageEvent.BEGIN)
    machine.apply(StageEvent.END)
    path = "idle -begin-> draining, draining -end-> ending"
    with pytest.raises(IllegalTransitionError, match=rf"event begin is illegal in stage ending; .*: {path}"):
        machine.apply(StageEvent.BEGIN)


# --- no dead rows: for each row a job that takes it ----------------------------------------------------------------


class Deaf(Virtual):
    """Orders of these types are lost."""

    lost: tuple[type[msg.Order], ...] = ()

    def _deliver(self, send: Send) -> ResultSeen | None:
        return None if isinstance(send.command.order, self.lost) else super()._deliver(send)


def submitted(*lost: type[msg.Order], options: Options | None = None) -> Deaf:
    v = Deaf(options=options)
    v.lost = lost
    v.submit()
    v.run(1.0)
    return v


def stopped(v: Virtual, times: int = 1) -> Virtual:
    for _ in range(times):
        v.feed(StopRequested(0.0))
    return v


def restarted(v: Virtual) -> Virtual:
    v.restart_controller()
    v.run(1.0)
    return v


def in_vain(v: Virtual) -> Virtual:
    v.run(5.0)
    return v


def with_a_failure(v: Virtual) -> Virtual:
    v.exit(3, signal=9)
    return v


EAGER = Options(start_timeout=2.0, stop_timeout=2.0)

STORIES: dict[tuple[Stage, StageEvent], Callable[[], Virtual]] = {
    (Stage.IDLE, StageEvent.BEGIN): submitted,
    (Stage.IDLE, StageEvent.END): lambda: restarted(stopped(submitted(msg.StopWorkers))),
    (Stage.IDLE, StageEvent.RESUME): lambda: restarted(submitted()),
    (Stage.IDLE, StageEvent.ADOPT): lambda: restarted(submitted(msg.StartWorkers)),
    (Stage.DRAINING, StageEvent.BEGIN): lambda: in_vain(submitted(msg.StartStore, options=EAGER)),
    (Stage.DRAINING, StageEvent.LAUNCH): submitted,
    (Stage.DRAINING, StageEvent.END): lambda: stopped(submitted(msg.StartStore)),
    (Stage.LAUNCHING, StageEvent.STARTED): submitted,
    (Stage.LAUNCHING, StageEvent.BEGIN): lambda: in_vain(submitted(msg.StartWorkers, options=EAGER)),
    (Stage.LAUNCHING, StageEvent.END): lambda: stopped(submitted(msg.StartWorkers)),
    (Stage.UP, StageEvent.BEGIN): lambda: with_a_failure(submitted()),
    (Stage.UP, StageEvent.END): lambda: stopped(submitted()),
    (Stage.ENDING, StageEvent.END): lambda: stopped(submitted(msg.StopWorkers), times=2),
    (Stage.ENDING, StageEvent.GONE): lambda: stopped(submitted()),
}


def test_each_row_has_a_story() -> None:
    assert STORIES.keys() == TRANSITIONS.keys()


@pytest.mark.parametrize("row", STORIES, ids="-".join)
def test_no_row_is_dead(row: tuple[Stage, StageEvent]) -> None:
    history = STORIES[row]().brain.jobs.newest.c.life.machine.history
    assert row in {(one.before, one.event) for one in history}


# --- a job that is to be stopped never begins again -----------------------------------------------------------------


def unheard_stop() -> Virtual:
    """A job that trains is stopped, and the order reaches no agent."""
    v = training()
    v.losing = True
    v.feed(StopRequested(0.0))
    v.losing = False
    return v


def is_stopped(v: Virtual) -> None:
    v.run(40.0)
    assert (v.job.state, v.job.generation) == (JobStatus.STOPPED, 1)
    assert not any(incident.live for incident in v.incidents)


def test_a_failure_that_is_reported_after_a_restart_of_the_controller() -> None:
    v = unheard_stop()
    v.agents["node1"].alive = False
    v.restart_controller()
    v.exit(1, code=1, error="ValueError: bad batch")
    v.join("node1")
    is_stopped(v)


def test_a_node_that_is_lost_while_the_controller_restarts() -> None:
    v = unheard_stop()
    v.lose_node("node1")
    v.restart_controller()
    is_stopped(v)


def test_a_controller_that_restarts_and_nothing_else() -> None:
    v = unheard_stop()
    v.restart_controller()
    is_stopped(v)


def test_a_preemption_that_still_waited_for_a_checkpoint() -> None:
    v = Virtual()
    v.submit(id="low")
    v.run(4.0)
    gauges = {"snapshot_step": 1.0, "checkpoint_step": 1.0}
    v.feed(FrameSeen("node0", t.Frame(1, int(v.instant.wall * 1e9), int(v.now * 1e9), host=gauges)))
    v.submit(id="high", priority=1, preempt=True)
    v.run(1.0)
    low = v.brain.jobs.brains["low"].c
    assert low.life.stage is Stage.UP, "it waits for a checkpoint"
    v.losing = True
    v.feed(StopRequested(0.0, "low"))
    v.run(1.0)
    assert low.life.stage is Stage.ENDING
    v.run(60.0)
    assert low.job.state is JobStatus.STOPPED
