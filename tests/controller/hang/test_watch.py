"""Stacks of a stall: requested before a rank is blamed, merged, and kept with the incident."""

import json

import pytest

from holdfast.base.errors import UsageError
from holdfast.controller.state.events import ResultSeen, Send, StacksRequested
from holdfast.wire import messages as msg
from tests.controller.support.virtual import Virtual


def dumps(v: Virtual) -> list[Send]:
    return [send for send in v.sent if isinstance(send.command.order, msg.DumpStacks)]


def report(v: Virtual, send: Send, first: int) -> None:
    """What an agent of four workers answers; rank 5 stands elsewhere."""
    ranks = range(first, first + 4)
    stacks = [{"ranks": str(r), "thread": "main", "frames": ["step", "load" if r == 5 else "wait"]} for r in ranks]
    data = {"stacks": json.dumps(stacks), "states": json.dumps({str(r): "S in futex_wait" for r in ranks})}
    v.feed(ResultSeen(send.node, msg.CommandResult(send.command.id, True, data=data)))


def running() -> Virtual:
    v = Virtual()
    v.submit()
    v.run(5)
    return v


def test_a_healthy_job_is_not_asked() -> None:
    assert dumps(running()) == []


def test_a_hang_is_looked_at_once_and_the_incident_keeps_the_tree() -> None:
    v = running()
    worker = next(w for a in v.agents.values() for w in a.workers.values() if w.rank == 5)
    worker.stopped_at, worker.state_t = v.now, True
    while not v.incidents:
        v.run(0.05)
    assert v.incidents[0].cause.subject == "rank5"
    asked = dumps(v)
    assert sorted(send.node for send in asked) == ["node0", "node1"]
    for send in asked:
        report(v, send, 0 if send.node == "node0" else 4)
    kept = v.incidents[0].stacks
    assert kept is not None
    assert [(row["depth"], row["ranks"], row["frame"]) for row in kept["rows"]] == [
        (0, "0-7", "[main thread]"), (0, "0-7", "step"), (1, "0-4,6-7", "wait"), (1, "5", "load"),
    ]  # fmt: skip
    assert (len(kept["states"]), kept["missing"], kept["generation"]) == (8, {}, 1)
    assert v.saved["incident", v.incidents[0].id]["stacks"] == kept
    v.run(5)
    assert len(dumps(v)) == 2
    assert v.incidents[0].state.value == "closed"


def test_any_client_may_ask_at_any_time_and_sees_which_nodes_did_not_report() -> None:
    v = running()
    v.kill_agent("node1")
    v.feed(StacksRequested())
    (send,) = dumps(v)
    watch = v.brain.jobs.newest.hangs.stacks
    assert not watch.is_complete
    report(v, send, 0)
    assert watch.is_complete
    tree = watch.tree()
    assert tree is not None
    assert tree["missing"] == {"node1": "away"}
    assert tree["rows"][-1]["ranks"] == "0-3"


@pytest.mark.parametrize("data", [{}, {"stacks": "[", "states": "{}"}, {"stacks": '[{"ranks": "x"}]', "states": "{}"}])
def test_an_answer_that_is_no_stacks_is_reported_and_not_taken(data: dict[str, str]) -> None:
    v = running()
    v.feed(StacksRequested())
    send = dumps(v)[0]
    v.feed(ResultSeen(send.node, msg.CommandResult(send.command.id, True, data=data)))
    tree = v.brain.jobs.newest.hangs.stacks.tree()
    assert tree is not None
    assert tree["missing"][send.node].startswith("the answer has no stacks")


def test_without_a_job_there_is_nothing_to_look_at() -> None:
    with pytest.raises(UsageError, match="no job is running"):
        Virtual().feed(StacksRequested())
