"""An incident's diagnosis of a node that fails half of its tests: the job waits, and acts on a certain result only."""

import json
import random
from collections.abc import Callable

from holdfast.controller.state.events import ResultSeen, Send
from holdfast.diagnostics.catalog.catalog import INCIDENT_PASSES, LIMIT_S, Suite, limit_s
from holdfast.diagnostics.catalog.results import CheckResult
from holdfast.wire import messages as msg
from tests.controller.support.virtual import Virtual, training, trains_again

LIMIT = limit_s(Suite.QUICK, INCIDENT_PASSES)


class SlowPairs:
    """Checks pass. A pair takes `seconds`, and one with `victim` fails where `is_failure` says."""

    def __init__(self, v: Virtual, victim: str, seconds: float, is_failure: Callable[[], bool]) -> None:
        self._v, self._victim, self._seconds, self._is_failure = v, victim, seconds, is_failure
        self._server = ""
        self._answers: list[tuple[float, ResultSeen]] = []
        self._deliver, v._deliver = v._deliver, self._test  # type: ignore[method-assign]

    def _test(self, send: Send) -> ResultSeen | None:
        result, order = self._deliver(send), send.command.order
        if result is None or not isinstance(order, msg.RunCheck):
            return result
        role, error = json.loads(order.options).get("role"), ""
        if role == "server":
            self._server = send.node  # of the client that is asked next
        elif role == "client" and self._victim in (send.node, self._server) and self._is_failure():
            error = "no way to its partner"
        said = "\n".join(CheckResult(name, error=error).to_json() for name in order.checks)
        answer = ResultSeen(send.node, msg.CommandResult(send.command.id, True, "", {"results": said}))
        if role is None:
            return answer
        self._answers.append((self._v.now + self._seconds, answer))
        return None

    def run_until(self, holds: Callable[[], bool]) -> float:
        """Virtual seconds until it holds."""
        began = self._v.now
        while not holds() and self._v.now < began + 2 * LIMIT:
            self._v.run(0.5)
            due = [answer for at, answer in self._answers if at <= self._v.now]
            self._answers = [(at, answer) for at, answer in self._answers if at > self._v.now]
            for answer in due:
                self._v.feed(answer)
        return self._v.now - began


def second_failure(v: Virtual) -> None:
    for _ in range(2):
        v.exit(5, signal=11)
        v.run(6.0)


def test_a_job_waits_for_the_rounds_that_a_node_which_fails_half_of_its_tests_takes() -> None:
    v = training(nodes=4)
    draw = random.Random(3)
    pairs = SlowPairs(v, "node1", 7.0, lambda: draw.random() < 0.5)
    second_failure(v)
    took = pairs.run_until(lambda: "node1" not in v.job.nodes)
    assert LIMIT_S[Suite.QUICK] + 35 < took < LIMIT
    trains_again(v, 3)
    assert "node1 failed its diagnosis: pair: " in v.incidents[-1].reason


def test_a_node_that_is_not_certain_when_the_time_is_over_is_neither_evicted_nor_called_well() -> None:
    v = training(nodes=4)
    failures = iter([True, *[False] * 4] * 50)  # a fifth of its tests: in between
    pairs = SlowPairs(v, "node1", 9.0, lambda: next(failures))
    second_failure(v)
    took = pairs.run_until(lambda: v.job.generation == 3)
    assert took < LIMIT + 5
    trains_again(v, 3)
    assert v.job.nodes == ["node0", "node1"]
    assert "no clear fault; pair: out of time; not certain: failed " in v.incidents[-1].reason
    assert "no fault found" not in v.incidents[-1].reason
    assert not any(v.brain.c.nodes[name].history.quarantined for name in ("node0", "node1", "node2", "node3"))
