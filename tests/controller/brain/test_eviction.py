"""Evictions: nodes with too many failures, lost nodes, nodes evicted by people; and nodes that must stay."""

import json

import pytest

from holdfast.base.errors import UsageError
from holdfast.controller.state.events import CordonRequested, EvictRequested, ResultSeen, Send
from holdfast.controller.state.goodput import Account
from holdfast.controller.state.incidents import IncidentState
from holdfast.controller.state.model import JobStatus, Options
from holdfast.diagnostics.catalog.results import CheckFault, CheckResult
from holdfast.wire import messages as msg
from holdfast.wire import types as t
from tests.controller.support.virtual import Virtual, training, trains_again

RESET = "RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:4711"


def crash(v: Virtual, rank: int, times: int) -> None:
    for _ in range(times):
        v.exit(rank, signal=11)
        v.run(6.0)


def test_a_node_at_which_it_happens_again_and_again_goes_and_a_spare_takes_its_place() -> None:
    v = training(nodes=3)
    crash(v, 5, 2)
    assert v.job.nodes == ["node0", "node1"]
    crash(v, 6, 1)
    assert v.job.nodes == ["node0", "node2"]
    last = v.incidents[-1]
    assert (last.action, last.state) == ("evict", IncidentState.CLOSED)
    assert "third failure of node1 within a day" in last.reason
    assert "node2 in place of node1" in last.reason
    assert [name for name, _, _ in last.phases][:2] == ["suspect", "evicting"]
    assert v.brain.c.nodes["node1"].state is t.NodeState.FAULTY
    trains_again(v, 4)


def test_without_a_spare_a_node_with_many_failures_stays() -> None:
    v = training()
    crash(v, 5, 5)
    assert v.job.nodes == ["node0", "node1"]
    assert {i.action for i in v.incidents} == {"restart"}


def test_a_doubtful_node_is_better_than_none_and_one_that_people_took_out_is_not() -> None:
    v = training(nodes=3)
    crash(v, 5, 3)
    assert v.job.nodes == ["node0", "node2"]
    v.lose_node("node2")
    v.run(v.options.agent_grace + 8)
    trains_again(v, 5)
    assert v.job.nodes == ["node0", "node1"]
    v.feed(EvictRequested("node1"))
    v.run(30.0)
    assert v.job.state is JobStatus.RECOVERING
    assert any(f.kind is t.FindingKind.CAPACITY for f in v.incidents[-1].findings)


def test_history_survives_the_controller() -> None:
    v = training(nodes=3)
    crash(v, 5, 2)
    v.restart_controller()
    v.run(2.0)
    crash(v, 5, 1)
    assert v.job.nodes == ["node0", "node2"]
    v.restart_controller()
    v.run(2.0)
    assert v.brain.c.nodes["node1"].state is t.NodeState.FAULTY
    v.feed(CordonRequested("node1", False))
    assert v.brain.c.nodes["node1"].state is t.NodeState.SPARE
    assert not v.brain.c.nodes["node1"].history.node_failures


@pytest.mark.parametrize(
    "how",
    [
        {"code": 1, "error": RESET},  # a victim's error
        {"code": 1, "error": 'Traceback (most recent call last):\n  File "t.py", line 7, in step\nValueError: bad'},
        {"signal": 9},  # of unknown origin
        {"code": 7},
    ],
)
def test_what_says_nothing_of_the_node_evicts_no_node(how: dict[str, object]) -> None:
    v = training(nodes=3)
    for _ in range(6):
        v.exit(5, **how)  # type: ignore[arg-type]
        v.run(6.0)
    assert v.job.nodes == ["node0", "node1"]
    assert v.brain.c.nodes["node1"].state is t.NodeState.HEALTHY


def test_a_crash_without_progress_is_retried_on_another_node_and_then_marked_failed() -> None:
    v = training(nodes=3)
    before = list(v.job.nodes)
    for _ in range(v.options.restart_attempts_fault):
        assert v.job.nodes == before
        v.exit(5, signal=11)
        v.run(0.15)
    assert v.job.nodes == ["node0", "node2"]
    v.exit(5, signal=11)
    v.run(1.0)
    assert v.job.state is JobStatus.FAILED


def test_no_more_than_so_many_go_within_an_hour() -> None:
    v = Virtual(nodes=6, options=Options(max_evictions=2))
    v.submit(nnodes=2)
    v.run(3.0)
    for _ in range(5):
        crash(v, 5, 3)
    gone = [n for n in v.brain.c.nodes.values() if n.history.evicted]
    assert len(gone) == 2
    assert "look for a shared cause" in v.incidents[-1].reason


def test_a_spare_on_another_switch_comes_first() -> None:
    v = Virtual(nodes=5, switches={"node0": "a", "node1": "b", "node2": "b", "node3": "b", "node4": "c"})
    v.submit(nnodes=2)
    v.run(3.0)
    v.lose_node("node1")
    v.run(v.options.agent_grace + 8)
    assert v.job.nodes == ["node0", "node4"]


@pytest.mark.parametrize("nodes", [2, 3])
def test_a_lost_node_is_given_up_also_when_those_that_it_cut_off_speak_first(nodes: int) -> None:
    v = training(nodes=nodes)
    v.lose_node("node1")
    for rank in range(4):
        v.exit(rank, code=1, error=RESET)
    v.run(8.0)
    if nodes == 3:
        assert v.job.nodes == ["node0", "node2"]
        trains_again(v, 2)
        (incident,) = v.incidents
        assert (incident.cause.subject, incident.action) == ("node1", "evict")
        return
    v.run(10.0)
    assert v.brain.c.nodes["node1"].state is t.NodeState.LOST
    assert [f.kind for f in v.incidents[0].findings][-1] is t.FindingKind.CAPACITY


def test_nodes_that_come_back_late_have_time_to_answer() -> None:
    v = training()
    v.lose_node("node1")
    v.run(v.options.agent_grace + v.options.stop_timeout + 30)
    agent = v.agents["node1"]
    agent.frozen = True
    answer = v._deliver
    held: list[msg.CommandResult] = []

    def slow(send: Send) -> ResultSeen | None:
        result = answer(send)
        if send.node == "node1" and isinstance(send.command.order, msg.StopWorkers) and result is not None:
            held.append(result.result)
            return None
        return result

    v._deliver = slow  # type: ignore[method-assign]
    v.join("node1")
    agent.frozen = False
    v.run(1.0)
    assert held
    assert v.brain.c.nodes["node1"].state is t.NodeState.HEALTHY
    v.feed(ResultSeen("node1", held[0]))
    trains_again(v, 2)


def test_a_switch_that_fails_is_one_incident_and_counts_against_no_node() -> None:
    switches = {f"node{i}": "abc"[i // 4] for i in range(12)}
    v = Virtual(nodes=12, slots=2, switches=switches)
    v.submit(nnodes=8, nproc=2)
    v.run(3.0)
    for i in range(4, 8):
        v.lose_node(f"node{i}")
    v.run(v.options.agent_grace + 8)
    trains_again(v, 2)
    assert v.job.nodes == [*(f"node{i}" for i in range(4)), *(f"node{i}" for i in range(8, 12))]
    (incident,) = v.incidents
    assert (incident.cause.kind, incident.cause.subject) == (t.FindingKind.NODES_AWAY, "switch b")
    assert not any(n.history.node_failures or n.history.evicted for n in v.brain.c.nodes.values())
    for i in range(4, 8):
        v.join(f"node{i}")
    assert v.brain.c.nodes["node5"].state is t.NodeState.SPARE


def test_evicted_by_hand() -> None:
    v = training(nodes=3)
    v.feed(EvictRequested("node2"))  # holds nothing
    assert v.job.generation == 1
    v.feed(CordonRequested("node2", False))
    v.feed(EvictRequested("node0"))
    trains_again(v, 2)
    assert v.job.nodes == ["node2", "node1"]
    assert v.brain.c.nodes["node0"].state is t.NodeState.FAULTY
    (incident,) = v.incidents
    assert (incident.cause.kind, incident.cause.subject, incident.action) == (t.FindingKind.EVICTION, "node0", "evict")
    v.restart_controller()
    v.run(2.0)
    assert v.brain.c.nodes["node0"].state is t.NodeState.FAULTY
    with pytest.raises(UsageError, match="no node 'ghost'"):
        v.feed(EvictRequested("ghost"))


def test_evicted_by_hand_also_where_restarts_are_used_up() -> None:
    v = training(nodes=3, max_restarts=0)
    v.feed(EvictRequested("node0"))
    trains_again(v, 2)


def answer_checks(v: Virtual, node: str, fault: str) -> None:
    """From now on the node's checks give this result; empty: they pass."""
    deliver = v._deliver

    def tested(send: Send) -> ResultSeen | None:
        result, order = deliver(send), send.command.order
        if result is None or not isinstance(order, msg.RunCheck):
            return result
        said = [
            CheckResult(name, faults=(CheckFault(fault),) if fault and send.node == node else (), seconds=0.1)
            for name in order.checks
        ]
        data = {"results": "\n".join(one.to_json() for one in said)}
        return ResultSeen(send.node, msg.CommandResult(send.command.id, True, "", data))

    v._deliver = tested  # type: ignore[method-assign]


def test_a_node_for_the_second_time_is_tested_and_goes_when_it_fails() -> None:
    v = training(nodes=3)
    answer_checks(v, "node1", "a GEMM gave two results")
    crash(v, 5, 2)
    trains_again(v, 3)
    last = v.incidents[-1]
    assert v.job.nodes == ["node0", "node2"]
    assert (last.action, last.state) == ("evict", IncidentState.CLOSED)
    assert "node1 failed its diagnosis" in last.reason
    assert [name for name, _, _ in last.phases][:4] == ["suspect", "suspended", "diagnosing", "evicting"]
    assert v.brain.c.nodes["node1"].history.quarantined
    assert v.brain.jobs.newest.c.time.booked[Account.DIAGNOSE] > 0


def test_a_node_that_passes_trains_on_and_is_not_tested_every_time() -> None:
    v = training(nodes=3)
    answer_checks(v, "node1", "")
    crash(v, 5, 1)
    assert not [s for s in v.sent if isinstance(s.command.order, msg.RunCheck)]  # the first time it only restarts
    crash(v, 5, 1)
    trains_again(v, 3)
    assert v.job.nodes == ["node0", "node1"]
    assert "no fault found" in v.incidents[-1].reason


def break_pairs(v: Virtual, *victims: str) -> None:
    """From now on all checks pass but those of pairs in which one of these is."""
    deliver = v._deliver

    def tested(send: Send) -> ResultSeen | None:
        result, order = deliver(send), send.command.order
        if result is None or not isinstance(order, msg.RunCheck):
            return result
        options = json.loads(order.options)
        if options.get("role") == "server":
            v.behind["server"] = send.node  # the server of the client that is asked next
        ends = {send.node, v.behind.get("server", "")}
        said = [
            CheckResult(name, error="no way to its partner" if name == "pair" and ends & {*victims} else "")
            for name in order.checks
        ]
        data = {"results": "\n".join(one.to_json() for one in said)}
        return ResultSeen(send.node, msg.CommandResult(send.command.id, True, "", data))

    v._deliver = tested  # type: ignore[method-assign]


BOTH = "no clear fault; pair: 3 of 3 tests with node2 failed: node1, node2 or the path between them"


@pytest.mark.parametrize(
    ("spares", "victims", "says"),
    [
        (1, ("node1",), BOTH),
        (1, ("node2",), BOTH),
        (2, ("node1",), "node1 failed its diagnosis: pair: "),
        (2, ("node2",), "the diagnosis of node1 ended: no fault found"),
        (2, ("node1", "node2"), "no clear fault; pair: not certain: failed 6 of 6 tests; no partner is known"),
    ],
)
def test_a_suspect_is_cleared_only_when_its_pairs_pass(spares: int, victims: tuple[str, ...], says: str) -> None:
    v = training(nodes=2 + spares)
    break_pairs(v, *victims)
    crash(v, 5, 2)
    v.run(10.0)
    trains_again(v, 3)
    assert says in v.incidents[-1].reason
    assert ("node1" in v.job.nodes) is ("failed its" not in says)


def test_no_node_waits_for_ever_for_a_verdict() -> None:
    v = training(nodes=3)
    deliver = v._deliver
    v._deliver = lambda send: None if isinstance(send.command.order, msg.RunCheck) else deliver(send)  # type: ignore[method-assign]
    crash(v, 5, 2)
    assert v.job.state is JobStatus.RECOVERING
    v.run(120.0)
    assert v.job.state is JobStatus.RUNNING
    assert v.job.nodes == ["node0", "node1"]
