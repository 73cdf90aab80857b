"""Whole diagnoses of clusters with several switches: faults that show between them only, and narrow networks."""

from dataclasses import replace

import pytest

from holdfast.controller.diagnosis.diagnosing import DiagnoseSession, some_pairs
from holdfast.diagnostics.catalog.catalog import Suite, choose
from holdfast.diagnostics.catalog.verdicts import Grade, Verdict
from tests.controller.diagnosis.test_diagnosing import cluster, of
from tests.controller.support.measured import Bench, Machine, candidates


def diagnose(
    machines: dict[str, Machine],
    seed: int = 0,
    ways: dict[tuple[str, str], float] | None = None,
    narrow: int = 0,
    tests: tuple[str, ...] = ("pair",),
) -> DiagnoseSession:
    nodes = candidates(machines)
    bench = Bench(machines, seed=seed, ways=ways or {}, narrow=narrow, switch_of={c.node: c.switch for c in nodes})
    return bench.run(DiagnoseSession("d1", nodes, [], choose(Suite.FULL, tests), Suite.FULL, seed=seed))


def bad(session: DiagnoseSession) -> list[Verdict]:
    return [v for v in session.verdicts if v.grade in (Grade.FAIL, Grade.DEGRADED)]


@pytest.mark.parametrize("share", [0.0, 0.3])
@pytest.mark.parametrize("switches", [2, 3])
def test_a_way_between_two_switches_is_named_and_no_node_is_blamed(share: float, switches: int) -> None:
    for seed in range(10):
        session = diagnose(cluster(4 * switches), seed, ways={("switch0", "switch1"): share})
        assert session.failed == []
        assert session.cleared == sorted(session.targets), "the way is no node's fault"
        (verdict,) = bad(session)
        assert (verdict.grade, verdict.component) == (Grade.DEGRADED, "link between switches switch0 and switch1")
        assert "the path between them, not a node" in verdict.text
        assert ("of the rate under one switch" in verdict.text) == bool(share)
        assert "uplinks" in verdict.action


@pytest.mark.parametrize("share", [0.0, 0.3])
def test_a_node_that_is_bad_only_across_switches_is_named(share: float) -> None:
    for seed in range(10):
        session = diagnose(cluster(8, n5=Machine(across=share)), seed)
        assert session.failed == ["n5"], f"seed {seed}"
        (verdict,) = bad(session)
        assert verdict.component == "across switches"
        assert "passes under switch switch1, and fails across with" in verdict.text


def test_a_node_that_fails_every_second_try_is_named() -> None:
    for seed in range(20):
        session = diagnose(cluster(8, n2=Machine(flaky=True)), seed)
        assert session.failed == ["n2"], f"seed {seed}"
        assert "n2" not in session.cleared
        assert len(session.cleared) == 7


@pytest.mark.parametrize("nodes", [8, 16, 24])
def test_a_network_that_is_narrow_above_its_switches_is_no_fault(nodes: int) -> None:
    """Four pairs and more go across a way for one: each gets a quarter, unevenly, and packets are lost."""
    for seed in range(20):
        session = diagnose(cluster(nodes), seed, narrow=1)
        assert bad(session) == [], f"seed {seed}"
        assert session.cleared == sorted(session.targets)
        # No node had to be tested once more for it.
        assert session.rounds <= diagnose(cluster(nodes), seed).rounds + 2, f"seed {seed}"


def test_a_slow_way_does_not_hide_in_a_narrow_network() -> None:
    for seed in range(10):
        session = diagnose(cluster(8), seed, ways={("switch0", "switch1"): 0.3}, narrow=1)
        assert [v.component for v in bad(session)] == ["link between switches switch0 and switch1"]


def test_the_all_reduce_crosses_switches() -> None:
    slow = diagnose(cluster(12), ways={("switch0", "switch2"): 0.2}, tests=("all-reduce",))
    assert slow.failed == []
    assert slow.cleared == sorted(slow.targets)
    verdicts = bad(slow)
    assert {v.component for v in verdicts} == {"link between switches switch0 and switch2"}
    assert {v.node for v in verdicts} == {f"n{i}" for i in (0, 1, 2, 3, 8, 9, 10, 11)}
    dead = diagnose(cluster(8), ways={("switch0", "switch1"): 0.0}, tests=("all-reduce",))
    assert [(v.component, v.text) for v in bad(dead)] == [
        (
            "link between switches switch0 and switch1",
            "the group across failed: RuntimeError: Connection closed by peer",
        )
    ]
    assert of(dead, "n0", "all-reduce")[0].grade is Grade.PASS
    two = diagnose(cluster(8), ways={("switch0", "switch1"): 0.3}, tests=("all-reduce",))
    assert all("of the rate of groups under one switch" in v.text for v in bad(two))
    assert bad(two)
    sound = diagnose(cluster(12), tests=("all-reduce",))
    assert bad(sound) == []


def test_nodes_of_one_machine_have_no_way_between_switches() -> None:
    machines = cluster(8)
    nodes = [replace(c, address="10.0.0.1") for c in candidates(machines, shared=True)]
    bench = Bench(machines, ways={("switch0", "switch1"): 0.0}, switch_of={})
    session = bench.run(DiagnoseSession("d1", nodes, [], choose(Suite.FULL, ("pair",)), Suite.FULL))
    assert (session.rounds, session.failed) == (8, [])  # of the full suite


def test_every_two_switches_meet_once() -> None:
    for count in range(2, 9):
        names = [f"s{i}" for i in range(count)]
        pairs = [tuple(sorted(pair)) for pair in some_pairs(names, 100)]
        assert len(pairs) == len(set(pairs)) == count * (count - 1) // 2
    assert some_pairs(["s0"], 3) == some_pairs([], 3) == []
    assert len(some_pairs([f"s{i}" for i in range(64)], 3)) == 96
