"""Each detector alone: what it finds, what it must not find, and by when."""

import math
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.controller.detectors.agents.silence import frame_interval, note_arrival, silence_finding, silence_limit
from holdfast.controller.detectors.network.traffic import TrafficDetector
from holdfast.controller.detectors.workers.exits import exit_finding, root_cause
from holdfast.controller.detectors.workers.hang import HangDetector
from holdfast.controller.detectors.workers.training import loss_finding
from holdfast.controller.state.model import Finding, Instant, Node, Options
from holdfast.controller.state.ranks import RankState, RankTable
from holdfast.wire import types as t

OPTIONS = Options()


def at(mono: float) -> Instant:
    return Instant(mono, 1e6 + mono)


# --- silence -----------------------------------------------------------------------------------------------------


def node(gaps: Iterator[float] | list[float], cadence: float = 0.1) -> tuple[Node, float]:
    found = Node("n1", t.Identity("n1", "n1", "a"), connected=True)
    now = 10.0
    note_arrival(found, now, cadence)
    for gap in gaps:
        now += gap
        note_arrival(found, now, cadence)
    return found, now


def test_a_regular_node_is_silent_soon_after_it_stops() -> None:
    found, now = node([0.1] * 100)
    assert silence_finding(found, at(now + 0.7), 0.0, OPTIONS) is None
    finding = silence_finding(found, at(now + 0.9), 0.0, OPTIONS)
    assert finding is not None
    assert finding.subject == "n1"
    assert finding.since == pytest.approx(at(now).wall)


def test_a_jittery_node_is_given_more_time() -> None:
    steady, _ = node([0.1] * 200)
    jittery, _ = node([0.05, 0.6] * 100)
    assert silence_limit(jittery, OPTIONS) > 2 * silence_limit(steady, OPTIONS)


def test_our_own_lag_is_nobody_elses_silence() -> None:
    found, now = node([0.1] * 50)
    assert silence_finding(found, at(now + 1.5), 1.4, OPTIONS) is None


@given(st.lists(st.floats(0.09, 0.2), min_size=20, max_size=200))
def test_no_false_alarm_within_ordinary_jitter(gaps: list[float]) -> None:
    found = Node("n1", t.Identity("n1", "n1", "a"), connected=True)
    now = 10.0
    note_arrival(found, now, 0.1)
    for gap in gaps:
        assert silence_finding(found, at(now + gap), 0.0, OPTIONS) is None
        now += gap
        note_arrival(found, now, 0.1)


@pytest.mark.parametrize(("nodes", "seconds"), [(1, 0.25), (100, 0.25), (1536, 1.0), (15360, 10.0)])
def test_the_frame_rate_of_the_whole_is_bounded(nodes: int, seconds: float) -> None:
    assert frame_interval(nodes, OPTIONS) == pytest.approx(seconds)


# --- hang --------------------------------------------------------------------------------------------------------

STEPS = [0.3] * 30


def seen(quiet: float, state: str = "S", **more: object) -> t.Activity:
    """What an agent saw of a worker of which nothing moved for so long."""
    return t.Activity(quiet, quiet, state, **{"waits_for": "a lock", **more})  # type: ignore[arg-type]


def table(world: int = 8, idle: float = 0.1, quiet: float = 0.05, operation: str = "dp:all_reduce") -> RankTable:
    ranks = RankTable(world)
    for rank in range(world):
        ranks.mark(rank, RankState.RUNNING)
        sample = t.WorkerSample(
            rank, 1, 100 + rank, step=9, phase=t.Phase.TRAIN, operation=operation, progress_age=idle, tick_age=quiet,
            activity=seen(idle),
        )  # fmt: skip
        ranks.update(sample, 50.0)
    return ranks


def late(ranks: RankTable, rank: int, **change: object) -> None:
    values: dict[str, object] = {
        "step": 9, "phase": t.Phase.TRAIN, "operation": "", "progress_age": 1.6, "tick_age": 1.5,
    }  # fmt: skip
    values |= {"activity": seen(float(change.get("progress_age", 1.6)))} | change  # type: ignore[arg-type]
    ranks.update(t.WorkerSample(rank, 1, 1, **values), 50.0)  # type: ignore[arg-type]


def found(ranks: RankTable, steps: list[float] = STEPS, now: float = 50.05) -> list[tuple[str, str]]:
    return [(f.kind.value, f.subject) for f in HangDetector(OPTIONS).observe(ranks, 1, steps, at(now))]


def test_everybody_on_time_is_no_finding() -> None:
    assert found(table()) == []


def test_the_one_without_life_is_named_and_not_those_who_wait_for_it() -> None:
    ranks = table(idle=1.6)
    late(ranks, 3)
    assert found(ranks) == [("worker-hang", "rank3")]
    late(ranks, 3, stopped=True)
    assert found(ranks) == [("worker-stopped", "rank3")]


@pytest.mark.parametrize(("idle", "stopped", "is_found"), [(0.45, True, False), (0.5, True, True), (0.8, False, False)])
def test_a_process_that_is_stopped_is_sooner_sure_than_one_that_only_looks_so(
    idle: float, stopped: bool, is_found: bool
) -> None:
    """Steps of 50 ms: two of them and half the floor; for a lock that is held, maybe by an honest call, all of it."""
    ranks = table(idle=idle)
    late(ranks, 3, stopped=stopped, progress_age=idle, tick_age=idle)
    assert bool(found(ranks, steps=[0.05] * 30)) is is_found


def test_a_long_call_that_holds_the_gil_as_recent_steps_did_is_honest() -> None:
    ranks = table(idle=1.6)
    late(ranks, 3)
    assert found(ranks, steps=[0.3] * 20 + [3.0] * 10) == []


def test_one_that_ends_holds_the_lock_while_it_waits_for_its_peers() -> None:
    ranks = table(idle=20.0)
    late(ranks, 3, phase=t.Phase.DONE, progress_age=20.0, tick_age=20.0)
    assert found(ranks) == []
    late(ranks, 3, operation="destroy_process_group", progress_age=20.0, tick_age=20.0)
    assert found(ranks) == []
    late(ranks, 3, operation="destroy_process_group", progress_age=20.0, tick_age=20.0, stopped=True)
    assert found(ranks) == [("worker-stopped", "rank3")]


def test_a_starved_host_is_not_one_bad_worker() -> None:
    assert found(table(idle=1.6, quiet=1.5)) == []


def test_a_host_whose_agent_is_late_too_is_starved_and_its_workers_are_not_blamed() -> None:
    ranks = table(idle=1.6)
    ranks.update(t.WorkerSample(3, 1, 1, step=9, phase=t.Phase.TRAIN, progress_age=1.6, tick_age=1.5), 50.0, lag=1.0)
    assert found(ranks) == []


def test_two_that_go_quiet_at_once_are_starved_until_it_lasts() -> None:
    ranks = table(idle=1.6)
    late(ranks, 3)
    late(ranks, 4)
    assert found(ranks) == []
    late(ranks, 3, progress_age=9.0, tick_age=9.0)
    late(ranks, 4, progress_age=9.0, tick_age=9.0)
    assert found(ranks) == [("worker-hang", "rank3"), ("worker-hang", "rank4")]


def test_before_any_step_only_a_long_silence_counts() -> None:
    ranks = table(idle=5.0)
    late(ranks, 3, phase=t.Phase.SETUP, progress_age=5.0, tick_age=5.0, stopped=True)
    assert found(ranks, steps=[]) == []
    late(ranks, 3, phase=t.Phase.SETUP, progress_age=12.0, tick_age=12.0, stopped=True)
    assert found(ranks, steps=[]) == [("worker-stopped", "rank3")]


def test_a_node_that_is_silent_is_not_judged() -> None:
    ranks = table(idle=1.6)
    late(ranks, 3)
    assert found(ranks, now=52.0) == []


def test_the_one_outside_of_every_operation_is_named_where_it_says_what_it_does() -> None:
    ranks = table(idle=6.0)
    late(ranks, 5, progress_age=6.0, tick_age=0.05, coordinate=(0, 5, 0))
    assert found(ranks) == [("worker-hang", "rank5")]
    late(ranks, 5, progress_age=6.0, tick_age=0.05, coordinate=None)
    ranks.coordinate[5] = -1
    assert found(ranks) == []


def test_a_rank_that_still_moves_is_no_hang() -> None:
    ranks = table(idle=60.0)
    late(ranks, 5, progress_age=0.1, tick_age=0.05)
    assert found(ranks) == []


def test_when_nobody_stands_out_the_job_is_named_last() -> None:
    assert found(table(idle=9.0)) == []  # links that flap need some seconds
    assert found(table(idle=11.0)) == [("worker-hang", "job")]


def standing(
    kind: str = "all_reduce", group: int = 0, number: int = 4, handed: bool = True, begun: int = 5
) -> t.Standing:
    world = t.GroupCount("world", 7, "0-7", begun)
    return t.Standing(kind, group, number, handed, (world,))


def frozen(seconds: float, mesh: bool = True) -> RankTable:
    """All wait in the same operation but rank 5, which is in none; all are alive."""
    ranks = RankTable(8)
    for rank in range(8):
        ranks.mark(rank, RankState.RUNNING)
        waits = rank != 5
        sample = t.WorkerSample(
            rank, 1, 1, step=9, phase=t.Phase.TRAIN, operation="world:all_reduce" if waits else "", tick_age=0.05,
            progress_age=seconds + 1, still_age=seconds, coordinate=(0, rank, 0) if mesh else None, sizes=(1, 8, 1),
            standing=standing() if waits else standing("", -1, -1, False, begun=4), activity=seen(seconds),
        )  # fmt: skip
        ranks.update(sample, 50.0)
    return ranks


@pytest.mark.parametrize("step", [0.1, 0.3, 3.0])
def test_the_one_whom_all_wait_for_is_named_within_three_median_steps_and_two_seconds(step: float) -> None:
    heard = 2.0 - 0.35  # what is left for the heartbeat, and for the step that ends before all stand
    assert found(frozen(2 * step + heard), [step] * 30) == [("worker-hang", "rank5")]
    assert found(frozen(step), [step] * 30) == []


def test_a_script_that_does_not_tell_what_it_does_is_not_dead_when_it_is_idle() -> None:
    assert found(frozen(40.0, mesh=False)) == []
    entering = frozen(2.5, mesh=False)
    entering.operation[5], entering.standing[5] = "all_reduce", standing(handed=False)
    assert found(entering) == [("worker-hang", "rank5")]


def test_steps_as_long_as_recent_ones_are_no_hang() -> None:
    assert found(frozen(2.5), [0.3] * 20 + [2.0] * 2) == []


def test_two_orders_of_operations_name_the_job_and_both_ranks() -> None:
    ranks = frozen(3.0)
    tp, dp = t.GroupCount("tp", 1, "0-1", 5), t.GroupCount("dp", 2, "0-1", 7)
    for rank in range(2, 8):
        ranks.mark(rank, RankState.DONE)
    ranks.standing[0] = t.Standing("all_reduce", 0, 4, True, (tp, dp))
    ranks.standing[1] = t.Standing("all_reduce", 1, 7, True, (replace(tp, begun=4), replace(dp, begun=8)))
    (finding,) = HangDetector(OPTIONS).observe(ranks, 1, STEPS, at(50.05))
    assert (finding.subject, finding.evidence["suspects"], finding.signature) == ("job", [0, 1], "hang:order")
    assert "4 of tp (0-1) (ranks 0)" in finding.text


def test_a_worker_that_has_ended_while_others_wait_for_it_is_named() -> None:
    ranks = frozen(3.0)
    ranks.mark(5, RankState.DONE)
    assert found(ranks) == [("worker-hang", "rank5")]


def test_one_in_another_phase_is_given_time() -> None:
    ranks = frozen(20.0)
    ranks.phase[5] = t.PHASES.index(t.Phase.EVAL)
    assert found(ranks) == []


def test_one_that_never_told_when_it_moved_is_not_judged() -> None:
    ranks = frozen(20.0)
    ranks.still_at[5] = ranks.progress_at[5] = math.nan
    assert found(ranks) == []
    assert HangDetector(OPTIONS).standing_since(ranks, 1, STEPS, at(50.05)) is None


def test_a_standstill_is_told_before_it_is_a_finding() -> None:
    detector = HangDetector(OPTIONS)
    assert detector.standing_since(frozen(0.2), 1, STEPS, at(50.05)) is None
    assert detector.standing_since(frozen(1.0), 1, STEPS, at(50.05)) == pytest.approx(49.0)
    assert found(frozen(1.0)) == []


@given(st.integers(0, 7), st.floats(0.02, 30.0), st.booleans())
def test_found_within_three_median_steps_and_a_second(rank: int, step: float, stopped: bool) -> None:
    idle = 3 * step + 1
    ranks = table(idle=idle)
    late(ranks, rank, progress_age=idle, tick_age=idle, stopped=stopped)
    names = [subject for _, subject in found(ranks, steps=[step] * 30)]
    assert names == [f"rank{rank}"]


# --- exits -------------------------------------------------------------------------------------------------------


def exited(rank: int, wall: float, **how: object) -> Finding:
    values: dict[str, object] = {"code": -1, "signal": 0, "error": ""} | how
    event = t.WorkerExited("j", 1, rank, 1, int(wall * 1e9), **values)  # type: ignore[arg-type]
    return exit_finding(event, "n1", at(100.0))


RESET = "Traceback (most recent call last):\nRuntimeError: Connection closed by peer [10.0.0.1]:4000"


def test_the_cause_comes_before_its_echo_whatever_the_clocks_say() -> None:
    echo = exited(0, 5.0, code=1, error=RESET)
    cause = exited(3, 5.2, signal=11)
    assert echo.secondary
    assert root_cause([echo, cause]) == 1
    assert root_cause([cause, echo]) == 0


def test_who_was_told_to_end_comes_before_those_who_end_with_it() -> None:
    told = "holdfast train: rank 3 was told to end (SIGTERM): step 20 is in the store\n"
    follows = "holdfast train: rank 0 ends with a worker that was told to: step 20 is in the store\n"
    echo, cause = exited(0, 5.0, code=143, tail=follows), exited(3, 5.2, code=143, tail=told)
    assert (echo.kind, cause.kind) == (t.FindingKind.WORKER_PREEMPTED,) * 2
    assert (echo.secondary, cause.secondary, cause.exit_code) == (True, False, 143)
    assert root_cause([echo, cause]) == 1
    assert "step 20 is in the store" in cause.text


def test_a_flapping_link_is_why_its_own_node_was_silent() -> None:
    def told(kind: t.FindingKind, node: str, severity: t.Severity) -> Finding:
        return Finding(kind, severity, node, "", since=5.0, at=5.0, node=node)

    silent = told(t.FindingKind.NODE_SILENT, "n1", t.Severity.CRITICAL)
    flaps = told(t.FindingKind.LINK_FLAP, "n1", t.Severity.WARNING)
    elsewhere = told(t.FindingKind.LINK_FLAP, "n2", t.Severity.WARNING)
    assert root_cause([silent, flaps]) == 1
    assert root_cause([silent, elsewhere]) == 0


def test_among_causes_the_earliest() -> None:
    assert root_cause([exited(1, 6.0, signal=9), exited(2, 5.0, signal=9)]) == 1


@pytest.mark.parametrize(
    ("how", "code"), [({"signal": 9}, 137), ({"signal": 11}, 139), ({"code": 3}, 3), ({"code": 1, "error": RESET}, 1)]
)
def test_the_exit_code_is_a_shells(how: dict[str, object], code: int) -> None:
    assert exited(0, 5.0, **how).exit_code == code


# --- traffic -----------------------------------------------------------------------------------------------------


def feed(
    detector: TrafficDetector, begin: float, seconds: float, rate: float, training: bool = True, steps: bool = False
) -> list[Finding]:
    """`steps`: whether the job goes on finishing them."""
    findings = []
    now = begin
    while now < begin + seconds:
        now += 0.1
        finding = detector.observe("n1", int(rate * 0.1), training, 0.5, now - 0.3 if steps else 0.0, at(now))
        if finding is not None:
            findings.append(finding)
    return findings


def test_traffic_that_stops_is_found_and_its_pauses_are_not() -> None:
    detector = TrafficDetector()
    assert not feed(detector, 0, 30, 5e6)
    assert not feed(detector, 30, 8, 0.0)
    assert not feed(detector, 38, 5, 5e6)
    findings = feed(detector, 43, 14, 0.0)
    assert findings
    assert findings[0].subject == "n1"
    assert 10 <= findings[0].at - findings[0].since <= 11.5


@pytest.mark.parametrize(
    ("silent", "subject", "node"), [(1, "n0", "n0"), (2, "n0", "n0"), (4, "job", ""), (5, "job", "")]
)
def test_where_most_nodes_fall_silent_together_none_of_them_is_named(silent: int, subject: str, node: str) -> None:
    detector, found = TrafficDetector(), []
    for tick in range(1, 450):
        for number in range(5):
            rate = 0.0 if tick > 300 and number < silent else 5e6
            found.append(detector.observe(f"n{number}", int(rate * 0.1), True, 0.5, 0.0, at(tick / 10)))
    (first, *_) = [finding for finding in found if finding is not None]
    assert (first.subject, first.node) == (subject, node)


def test_traffic_that_no_step_needs_may_stop() -> None:
    detector = TrafficDetector()
    feed(detector, 0, 30, 5e6)
    assert not feed(detector, 30, 60, 0.0, steps=True)
    assert feed(detector, 90, 14, 0.0)


def test_quiet_phases_and_quiet_jobs_are_no_fault() -> None:
    detector = TrafficDetector()
    feed(detector, 0, 30, 5e6)
    assert not feed(detector, 30, 60, 0.0, training=False)
    small = TrafficDetector()
    feed(small, 0, 30, 500.0)
    assert not feed(small, 30, 60, 0.0)


# --- training ----------------------------------------------------------------------------------------------------


def test_only_a_reported_loss_can_be_not_finite() -> None:
    record = t.StepRecord(2, 1, 7, int(5e9), 0.3, math.inf)
    finding = loss_finding(record, "n1", at(10.0))
    assert finding is not None
    assert finding.subject == "rank2"
    assert loss_finding(t.StepRecord(2, 1, 7, int(5e9), 0.3), "n1", at(10.0)) is None
    assert loss_finding(t.StepRecord(2, 1, 7, int(5e9), 0.3, 2.5), "n1", at(10.0)) is None
