"""A controller that dies in the middle of a launch resumes it: running workers go on, the others are started."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.controller.state.events import ResultSeen, Send
from holdfast.controller.state.model import JobStatus
from holdfast.wire import messages as msg
from holdfast.wire import types as t
from tests.controller.support.virtual import Virtual


class Launching(Virtual):
    """Orders to start workers of one generation are lost, or done and their answers lost, by node."""

    def __init__(self, nodes: int = 2) -> None:
        self.orders_lost: set[str] = set()
        self.answers_lost: set[str] = set()
        self.at_generation = 1
        self.started: Counter[tuple[int, int]] = Counter()
        super().__init__(nodes=nodes)

    def _deliver(self, send: Send) -> ResultSeen | None:
        order = send.command.order
        if not isinstance(order, msg.StartWorkers):
            return super()._deliver(send)
        is_of_it = send.command.generation == self.at_generation
        if is_of_it and send.node in self.orders_lost:
            return None
        for rank in order.ranks:
            self.started[send.command.generation, rank.rank] += 1
        answer = super()._deliver(send)
        return None if is_of_it and send.node in self.answers_lost else answer

    def heal(self) -> None:
        self.orders_lost, self.answers_lost = set(), set()


NODES = ("node0", "node1")


@pytest.mark.parametrize(
    ("orders", "answers", "reported"),
    [
        ((), NODES, "node0, node1 had the workers of generation 1"),
        (("node1",), (), "node0 had the workers of generation 1; node1 lacked them and started them again"),
        (NODES, (), "node0, node1 lacked them and started them again"),
        ((), ("node0",), "node0, node1 had"),
    ],
)
def test_a_launch_that_was_under_way_is_adopted(
    orders: tuple[str, ...], answers: tuple[str, ...], reported: str
) -> None:
    v = Launching()
    v.orders_lost, v.answers_lost = set(orders), set(answers)
    v.submit()
    assert v.job.state is JobStatus.STARTING
    v.heal()
    v.restart_controller()
    v.run(3.0)
    assert v.job.state is JobStatus.RUNNING
    assert (v.job.generation, v.job.restarts) == (1, 0)
    assert set(v.started.values()) == {1}
    (incident,) = v.incidents
    assert incident.cause.kind is t.FindingKind.CONTROLLER_RESTART
    assert incident.cause.text == "the controller restarted; generation 1 was being launched when it stopped"
    assert reported in incident.reason
    assert incident.reason.endswith("the launch was adopted, no worker was stopped")


def test_the_launch_of_a_restart_is_adopted_and_its_incident_goes_on() -> None:
    v = Launching()
    v.submit()
    v.run(3.0)
    v.at_generation, v.answers_lost = 2, {"node1"}
    v.exit(3, signal=9)
    v.run(0.2)
    assert v.job.generation == 2
    v.heal()
    v.restart_controller()
    v.run(3.0)
    assert (v.job.state, v.job.generation, v.job.restarts) == (JobStatus.RUNNING, 2, 1)
    assert set(v.started.values()) == {1}
    (incident,) = v.incidents
    assert incident.state.value == "closed"
    assert incident.cause.subject == "rank3"
    assert "the launch was adopted" in incident.reason


def test_a_worker_that_ended_meanwhile_is_a_fault_like_any_other() -> None:
    v = Launching()
    v.answers_lost = set(NODES)
    v.submit()
    v.heal()
    v.agents["node1"].alive = False
    v.exit(5, code=1, error="Traceback (most recent call last):\nValueError: a bug")
    v.agents["node1"].alive = True
    v.restart_controller()
    v.run(3.0)
    assert (v.job.state, v.job.generation) == (JobStatus.RUNNING, 2)
    assert v.incidents[-1].cause.kind is t.FindingKind.WORKER_EXCEPTION


def test_a_rank_that_was_done_already_is_not_started_again() -> None:
    v = Launching()
    v.answers_lost = set(NODES)
    v.submit()
    v.exit(5, code=0)
    del v.agents["node1"].workers["j1", 1, 5]  # acknowledged, so the agent forgot it
    del v.agents["node1"].workers["j1", 1, 6]  # its order was lost
    v.started[1, 6] -= 1
    v.heal()
    v.restart_controller()
    v.run(1.0)
    assert v.job.generation == 1
    assert set(v.started.values()) == {1}


def test_a_node_that_does_not_come_back_is_awaited_and_then_replaced() -> None:
    v = Launching(nodes=3)
    v.answers_lost = {"node1"}
    v.submit(nnodes=2)
    v.heal()
    v.agents["node1"].alive = False
    v.agents["node1"].workers.clear()
    v.restart_controller()
    v.run(40.0)
    assert v.job.state is JobStatus.RUNNING
    assert v.job.nodes == ["node0", "node2"]
    assert v.job.generation == 2


def test_what_was_under_way_is_said_as_it_was() -> None:
    v = Launching()
    v.submit()
    v.run(3.0)
    v.restart_controller()
    v.run(0.5)
    (incident,) = v.incidents
    assert incident.cause.text.endswith("generation 1 was running when it stopped")
    assert "training" not in incident.reason
    assert v.job.generation == 1


@settings(deadline=None, max_examples=30)
@given(
    st.sets(st.sampled_from(NODES)),
    st.sets(st.sampled_from(NODES)),
    st.lists(st.floats(0.0, 0.3), min_size=1, max_size=3),
    st.permutations(NODES),
)
def test_however_often_it_dies_in_a_launch_each_rank_is_started_once(
    orders: set[str], answers: set[str], deaths: list[float], back: list[str]
) -> None:
    v = Launching()
    v.orders_lost, v.answers_lost = orders, answers
    v.submit()
    v.agents = {name: v.agents[name] for name in back}  # the order in which they come back
    for death, away in enumerate(deaths, start=1):
        if death == len(deaths):
            v.heal()
        v.restart_controller(away)
        v.run(away)
    v.run(3.0)
    assert (v.job.state, v.job.generation) == (JobStatus.RUNNING, 1)
    v.restart_controller()
    v.run(3.0)
    assert (v.job.state, v.job.generation) == (JobStatus.RUNNING, 1)
    assert set(v.started.values()) == {1}
