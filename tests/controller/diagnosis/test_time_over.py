"""A diagnosis whose time is over before it is certain: what failed is neither bad nor passed."""

import pytest

from holdfast.controller.diagnosis.diagnosing import DiagnoseSession
from holdfast.diagnostics.catalog.catalog import (
    INCIDENT_PASSES,
    LIMIT_S,
    MOST_ROUNDS,
    NODE_S,
    PASSES,
    ROUND_S,
    Suite,
    choose,
    limit_s,
)
from holdfast.diagnostics.catalog.verdicts import Grade, Verdict
from tests.controller.support.measured import Bench, Machine, candidates

PAIR = choose(Suite.QUICK, ("pair",))


def session_of(machines: dict[str, Machine], seconds: float, passes: int = INCIDENT_PASSES) -> DiagnoseSession:
    """Of two switches with four nodes each."""
    nodes = candidates(machines)
    session = DiagnoseSession("d1", nodes, [], PAIR, passes=passes)
    session.limit_s = seconds
    return Bench(machines, switch_of={c.node: c.switch for c in nodes}).run(session)


def doubts(session: DiagnoseSession) -> list[Verdict]:
    return [v for v in session.verdicts if "not certain: failed" in v.text]


@pytest.mark.parametrize("seconds", [10.0, 14.0, 20.0])
def test_a_node_with_too_few_tests_is_unable_with_its_failures(seconds: float) -> None:
    machines = {f"n{i}": Machine(flaky=i == 2) for i in range(8)}
    session = session_of(machines, seconds)
    assert session.failed == []
    of_it = [v for v in session.verdicts if v.node == "n2" and not v.component]
    assert [v.grade for v in of_it] == [Grade.UNABLE]
    assert of_it[0].text.startswith("out of time; not certain: failed ")
    assert of_it[0].action
    assert "n2" not in session.cleared
    assert not {v.node for v in doubts(session) if not v.component} & set(session.cleared)


def test_the_same_node_is_found_when_there_is_time() -> None:
    machines = {f"n{i}": Machine(flaky=i == 2) for i in range(8)}
    session = session_of(machines, limit_s(Suite.QUICK, INCIDENT_PASSES))
    assert session.failed == ["n2"]
    assert session.cleared == [f"n{i}" for i in range(8) if i != 2]
    assert doubts(session) == []


def test_no_failure_leaves_no_doubt_when_the_time_is_over() -> None:
    session = session_of({f"n{i}": Machine() for i in range(8)}, 20.0)
    assert (session.failed, doubts(session)) == ([], [])
    assert session.cleared == [f"n{i}" for i in range(8)]


@pytest.mark.parametrize("suite", Suite)
def test_the_limit_follows_from_the_rounds_and_the_quick_suite_keeps_its_own(suite: Suite) -> None:
    nodes = candidates({f"n{i}": Machine() for i in range(4)})
    limits = [DiagnoseSession("d1", nodes, [], PAIR, suite, passes=passes).limit_s for passes in (0, INCIDENT_PASSES)]
    assert limits[0] == (LIMIT_S[suite] if PASSES[suite] == 2 else limits[1])
    assert limits[1] >= NODE_S[suite] + MOST_ROUNDS * ROUND_S[suite]
    assert limits[1] <= 600


@pytest.mark.parametrize(("per_switch", "rounds", "seconds"), [(8, 2, 5.0), (4, 6, 14.0)])
def test_a_sound_fabric_takes_the_rounds_and_seconds_of_the_search(
    per_switch: int, rounds: int, seconds: float
) -> None:
    machines = {f"n{i}": Machine() for i in range(8)}
    nodes = candidates(machines, per_switch=per_switch)
    bench = Bench(machines, switch_of={c.node: c.switch for c in nodes})
    began = bench.now
    session = bench.run(DiagnoseSession("d1", nodes, [], PAIR))
    assert session.rounds == rounds
    assert bench.now - began <= seconds
    assert len(session.cleared) == 8
