"""A node can tell that the job's request is wrong: the job ends at once, as a command with bad input does."""

from holdfast.controller.state.events import ResultSeen, Send
from holdfast.controller.state.model import JobStatus
from holdfast.wire import messages as msg
from tests.controller.support.virtual import Virtual

WHY = "--preload: no module named lightnin for the workers' Python"


def refusing(v: Virtual, name: str, data: dict[str, str]) -> None:
    answer = v._deliver

    def deliver(send: Send) -> ResultSeen | None:
        if send.node != name or not isinstance(send.command.order, msg.StartWorkers):
            return answer(send)
        return ResultSeen(name, msg.CommandResult(send.command.id, False, WHY, data))

    v._deliver = deliver  # type: ignore[method-assign]


def test_no_restart_is_attempted() -> None:
    v = Virtual(nodes=2)
    refusing(v, "node1", {"refused": "1"})
    v.submit(nnodes=2)
    v.run(5.0)
    assert (v.job.state, v.job.exit_code, v.job.generation) == (JobStatus.FAILED, 2, 1)
    assert v.job.reason == f"node1: {WHY}"
    assert v.incidents == []
    assert not any(worker.running for worker in v.all_workers())


def test_what_may_work_later_is_attempted_again() -> None:
    v = Virtual(nodes=2)
    refusing(v, "node1", {})
    v.submit(nnodes=2)
    v.run(5.0)
    assert v.job.generation > 1
    assert v.incidents
