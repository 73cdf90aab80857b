"""Workers that a debugger or a frozen cgroup holds after SIGKILL: waited for, and nothing counts against their node."""

import pytest

from holdfast.controller.state.events import ResultSeen, Send
from holdfast.controller.state.model import JobStatus
from holdfast.wire import messages as msg
from holdfast.wire import types as t
from holdfast.wire.holds import HOLD, Hold
from tests.controller.support.virtual import Virtual, training, trains_again

GDB = "still there 3 s after SIGKILL: rank 5 (pid 7): gdb (pid 9) traces it"


class Held:
    """The agent of a node cannot end its workers until they are let go; it answers when it is told to."""

    def __init__(self, v: Virtual, name: str) -> None:
        self.v, self.name, self.asked = v, name, list[Send]()
        self._deliver = v._deliver
        v._deliver = self.deliver  # type: ignore[method-assign]

    def deliver(self, send: Send) -> ResultSeen | None:
        if send.node != self.name or not isinstance(send.command.order, msg.StopWorkers):
            return self._deliver(send)
        for worker in self.v.agents[self.name].workers.values():
            worker.running = False  # it is there, and does nothing
        self.asked.append(send)
        return None

    def answer(self, hold: Hold, error: str = GDB) -> None:
        send = self.asked.pop()
        self.v.feed(ResultSeen(self.name, msg.CommandResult(send.command.id, False, error, {HOLD: hold.value})))

    def let_go(self) -> None:
        self.v._deliver = self._deliver  # type: ignore[method-assign]
        send = self.asked.pop()
        answer = self._deliver(send)
        assert answer is not None
        self.v.feed(answer)


@pytest.mark.parametrize("hold", [Hold.HELD, Hold.EXITING])
@pytest.mark.parametrize("spares", [0, 1])
def test_they_are_waited_for_and_the_job_goes_on_as_soon_as_they_are_gone(hold: Hold, spares: int) -> None:
    v = training(nodes=2 + spares)
    held = Held(v, "node1")
    v.exit(2, signal=9)
    for _ in range(30):
        v.run(3.0)
        held.answer(hold)
    assert (v.job.state, v.job.generation) == (JobStatus.RECOVERING, 1)
    (incident,) = v.incidents
    assert incident.cause.kind is t.FindingKind.WORKER_KILLED
    assert incident.reason.count("gdb (pid 9) traces it") == 1
    assert v.job.reason == f"waiting for node1: {GDB}"
    held.let_go()
    trains_again(v, 2)
    assert v.job.nodes == ["node0", "node1"]
    assert v.brain.c.nodes["node1"].state is t.NodeState.HEALTHY
    history = v.brain.c.history("node1")
    assert (history.node_failures, history.outs, history.evicted_at) == ([], [], 0.0)


def without_node1(hold: Hold, error: str) -> Virtual:
    """A job that trains on another node: the agent of node1 answered this of workers that it could not end."""
    v = training(nodes=3)
    held = Held(v, "node1")
    v.exit(2, signal=9)
    v.run(1.0)
    held.answer(hold, error)
    trains_again(v, 2)
    assert v.job.nodes == ["node0", "node2"]
    return v


def test_a_network_file_system_that_holds_them_is_left_without_counting_against_the_node() -> None:
    said = "rank 5 (pid 7): it waits for an NFS server (D state in rpc_wait_bit_killable)"
    history = without_node1(Hold.SERVER, said).brain.c.history("node1")
    assert (history.node_failures, history.outs, history.evicted_at) == ([], [], 0.0)
    assert "NFS server" in history.evicted


def test_what_nothing_explains_counts_against_the_node() -> None:
    v = without_node1(Hold.KERNEL, "rank 5 (pid 7): it is not known why")
    assert len(v.brain.c.history("node1").outs) == 1


def test_three_of_them_in_a_row_make_no_lemon_of_the_node() -> None:
    v = training(nodes=2)
    for generation in (2, 3, 4):
        held = Held(v, "node1")
        v.exit(2, signal=9)
        v.run(3.0)
        held.answer(Hold.HELD)
        held.let_go()
        trains_again(v, generation)
    assert not [i for i in v.incidents if i.cause.kind is t.FindingKind.NODE_LEMON]


def test_orphans_of_an_ended_job_that_are_held_are_waited_for_too() -> None:
    v = training(nodes=2)
    v.losing = True
    v.exit(2, code=2)  # final: the job fails, and what ends the workers of node1 is lost
    v.losing = False
    held = Held(v, "node1")
    v.kill_agent("node1")
    v.run(25.0)
    v.join("node1")
    assert v.job.state is JobStatus.FAILED
    held.answer(Hold.HELD)
    assert v.brain.c.nodes["node1"].draining
    held.let_go()
    assert not v.brain.c.nodes["node1"].draining
    assert v.brain.c.nodes["node1"].state is not t.NodeState.FAULTY


def test_a_node_that_is_silent_is_not_evicted_for_an_answer_that_does_not_come() -> None:
    v = training(nodes=2)
    held = Held(v, "node1")
    v.exit(2, signal=9)
    v.agents["node1"].frozen = True
    v.run(v.options.stop_timeout + 3.0)
    assert v.brain.c.nodes["node1"].state is t.NodeState.LOST
    assert not v.brain.c.history("node1").evicted
    v.agents["node1"].frozen = False
    held.let_go()
    v.run(3.0)
    trains_again(v, 2)
