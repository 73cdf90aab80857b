"""The rendezvous store of a job's first generation: a node that just came up imports for a while before it has one."""

from holdfast.controller.state.events import ResultSeen, Send
from holdfast.wire import messages as msg
from holdfast.wire import types as t
from tests.controller.support.virtual import Virtual


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
