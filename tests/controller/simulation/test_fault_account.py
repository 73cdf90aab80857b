"""What `benchmarks/faults.py` counts: the schedule, the step that ends a fault, and the time that was worth it."""

import math

import pytest

from benchmarks.fault_account import FAULTS, SPREAD_S, Account, Line, Outcome, schedule, steps_again


def test_every_system_gets_the_same_faults_at_moments_spread_evenly() -> None:
    strikes = schedule(7, FAULTS, 3, ranks=4)
    assert strikes == schedule(7, FAULTS, 3, ranks=4) != schedule(8, FAULTS, 3, ranks=4)
    assert [one.fault for one in strikes] == [fault for fault in FAULTS for _ in range(3)]
    moments = sorted(one.after_s for one in strikes)
    assert moments == pytest.approx([SPREAD_S * (n + 0.5) / 18 for n in range(18)])
    assert [one.after_s for one in strikes] != moments
    assert {one.rank for one in strikes} == {0, 1, 2, 3}


def test_a_step_by_a_new_process_ends_the_fault() -> None:
    lines = [Line(22, 10, 99.0), Line(23, 11, 100.01), Line(20, 31, 104.5), Line(20, 30, 104.4)]
    assert steps_again(lines, before={10, 11}, victims={10}, struck=100.0) == Line(20, 30, 104.4)


def test_survivors_end_it_only_with_a_step_that_the_victim_cannot_have_given_to() -> None:
    before, victims = {10, 11, 12}, {10}
    in_flight = [Line(22, 10, 99.95), Line(22, 11, 99.95), Line(23, 11, 100.01), Line(23, 12, 100.01)]
    assert steps_again(in_flight, before, victims, 100.0) is None
    gone_on = [*in_flight, Line(24, 12, 101.2), Line(24, 11, 101.1)]
    assert steps_again(gone_on, before, victims, 100.0) == Line(24, 11, 101.1)


def test_a_victim_that_falls_later_takes_the_proof_along() -> None:
    """One that is to hold its interpreter's lock does so at its next step: those before it prove nothing."""
    lines = [Line(24, 10, 100.1), Line(24, 11, 100.1), Line(25, 11, 100.15)]
    assert steps_again(lines, {10, 11}, {10}, 100.0) is None


def test_the_victims_own_steps_prove_nothing() -> None:
    assert steps_again([Line(22, 10, 99.9), Line(30, 10, 101.0)], {10}, {10}, 100.0) is None


def outcome(at_s: float, done: int, step: int, recover_s: float) -> Outcome:
    return Outcome(recover_s, recover_s, True, at_s, done, step)


def test_lost_steps_are_those_done_again() -> None:
    assert outcome(0.0, done=26, step=20, recover_s=1.0).lost == 7
    assert outcome(0.0, done=26, step=28, recover_s=1.0).lost == 0


def test_steps_done_again_are_kept_once() -> None:
    account = Account(every=10, gaps_s=[0.05] * 9)
    account.add("crash", outcome(at_s=101.2, done=23, step=20, recover_s=0.8), began_s=100.0, first=0)
    assert account.kept == 19
    assert account.ettr == pytest.approx(19 * 0.05 / 2.0)


def test_survivors_keep_what_they_did_before_the_fault_and_no_more() -> None:
    account = Account(every=1, gaps_s=[0.05])
    account.add("crash", outcome(at_s=101.2, done=23, step=25, recover_s=0.8), began_s=100.0, first=0)
    assert account.kept == 23


def test_measured_share_and_formula_agree_on_a_job_that_does_what_the_formula_supposes() -> None:
    """Steps of 50 ms, checkpoints every ten, 2 s to recover, faults at every age of a checkpoint."""
    account = Account(every=10, gaps_s=[0.05])
    for age in range(10):
        done = 29 + age  # steps 0 to `done` are done, 30 of them in the checkpoint
        account.add("crash", outcome(0.05 * (done + 1), done, 30, recover_s=2.0), began_s=0.0, first=-1)
    assert account.ettr == pytest.approx(account.ettr_by_formula, rel=0.05)
    assert account.ettr == pytest.approx(30 / (30 + 4.5 + 40), rel=1e-6)


def test_nothing_measured_is_no_share() -> None:
    account = Account(every=10)
    assert math.isnan(account.ettr)
    assert math.isnan(account.ettr_by_formula)
