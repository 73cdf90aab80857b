"""A controller that was killed comes back: what happened meanwhile, what it had written down, who is blamed."""

from holdfast.controller.job.lifecycle import Stage
from holdfast.controller.state.events import EventSeen
from holdfast.controller.state.model import IncidentState, JobStatus
from holdfast.wire import types as t
from tests.controller.support.virtual import training, trains_again

RESET = "RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:4711"
BUG = 'Traceback (most recent call last):\n  File "train.py", line 7, in step\nValueError: bad batch'


def test_a_controller_that_dies_comes_back_and_training_never_notices() -> None:
    v = training()
    v.restart_controller(away=2.0)
    v.run(2.0)
    trains_again(v, 1)
    (incident,) = v.incidents
    assert incident.cause.kind is t.FindingKind.CONTROLLER_RESTART
    assert incident.state is IncidentState.CLOSED


def test_a_worker_that_dies_while_the_controller_is_away() -> None:
    v = training()
    for agent in v.agents.values():
        agent.alive = False
    v.exit(3, signal=9)
    for agent in v.agents.values():
        agent.alive = True
    v.restart_controller()
    trains_again(v, 2)


def test_what_a_worker_logs_while_the_controller_is_away_is_about_the_exit_that_follows() -> None:
    """A peer's broken connection may be told before the death that broke it: their agents come back one by one."""
    v = training()
    v.agents["node1"].alive = False
    v.exit(5, signal=9)
    v.restart_controller()
    line = t.LogMatched("j1", 1, 1, int(v.instant.wall * 1e9), "gloo", "network", t.Severity.CRITICAL, "reset by peer")
    v.feed(EventSeen("node0", line))
    v.run(0.3)
    v.join("node1")
    trains_again(v, 2)
    found = {i.cause.kind: [f.kind for f in i.findings] for i in v.incidents}
    assert t.FindingKind.LOG_RULE in found.pop(t.FindingKind.WORKER_KILLED)
    assert found.keys() <= {t.FindingKind.CONTROLLER_RESTART}


def test_a_kill_that_is_told_after_its_echo_was_acted_upon() -> None:
    """The agent that knows of it comes back last, when the others end their workers already."""
    v = training()
    v.agents["node1"].alive = False
    v.exit(5, signal=9)
    v.restart_controller()
    v.exit(1, code=1, error=RESET)
    v.run(0.4)
    assert v.brain.jobs.newest.c.life.stage is Stage.DRAINING
    v.join("node1")
    trains_again(v, 2)
    (incident,) = v.incidents
    assert (incident.cause.kind, incident.cause.subject) == (t.FindingKind.WORKER_KILLED, "rank5")


def test_a_line_and_its_exit_while_another_agent_is_yet_to_come_back() -> None:
    v = training()
    v.agents["node1"].alive = False
    v.restart_controller()
    line = t.LogMatched("j1", 1, 1, int(v.instant.wall * 1e9), "cuda-error", "gpu", t.Severity.CRITICAL, "CUDA error")
    v.feed(EventSeen("node0", line))
    v.exit(1, code=1, error=BUG)
    (incident,) = v.incidents
    kinds = {finding.kind for finding in incident.findings}
    assert kinds == {t.FindingKind.CONTROLLER_RESTART, t.FindingKind.WORKER_EXCEPTION, t.FindingKind.LOG_RULE}
    assert incident.cause.kind is t.FindingKind.WORKER_EXCEPTION


def test_a_rank_that_was_done_before_the_controller_died_is_not_missed() -> None:
    v = training()
    v.exit(3, code=0)
    del v.agents["node0"].workers["j1", 1, 3]  # acknowledged, so the agent forgot it
    v.restart_controller()
    v.run(1.0)
    for rank in (0, 1, 2, 4, 5, 6, 7):
        v.exit(rank, code=0)
    v.run(1.0)
    assert v.job.state is JobStatus.FINISHED
    assert v.job.generation == 1
