"""What holds for any jobs on any slots, and schedules that are known by formula or by hand."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate, groupby, pairwise
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.planner.sharing.errors import SharingError
from holdfast.planner.sharing.jobs import SharedJob
from holdfast.planner.sharing.simulate import Outcome, Stay, Task, simulate

MEMORY = 12.0
HALVES = st.integers(0, 8).map(lambda n: n / 2)
# Memory in twelfths of an activation that k of 1 to 4 divides: sums are exact.
STATES = st.integers(0, 9).map(float)


@st.composite
def some_jobs(draw: st.DrawFn) -> tuple[list[SharedJob], int, bool]:
    """Jobs, slots, and whether two jobs may share a slot."""
    slots = draw(st.integers(1, 4))
    jobs = []
    for number in range(draw(st.integers(1, 6))):
        states = draw(STATES)
        activations = draw(st.sampled_from([size for size in (0.0, 3.0, 6.0, 9.0, 12.0) if size + states <= MEMORY]))
        jobs.append(
            SharedJob(
                f"j{number}",
                draw(st.sampled_from([k for k in (1, 2, 4) if k <= slots])),
                0.5 + draw(HALVES),
                2 * draw(HALVES),
                draw(st.integers(1, 4)),
                draw(HALVES),
                states,
                activations,
                draw(HALVES),
                draw(st.booleans()),
            )
        )
    return jobs, slots, draw(st.booleans())


def by_slot(outcome: Outcome) -> list[list[Task]]:
    return [[task for task in outcome.tasks if task.slot == slot] for slot in range(outcome.slots)]


def ready_s(stay: Stay, task: Task) -> float:
    """When a role might have begun, were its slot free."""
    return stay.iteration_ends_s[task.iteration - 1] if task.iteration else stay.began_s


@settings(deadline=None, max_examples=200)
@given(some_jobs())
def test_every_job_has_all_roles_of_each_iteration_once_and_in_order(drawn: tuple[list[SharedJob], int, bool]) -> None:
    jobs, slots, is_shared = drawn
    outcome = simulate(jobs, slots, MEMORY, is_shared=is_shared, keep_tasks=True)
    assert set(outcome.stays) == {job.name for job in jobs}
    for name, stay in outcome.stays.items():
        job = stay.job
        own = [task for task in outcome.tasks if task.job == name]
        assert len(stay.slots) == job.roles
        assert [number for number, _ in groupby(own, lambda task: task.iteration)] == list(range(job.iterations))
        for number in range(job.iterations):
            tasks = [task for task in own if task.iteration == number]
            assert sorted(task.role for task in tasks) == list(range(1, job.roles + 1))
            assert sorted(task.slot for task in tasks) == list(stay.slots)
            assert all(task.began_s >= ready_s(stay, task) for task in tasks)
            assert stay.iteration_ends_s[number] == max(task.ended_s for task in tasks) + job.sync_s
        for task in own:
            share = task.role / job.roles if job.is_partial else 1.0
            assert task.ended_s - task.began_s == job.forward_s + share * job.backward_s
        assert stay.ended_s == stay.iteration_ends_s[-1]
    assert outcome.busy_s == sum(task.ended_s - task.began_s for task in outcome.tasks)


@settings(deadline=None, max_examples=200)
@given(some_jobs())
def test_a_slot_runs_one_role_and_holds_no_more_than_its_memory(drawn: tuple[list[SharedJob], int, bool]) -> None:
    jobs, slots, is_shared = drawn
    outcome = simulate(jobs, slots, MEMORY, is_shared=is_shared, keep_tasks=True)
    for slot, tasks in enumerate(by_slot(outcome)):
        assert all(later.began_s >= task.ended_s for task, later in pairwise(tasks))
        stays = [stay for stay in outcome.stays.values() if slot in stay.slots]
        steps = [(stay.began_s, stay.job.states_bytes, 1) for stay in stays]
        steps += [(stay.ended_s, -stay.job.states_bytes, -1) for stay in stays]
        for task in tasks:
            job = outcome.stays[task.job].job
            size = job.activation_bytes * (task.role / job.roles if job.is_partial else 1.0)
            steps += [(task.began_s, size, 0), (task.ended_s, -size, 0)]
        steps.sort()  # of one instant, what goes before what comes
        assert max(accumulate((size for _, size, _ in steps), initial=0.0)) <= MEMORY
        steps.sort(key=lambda step: (step[0], step[2]))
        assert max(accumulate((many for _, _, many in steps), initial=0)) <= 1 + is_shared


@settings(deadline=None, max_examples=200)
@given(some_jobs())
def test_no_slot_is_idle_for_a_role_that_is_ready_and_none_starves(drawn: tuple[list[SharedJob], int, bool]) -> None:
    jobs, slots, is_shared = drawn
    outcome = simulate(jobs, slots, MEMORY, is_shared=is_shared, keep_tasks=True)
    begins = [stay.began_s for stay in outcome.stays.values()]
    assert begins == sorted(begins)  # none overtakes another in the queue
    for tasks in by_slot(outcome):
        longest = max((outcome.stays[task.job].job.full_s for task in tasks), default=0.0)
        for task in tasks:
            ready = ready_s(outcome.stays[task.job], task)
            busy = sum(max(0.0, min(other.ended_s, task.began_s) - max(other.began_s, ready)) for other in tasks)
            assert busy == pytest.approx(task.began_s - ready)
            assert task.began_s - ready <= 4 * longest


@settings(deadline=None, max_examples=200)
@given(some_jobs())
def test_with_slots_of_their_own_jobs_run_as_gangs(drawn: tuple[list[SharedJob], int, bool]) -> None:
    """A job begins when enough slots are free and the one before it has begun, and takes what it takes alone."""
    jobs, slots, _ = drawn
    outcome = simulate(jobs, slots, MEMORY, is_shared=False)
    free, before = [0.0] * slots, 0.0
    for job in sorted(jobs, key=lambda job: job.submitted_s):
        free.sort()
        before = max(before, job.submitted_s, free[job.roles - 1])
        end = before + job.iterations * (job.forward_s + job.backward_s + job.sync_s)
        free[: job.roles] = [end] * job.roles
        stay = outcome.stays[job.name]
        assert (stay.began_s, stay.ended_s) == (before, end)


@pytest.mark.parametrize("k", [1, 2, 4, 8])
@pytest.mark.parametrize(("forward", "backward"), [(1.0, 2.0), (1.0, 1.0), (0.5, 4.0)])
def test_two_alike_jobs_leave_no_slot_idle(k: int, forward: float, backward: float) -> None:
    """Role i of one and role k + 1 - i of the other: 2f + (k + 1)/k b, where gangs take 2(f + b)."""
    pair = [SharedJob(name, k, forward, backward, 20) for name in ("a", "b")]
    together = simulate(pair, k)
    assert together.makespan_s == pytest.approx(20 * (2 * forward + (k + 1) / k * backward))
    assert together.busy == pytest.approx(1.0)
    apart = simulate([replace(job, is_partial=False) for job in pair], k, is_shared=False)
    assert apart.makespan_s == 20 * 2 * (forward + backward)
    assert apart.efficiency == 1.0
    assert together.efficiency == pytest.approx(apart.makespan_s / together.makespan_s)


def test_a_job_runs_while_another_averages_its_gradients() -> None:
    pair = [SharedJob(name, 2, 1.0, 0.0, 10, sync_s=1.0) for name in ("a", "b")]
    assert simulate(pair, 2).makespan_s == 10 * 2.0 + 1.0
    assert simulate(pair, 2, is_shared=False).makespan_s == 2 * 10 * 2.0


def test_slots_are_shared_by_time_and_not_by_turns() -> None:
    jobs = [SharedJob("long", 2, 3.0, 0.0, 100), SharedJob("short", 2, 1.0, 0.0, 300)]
    outcome = simulate(jobs, 2, keep_tasks=True)
    first = [task for task in outcome.tasks if task.ended_s <= 300.0 and task.slot == 0]
    assert sum(task.ended_s - task.began_s for task in first if task.job == "long") == pytest.approx(150.0, abs=3.0)
    assert outcome.makespan_s == 600.0


def test_time_that_a_job_did_not_want_is_no_claim() -> None:
    """`late` comes when `early` has had the slot alone for 100 s; then each has half."""
    jobs = [SharedJob("early", 2, 1.0, 0.0, 150), SharedJob("late", 2, 1.0, 0.0, 50, submitted_s=100.0)]
    outcome = simulate(jobs, 2)
    assert outcome.stays["early"].ended_s == pytest.approx(200.0, abs=1.0)
    assert outcome.stays["late"].ended_s == pytest.approx(200.0, abs=1.0)


def test_a_job_takes_slots_of_its_own_or_shares_all() -> None:
    """c would slow both a's slots through one of them, and d would have one slot alone: they wait."""
    pair = [SharedJob("a", 2, 1.0, 2.0, 5), SharedJob("b", 2, 1.0, 2.0, 6)]
    stays = simulate([*pair, SharedJob("c", 1, 1.0, 2.0, 5)], 4).stays
    assert [stays[name].slots for name in "abc"] == [(0, 1), (2, 3), (0,)]
    assert [stays[name].began_s for name in "abc"] == [0.0, 0.0, 15.0]
    stays = simulate([*pair, SharedJob("d", 4, 1.0, 2.0, 5)], 5).stays
    assert (stays["d"].slots, stays["d"].began_s) == ((0, 1, 2, 3), 0.0)
    stays = simulate([pair[0], SharedJob("d", 3, 1.0, 2.0, 5)], 4).stays
    assert (stays["d"].slots, stays["d"].began_s) == ((0, 1, 2), 15.0)


def test_slots_that_a_partner_has_left_are_taken_one_by_one() -> None:
    """When c has ended, d takes its slot beside a, which shares the other with b. e shares with no other single."""
    singles = [SharedJob(name, 1, 1.0, 0.0, many) for name, many in zip("bcde", (40, 2, 20, 1), strict=True)]
    stays = simulate([*singles[:2], SharedJob("a", 2, 1.0, 0.0, 20), *singles[2:]], 2).stays
    assert stays["a"].slots == (0, 1)
    assert (stays["d"].slots, stays["d"].began_s) == ((1,), stays["c"].ended_s)
    assert stays["a"].ended_s < stays["e"].began_s == min(stays["b"].ended_s, stays["d"].ended_s)


def test_short_roles_run_where_memory_is_short() -> None:
    """Beside the states of b, slot 1 has room for a's role 1 alone: slot 0 takes role 2 each time."""
    jobs = [SharedJob(name, 1, 1.0, 2.0, 9, states_bytes=size) for name, size in (("x", 1.0), ("b", 5.0))]
    wide = SharedJob("a", 2, 1.0, 2.0, 5, states_bytes=2.0, activation_bytes=6.0)
    outcome = simulate([*jobs, wide], 2, 10.0, keep_tasks=True)
    assert outcome.stays["a"].began_s == 0.0
    assert {(task.slot, task.role) for task in outcome.tasks if task.job == "a"} == {(0, 2), (1, 1)}
    # Where neither slot has room for role 2, it waits until both are its own.
    larger = [replace(job, states_bytes=5.0) for job in jobs]
    assert simulate([*larger, wide], 2, 10.0).stays["a"].began_s == 27.0


def test_a_job_waits_for_memory_that_a_running_role_takes() -> None:
    jobs = [
        SharedJob("a", 2, 4.0, 0.0, 1, states_bytes=2.0, activation_bytes=7.0, is_partial=False),
        SharedJob("b", 2, 1.0, 0.0, 1, states_bytes=2.0, submitted_s=1.0),
    ]
    assert simulate(jobs, 2, 10.0).stays["b"].began_s == 4.0
    assert simulate(jobs, 2, 11.0).stays["b"].began_s == 1.0


def single(name: str, states: float, seconds: float, iterations: int, submitted: float = 0.0) -> SharedJob:
    return SharedJob(name, 1, seconds, 0.0, iterations, states_bytes=states, submitted_s=submitted)


def test_a_job_takes_no_slot_on_which_a_longer_role_runs_than_would_fit_with_it() -> None:
    """From 1 s on, when q has ended, role 2 of a runs on slot 1 until 4 s. Beside d there is room for role 1 only."""
    wide = SharedJob("a", 2, 1.0, 2.0, 5, states_bytes=2.0, activation_bytes=6.0)
    jobs = [single("p", 1.0, 1.0, 20), single("q", 1.0, 1.0, 1), wide, single("d", 3.0, 1.0, 5, 2.0)]
    outcome = simulate(jobs, 2, 10.0, keep_tasks=True)
    assert Task(1, "a", 0, 2, 1.0, 4.0) in outcome.tasks
    assert (outcome.stays["d"].slots, outcome.stays["d"].began_s) == ((1,), 4.0)


def test_a_job_takes_no_slot_that_a_role_which_is_left_needs() -> None:
    """Beside p slot 0 had room for role 1 of a only, so role 2 waits for slot 1 until q has ended, at 6 s. Whole
    iterations of a would fit beside d and e, but not what is left of this one: e begins with the next one, at 9 s.
    """
    wide = SharedJob("a", 2, 1.0, 2.0, 5, states_bytes=2.0, activation_bytes=6.0)
    jobs = [single("p", 3.0, 1.0, 2), single("q", 1.0, 6.0, 1), wide, single("d", 1.0, 1.0, 50, 4.5)]
    outcome = simulate([*jobs, single("e", 3.0, 1.0, 5, 5.0)], 2, 10.0, keep_tasks=True)
    assert {Task(0, "a", 0, 1, 1.0, 3.0), Task(1, "a", 0, 2, 6.0, 9.0)} <= set(outcome.tasks)
    assert (outcome.stays["d"].slots, outcome.stays["d"].began_s) == ((0,), 4.5)
    assert (outcome.stays["e"].slots, outcome.stays["e"].began_s) == ((1,), 9.0)


def test_work_that_is_done_by_an_instant() -> None:
    outcome = simulate([SharedJob("a", 2, 1.0, 2.0, 10, sync_s=1.0)], 2)
    assert [outcome.done_by(instant) for instant in (0.0, 3.9, 4.0, 9.0, 100.0)] == [0.0, 0.0, 6.0, 12.0, 60.0]
    assert outcome.efficiency == 60 / (2 * 40)
    assert outcome.mean_completion_s == 40.0


def test_what_can_not_run() -> None:
    job = SharedJob("a", 2, 1.0, 2.0, 1, states_bytes=6e9, activation_bytes=5e9)
    with pytest.raises(SharingError, match="job a has 2 roles, and there are 1 slots"):
        simulate([job], 1)
    with pytest.raises(SharingError, match="job a needs 11 GB on a slot, which has 10 GB"):
        simulate([job], 2, 10e9)
    with pytest.raises(SharingError, match="two jobs are named a: give each a name of its own"):
        simulate([job, job], 2)
    with pytest.raises(SharingError, match="there are no jobs"):
        simulate([], 2)
    assert simulate([job], 2, inf).makespan_s == 3.0
