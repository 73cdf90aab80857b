"""Jobs that share nodes, in virtual time: who may join whom, memory, and faults of a node that concern all of them."""

import math

import pytest

from holdfast.controller.brain.job_brain import JobBrain
from holdfast.controller.cluster.sharing import MOST
from holdfast.controller.state.events import EvictRequested, Found, StopRequested
from holdfast.controller.state.incidents import Finding
from holdfast.controller.state.model import Job, JobStatus
from holdfast.wire import messages as msg
from holdfast.wire import turns
from holdfast.wire import types as t
from tests.controller.support.two_jobs import brain, orders, state
from tests.controller.support.virtual import Virtual

GB = 1_000_000_000


def cluster(nodes: int = 3, gb: int = 8) -> Virtual:
    return Virtual(nodes=nodes, slots=1, memory_bytes=gb * GB)


def share(v: Virtual, *ids: str, nnodes: int = 3, gb: int = 2, **more: object) -> None:
    for id in ids:
        v.submit(nnodes=nnodes, nproc=1, id=id, share_bytes=gb * GB, **more)


def nodes(v: Virtual, id: str) -> list[str]:
    return brain(v, id).c.job.nodes


def states(v: Virtual) -> dict[str, JobStatus]:
    return {id: one.c.job.state for id, one in v.brain.jobs.brains.items()}


def test_three_jobs_share_three_nodes_and_train_side_by_side() -> None:
    v = cluster()
    share(v, "a", "b", "c")
    v.run(4.0)
    assert set(states(v).values()) == {JobStatus.RUNNING}
    assert [nodes(v, id) for id in "abc"] == [["node0", "node1", "node2"]] * 3
    assert [one.spec.id for one in v.brain.c.holders_of("node1")] == ["a", "b", "c"]
    assert all(brain(v, id).c.job.best_step > 5 for id in "abc")


def test_empty_nodes_come_first() -> None:
    v = cluster(nodes=4)
    share(v, "a", "b", nnodes=2)
    v.run(3.0)
    assert (nodes(v, "a"), nodes(v, "b")) == (["node0", "node1"], ["node2", "node3"])
    share(v, "c", nnodes=2)
    v.run(3.0)
    assert nodes(v, "c") == ["node0", "node1"]
    share(v, "d", nnodes=2)
    v.run(3.0)
    assert nodes(v, "d") == ["node2", "node3"], "where fewest jobs are"


def test_one_that_does_not_share_waits_for_nodes_of_its_own_and_none_joins_it() -> None:
    v = cluster()
    share(v, "a", nnodes=2)
    v.submit(nnodes=2, nproc=1, id="alone")
    v.run(3.0)
    assert state(v, "alone") is JobStatus.PENDING
    share(v, "b", nnodes=1)
    v.run(3.0)
    assert state(v, "b") is JobStatus.PENDING, "one before it waits"
    v.feed(StopRequested(0.0, "a"))
    v.run(3.0)
    assert nodes(v, "alone") == ["node0", "node1"]
    assert nodes(v, "b") == ["node2"]
    share(v, "c", nnodes=2)
    v.run(3.0)
    assert state(v, "c") is JobStatus.PENDING
    assert brain(v, "c").c.job.reason.startswith("waiting for nodes: ")
    assert "it shares nodes with room for 2 GB a worker, 4 jobs on each" in brain(v, "c").c.job.reason


@pytest.mark.parametrize(("gb", "fits"), [(4, True), (5, False)])
def test_memory_decides_who_joins(gb: int, fits: bool) -> None:
    """Of 8 GB, the first takes 4."""
    v = cluster()
    share(v, "a", gb=4)
    share(v, "b", gb=gb)
    v.run(4.0)
    assert state(v, "b") is (JobStatus.RUNNING if fits else JobStatus.PENDING)


def test_what_fits_no_node_waits_and_holds_nobody_up() -> None:
    v = cluster()
    share(v, "large", gb=9)
    share(v, "a")
    v.run(4.0)
    assert (state(v, "large"), state(v, "a")) == (JobStatus.PENDING, JobStatus.RUNNING)


def test_so_many_jobs_on_a_node_and_no_more() -> None:
    v = cluster(gb=100)
    ids = [f"j{n}" for n in range(MOST + 1)]
    share(v, *ids)
    v.run(5.0)
    assert [state(v, id) for id in ids] == [JobStatus.RUNNING] * MOST + [JobStatus.PENDING]
    v.feed(StopRequested(0.0, "j1"))
    v.run(3.0)
    assert state(v, ids[-1]) is JobStatus.RUNNING


def test_a_kill_in_one_leaves_the_others_alone() -> None:
    v = cluster()
    share(v, "a", "b", "c")
    v.run(4.0)
    v.exit(1, signal=9, job="b")
    v.run(4.0)
    assert [brain(v, id).c.job.generation for id in "abc"] == [1, 2, 1]
    assert {i.job for i in v.incidents} == {"b"}
    assert set(orders(v, msg.StopWorkers, "a")) | set(orders(v, msg.StopWorkers, "c")) == set()


def test_each_job_on_a_lost_node_recovers_as_if_it_held_it_alone() -> None:
    v = cluster(nodes=4)
    share(v, "a", "b", nnodes=3)
    v.run(4.0)
    assert nodes(v, "a") == nodes(v, "b") == ["node0", "node1", "node2"]
    v.lose_node("node1")
    v.run(20.0)
    assert nodes(v, "a") == nodes(v, "b") == ["node0", "node3", "node2"]
    assert states(v) == {"a": JobStatus.RUNNING, "b": JobStatus.RUNNING}
    assert [brain(v, id).c.job.generation for id in "ab"] == [2, 2]
    history = v.brain.c.history("node1")
    assert len(history.node_failures) == 1, "one fault, though two jobs report it"
    v.join("node1")
    v.run(1.0)
    share(v, "c", nnodes=1)
    v.run(1.0)
    assert state(v, "c") is JobStatus.PENDING or nodes(v, "c") != ["node1"], "others only after a diagnosis"
    assert history.is_open_to("a")
    assert history.is_open_to("b")
    assert not history.is_open_to("c")


@pytest.mark.parametrize(("gb", "others", "fits"), [(4, 1, True), (5, 1, False), (1, MOST - 1, True), (1, MOST, False)])
def test_a_lost_node_is_replaced_only_by_one_with_room(gb: int, others: int, fits: bool) -> None:
    v = cluster(nodes=4)
    share(v, "a", gb=gb)
    v.run(1.0)
    share(v, *(f"b{n}" for n in range(others)), nnodes=1, gb=gb)
    v.run(3.0)
    assert len(v.brain.c.holders_of("node3")) >= 1
    for n in range(others):
        assert nodes(v, f"b{n}") in (["node3"], ["node0"], ["node1"], ["node2"])
    on = {name: len(v.brain.c.holders_of(name)) for name in v.agents}
    assert on["node3"] == others, on
    v.lose_node("node1")
    v.run(20.0)
    assert (nodes(v, "a") == ["node0", "node3", "node2"]) is fits


def test_a_node_that_is_promised_is_taken() -> None:
    """What a generation that is not launched yet was given counts as its own."""
    v = cluster()
    v.losing = True  # its rendezvous endpoint is not there yet
    share(v, "a", gb=5)
    v.losing = False
    share(v, "b", gb=5)
    v.run(1.0)
    assert nodes(v, "a") == nodes(v, "b") == []
    v.run(150.0)
    assert state(v, "a") is JobStatus.RUNNING
    assert state(v, "b") is JobStatus.PENDING


def test_jobs_that_may_shrink_go_on_with_fewer_nodes() -> None:
    v = cluster()
    share(v, "a", "b", node_counts=(2,))
    v.run(4.0)
    v.lose_node("node2")
    v.run(25.0)
    assert nodes(v, "a") == nodes(v, "b") == ["node0", "node1"]
    v.join("node2")
    v.run(60.0)
    assert sorted(nodes(v, "a")) == sorted(nodes(v, "b")) == ["node0", "node1", "node2"]


def test_a_node_evicted_by_hand_is_left_by_all() -> None:
    v = cluster(nodes=4)
    share(v, "a", "b")
    v.run(4.0)
    v.feed(EvictRequested("node0"))
    v.run(5.0)
    assert nodes(v, "a") == nodes(v, "b") == ["node3", "node1", "node2"]


def test_a_job_of_a_higher_priority_takes_nodes_from_all_that_share_them() -> None:
    v = cluster()
    share(v, "a", "b")
    v.run(4.0)
    v.submit(nnodes=2, nproc=1, id="urgent", priority=1, preempt=True)
    v.run(20.0)
    assert state(v, "urgent") is JobStatus.RUNNING
    assert [state(v, id) for id in "ab"] == [JobStatus.PENDING] * 2


def test_one_that_shares_preempts_no_more_than_gives_it_room() -> None:
    v = cluster()
    share(v, "a", "b", gb=4)
    v.run(4.0)
    share(v, "urgent", gb=4, priority=1, preempt=True)
    v.run(20.0)
    assert states(v) == {"a": JobStatus.RUNNING, "b": JobStatus.PENDING, "urgent": JobStatus.RUNNING}


def test_a_restarted_controller_finds_all_of_them() -> None:
    v = cluster()
    share(v, "a", "b")
    v.run(4.0)
    v.restart_controller()
    v.run(4.0)
    assert states(v) == {"a": JobStatus.RUNNING, "b": JobStatus.RUNNING}
    assert [brain(v, id).c.job.generation for id in "ab"] == [1, 1]
    assert [one.spec.id for one in v.brain.c.holders_of("node2")] == ["a", "b"]
    document = v.saved["job", "a"]
    assert Job.from_doc(document).spec.share_bytes == 2 * GB


@pytest.mark.parametrize("waits", [True, False])
def test_a_worker_that_waits_for_its_turn_is_not_hung(waits: bool) -> None:
    v = cluster()
    v.reports = True
    share(v, "a", "b")
    v.run(4.0)
    one = v.worker(1, "a")
    one.waits_for_turn = waits
    v.sleep_worker(1)
    assert v.worker(1).job == "a"
    v.run(8.0)
    incidents = [i.cause.kind for i in v.incidents if i.job == "a"]
    assert incidents == ([] if waits else [t.FindingKind.WORKER_HANG])
    assert not waits or brain(v, "a").hangs.detector.pause is None
    one.sleeping_at, one.waits_for_turn = math.inf, False
    v.run(3.0)
    assert state(v, "a") is JobStatus.RUNNING


def test_the_pace_of_jobs_side_by_side_is_nobodys_fault() -> None:
    """Steps become three times as long; alone that is a finding."""

    def kinds(*ids: str) -> set[t.FindingKind]:
        v = cluster()
        share(v, *ids)
        v.run(90.0)
        v.step_seconds *= 3
        v.run(60.0)
        return {i.cause.kind for i in v.incidents}

    assert kinds("a") == {t.FindingKind.STEP_TIME_JUMP}
    assert kinds("a", "b") == set()


def test_what_is_found_at_a_node_concerns_all_jobs_there() -> None:
    v = cluster(nodes=4)
    share(v, "a", "b")
    v.run(4.0)
    wall = v.instant.wall
    found = Finding(t.FindingKind.GPU_XID, t.Severity.CRITICAL, "node1", "fell off the bus", wall, wall, "node1")
    v.brain.found_at_nodes([found], v.instant)
    assert sorted(i.job for i in v.incidents) == ["a", "b"]


@pytest.mark.parametrize("ids", [("a",), ("a", "b")])
def test_a_straggler_is_one_only_on_nodes_of_its_own(ids: tuple[str, ...]) -> None:
    v = cluster()
    share(v, *ids)
    v.run(4.0)
    wall = v.instant.wall
    found = Finding(t.FindingKind.STRAGGLER, t.Severity.WARNING, "rank1", "slow", wall, wall, "node1", 1)
    v.feed(Found(found, "a"))
    assert len(v.incidents) == (1 if ids == ("a",) else 0)


def test_a_node_that_jobs_share_is_not_diagnosed_beside_one_that_trains() -> None:
    """Two failures of one node within a day: alone, a job has it tested first."""

    def tested(*ids: str) -> list[str]:
        v = cluster(nodes=4)
        share(v, *ids)
        for _ in range(2):
            v.run(4.0)
            v.exit(1, signal=11, job=ids[0])
        v.run(4.0)
        return [send.node for send in v.sent if isinstance(send.command.order, msg.RunCheck)]

    assert "node1" in tested("a")
    assert tested("a", "b") == []


def test_the_workers_of_a_job_that_shares_are_said_so() -> None:
    v = cluster()
    share(v, "a")
    v.submit(nnodes=1, nproc=1, id="alone")
    v.run(2.0)
    starts = [send.command.order for send in v.sent if isinstance(send.command.order, msg.StartWorkers)]
    assert starts
    assert all(turns.SHARES in order.program.env for order in starts)


def test_documents_of_jobs_that_do_not_share_say_nothing_of_it() -> None:
    v = Virtual(nodes=1)
    v.submit(nnodes=1)
    one: JobBrain = brain(v, "j1")
    assert "share_bytes" not in one.c.job.to_doc()["spec"]
