"""Whole diagnoses in virtual time: the nodes found, the nodes not blamed, how long it takes."""

import json
import random

import pytest

from holdfast.controller.diagnosis.diagnosing import DiagnoseSession, DiagnosisStage
from holdfast.diagnostics.catalog.catalog import BY_NAME, LIMIT_S, Suite, choose
from holdfast.diagnostics.catalog.results import CheckResult, Reading
from holdfast.diagnostics.catalog.verdicts import Grade, Verdict
from holdfast.diagnostics.isolation.nodes import Judgement, from_passes, passes
from holdfast.diagnostics.isolation.pairs import Candidate
from tests.controller.support.measured import Bench, Machine, candidates

QUICK = choose(Suite.QUICK)


def diagnose(machines: dict[str, Machine], seed: int = 0, shared: bool = False) -> DiagnoseSession:
    session = DiagnoseSession("d1", candidates(machines, shared=shared), [], QUICK, seed=seed)
    return Bench(machines, seed=seed).run(session)


def cluster(n: int, **bad: Machine) -> dict[str, Machine]:
    return {f"n{i}": bad.get(f"n{i}", Machine()) for i in range(n)}


def of(session: DiagnoseSession, node: str, check: str) -> list[Verdict]:
    return [v for v in session.verdicts if (v.node, v.check) == (node, check)]


def test_a_sound_cluster_is_cleared() -> None:
    session = diagnose(cluster(8))
    assert session.failed == []
    assert session.cleared == [f"n{i}" for i in range(8)]
    assert session.rounds == 6  # two under the switches, two between them, two across


FAULTS = {
    "gemm": Machine(speed=0.5),
    "pair": Machine(link=0.3),
    "loss": Machine(loss=0.01),
    "dead": Machine(dead=True),
    "wrong": Machine(wrong=True),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_one_bad_node_of_eight_is_found_and_no_other(fault: str) -> None:
    for seed in range(30):
        victim = f"n{random.Random(seed).randrange(8)}"
        session = diagnose(cluster(8, **{victim: FAULTS[fault]}), seed)
        assert session.failed == [victim], f"seed {seed}"
        (failed,) = {v.check for v in session.verdicts if v.grade is Grade.FAIL}
        assert failed == ("gemm" if fault in ("gemm", "wrong") else "pair")
        assert all(v.action for v in session.verdicts if v.grade is Grade.FAIL)


def test_all_faults_at_once() -> None:
    bad = {"n1": Machine(speed=0.5), "n3": Machine(link=0.3), "n4": Machine(loss=0.01), "n6": Machine(wrong=True)}
    for seed in range(20):
        assert diagnose(cluster(8, **bad), seed).failed == ["n1", "n3", "n4", "n6"], f"seed {seed}"


@pytest.mark.parametrize(("nodes", "bad"), [(5, 1), (8, 3), (9, 4), (16, 4), (64, 16)])
def test_several_slow_links_are_found_exactly(nodes: int, bad: int) -> None:
    for seed in range(20):
        names = random.Random(seed).sample([f"n{i}" for i in range(nodes)], bad)
        machines = cluster(nodes, **{name: Machine(link=0.5) for name in names})
        session = DiagnoseSession("d1", candidates(machines, per_switch=nodes), [], QUICK, seed=seed)
        assert Bench(machines, seed=seed).run(session).failed == sorted(names), f"seed {seed}"


def test_a_thousand_nodes_take_eight_rounds_and_less_than_a_minute() -> None:
    machines = cluster(1024, n700=Machine(link=0.5))
    session = DiagnoseSession("d1", candidates(machines, per_switch=32), [], QUICK, seed=5)
    bench = Bench(machines, seed=5)
    start = bench.now
    bench.run(session)
    assert session.failed == ["n700"]
    assert session.rounds <= 8
    assert bench.now - start < 60


def test_a_figure_that_was_low_once_is_measured_again() -> None:
    session = diagnose(cluster(8, n2=Machine(dips=1)))
    assert session.failed == []
    assert "n2" in session.cleared


def test_a_slow_node_does_not_hide_among_figures_that_scatter() -> None:
    """Half of the sound nodes come out at half speed the first time, as on a machine that others use, too."""
    for seed in range(20):
        machines = {f"n{i}": Machine(dips=i % 2) for i in range(8)} | {"n4": Machine(speed=0.3)}
        assert diagnose(machines, seed).failed == ["n4"], f"seed {seed}"


@pytest.mark.parametrize("fault", [Machine(dead=True), Machine(link=0.2), Machine(loss=0.01)])
def test_a_bad_switch_fails_no_node_under_it(fault: Machine) -> None:
    session = diagnose(cluster(12, n0=fault, n1=fault, n2=fault, n3=fault))
    assert session.failed == []
    bad = [v for v in session.verdicts if v.grade is Grade.DEGRADED]
    assert {(v.node, v.component) for v in bad} == {(f"n{i}", "switch switch0") for i in range(4)}
    assert all("check switch switch0 first" in v.action for v in bad)


@pytest.mark.parametrize("is_asked", [True, False])
def test_two_nodes_whose_link_fails_are_named_as_a_pair_and_neither_is_blamed(is_asked: bool) -> None:
    """Whether the other one is to be tested too, or only serves as a partner."""
    machines = cluster(2, n0=Machine(dead=True))
    both = candidates(machines)
    session = DiagnoseSession("d1", both[: 1 + is_asked], both[1 + is_asked :], QUICK)
    Bench(machines).run(session)
    assert (session.failed, session.cleared) == ([], [])
    assert session.rounds == 3
    (verdict,) = of(session, "n0", "pair")
    assert (verdict.grade, verdict.component) == (Grade.DEGRADED, "pair with n1")
    assert "3 of 3 tests with n1 failed: n0, n1 or the path between them; one more idle node" in verdict.text


@pytest.mark.parametrize("victim", ["n0", "n1"])
def test_an_idle_third_node_decides_which_of_the_two_it_is(victim: str) -> None:
    machines = cluster(3, **{victim: Machine(dead=True)})
    nodes = candidates(machines)
    session = DiagnoseSession("d1", nodes[:2], nodes[2:], QUICK)
    Bench(machines).run(session)
    assert session.failed == [victim]
    assert session.cleared == [name for name in ("n0", "n1") if name != victim]


def test_a_node_whose_pairs_failed_is_not_cleared_by_what_else_passed() -> None:
    """No pair passes, so that no partner is known to be good, and no node fails."""
    session = diagnose(cluster(3, n0=Machine(dead=True), n1=Machine(dead=True)))
    assert (session.failed, session.cleared) == ([], [])
    assert "no partner is known to be good" in of(session, "n2", "pair")[0].text


def test_a_clock_that_is_off_is_reported_and_fails_no_node() -> None:
    session = diagnose(cluster(8, n5=Machine(offset=3.0)))
    assert session.failed == []
    bad = [v for v in session.verdicts if v.grade is Grade.DEGRADED]
    assert {(v.node, v.metric) for v in bad} == {("n5", "clock_offset")}


def test_a_check_that_breaks_everywhere_proves_nothing() -> None:
    machines = {name: Machine(broken="memory") for name in cluster(6)}
    session = diagnose(machines)
    assert session.failed == []
    assert all(v.grade is Grade.UNABLE for name in machines for v in of(session, name, "memory"))


def test_a_check_that_breaks_on_one_of_equals_fails_it() -> None:
    session = diagnose(cluster(6, n2=Machine(broken="memory")))
    assert session.failed == ["n2"]
    assert of(session, "n2", "memory")[0].text.startswith("RuntimeError")


def test_what_cannot_run_is_no_pass() -> None:
    session = diagnose(cluster(6, n2=Machine(lacks="memory")))
    (verdict,) = of(session, "n2", "memory")
    assert (verdict.grade, verdict.text) == (Grade.UNABLE, "not here")


def test_a_node_that_never_answers_fails_and_delays_no_other() -> None:
    session = diagnose(cluster(6, n2=Machine(silent=True)))
    assert session.failed == ["n2"]
    assert set(session.cleared) == {"n0", "n1", "n3", "n4", "n5"}


def test_a_node_that_leaves_is_not_failed_for_it() -> None:
    machines = cluster(4)
    session = DiagnoseSession("d1", candidates(machines), [], QUICK)
    bench = Bench(machines)
    session.begin(bench.instant())
    session.left("n1", bench.instant())
    bench.machines["n1"].silent = True
    while not session.ended:
        for ask in [ask for job in session._jobs() for ask in job.asks]:
            session.answered(ask.id, bench.measure(ask), "", bench.instant())
        bench.now += 1
        session.tick(bench.instant())
    assert "n1" not in session.cleared
    assert all(v.grade is Grade.UNABLE for v in session.verdicts if v.node == "n1" and v.check != "pair")


def test_nodes_of_one_machine_are_measured_one_after_the_other() -> None:
    machines = cluster(4)
    session = DiagnoseSession("d1", candidates(machines, shared=True), [], QUICK)
    bench = Bench(machines)
    running = session.begin(bench.instant())
    while not session.ended:
        assert len({json.loads(a.order.options).get("session", a.node) for a in running}) <= 1
        results = [(a.id, bench.measure(a)) for a in running]
        running = [new for id, found in results for new in session.answered(id, found, "", bench.instant())]
    assert session.cleared == sorted(machines)


def test_partners_help_and_are_not_reported_unless_bad() -> None:
    machines = cluster(6, n0=Machine(link=0.3))
    every = candidates(machines)
    session = Bench(machines).run(DiagnoseSession("d1", every[:1], every[1:], QUICK))
    assert session.failed == ["n0"]
    assert {v.node for v in session.verdicts} == {"n0"}


def test_alone_a_node_has_no_pair() -> None:
    session = diagnose(cluster(1))
    (verdict,) = of(session, "n0", "pair")
    assert (verdict.grade, verdict.text) == (Grade.UNABLE, "needs a second idle node")


def test_of_two_nodes_that_do_not_reach_each_other_the_pair_is_named_and_no_node_fails() -> None:
    session = diagnose(cluster(2, n0=Machine(dead=True)))
    assert session.failed == []
    assert session.cleared == []
    assert session.rounds == 3
    (verdict,) = of(session, "n0", "pair")
    assert (verdict.grade, verdict.component) == (Grade.DEGRADED, "pair with n1")
    assert verdict.text.startswith("3 of 3 tests with n1 failed: n0, n1 or the path between them")


def test_two_nodes_one_of_which_fails_every_second_try_are_not_cleared() -> None:
    session = diagnose(cluster(2, n0=Machine(flaky=True)))
    assert (session.failed, session.cleared) == ([], [])
    assert session.rounds <= 10
    assert of(session, "n1", "pair")[0].component == "pair with n0"


def test_the_end_comes_in_time_whatever_hangs() -> None:
    machines = {name: Machine(silent=True) for name in cluster(16)}
    bench = Bench(machines)
    start = bench.now
    session = bench.run(DiagnoseSession("d1", candidates(machines, shared=True), [], QUICK))
    assert bench.now - start <= LIMIT_S[Suite.QUICK] + 1
    assert session.failed == []
    assert session.stage is DiagnosisStage.DONE


def test_the_past_warns_of_a_decline_that_peers_share() -> None:
    machines = {name: Machine(speed=0.5) for name in cluster(6)}
    past = {"n0": {"gemm/flops/cpu": [(1e9 + i, 1e11) for i in range(5)]}}
    session = Bench(machines).run(DiagnoseSession("d1", candidates(machines), [], QUICK, past=past))
    (verdict,) = of(session, "n0", "gemm")
    assert (verdict.grade, verdict.against, verdict.baseline_n) == (Grade.DEGRADED, "past", 5)
    assert of(session, "n1", "gemm")[0].grade is Grade.PASS


def test_only_good_figures_become_the_past() -> None:
    session = diagnose(cluster(8, n3=Machine(speed=0.4)))
    rows = passes(session.verdicts)
    assert "gemm/flops/cpu" not in rows["n3"]
    assert "memory/bandwidth/" in rows["n3"]
    assert rows["n0"]["gemm/flops/cpu"] == of(session, "n0", "gemm")[0].value
    assert rows["n0"]["kernel-log//"] is None
    assert passes(from_passes(rows)) == rows


def test_a_part_that_could_not_be_tested_stands_beside_what_could() -> None:
    judgement = Judgement({"n0": Candidate("n0")}, {})
    result = CheckResult("gemm", (Reading("flops", 1e11, "cpu"),), unable="GPUs: needs torch")
    judgement.take("n0", "gemm", [result], "")
    grades = {v.text: v.grade for v in judgement.node_verdicts(BY_NAME["gemm"], ["n0"])}
    assert grades == {"nothing to compare with yet": Grade.PASS, "GPUs: needs torch": Grade.UNABLE}
