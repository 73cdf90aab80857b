"""Nodes that are away: waited for while they may come back, and not when their workers went down with them."""

from holdfast.controller.detectors.base.table import finding
from holdfast.controller.state.events import Found
from holdfast.controller.state.model import JobStatus, Options
from holdfast.wire import types as t
from tests.controller.support.virtual import Virtual, training

RESET = "RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:4711"


def lose(v: Virtual, name: str, mourners: tuple[int, ...]) -> float:
    """A host goes, and ranks elsewhere lose their connections to it; seconds until all have a new generation."""
    before, struck = v.job.generation, v.now
    v.lose_node(name)
    for rank in mourners:
        v.exit(rank, code=1, error=RESET)
    v.run_until(lambda: v.job.generation > before and v.job.state is JobStatus.RUNNING)
    return v.now - struck


def test_a_spare_takes_the_place_of_a_node_that_went_down_at_once() -> None:
    v = training(nodes=3)
    assert lose(v, "node1", (0, 2)) < 1.0
    assert v.job.nodes == ["node0", "node2"]
    assert v.incidents[-1].cause.subject == "node1"


def test_without_a_spare_a_job_that_may_shrinks_at_once() -> None:
    v = training(node_counts=(1,))
    assert lose(v, "node1", (0, 2)) < 1.0
    assert v.job.nodes == ["node0"]
    assert v.incidents[-1].action == "shrink"


def test_where_nothing_can_replace_it_the_node_is_waited_for() -> None:
    v = training()
    v.lose_node("node1")
    v.exit(0, code=1, error=RESET)
    v.run(8.0)
    assert v.job.generation == 1
    v.join("node1")
    v.run(2.0)
    assert (v.job.generation, v.job.nodes) == (2, ["node0", "node1"])


def test_an_agent_alone_is_waited_for() -> None:
    v = training(nodes=3)
    v.kill_agent("node1")
    v.run(2.0)
    v.join("node1")
    v.run(2.0)
    assert (v.job.generation, v.job.nodes) == (1, ["node0", "node1"])


def test_a_slow_rank_elsewhere_is_an_alert_of_its_own() -> None:
    v = training(nodes=3)
    v.kill_agent("node1")
    v.run(0.5)
    slow = finding(t.FindingKind.STRAGGLER, "rank0", "slow", v.instant, node="node0", rank=0, signature="straggler")
    v.feed(Found(slow))
    v.join("node1")
    v.run(2.0)
    assert [(i.cause.kind, i.action) for i in v.incidents] == [("agent-exit", "watch"), ("straggler", "alert")]


def test_a_fault_elsewhere_evicts_no_node_whose_agent_is_away_for_a_moment() -> None:
    """The resets have a cause of their own, and it is not the node whose agent is being restarted."""
    v = training(nodes=3)
    v.kill_agent("node1")
    v.exit(0, code=1, error=RESET)
    v.run(0.1)
    v.exit(2, signal=11)
    v.run(1.5)
    v.join("node1")
    v.run(3.0)
    assert (v.job.generation, v.job.nodes) == (2, ["node0", "node1"])
    assert v.incidents[-1].cause.subject == "rank2"


def test_of_two_that_are_away_it_is_unknown_which_one_the_peers_lost() -> None:
    v = Virtual(nodes=4)
    v.submit(nnodes=3)
    v.run(3.0)
    v.kill_agent("node1")
    v.lose_node("node2")
    v.exit(0, code=1, error=RESET)
    v.run(1.5)
    v.join("node1")
    v.run(6.0)
    assert v.job.nodes == ["node0", "node1", "node3"]


def test_a_longer_grace_than_was_set_is_never_waited() -> None:
    v = Virtual(nodes=3, options=Options(spare_grace=0.4))
    v.submit(nnodes=2)
    v.run(3.0)
    assert lose(v, "node1", (0,)) < 0.7


def test_a_node_that_has_not_reported_to_a_new_controller_is_waited_for() -> None:
    """It may still run the old generation, whether it was heard of since or not."""
    v = training()
    v.agents["node1"].alive = False  # in the middle of coming back
    v.restart_controller(away=0.5)
    v.exit(0, signal=9)
    v.run(1.0)
    assert v.job.generation == 1
    v.join("node1")
    v.run(2.0)
    assert (v.job.generation, v.job.nodes) == (2, ["node0", "node1"])


def test_a_node_that_never_reports_to_a_new_controller_is_not_waited_for_for_ever() -> None:
    v = training(nodes=3)
    v.agents["node1"].alive = False
    v.restart_controller(away=0.5)
    v.exit(0, signal=9)
    v.run(v.options.spare_grace - 1.0)
    assert v.job.generation == 1
    v.run(2.0)
    assert (v.job.generation, v.job.nodes) == (2, ["node0", "node2"])
