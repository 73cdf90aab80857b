"""Which host sends each unit, and in which order, so that all units are over soon. Pure, and the same for a seed.

A task keeps its sender and all of its receivers busy for its duration. Tasks begin in the order of a choice, each when
all of its hosts are free. Three algorithms after Zhuang et al. (MLSys 2023), and first fit, which is faster; all are
bounded in work, not in time, as a clock would give different ranks different plans.
"""

from __future__ import annotations

import random
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

Choice = tuple[tuple[int, int], ...]
"""Tasks by index, in order, each with the host that sends."""

MOST_EXACT = 20
"""Tasks. Of more, the search sees too small a part."""
MOST_STEPS = 200_000
"""Of the search: about a second."""
MOST_GREEDY = 5_000
"""Tasks: half a second. For more there is no time."""
_TRIES, _LOOKS = 100, 40_000_000


class Algorithm(StrEnum):
    LOAD = "load"
    ROUNDS = "rounds"
    GREEDY = "greedy"
    EXACT = "exact"


@dataclass(frozen=True, slots=True)
class Task:
    """`senders`: hosts of which one sends. `receivers`: hosts that all receive, none of them a sender."""

    duration: float
    senders: tuple[int, ...]
    receivers: tuple[int, ...]


def arrange(tasks: Sequence[Task], algorithm: Algorithm | None = None, seed: int = 0) -> Choice:
    """The choice of one algorithm, or the best of all."""
    match algorithm:
        case Algorithm.LOAD:
            return by_load(tasks)
        case Algorithm.ROUNDS:
            return by_rounds(tasks)
        case Algorithm.GREEDY:
            return greedy(tasks, seed)
        case Algorithm.EXACT:
            return exact(tasks)
    found = [by_load(tasks), by_rounds(tasks)]
    if len(tasks) <= MOST_GREEDY:
        found.append(greedy(tasks, seed))
    best = min(found, key=lambda choice: makespan(tasks, choice))
    return exact(tasks, best) if len(tasks) <= MOST_EXACT else best


def makespan(tasks: Sequence[Task], choice: Choice) -> float:
    """When the last task of a choice is over."""
    free: dict[int, float] = defaultdict(float)
    for number, sender in choice:
        hosts = (sender, *tasks[number].receivers)
        end = max(free[host] for host in hosts) + tasks[number].duration
        free.update(dict.fromkeys(hosts, end))
    return max(free.values(), default=0.0)


def by_load(tasks: Sequence[Task]) -> Choice:
    """In the given order, each from the sender that sends least so far."""
    load: dict[int, float] = defaultdict(float)
    found = []
    for number, task in enumerate(tasks):
        sender = min(task.senders, key=lambda host: (load[host], host))
        load[sender] += task.duration
        found.append((number, sender))
    return tuple(found)


def by_rounds(tasks: Sequence[Task]) -> Choice:
    """Each task, the longest first, in the first round in which none of its hosts has another: first fit.

    The sender is the one with which that round is the earliest. For n tasks of r hosts it does n r steps, so it fits
    where there is no time for `greedy`.
    """
    taken: dict[int, int] = defaultdict(int)  # by host: bit i is set if it has a task in round i
    placed = []
    for number in sorted(range(len(tasks)), key=lambda i: (-tasks[i].duration, i)):
        task = tasks[number]
        busy = 0
        for host in task.receivers:
            busy |= taken[host]
        at, sender = min((_first_free(busy | taken[host]), host) for host in task.senders)
        for host in (sender, *task.receivers):
            taken[host] |= 1 << at
        placed.append((at, number, sender))
    return tuple((number, sender) for _, number, sender in sorted(placed))


def _first_free(taken: int) -> int:
    """The lowest bit that is not set."""
    return (~taken & (taken + 1)).bit_length() - 1


def greedy(tasks: Sequence[Task], seed: int = 0) -> Choice:
    """Round by round the largest of some random sets of tasks that share no host; of equal ones, the most even load."""
    generator = random.Random(seed)
    load: dict[int, float] = {host: 0.0 for task in tasks for host in task.senders}
    tries = max(1, min(_TRIES, _LOOKS // max(len(tasks) ** 2, 1)))
    left, found = list(range(len(tasks))), []
    while left:
        sets = [_conflict_free(tasks, left, load, generator) for _ in range(tries)]
        best = min(sets, key=lambda chosen: (-len(chosen), statistics.pstdev(_after(tasks, load, chosen).values())))
        load = _after(tasks, load, best)
        found += best
        done = {number for number, _ in best}
        left = [number for number in left if number not in done]
    return tuple(found)


def _conflict_free(
    tasks: Sequence[Task], left: Sequence[int], load: dict[int, float], generator: random.Random
) -> list[tuple[int, int]]:
    """Tasks with senders, no host twice, to which none of the others can be added."""
    taken: set[int] = set()
    chosen = []
    for number in generator.sample(left, len(left)):
        task = tasks[number]
        senders = [host for host in task.senders if host not in taken]
        if senders and taken.isdisjoint(task.receivers):
            most = max(load[host] for host in senders)
            # Idle ones are likelier, and none is impossible.
            sender = generator.choices(senders, [1.0 + most - load[host] for host in senders])[0]
            taken.update((sender, *task.receivers))
            chosen.append((number, sender))
    return chosen


def _after(tasks: Sequence[Task], load: dict[int, float], chosen: Iterable[tuple[int, int]]) -> dict[int, float]:
    return load | {sender: load[sender] + tasks[number].duration for number, sender in chosen}


def lower_bound(tasks: Sequence[Task]) -> float:
    """No choice is over earlier."""
    return _State(tasks).bound()


def exact(tasks: Sequence[Task], known: Choice | None = None, steps: int = MOST_STEPS) -> Choice:
    """The best choice, by depth-first search; the best found if that takes more than so many steps.

    `known` is returned if nothing is better. Without it the search begins at what `by_load` finds.
    """
    search = _Search(tasks, known or by_load(tasks), steps)
    search.go(_State(tasks), ())
    return search.best


@dataclass(slots=True)
class _State:
    """Hosts' clocks, and what is left to do."""

    tasks: Sequence[Task]
    left: frozenset[int] = field(init=False)
    free: dict[int, float] = field(init=False)
    forced: dict[int, float] = field(init=False)
    """Work left that a host cannot avoid: it receives, or is the only one that can send."""
    rest: float = field(init=False)
    senders: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.left = frozenset(range(len(self.tasks)))
        self.free = {host: 0.0 for task in self.tasks for host in (*task.senders, *task.receivers)}
        self.forced = dict.fromkeys(self.free, 0.0)
        for task in self.tasks:
            for host in _forced(task):
                self.forced[host] += task.duration
        self.rest = sum(task.duration for task in self.tasks)
        self.senders = tuple({host: None for task in self.tasks for host in task.senders})

    def bound(self) -> float:
        """A true lower bound of what follows: it assumes nothing about which host sends what.

        No host is over before its clock and what it cannot avoid; and all that is left has to be sent by someone.
        """
        host = max((clock + self.forced[host] for host, clock in self.free.items()), default=0.0)
        every = sum(self.free[host] for host in self.senders) + self.rest
        return max(host, every / max(len(self.senders), 1))

    def then(self, number: int, sender: int) -> tuple[float, _State]:
        """After one more task: when it began, and the state."""
        task = self.tasks[number]
        hosts = (sender, *task.receivers)
        begun = max(self.free[host] for host in hosts)
        after = object.__new__(_State)
        after.tasks, after.senders = self.tasks, self.senders
        after.left, after.rest = self.left - {number}, self.rest - task.duration
        after.free = self.free | dict.fromkeys(hosts, begun + task.duration)
        after.forced = self.forced | {host: self.forced[host] - task.duration for host in _forced(task)}
        return begun, after


def _forced(task: Task) -> tuple[int, ...]:
    return (*task.receivers, *(task.senders if len(task.senders) == 1 else ()))


class _Search:
    """Branch and bound."""

    def __init__(self, tasks: Sequence[Task], best: Choice, steps: int) -> None:
        self._tasks, self.best, self._steps = tasks, best, steps
        self._least = makespan(tasks, best)
        self._slack = 1e-9 * sum(task.duration for task in tasks)  # of adding in another order
        self._seen: set[tuple[frozenset[int], tuple[float, ...]]] = set()

    def go(self, state: _State, path: Choice) -> None:
        """Try all that can follow, what can begin first before the rest."""
        if not state.left:
            self._least, self.best = max(state.free.values(), default=0.0), path
            return
        following = []
        for number in state.left:
            for sender in self._tasks[number].senders:
                self._steps -= 1
                begun, after = state.then(number, sender)
                following.append((begun, -self._tasks[number].duration, number, sender, after))
        following.sort(key=lambda entry: entry[:4])
        for _, _, number, sender, after in following:
            key = (after.left, tuple(after.free.values()))
            if self._steps > 0 and after.bound() < self._least - self._slack and key not in self._seen:
                self._seen.add(key)
                self.go(after, (*path, (number, sender)))
