"""Jobs that may go on with fewer nodes: they shrink when there is no spare, and grow when there is room again."""

from hypothesis import given
from hypothesis import strategies as st

from holdfast.controller.cluster.placement import place
from holdfast.controller.state.events import CordonRequested, EvictRequested, FrameSeen, Send
from holdfast.controller.state.history import History
from holdfast.controller.state.incidents import IncidentState
from holdfast.controller.state.model import JobSpec, JobStatus, Node, Options
from holdfast.wire import messages as msg
from holdfast.wire import types as t
from tests.controller.support.virtual import Virtual, trains_again


def elastic(nodes: int = 3, nnodes: int = 3, least: int = 1, **more: object) -> Virtual:
    v = Virtual(nodes=nodes, options=Options(grow_after=5.0))
    v.submit(nnodes=nnodes, node_counts=tuple(range(least, nnodes)), **more)
    v.run(3.0)
    assert v.job.state is JobStatus.RUNNING
    return v


def test_without_a_spare_it_goes_on_with_fewer_and_grows_when_the_node_is_back() -> None:
    v = elastic()
    v.lose_node("node1")
    v.run(v.options.agent_grace + 8)
    trains_again(v, 2)
    assert v.job.nodes == ["node0", "node2"]
    assert {w.rank for w in v.all_workers() if w.running} == set(range(8))
    assert (v.incidents[0].action, v.incidents[0].state) == ("shrink", IncidentState.CLOSED)
    v.join("node1")
    v.run(4.0)
    assert v.job.generation == 2  # it may be gone again in a moment
    v.run(4.0)
    trains_again(v, 3)
    assert sorted(v.job.nodes) == ["node0", "node1", "node2"]
    assert (v.incidents[1].action, v.incidents[1].cause.kind) == ("grow", t.FindingKind.ROOM)


def test_a_node_that_only_lost_its_agent_is_waited_for() -> None:
    v = elastic()
    v.kill_agent("node1")
    v.exit(0, signal=9)
    v.run(v.options.agent_grace - 3)
    assert v.job.generation == 1
    v.join("node1")
    trains_again(v, 2)
    assert v.job.nodes == ["node0", "node1", "node2"]


def test_a_spare_is_better_than_shrinking() -> None:
    v = elastic(nodes=4)
    v.lose_node("node1")
    v.run(v.options.agent_grace + 8)
    assert v.job.nodes == ["node0", "node3", "node2"]


def test_below_its_least_it_waits() -> None:
    v = elastic(least=2)
    v.lose_node("node1")
    v.run(v.options.agent_grace + 8)
    v.lose_node("node2")
    v.run(v.options.agent_grace + 20)
    assert v.job.state is JobStatus.RECOVERING
    assert any(f.kind is t.FindingKind.CAPACITY for f in v.incidents[-1].findings)
    v.join("node2")
    trains_again(v, 3)


def test_it_starts_with_what_is_there() -> None:
    v = Virtual(nodes=2, options=Options(grow_after=5.0))
    v.submit(nnodes=4, node_counts=(1, 2, 3))
    v.run(3.0)
    assert v.job.nodes == ["node0", "node1"]
    assert v.job.world == 8


def test_it_grows_when_what_was_trained_is_stored() -> None:
    v = elastic()
    v.feed(EvictRequested("node1"))
    trains_again(v, 2)
    frame = t.Frame(2, int(v.instant.wall * 1e9), int(v.now * 1e9), host={"snapshot_step": 5.0, "checkpoint_step": 5.0})
    v.feed(FrameSeen("node0", frame))
    v.feed(CordonRequested("node1", False))
    v.sent.clear()
    v.run(8.0)
    assert [type(s.command.order) for s in v.sent] == [msg.RequestCheckpoint]
    assert v.job.generation == 2
    stored = t.Frame(3, int(v.instant.wall * 1e9), int(v.now * 1e9), host={"checkpoint_step": 1000.0})
    v.feed(FrameSeen("node0", stored))
    trains_again(v, 3)
    assert len(v.job.nodes) == 3


def test_a_job_of_one_size_neither_shrinks_nor_grows() -> None:
    v = Virtual(nodes=3)
    v.submit(nnodes=2)
    v.run(60.0)
    assert v.job.generation == 1
    v.feed(EvictRequested("node2"))
    v.feed(EvictRequested("node1"))
    v.run(20.0)
    assert v.job.state is JobStatus.RECOVERING


def test_faults_at_ranks_that_are_gone_wait_for_them() -> None:
    v = elastic(faults=("kill@12:rank11",))
    v.feed(EvictRequested("node1"))
    trains_again(v, 2)
    assert v.job.best_step > 12
    assert not [s for s in v.sent if isinstance(s, Send) and isinstance(s.command.order, msg.Inject)]


NODES = st.lists(
    st.tuples(st.sampled_from(["well", "suspect", "lost", "doubtful", "quarantined"]), st.sampled_from("ab")),
    min_size=1,
    max_size=8,
)


@given(NODES, st.integers(1, 6), st.sets(st.integers(1, 5)), st.lists(st.integers(0, 7), unique=True, max_size=6))
def test_a_placement_keeps_its_promises(
    kinds: list[tuple[str, str]], nnodes: int, counts: set[int], before: list[int]
) -> None:
    spec = JobSpec("j", "j", msg.Program("x"), nnodes, 1, node_counts=tuple(c for c in counts if c < nnodes))
    nodes = []
    for i, (kind, switch) in enumerate(kinds):
        history = History(
            evicted="" if kind not in ("doubtful", "quarantined") else "why", quarantined=kind == "quarantined"
        )
        node = Node(f"node{i}", t.Identity(f"node{i}", "h", "i", switch=switch, slots=1), history=history)
        node.connected = kind not in ("suspect", "lost")
        states = {"well": t.NodeState.HEALTHY, "suspect": t.NodeState.SUSPECT, "lost": t.NodeState.LOST}
        node.state = states.get(kind, t.NodeState.FAULTY)
        nodes.append(node)
    held = [f"node{i}" for i in before if i < len(kinds)][:nnodes]
    chosen, missing = place(spec, nodes, held)
    usable = {n.name for n in nodes if n.usable}
    sound = {n.name for n in nodes if n.usable and not n.history.evicted}
    if not chosen:
        waits = any(n.name in held and n.state is t.NodeState.SUSPECT for n in nodes)
        assert missing
        assert waits or len(usable) < spec.needs
        return
    assert len(set(chosen)) == len(chosen)
    assert len(chosen) in spec.counts
    assert set(chosen) <= usable
    if len(sound) >= spec.needs:
        assert set(chosen) <= sound
        assert len(chosen) == max(c for c in spec.counts if c <= len(sound))
    if len(chosen) >= len(held):
        assert all(chosen[held.index(name)] == name for name in held if name in sound)


def test_of_two_spares_the_one_with_a_ready_fork_server_comes_first() -> None:
    nodes = [Node(f"node{i}", t.Identity(f"node{i}", "h", "i", slots=1)) for i in range(3)]
    for node in nodes:
        node.connected, node.state = True, t.NodeState.HEALTHY
    spec = JobSpec("j", "j", msg.Program("x"), 1, 1)
    assert place(spec, nodes[1:], ["node0"])[0] == ["node1"]
    nodes[1].host["warm_ready"] = 0.0  # it was just started
    assert place(spec, nodes[1:], ["node0"])[0] == ["node2"]
    assert place(spec, nodes[1:2], ["node0"])[0] == ["node1"]
    assert place(spec, nodes[1:], [])[0] == ["node1"]  # a job that begins is placed the same way each time
