"""Whose turn a slot is, iteration by iteration, between the jobs that are there. Pure.

`next_turn` is the co-scheduler's rule, which its simulation and an agent with real workers share. `Turns` keeps one
slot for an agent: workers ask for their turns and give them back. A turn that lasts too long is taken back, for its
worker may be dead or hung; whoever waits then goes on beside it.
"""

from __future__ import annotations

from math import inf

from holdfast.planner.sharing.jobs import SharedJob
from holdfast.planner.sharing.state import Resident, SlotState

_DIGITS = 9
"""Seconds behind that differ by less are equal: then the job that came first goes first."""
FIRST_LIMIT_S = 60.0
"""A job's first turn may last so long: it compiles, and makes its device's context."""
LEAST_LIMIT_S = 2.0
TIMES = 4.0
"""Any other so many times as long as the longest of its job so far, and no less than the limit above."""


def next_turn(one: SlotState, now: float) -> Resident | None:
    """Of the jobs that wait for this slot, the one that is furthest behind its share of it; None: none waits. Books the
    slot's time up to now."""
    wanting = [each for each in one.residents if one.index in each.waiting]
    if not wanting:
        return None
    one.count(now)
    return max(wanting, key=lambda each: (round(each.behind_s[one.index], _DIGITS), -each.order))


class Turns:
    """The turns on one slot. Instants are monotonic seconds, and never go back."""

    def __init__(self) -> None:
        self._slot = SlotState(0)
        self._here: dict[str, Resident] = {}
        self._longest: dict[str, float] = {}
        self._began = 0.0
        self._order = 0
        self.overdue = 0
        """Turns that were taken back."""

    @property
    def holder(self) -> str | None:
        """Whose turn it is."""
        return self._slot.running[0].job.name if self._slot.running is not None else None

    @property
    def is_shared(self) -> bool:
        """Are there several? One alone need not ask."""
        return len(self._here) > 1

    @property
    def ends_by(self) -> float:
        """When the turn under way is taken back; infinite without one."""
        name = self.holder
        if name is None:
            return inf
        longest = self._longest.get(name)
        return self._began + (FIRST_LIMIT_S if longest is None else max(LEAST_LIMIT_S, TIMES * longest))

    def joined(self, name: str, now: float) -> None:
        """A worker of a job came to the slot."""
        self.left(name, now)
        self._slot.count(now)
        job = SharedJob(name, 1, 1.0, 0.0, 1)
        resident = self._here[name] = Resident(job, self._order, (0,), behind_s={0: 0.0})
        self._order += 1
        self._slot.residents.append(resident)

    def left(self, name: str, now: float) -> None:
        """It is gone, with its turn."""
        resident = self._here.get(name)
        if resident is None:
            return
        self._end(name, now)
        self._slot.count(now)
        del self._here[name]
        self._slot.residents.remove(resident)
        self._longest.pop(name, None)

    def asked(self, name: str, now: float) -> None:
        """It waits for its turn; a turn that it has ends."""
        self._end(name, now)
        self._slot.count(now)
        self._here[name].waiting.add(0)

    def gave_back(self, name: str, now: float) -> None:
        """Nothing happens where it has none, as when that was taken back."""
        if self.holder == name:
            self._longest[name] = max(self._longest.get(name, 0.0), now - self._began)
        self._end(name, now)

    def next(self, now: float) -> str | None:
        """Whose turn begins now, if one does. Takes back a turn that has lasted too long."""
        name = self.holder
        if name is not None and now >= self.ends_by:
            self.overdue += 1
            self._end(name, now)
        if self._slot.running is not None:
            return None
        chosen = next_turn(self._slot, now)
        if chosen is None:
            return None
        chosen.waiting.clear()
        chosen.running.add(0)
        self._slot.running = chosen, 1
        self._began = now
        return chosen.job.name

    def _end(self, name: str, now: float) -> None:
        if self.holder != name:
            return
        self._slot.count(now)
        self._here[name].running.clear()
        self._slot.running = None
