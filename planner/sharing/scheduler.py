"""The co-scheduler: which job gets which slots, and which role of which job a free slot runs next. Pure.

Facts with their instants come in (a job was submitted, a role has ended, gradients are averaged); `decide` returns what is
to start now. It has no clock: the simulator drives it, and so may whatever starts real workers.

- A job gets its slots when it begins, and keeps them. Jobs begin in the order of their submission, none before an earlier
  one that waits, so no job starves in the queue.
- A free slot goes to the job that is furthest behind its share of this slot. A slot's time is shared equally by the
  jobs that want it: those with a role there that runs or is ready. What a job did not want it does not get later, so
  a job that has used what others left waits for no more than a few of their roles.
- Of that job, the role that fills the gap until another job wants this slot (`best_fit`).
- A role runs to its end where it began.
- Memory: the states of a slot's jobs and the activations of the one role that runs never exceed it. No job begins where a
  role of another would have no slot left.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import inf

from holdfast.planner.sharing.errors import SharingError
from holdfast.planner.sharing.fit import allowed, best_fit, matches
from holdfast.planner.sharing.jobs import SharedJob

_DIGITS = 9
"""Seconds behind that differ by less are equal: then the job that was submitted first goes first."""


@dataclass(frozen=True, slots=True)
class Begin:
    """A job gets its slots, with its states in their memory."""

    job: SharedJob
    slots: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Start:
    """A role that is to start now."""

    slot: int
    job: SharedJob
    iteration: int
    role: int


@dataclass(eq=False, slots=True)
class _Resident:
    """A job that has begun."""

    job: SharedJob
    order: int
    places: tuple[int, ...]
    iteration: int = 0
    waiting: set[int] = field(default_factory=set)
    """Slots without a role of this iteration so far."""
    left: list[int] = field(default_factory=list)
    """Roles of this iteration that have not begun: as many as `waiting`."""
    ends: dict[int, float] = field(default_factory=dict)
    """By slot, when the role that runs there should end."""
    synced_s: float = inf
    """When the gradients of this iteration should be averaged, once all of its roles have ended."""
    behind_s: dict[int, float] = field(default_factory=dict)
    """By slot: its share so far less what it has had."""
    is_tight: bool = False
    """Some of its roles do not fit on all of its slots."""

    def begin(self) -> None:
        self.waiting = set(self.places)
        self.left = list(range(1, self.job.roles + 1))
        self.synced_s = inf

    def wants(self, slot: int) -> bool:
        return slot in self.waiting or slot in self.ends

    def wants_after(self, now: float) -> float:
        """Seconds until it wants a slot again on which its role of this iteration has ended, as far as is known."""
        if self.synced_s < inf:
            return max(0.0, self.synced_s - now)
        last = max((end - now for end in self.ends.values()), default=0.0)
        if self.left:
            last = max(last, self.job.seconds(self.left[-1]))
        return last + self.job.sync_s


@dataclass(eq=False, slots=True)
class _Slot:
    index: int
    residents: list[_Resident] = field(default_factory=list)
    running: tuple[_Resident, int] | None = None
    """Whose role, and which."""
    since_s: float = 0.0
    """Shares are counted up to here."""


class CoScheduler:
    def __init__(self, slots: int, memory_bytes: float = inf, most_jobs: int = 2) -> None:
        """`memory_bytes` of each slot. `most_jobs` share a slot; with 1 each job has its slots for itself."""
        self._slots = [_Slot(index) for index in range(slots)]
        self._memory, self._most = memory_bytes, most_jobs
        self._queue: deque[tuple[int, SharedJob]] = deque()
        self._residents: dict[str, _Resident] = {}
        self._names: set[str] = set()
        self._changed: set[int] = set()
        """Slots that may be free with a role to run: on all others nothing has changed since the last decision."""

    def submit(self, job: SharedJob) -> None:
        """SharingError for a job that these slots can't run, or one with the name of another."""
        if job.name in self._names:
            raise SharingError(f"two jobs are named {job.name}: give each a name of its own")
        if job.roles > len(self._slots):
            raise SharingError(f"job {job.name} has {job.roles} roles, and there are {len(self._slots)} slots")
        if job.states_bytes + job.activations(job.roles) > self._memory:
            need = (job.states_bytes + job.activations(job.roles)) / 1e9
            raise SharingError(f"job {job.name} needs {need:.4g} GB on a slot, which has {self._memory / 1e9:.4g} GB")
        self._queue.append((len(self._names), job))
        self._names.add(job.name)

    def ended(self, slot: int, now: float) -> SharedJob | None:
        """The role on this slot has ended. Returns its job if it was the last of its iteration: it averages now."""
        one = self._slots[slot]
        assert one.running is not None, f"nothing runs on slot {slot}"
        self._count(one, now)
        resident, _ = one.running
        one.running = None
        del resident.ends[slot]
        self._changed.add(slot)
        if resident.ends or resident.left:
            return None
        resident.synced_s = now + resident.job.sync_s
        return resident.job

    def synced(self, name: str, now: float) -> bool:
        """Gradients of a job's iteration are averaged. True if that was its last one: the job has left its slots."""
        resident = self._residents[name]
        assert not (resident.ends or resident.left), f"{name}: its iteration has not ended"
        for place in resident.places:
            self._count(self._slots[place], now)
        resident.iteration += 1
        if resident.iteration < resident.job.iterations:
            resident.begin()
            self._changed.update(resident.places)
            return False
        del self._residents[name]
        for place in resident.places:
            self._slots[place].residents.remove(resident)
        self._measure(resident.places)
        return True

    def decide(self, now: float) -> list[Begin | Start]:
        """What begins and starts now, on all free slots: those that fewest jobs want first."""
        begun: list[Begin | Start] = []
        while self._queue and (places := self._admit(*self._queue[0], now)):
            begun.append(Begin(self._queue.popleft()[1], places))
        free = [one for one in map(self._slots.__getitem__, self._changed) if one.running is None]
        self._changed.clear()
        free.sort(key=lambda one: (sum(each.wants(one.index) for each in one.residents), one.index))
        return begun + [start for one in free if (start := self._start(one, now)) is not None]

    def _start(self, one: _Slot, now: float) -> Start | None:
        wanting = [each for each in one.residents if one.index in each.waiting]
        if not wanting:
            return None
        self._count(one, now)
        chosen = max(wanting, key=lambda each: (round(each.behind_s[one.index], _DIGITS), -each.order))
        roles: Sequence[int] = chosen.left
        if chosen.is_tight:
            others = [self._room(self._slots[place]) for place in chosen.waiting if place != one.index]
            roles = allowed(chosen.job, chosen.left, self._room(one), others)
        others_want = (0.0 if each in wanting else each.wants_after(now) for each in one.residents if each is not chosen)
        role = best_fit(chosen.job, roles, min(others_want, default=inf))
        chosen.left.remove(role)
        chosen.waiting.remove(one.index)
        chosen.ends[one.index] = now + chosen.job.seconds(role)
        one.running = chosen, role
        return Start(one.index, chosen.job, chosen.iteration, role)

    def _count(self, one: _Slot, now: float) -> None:
        """Book the time since the last change to those that want the slot, and to the one that has it."""
        past, one.since_s = now - one.since_s, now
        if one.running is None or past <= 0:
            return
        wanting = [each for each in one.residents if each.wants(one.index)]
        for each in wanting:
            each.behind_s[one.index] += past / len(wanting)
        one.running[0].behind_s[one.index] -= past

    def _admit(self, order: int, job: SharedJob, now: float) -> tuple[int, ...]:
        """Give a job its slots: those with fewest jobs, or if that fails the ones with most room. None: too few."""
        open_slots = [one for one in self._slots if len(one.residents) < self._most]
        emptiest = sorted(open_slots, key=lambda one: (len(one.residents), -self._room(one), one.index))
        roomiest = sorted(open_slots, key=lambda one: (-self._room(one), one.index))
        places = self._places(job, emptiest) or self._places(job, roomiest)
        if not places:
            return ()
        resident = _Resident(job, order, places, behind_s=dict.fromkeys(places, 0.0))
        resident.begin()
        self._residents[job.name] = resident
        for place in places:
            self._count(self._slots[place], now)
            self._slots[place].residents.append(resident)
        self._measure(places)
        self._changed.update(places)
        return places

    def _places(self, job: SharedJob, candidates: Sequence[_Slot]) -> tuple[int, ...]:
        """The first slots that all jobs there can share with this one; none where they are too few."""
        taken: set[int] = set()
        for one in candidates:
            if len(taken) == job.roles:
                break
            taken.add(one.index)
            if not all(self._goes_on(each, taken, job.states_bytes) for each in one.residents) or not (
                self._runs_on(one, job.states_bytes)
            ):
                taken.discard(one.index)
        rooms = [self._room(self._slots[place]) - job.states_bytes for place in taken]
        needs = [job.activations(role) for role in range(1, job.roles + 1)]
        return tuple(sorted(taken)) if len(taken) == job.roles and matches(rooms, needs) else ()

    def _runs_on(self, one: _Slot, less: float) -> bool:
        """Would what runs on the slot now fit with so much less room?"""
        return one.running is None or one.running[0].job.activations(one.running[1]) <= self._room(one) - less

    def _goes_on(self, each: _Resident, taken: set[int], less: float) -> bool:
        """Would all roles of a job, and those that are left of its iteration, have slots with less room on some?"""
        rooms = {place: self._room(self._slots[place]) - less * (place in taken) for place in each.places}
        needs = [each.job.activations(role) for role in range(1, each.job.roles + 1)]
        left = [each.job.activations(role) for role in each.left]
        return matches(rooms.values(), needs) and matches([rooms[place] for place in each.waiting], left)

    def _room(self, one: _Slot) -> float:
        """For activations."""
        return self._memory - sum(each.job.states_bytes for each in one.residents)

    def _measure(self, places: Sequence[int]) -> None:
        """Jobs on these slots have more or less room now."""
        for each in {each.order: each for each in self._on(places)}.values():
            least = min(self._room(self._slots[place]) for place in each.places)
            each.is_tight = each.job.activations(each.job.roles) > least

    def _on(self, places: Sequence[int]) -> Iterator[_Resident]:
        for place in places:
            yield from self._slots[place].residents
