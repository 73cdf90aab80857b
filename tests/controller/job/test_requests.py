"""Requests on a job: faults, checkpoints, cordons, a stop; and the controller's own requests."""

from dataclasses import replace

import pytest

from holdfast.base.errors import Conflict, NotFound, UsageError
from holdfast.controller.state.events import (
    Action,
    CheckpointRequested,
    CordonRequested,
    EventSeen,
    FaultRequested,
    Send,
    StopRequested,
)
from holdfast.controller.state.model import JobStatus
from holdfast.wire import messages as msg
from holdfast.wire import types as t
from tests.controller.support.virtual import Virtual, training, trains_again


def asked(actions: list[Action]) -> int:
    return sum(isinstance(a, Send) and isinstance(a.command.order, msg.RequestCheckpoint) for a in actions)


def test_what_predicts_trouble_asks_for_a_checkpoint_now_and_then() -> None:
    v = training(nodes=3)
    ecc = t.LogMatched("", 0, -1, int(v.instant.wall * 1e9), "xid-94", "gpu", t.Severity.WARNING, "Xid 94")
    assert asked(v.feed(EventSeen("node1", replace(ecc, severity=t.Severity.INFO)))) == 0
    assert asked(v.feed(EventSeen("node1", replace(ecc, rank=5, job=v.job.spec.id)))) == 0  # it dies already
    assert asked(v.feed(EventSeen("node1", ecc))) == 1
    assert asked(v.feed(EventSeen("node1", ecc))) == 0
    v.run(61.0)
    assert asked(v.feed(CordonRequested("node2", True))) == 0  # nothing of the job is there
    assert asked(v.feed(CordonRequested("node1", True))) == 1
    v.run(61.0)
    assert asked(v.feed(CordonRequested("node1", False))) == 0


def test_a_node_that_is_about_to_end_is_left_until_it_is_back() -> None:
    v = training(nodes=3)
    notice = t.AgentNotice(int(v.instant.wall * 1e9), "drain", t.Severity.WARNING, "the agent is stopping")
    assert asked(v.feed(EventSeen("node1", notice))) == 1
    v.exit(5, code=143)
    trains_again(v, 2)
    assert v.job.nodes == ["node0", "node2"]
    v.lose_node("node1")
    v.run(1.0)
    v.join("node1")
    v.run(1.0)
    v.lose_node("node2")
    v.run(30.0)
    assert v.job.nodes == ["node0", "node1"]


def test_nothing_is_broken_where_no_rank_is() -> None:
    v = training()
    v.kill_agent("node1")
    with pytest.raises(Conflict, match="fault 'kill:rank5': node1 is not connected"):
        v.feed(FaultRequested("kill:rank5"))


def test_a_checkpoint_is_asked_of_the_node_of_rank_0() -> None:
    v = training()
    _, send = v.feed(CheckpointRequested())
    assert isinstance(send, Send)
    assert (send.node, send.command.order, send.command.generation) == ("node0", msg.RequestCheckpoint(), 1)
    v.lose_node("node0")
    v.run(3.0)
    with pytest.raises(Conflict, match="node node0, which has rank 0, is not connected"):
        v.feed(CheckpointRequested())
    with pytest.raises(Conflict, match="no job is running"):
        Virtual().feed(CheckpointRequested())


def test_a_fault_strikes_once_at_its_step_also_when_steps_are_repeated() -> None:
    v = training(faults=("kill@9:rank3",))
    v.run(5.0)
    v.exit(0, signal=9)
    v.run(10.0)
    injected = [s for s in v.sent if isinstance(s.command.order, msg.Inject)]
    assert len(injected) == 1
    assert injected[0].node == "node0"


def injected(v: Virtual) -> list[Send]:
    return [send for send in v.sent if isinstance(send.command.order, msg.Inject)]


def test_a_node_is_struck_by_its_name_whatever_its_place_in_the_job() -> None:
    v = Virtual(nodes=3)
    v.feed(CordonRequested("node0", True))
    v.submit(nnodes=2, faults=("agent-kill@9:node1",))
    v.run(8.0)
    assert v.job.nodes == ["node1", "node2"]
    assert [send.node for send in injected(v)] == ["node1"]
    with pytest.raises(UsageError, match="there is no node 'gpu-9'"):
        v.feed(FaultRequested("agent-stop:gpu-9"))


def test_an_order_that_a_controller_took_with_it_is_sent_again_under_its_id() -> None:
    v = training(faults=("kill@12:rank3",))
    v.run_until(lambda: v.job.best_step >= 8)
    v.losing = True  # written down, and then the controller dies
    v.run_until(lambda: bool(v.job.fired))
    v.losing = False
    assert injected(v) == []
    v.restart_controller()
    v.run(3.0)
    v.restart_controller()
    v.run(3.0)
    (send,) = injected(v)
    assert (send.node, send.command.order, send.command.generation) == ("node0", msg.Inject("kill", 3), 1)
    assert send.command.id.startswith("b1-")


@pytest.mark.parametrize("fault", ["kill@9:rank3", "agent-kill@9:node0"])
def test_an_order_that_left_is_not_sent_again(fault: str) -> None:
    """Its agent answered, or no agent could."""
    v = training(faults=(fault,))
    v.run_until(lambda: bool(v.job.fired))
    v.run(1.0)
    v.restart_controller()
    v.run(3.0)
    assert len(injected(v)) == 1


def test_an_order_of_a_generation_that_is_over_is_not_sent_again() -> None:
    v = training(faults=("slow@12:rank3/forward+10",))
    v.run_until(lambda: v.job.best_step >= 8)
    v.losing = True
    v.run_until(lambda: bool(v.job.fired))
    v.losing = False
    v.exit(5, signal=9)
    trains_again(v, 2)
    v.restart_controller()
    v.run(3.0)
    assert injected(v) == []


def test_wishes_that_cannot_be_are_refused_in_one_line() -> None:
    v = Virtual()
    with pytest.raises(Conflict, match="no job"):
        v.feed(StopRequested(0.0))
    with pytest.raises(NotFound, match="node7"):
        v.feed(CordonRequested("node7", True))
    v.submit()
    v.run(2.0)
    with pytest.raises(Conflict, match="a job j1 already"):
        v.submit()
    with pytest.raises(UsageError, match="rank8"):
        v.feed(FaultRequested("kill:rank8"))


def test_stop_by_hand() -> None:
    v = training()
    v.feed(StopRequested(5.0))
    v.run(1.0)
    assert v.job.state is JobStatus.STOPPED
    assert not [w for w in v.all_workers() if w.running]


def test_a_cordoned_node_is_not_used_again() -> None:
    v = training(nodes=3)
    v.feed(CordonRequested("node1", True))
    v.exit(3, signal=9)
    trains_again(v, 2)
    assert "node1" not in v.job.nodes


def test_a_stop_by_hand_survives_the_controller() -> None:
    v = training()
    v.agents["node0"].alive = v.agents["node1"].alive = False  # the orders never arrive
    v.feed(StopRequested(5.0))
    v.agents["node0"].alive = v.agents["node1"].alive = True
    v.restart_controller()
    v.run(2.0)
    assert v.job.state is JobStatus.STOPPED
    assert not [w for w in v.all_workers() if w.running]
