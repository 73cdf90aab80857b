"""The rules of the policy at their limits, each with the case next to it that the rule is not about."""

from typing import Any

import pytest

from holdfast.controller.job.policy import Case, Move, count_try, decide
from holdfast.controller.state.incidents import Finding
from holdfast.controller.state.model import Instant, Job, JobSpec, Options
from holdfast.diagnostics.hang.stillness import Liveness
from holdfast.wire import messages as msg
from holdfast.wire import types as t

KIND = t.FindingKind
OPTIONS = Options(restart_attempts=3, restart_attempts_fault=5, node_failures=3, max_evictions=2)


def found(kind: KIND, **more: Any) -> Finding:
    return Finding(kind, t.Severity.CRITICAL, "rank3", "it broke", 1.0, 2.0, **more)


def move(kind: KIND, evidence: dict[str, Any] | None = None, **more: Any) -> Move:
    cause = found(kind, node=more.get("node", ""), evidence=evidence or {})
    return decide(Case(cause, OPTIONS, **more)).move


NODE = {"node": "node1", "replaceable": True}


@pytest.mark.parametrize(
    ("kind", "case", "expected"),
    [
        (KIND.WORKER_EXCEPTION, {"fruitless": 2}, Move.RESTART),
        (KIND.WORKER_EXCEPTION, {"fruitless": 3}, Move.STOP),
        (KIND.WORKER_KILLED, {"fruitless": 4}, Move.RESTART),
        (KIND.WORKER_KILLED, {"fruitless": 5}, Move.STOP),
        (KIND.WORKER_EXCEPTION, {"stillborn": 4}, Move.RESTART),
        (KIND.WORKER_EXCEPTION, {"stillborn": 5}, Move.STOP),
        (KIND.WORKER_KILLED, {"stillborn": 5}, Move.RESTART),
        (KIND.WORKER_KILLED, {"max_restarts": 0, "restarts": 0}, Move.STOP),
        (KIND.WORKER_KILLED, {"max_restarts": -1, "restarts": 9}, Move.RESTART),
        (KIND.RESTART, {"max_restarts": 0, "restarts": 1}, Move.RESTART),
        (KIND.GPU_LOST, {"node": "node1"}, Move.EVICT),
        (KIND.GPU_LOST, {}, Move.RESTART),
        (KIND.GPU_LOST, {"node": "node1", "evictions": 2}, Move.RESTART),
        (KIND.WORKER_SEGFAULT, {"node": "node1", "replaceable": False, "node_failures": 2}, Move.RESTART),
        (KIND.WORKER_SEGFAULT, {**NODE, "node_failures": 1}, Move.RESTART),
        (KIND.WORKER_SEGFAULT, {**NODE, "node_failures": 2}, Move.DIAGNOSE),
        (KIND.WORKER_SEGFAULT, {**NODE, "node_failures": 2, "tested": True}, Move.RESTART),
        (KIND.WORKER_SEGFAULT, {**NODE, "node_failures": 3}, Move.EVICT),
        (KIND.WORKER_SEGFAULT, {**NODE, "node_failures": 300}, Move.EVICT),
        (KIND.WORKER_SEGFAULT, {**NODE, "node_failures": 3, "evictions": 1}, Move.EVICT),
        (KIND.WORKER_SEGFAULT, {**NODE, "node_failures": 3, "evictions": 2}, Move.RESTART),
        (KIND.WORKER_EXCEPTION, {**NODE, "node_failures": 3}, Move.RESTART),
        (KIND.NODE_CUT_OFF, NODE, Move.EVICT),
        (KIND.NODE_CUT_OFF, {"node": "node1"}, Move.RESTART),
        (KIND.LOSS_NONFINITE, {"fruitless": 1, "stored": True}, Move.RESTART),
        (KIND.LOSS_NONFINITE, {"fruitless": 2, "stored": True}, Move.ROLL_BACK),
        (KIND.LOSS_NONFINITE, {"fruitless": 2}, Move.RESTART),
    ],
)
def test_a_rule_holds_at_its_limit_and_not_beside_it(kind: KIND, case: dict[str, Any], expected: Move) -> None:
    assert move(kind, **case) is expected


@pytest.mark.parametrize(
    ("max_restarts", "restarts", "expected"), [(-1, 9, Move.RESTART), (2, 1, Move.RESTART), (2, 2, Move.ALERT)]
)
def test_a_pause_never_ends_a_job(max_restarts: int, restarts: int, expected: Move) -> None:
    pause = {"life": Liveness.BUSY}
    assert move(KIND.WORKER_HANG, pause, max_restarts=max_restarts, restarts=restarts) is expected


def test_the_reason_names_what_repeats() -> None:
    for kind, named in (
        (KIND.WORKER_EXCEPTION, "the same traceback 3 times"),
        (KIND.WORKER_EXIT, "worker-exit 3 times"),
    ):
        assert decide(Case(found(kind), OPTIONS, fruitless=3)).reason.startswith(named)


def test_the_node_at_which_all_attempts_ended_is_remembered_and_a_second_one_clears_it() -> None:
    job = Job(JobSpec("j1", "job", msg.Program("train.py"), 1, 1))
    nodes = []
    for at, node in enumerate(("node1", "node1", "node2", "node1")):
        count_try(job, found(KIND.WORKER_KILLED, node=node, signature="x"), Instant(at, at))
        nodes.append((job.fruitless, job.fruitless_node))
    assert nodes == [(1, "node1"), (2, "node1"), (3, ""), (4, "")]
