"""Workers that not even SIGKILL ends, held by the kernel: the job goes on without their node."""

import pytest

from holdfast.controller.state.events import ResultSeen, Send
from holdfast.controller.state.model import JobStatus
from holdfast.wire import messages as msg
from holdfast.wire import types as t
from tests.controller.support.virtual import Virtual, training, trains_again


def hold(v: Virtual, name: str, answers: bool) -> None:
    """The agent of this node cannot end its workers, and reports it or stays silent."""
    answer = v._deliver

    def deliver(send: Send) -> ResultSeen | None:
        if send.node != name or not isinstance(send.command.order, msg.StopWorkers):
            return answer(send)
        for worker in v.agents[name].workers.values():
            worker.running = False  # it is there, and does nothing
        error = "ranks 5 did not die within 15 s of SIGKILL"
        return ResultSeen(name, msg.CommandResult(send.command.id, False, error)) if answers else None

    v._deliver = deliver  # type: ignore[method-assign]


@pytest.mark.parametrize("answers", [True, False])
def test_a_spare_takes_the_place_of_their_node(answers: bool) -> None:
    v = training(nodes=3)
    hold(v, "node1", answers)
    v.exit(2, signal=9)
    v.run(v.options.stop_timeout + 2)
    assert v.job.nodes == ["node0", "node2"]
    (incident,) = v.incidents
    assert (incident.cause.kind, incident.action) == (t.FindingKind.WORKER_KILLED, "evict")
    assert t.FindingKind.WORKER_BLOCKED in [finding.kind for finding in incident.findings]
    assert v.brain.c.nodes["node1"].state is t.NodeState.FAULTY
    assert not v.brain.c.history("node1").node_failures
    trains_again(v, 2)


def test_without_a_spare_it_is_tried_there_again() -> None:
    v = training(nodes=2)
    hold(v, "node1", answers=True)
    v.exit(2, signal=9)
    v.run(3.0)
    assert v.job.state is JobStatus.RUNNING
    assert v.job.nodes == ["node0", "node1"]
