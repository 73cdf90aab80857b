"""Senders and order: the search against brute force, the bound, and which algorithm is better on average."""

from __future__ import annotations

import itertools
import random
import sys
from statistics import mean

import pytest

from holdfast.plan.moves.order import (
    Algorithm,
    Choice,
    Task,
    arrange,
    by_load,
    by_rounds,
    exact,
    greedy,
    lower_bound,
    makespan,
)  # fmt: skip


def instance(seed: int, count: int, hosts: int = 4) -> list[Task]:
    """Senders are hosts from 0, receivers from 100; durations mostly differ."""
    generator = random.Random(seed)

    def some(first: int, most: int) -> tuple[int, ...]:
        return tuple(generator.sample(range(first, first + hosts), generator.randint(1, most)))

    return [Task(generator.choice((1.0, 2.0, 3.5, 5.0)), some(0, 3), some(100, 2)) for _ in range(count)]


def over(tasks: list[Task], order: tuple[int, ...], senders: tuple[int, ...]) -> float:
    """When the last task ends, counted anew: a task begins when its sender and its receivers are free."""
    clock: dict[int, float] = {}
    for number in order:
        hosts = [senders[number], *tasks[number].receivers]
        begin = max(clock.get(host, 0.0) for host in hosts)
        for host in hosts:
            clock[host] = begin + tasks[number].duration
    return max(clock.values())


def brute(tasks: list[Task]) -> float:
    orders = list(itertools.permutations(range(len(tasks))))
    every = itertools.product(*(task.senders for task in tasks))
    return min(over(tasks, order, senders) for senders in every for order in orders)


def valid(tasks: list[Task], choice: Choice) -> bool:
    return sorted(number for number, _ in choice) == list(range(len(tasks))) and all(
        sender in tasks[number].senders for number, sender in choice
    )


@pytest.mark.parametrize("seed", range(40))
def test_the_search_finds_what_brute_force_finds(seed: int) -> None:
    tasks = instance(seed, 1 + seed % 5, hosts=3)
    found, least = exact(tasks), brute(tasks)
    assert valid(tasks, found)
    assert makespan(tasks, found) == pytest.approx(least)
    assert lower_bound(tasks) <= least + 1e-9


@pytest.mark.parametrize("seed", range(4))
def test_the_search_finds_what_brute_force_finds_among_six(seed: int) -> None:
    tasks = [Task(t.duration, t.senders[:2], t.receivers) for t in instance(seed, 6, hosts=3)]
    assert makespan(tasks, exact(tasks)) == pytest.approx(brute(tasks))


def test_a_bound_that_assigns_senders_greedily_would_miss_this() -> None:
    """Two short tasks that host 0 or 1 can send, then a long one that only host 0 can: 0 must stay free for it."""
    tasks = [Task(1, (0, 1), (10,)), Task(1, (0, 1), (11,)), Task(2, (0,), (12,))]
    assert makespan(tasks, by_load(tasks)) == 3
    assert lower_bound(tasks) == 2
    assert makespan(tasks, exact(tasks)) == 2


def test_the_bound_counts_what_a_host_cannot_avoid() -> None:
    receiver = [Task(2, (0, 1, 2), (10,)), Task(3, (0, 1, 2), (10, 11))]
    only_sender = [Task(2, (0,), (10,)), Task(3, (0,), (11,)), Task(1, (1, 2), (12,))]
    senders = [Task(2, (0, 1), (host,)) for host in (10, 11, 12)]
    assert [lower_bound(tasks) for tasks in (receiver, only_sender, senders)] == [5, 5, 3]


def test_greedy_begins_with_the_largest_set_that_shares_no_host() -> None:
    tasks = [Task(1, (0,), (10, 11, 12)), Task(1, (1,), (10,)), Task(1, (2,), (11,)), Task(1, (3,), (12,))]
    assert [number for number, _ in greedy(tasks)][-1] == 0


def test_bound_search_greedy_load_in_this_order_on_average() -> None:
    bounds, found = [], {algorithm: [] for algorithm in Algorithm}  # type: dict, dict
    for seed in range(20):
        tasks = instance(seed, 8)
        bounds.append(lower_bound(tasks))
        for algorithm, times in found.items():
            choice = arrange(tasks, algorithm, seed)
            assert valid(tasks, choice)
            times.append(makespan(tasks, choice))
        best = makespan(tasks, arrange(tasks, seed=seed))
        assert bounds[-1] - 1e-9 <= best <= min(times[-1] for times in found.values()) + 1e-9
    ways = (Algorithm.LOAD, Algorithm.ROUNDS, Algorithm.GREEDY, Algorithm.EXACT)
    load, rounds, middle, search = (mean(found[way]) for way in ways)
    assert mean(bounds) <= search <= middle < load
    assert search <= rounds < load


def test_rounds_share_no_host_and_a_task_is_in_the_first_it_fits() -> None:
    chain = [Task(1, (0,), (1,)), Task(1, (1,), (2,)), Task(1, (2,), (3,)), Task(1, (3,), (0,))]
    assert by_rounds(chain) == ((0, 0), (2, 2), (1, 1), (3, 3))
    assert (makespan(chain, by_load(chain)), makespan(chain, by_rounds(chain))) == (4, 2)
    same_receiver = [Task(1, (0,), (10,)), Task(1, (1,), (10,)), Task(1, (1,), (11,))]
    assert by_rounds(same_receiver) == ((0, 0), (2, 1), (1, 1))
    # The longest first, from the sender that is free earliest, of two the lower one.
    tasks = [Task(1, (0, 1), (10,)), Task(5, (0,), (11,)), Task(1, (1, 0), (12,))]
    assert by_rounds(tasks) == ((0, 1), (1, 0), (2, 0))
    for seed in range(50):
        many = instance(seed, 20)
        assert valid(many, by_rounds(many))
    assert by_rounds([]) == ()


def test_rounds_of_many_tasks_take_steps_in_proportion_to_them() -> None:
    """Twice the tasks, about twice the work: counted, as a clock would count the machine's other work too."""

    def steps(count: int) -> int:
        calls = 0

        def watch(*_: object) -> None:
            nonlocal calls
            calls += 1

        tasks = instance(4, count, hosts=40)
        sys.setprofile(watch)
        try:
            by_rounds(tasks)
        finally:
            sys.setprofile(None)
        return calls

    assert steps(2000) < 2.5 * steps(1000)


def test_the_clocks_are_those_counted_anew() -> None:
    for seed in range(15):
        tasks = instance(seed, 12)
        choice = greedy(tasks, seed)
        order, senders = tuple(number for number, _ in choice), tuple(host for _, host in sorted(choice))
        assert makespan(tasks, choice) == pytest.approx(over(tasks, order, senders))


def test_the_same_seed_gives_the_same_choice_and_another_may_not() -> None:
    tasks = instance(1, 30)
    assert arrange(tasks, seed=5) == arrange(tasks, seed=5)
    assert len({greedy(tasks, seed) for seed in range(5)}) > 1


def test_work_is_bounded() -> None:
    """The search gives up after its steps, with something no worse than it was given."""
    tasks = instance(2, 18)
    known = greedy(tasks)
    assert makespan(tasks, exact(tasks, known, steps=100)) <= makespan(tasks, known)
    many = instance(3, 5500, hosts=40)
    assert valid(many, arrange(many))


def test_nothing_to_do() -> None:
    assert arrange([]) == ()
    assert lower_bound([]) == 0
