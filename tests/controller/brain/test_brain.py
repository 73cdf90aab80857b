"""Decisions in virtual time: every kind of fault, the node blamed, the action, and that training goes on."""

from dataclasses import replace

import pytest

from holdfast.controller.state.events import (
    EventSeen,
    FrameSeen,
    Tick,
)
from holdfast.controller.state.incidents import IncidentState
from holdfast.controller.state.model import JobStatus
from holdfast.wire import types as t
from tests.controller.support.virtual import STEP, Virtual, training, trains_again

RESET = "RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:4711"
BUG = 'Traceback (most recent call last):\n  File "train.py", line 7, in step\nValueError: bad batch'


def test_a_job_starts_runs_and_finishes() -> None:
    v = Virtual()
    v.last_step = 9
    v.submit()
    v.run(10.0)
    assert v.job.state is JobStatus.FINISHED
    assert v.job.exit_code == 0
    assert sorted(v.brain.jobs.newest.c.ledger.rows) == list(range(10))
    assert not v.incidents


def test_quiet_training_raises_nothing() -> None:
    v = training()
    v.run(150.0)
    assert not v.incidents


@pytest.mark.parametrize(
    ("how", "kind"),
    [
        ({"signal": 9}, t.FindingKind.WORKER_KILLED),
        ({"signal": 9, "oom": True}, t.FindingKind.WORKER_OOM),
        ({"signal": 11}, t.FindingKind.WORKER_SEGFAULT),
        ({"code": 1, "error": BUG}, t.FindingKind.WORKER_EXCEPTION),
        ({"code": 7}, t.FindingKind.WORKER_EXIT),
        ({"code": 143}, t.FindingKind.WORKER_PREEMPTED),
        ({"signal": 15}, t.FindingKind.WORKER_PREEMPTED),
    ],
)
def test_an_exit_is_distinguished_and_mended(how: dict[str, object], kind: t.FindingKind) -> None:
    v = training()
    v.exit(3, **how)  # type: ignore[arg-type]
    trains_again(v, 2)
    (incident,) = v.incidents
    assert incident.state is IncidentState.CLOSED
    assert (incident.cause.kind, incident.cause.subject) == (kind, "rank3")
    assert [p[0] for p in incident.phases] == ["suspect", "suspended", "starting", "restoring"]
    assert all(end is not None and end >= start for _, start, end in incident.phases)


def test_an_incident_says_where_the_state_came_from_even_when_it_is_over() -> None:
    v = training()
    reported = t.StateRestored(v.job.spec.id, v.job.generation, 4, "store", 0.1, 100, 300)
    v.feed(EventSeen("node0", reported))  # at the start of a job: of no incident
    v.exit(3, signal=9)
    trains_again(v, 2)
    (incident,) = v.incidents
    assert (incident.state, incident.source, incident.restore_s) == (IncidentState.CLOSED, "store", None)
    v.feed(EventSeen("node0", replace(reported, generation=v.job.generation, source="memory")))
    v.feed(EventSeen("node0", replace(reported, generation=v.job.generation, job="another", source="peer")))
    assert (incident.source, incident.restore_s, incident.restored_bytes) == ("memory", 0.1, 100)
    assert incident.restore_sent_bytes == 300


def test_a_victim_is_not_blamed_even_when_it_speaks_first() -> None:
    v = training()
    v.exit(0, code=1, error=RESET)
    v.exit(5, code=1, error=RESET)
    v.run(0.1)
    v.exit(2, signal=11)
    trains_again(v, 2)
    (incident,) = v.incidents
    assert (incident.cause.kind, incident.cause.subject) == (t.FindingKind.WORKER_SEGFAULT, "rank2")


def test_a_victim_alone_is_acted_upon_after_a_moment() -> None:
    v = training()
    v.exit(0, code=1, error=RESET)
    trains_again(v, 2)
    assert v.incidents[0].cause.subject == "rank0"


@pytest.mark.parametrize("how", ["stop_worker", "hold_gil"])
def test_a_worker_without_progress_is_found_within_three_steps_and_a_second(how: str) -> None:
    v = training()
    getattr(v, how)(6)
    began = v.now
    while not v.incidents:
        v.run(0.05)
        assert v.now - began <= 3 * STEP + 1
    cause = v.incidents[0].cause
    assert cause.subject == "rank6"
    assert cause.kind is (t.FindingKind.WORKER_STOPPED if how == "stop_worker" else t.FindingKind.WORKER_HANG)
    trains_again(v, 2)
    assert len(v.incidents) == 1


def test_a_worker_that_sleeps_outside_of_every_operation_is_named() -> None:
    v = training()
    v.reports = True
    v.sleep_worker(1)
    v.run(10 * STEP + 4)
    assert v.incidents[0].cause.subject == "rank1"
    trains_again(v, 2)


def test_a_long_checkpoint_phase_is_no_hang() -> None:
    v = training()
    for worker in v.all_workers():
        worker.sleeping_at = v.now
    v.run(1.0)  # no rank trains, none is lifeless, none waits for another
    assert not v.incidents


def test_an_agent_that_comes_back_ends_its_incident_and_costs_nothing() -> None:
    v = training()
    v.kill_agent("node1")
    v.run(1.5)
    v.join("node1")
    v.run(1.0)
    (incident,) = v.incidents
    assert (incident.cause.kind, incident.cause.subject) == (t.FindingKind.AGENT_EXIT, "node1")
    assert incident.state is IncidentState.CLOSED
    assert v.job.generation == 1
    trains_again(v, 1)


def test_a_frozen_agent_is_found_within_a_second_and_left_alone() -> None:
    v = training()
    v.agents["node1"].frozen = True
    v.run(1.0)
    (incident,) = v.incidents
    assert (incident.cause.kind, incident.cause.subject) == (t.FindingKind.NODE_SILENT, "node1")
    v.run(2.0)
    v.agents["node1"].frozen = False
    trains_again(v, 1)
    assert incident.state is IncidentState.CLOSED


def test_a_controller_that_stood_still_blames_no_node() -> None:
    v = training()
    v.now += 25.0
    v.feed(Tick(25.0))
    v.feed(Tick())  # at once, before the first frame that waited is read
    v.run(3.0)
    assert not v.incidents
    trains_again(v, generation=1)


def test_a_controller_that_is_late_for_its_work_still_finds_silent_workers() -> None:
    """It reads what nodes send, but each of its rounds comes half a second late."""
    v = training()
    v.busy = 0.5
    v.agents["node1"].frozen = True
    v.run(2.0)
    (incident,) = v.incidents
    assert (incident.cause.kind, incident.cause.subject) == (t.FindingKind.NODE_SILENT, "node1")


def test_a_node_that_was_given_up_and_speaks_again_on_its_stream_is_used_again() -> None:
    v = training()
    v.agents["node1"].frozen = True
    v.stop_worker(5)
    v.run(14.0)
    assert v.brain.c.nodes["node1"].state is t.NodeState.LOST
    v.agents["node1"].frozen = False
    v.run(1.0)
    assert v.brain.c.nodes["node1"].state is t.NodeState.HEALTHY
    trains_again(v, generation=2)


def test_a_lost_node_is_replaced_by_a_spare() -> None:
    v = training(nodes=3)
    assert v.brain.c.nodes["node2"].state is t.NodeState.SPARE
    v.lose_node("node0")
    v.run(v.options.agent_grace + 8)
    trains_again(v, 2)
    assert v.job.nodes == ["node2", "node1"]
    assert v.brain.c.nodes["node0"].state is t.NodeState.LOST


@pytest.mark.parametrize("after", [0.0, 0.3, 0.6, 1.0])
def test_a_node_that_is_lost_during_a_restart_is_replaced(after: float) -> None:
    v = training(nodes=3)
    v.exit(0, signal=9)
    v.run(after)
    v.lose_node("node1")
    v.run(30.0)
    assert "node1" not in v.job.nodes
    before = v.job.best_step
    v.run(3.0)
    assert v.job.best_step > before


def test_a_lost_node_without_a_spare_is_an_alert_and_training_goes_on_when_it_is_back() -> None:
    v = training()
    v.lose_node("node0")
    v.run(v.options.agent_grace + 30)
    assert v.job.generation == 1
    (incident,) = v.incidents
    assert any(f.kind is t.FindingKind.CAPACITY for f in incident.findings)
    v.join("node0")
    trains_again(v, 2)
    assert incident.state is IncidentState.CLOSED


def test_an_exit_while_the_agent_is_away_is_heard_later() -> None:
    v = training()
    v.kill_agent("node1")
    v.exit(6, signal=11)
    v.run(2.0)
    v.join("node1")
    trains_again(v, 2)
    assert [i.cause.subject for i in v.incidents] == ["node1", "rank6"]


def test_a_host_that_comes_back_empty_is_noticed() -> None:
    v = training()
    v.lose_node("node1")
    v.run(1.0)
    v.join("node1")
    trains_again(v, 2)


def test_a_lost_host_is_blamed_and_not_those_that_it_cut_off() -> None:
    v = training()
    v.lose_node("node1")
    for rank in range(4):
        v.exit(rank, code=1, tail=f"step 9\nholdfast train: rank {rank} lost a peer: {RESET}\n")
    v.run(0.3)
    v.join("node1")
    trains_again(v, 2)
    (incident,) = v.incidents
    assert (incident.cause.kind, incident.cause.subject) == (t.FindingKind.AGENT_EXIT, "node1")


def test_the_same_traceback_again_and_again_ends_the_job() -> None:
    v = training()
    for _ in range(3):
        v.run(0.01)
        v.exit(2, code=1, error=BUG)
        v.run(0.1)
    assert v.job.state is JobStatus.FAILED
    assert v.job.exit_code == 1
    assert "ValueError" in v.job.reason
    assert v.incidents[-1].state is IncidentState.FAILED
    assert all(n.state in (t.NodeState.HEALTHY, t.NodeState.SPARE) for n in v.brain.c.nodes.values())


def test_the_same_traceback_with_progress_between_goes_on() -> None:
    v = training()
    for generation in range(2, 8):
        v.exit(2, code=1, error=BUG)
        trains_again(v, generation)


def test_a_limit_of_restarts_is_kept() -> None:
    v = training(max_restarts=1)
    v.exit(2, signal=9)
    trains_again(v, 2)
    v.exit(2, signal=9)
    v.run(1.0)
    assert v.job.state is JobStatus.FAILED
    assert v.job.exit_code == 137


def test_a_script_that_cannot_start_ends_the_job_with_its_reason() -> None:
    v = Virtual()
    v.start_error = "no such file: train.py"
    v.submit()
    v.run(5.0)
    assert v.job.state is JobStatus.FAILED
    assert "train.py" in v.job.reason


def test_a_loss_that_is_not_finite_rolls_back() -> None:
    v = training()
    node = "node1"
    frame_step = t.StepRecord(6, 1, v.job.best_step + 1, int(v.instant.wall * 1e9), STEP, float("inf"))
    v.feed(FrameSeen(node, t.Frame(1, int(v.instant.wall * 1e9), 1, steps=(frame_step,))))
    trains_again(v, 2)
    assert v.incidents[0].cause.kind is t.FindingKind.LOSS_NONFINITE


def test_log_lines_are_evidence_of_the_fault_that_follows_and_an_alert_without_one() -> None:
    v = training()
    line = t.LogMatched("j1", 1, 3, int(v.instant.wall * 1e9), "cuda-error", "gpu", t.Severity.CRITICAL, "CUDA error")
    v.feed(EventSeen("node0", line))
    v.run(0.2)
    v.exit(3, code=1, error=BUG)
    v.run(6.0)
    assert [f.kind for f in v.incidents[0].findings][-1] is t.FindingKind.LOG_RULE
    v.feed(EventSeen("node0", line))
    v.run(6.0)
    assert v.incidents[1].action == "alert"
    assert v.job.generation == 2


def test_what_the_kernel_of_one_host_says_is_nothing_about_another_that_lost_its_agent() -> None:
    v = training()
    line = t.LogMatched(
        "", 0, -1, int(v.instant.wall * 1e9), "machine-check", "host", t.Severity.CRITICAL, "mce: error"
    )
    v.feed(EventSeen("node0", line))
    v.run(0.2)
    v.kill_agent("node1")
    v.run(0.3)
    v.feed(EventSeen("node0", replace(line, line="mce: another")))
    v.join("node1")
    v.run(8.0)
    reported = {(i.cause.kind.value, i.cause.node): [f.node for f in i.findings] for i in v.incidents}
    assert reported == {("agent-exit", "node1"): ["node1"], ("log-rule", "node0"): ["node0"]}
