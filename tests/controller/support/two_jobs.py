"""Two jobs side by side in virtual time, and what tests ask of one."""

from holdfast.controller.brain.job_brain import JobBrain
from holdfast.controller.state.model import JobStatus
from holdfast.wire import messages as msg
from tests.controller.support.virtual import Virtual


def brain(v: Virtual, job: str) -> JobBrain:
    return v.brain.jobs.brains[job]


def state(v: Virtual, job: str) -> JobStatus:
    return brain(v, job).c.job.state


def two_jobs(nodes: int = 4) -> Virtual:
    v = Virtual(nodes=nodes)
    v.submit(nnodes=2, id="a")
    v.submit(nnodes=2, id="b")
    v.run(4.0)
    assert [state(v, job) for job in "ab"] == [JobStatus.RUNNING] * 2
    return v


def orders(v: Virtual, kind: type[msg.Order], job: str) -> list[str]:
    return [send.node for send in v.sent if isinstance(send.command.order, kind) and send.command.job == job]
