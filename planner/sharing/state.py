"""What the co-scheduler knows of a slot, and of a job that has begun. No decisions are made here."""

from __future__ import annotations

from dataclasses import dataclass, field

from holdfast.planner.sharing.jobs import SharedJob


@dataclass(eq=False, slots=True)
class Resident:
    """A job that has begun."""

    job: SharedJob
    order: int
    """Of its submission."""
    places: tuple[int, ...]
    """Its slots."""
    iteration: int = 0
    waiting: set[int] = field(default_factory=set)
    """Slots without a role of this iteration so far."""
    left: list[int] = field(default_factory=list)
    """Roles of this iteration that have not begun, ascending: as many as `waiting`."""
    running: set[int] = field(default_factory=set)
    """Slots on which a role of it runs."""
    behind_s: dict[int, float] = field(default_factory=dict)
    """By slot: its share so far less what it has had."""
    is_tight: bool = False
    """Some of its roles do not fit on all of its slots."""

    def begin(self) -> None:
        """The next iteration."""
        self.waiting = set(self.places)
        self.left = list(range(1, self.job.roles + 1))

    def wants(self, slot: int) -> bool:
        return slot in self.waiting or slot in self.running


@dataclass(eq=False, slots=True)
class SlotState:
    index: int
    residents: list[Resident] = field(default_factory=list)
    """Jobs that have their states here."""
    running: tuple[Resident, int] | None = None
    """Whose role runs, and which."""
    since_s: float = 0.0
    """Shares are counted up to here."""
    lacks_bytes: float = 0.0
    """Its memory is so much less than what is said of all slots."""

    def room(self, memory_bytes: float) -> float:
        """For activations."""
        return memory_bytes - self.lacks_bytes - sum(each.job.states_bytes for each in self.residents)

    def count(self, now: float) -> None:
        """Book the time since the last change to those that want the slot, and to the one that has it."""
        past, self.since_s = now - self.since_s, now
        if self.running is None or past <= 0:
            return
        wanting = [each for each in self.residents if each.wants(self.index)]
        for each in wanting:
            each.behind_s[self.index] += past / len(wanting)
        self.running[0].behind_s[self.index] -= past
