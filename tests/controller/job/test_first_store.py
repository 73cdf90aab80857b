"""The rendezvous store of a job's first generation: a node that just came up imports for a while before it has one."""

from holdfast.controller.state.events import CordonRequested, ResultSeen, Send, StopRequested
from holdfast.controller.state.model import JobStatus
from holdfast.wire import messages as msg
from holdfast.wire import types as t
from tests.controller.support.virtual import Virtual, training, trains_again


def slow_stores(v: Virtual) -> list[ResultSeen]:
    """Answers to the request for a store are held back, in the list."""
    answer = v._deliver
    held: list[ResultSeen] = []

    def deliver(send: Send) -> ResultSeen | None:
        result = answer(send)
        if isinstance(send.command.order, msg.StartStore) and result is not None:
            held.append(result)
            return None
        return result

    v._deliver = deliver  # type: ignore[method-assign]
    return held


def test_it_may_take_as_long_as_a_start() -> None:
    v = Virtual()
    held = slow_stores(v)
    v.submit()
    v.run(v.options.stop_timeout + 5)
    v.feed(held.pop())
    v.run(3.0)
    assert v.job.generation == 1
    assert not v.incidents


def test_one_that_never_comes_is_the_rendezvous_and_no_worker() -> None:
    v = Virtual()
    slow_stores(v)
    v.submit()
    v.run(v.options.start_timeout + 1)
    assert {i.cause.kind for i in v.incidents} == {t.FindingKind.RENDEZVOUS}


def stores_left(v: Virtual) -> set[tuple[str, int]]:
    """Nodes and generations of stores that were started and not stopped, by what agents do in answer to commands."""
    left: set[tuple[str, int]] = set()
    for send in v.sent:
        generation = send.command.generation
        if isinstance(send.command.order, msg.StartStore):
            left.add((send.node, generation + 1))
        elif isinstance(send.command.order, msg.StopWorkers):
            left = {(node, of) for node, of in left if node != send.node or of > generation}
    return left


def test_a_job_that_is_stopped_before_a_start_leaves_no_store() -> None:
    v = training(nodes=2)
    late = slow_stores(v)
    v.exit(0, code=1)
    v.run_until(lambda: bool(late))
    assert stores_left(v) == {("node0", 2)}
    v.feed(StopRequested(0.0))
    v.feed(late.pop())
    v.run(1.0)
    assert v.job.state is JobStatus.STOPPED
    assert stores_left(v) == set()


def test_a_store_on_a_node_that_the_next_generation_lacks_is_stopped() -> None:
    v = training(nodes=3)
    late = slow_stores(v)
    v.exit(0, code=1)
    v.run_until(lambda: bool(late))
    v.lose_node("node0")  # where the store was to be
    v.join("node0")
    v.feed(CordonRequested("node0", True))
    v.run_until(lambda: len(late) == 2)
    v.feed(late.pop())
    trains_again(v, 2)
    assert "node0" not in v.job.nodes
    assert {of for _, of in stores_left(v)} == {2}
    assert {node for node, _ in stores_left(v)} == {v.job.nodes[0]}
