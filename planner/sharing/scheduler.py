"""The co-scheduler: which job gets which slots, and which role of which job a free slot runs next. Pure.

Facts with their instants come in (a job was submitted, a role has ended, gradients are averaged); `decide` returns what
is to start now. It has no clock: the simulator drives it, and so may whatever starts real workers.

- A job gets its slots when it begins (`admission`), and keeps them. Jobs begin in the order of their submission, none
  before an earlier one that waits, so no job starves in the queue.
- A free slot goes to the job that is furthest behind its share of this slot. A slot's time is shared equally by the
  jobs that want it: those with a role there that runs or is ready. What a job did not want it does not get later, so
  a job that has used what its partner left does not wait for long afterwards.
- Of that job, the longest role that has not begun. Slots that become free earlier get longer roles, which evens out
  when the slots of a job are free again: two alike jobs leave no slot idle. To choose the role that ends before the
  partner should want the slot again leaves up to a twentieth of their slots idle, and gains less on traces.
- A role runs to its end where it began.
- Memory: the states of a slot's jobs and the activations of the one role that runs never exceed it. No job begins
  where a role of another would have no slot left, and no role where another of its iteration would have none.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf

from holdfast.planner.sharing.admission import choose_slots
from holdfast.planner.sharing.errors import SharingError
from holdfast.planner.sharing.fit import allowed
from holdfast.planner.sharing.jobs import SharedJob
from holdfast.planner.sharing.state import Resident, SlotState
from holdfast.planner.sharing.turns import next_turn


@dataclass(frozen=True, slots=True)
class Begin:
    """A job gets its slots, with its states in their memory."""

    job: SharedJob
    slots: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Start:
    """A role is to start now."""

    slot: int
    job: SharedJob
    iteration: int
    role: int


class CoScheduler:
    def __init__(self, slots: int, memory_bytes: float = inf, *, is_shared: bool = True) -> None:
        """`memory_bytes` of each slot. Two jobs may share a slot, or none: each has its slots for itself, as a gang."""
        self._slots = [SlotState(index) for index in range(slots)]
        self._memory, self._is_shared = memory_bytes, is_shared
        self._queue: deque[tuple[int, SharedJob]] = deque()
        self._residents: dict[str, Resident] = {}
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
        one.count(now)
        resident, _ = one.running
        one.running = None
        resident.running.remove(slot)
        self._changed.add(slot)
        return None if resident.running or resident.left else resident.job

    def synced(self, name: str, now: float) -> bool:
        """Gradients of a job's iteration are averaged. True if that was its last one: the job has left its slots."""
        resident = self._residents[name]
        assert not resident.running, f"{name}: a role of its iteration runs"
        assert not resident.left, f"{name}: a role of its iteration has not begun"
        slots = [self._slots[place] for place in resident.places]
        for one in slots:
            one.count(now)
        resident.iteration += 1
        if resident.iteration < resident.job.iterations:
            resident.begin()
            self._changed.update(resident.places)
            return False
        del self._residents[name]
        for one in slots:
            one.residents.remove(resident)
        self._measure(slots)
        return True

    def decide(self, now: float) -> list[Begin | Start]:
        """What begins and starts now, on all free slots: those that fewest jobs want first."""
        begun: list[Begin | Start] = []
        while self._queue:
            order, job = self._queue[0]
            places = choose_slots(job, self._slots, self._memory, self._is_shared)
            if not places:
                break
            self._queue.popleft()
            self._place(Resident(job, order, places), now)
            begun.append(Begin(job, places))
        free = [one for one in map(self._slots.__getitem__, self._changed) if one.running is None]
        self._changed.clear()
        free.sort(key=lambda one: (sum(each.wants(one.index) for each in one.residents), one.index))
        return begun + [start for one in free if (start := self._start(one, now)) is not None]

    def _place(self, resident: Resident, now: float) -> None:
        resident.begin()
        resident.behind_s = dict.fromkeys(resident.places, 0.0)
        self._residents[resident.job.name] = resident
        slots = [self._slots[place] for place in resident.places]
        for one in slots:
            one.count(now)
            one.residents.append(resident)
        self._measure(slots)
        self._changed.update(resident.places)

    def _start(self, one: SlotState, now: float) -> Start | None:
        chosen = next_turn(one, now)
        if chosen is None:
            return None
        roles: Sequence[int] = chosen.left
        if chosen.is_tight:
            others = [self._slots[place].room(self._memory) for place in chosen.waiting if place != one.index]
            roles = allowed(chosen.job, chosen.left, one.room(self._memory), others)
        role = roles[-1]
        chosen.left.remove(role)
        chosen.waiting.remove(one.index)
        chosen.running.add(one.index)
        one.running = chosen, role
        return Start(one.index, chosen.job, chosen.iteration, role)

    def _measure(self, slots: Iterable[SlotState]) -> None:
        """Jobs on these slots have more or less room now."""
        for each in {each.order: each for one in slots for each in one.residents}.values():
            least = min(self._slots[place].room(self._memory) for place in each.places)
            each.is_tight = each.job.activations(each.job.roles) > least
