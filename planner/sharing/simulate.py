"""Jobs that share slots, in simulated time: a discrete-event simulation of the co-scheduler's own decisions. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import count
from math import inf

from holdfast.planner.sharing.errors import SharingError
from holdfast.planner.sharing.jobs import SharedJob
from holdfast.planner.sharing.scheduler import Begin, CoScheduler


@dataclass(frozen=True, slots=True)
class Task:
    """A role that ran."""

    slot: int
    job: str
    iteration: int
    role: int
    began_s: float
    ended_s: float


@dataclass(frozen=True, slots=True)
class Stay:
    """A job from its beginning to its end."""

    job: SharedJob
    slots: tuple[int, ...]
    began_s: float
    """When it got its slots."""
    ended_s: float
    iteration_ends_s: Sequence[float]
    """When the gradients of each were averaged."""

    @property
    def completion_s(self) -> float:
        """From its submission."""
        return self.ended_s - self.job.submitted_s


@dataclass(frozen=True, slots=True)
class Outcome:
    slots: int
    stays: Mapping[str, Stay]
    """By name, in the order of submission."""
    tasks: Sequence[Task]
    """In the order of their beginnings; none unless they were asked for."""
    busy_s: float
    """Slot seconds in which roles ran."""

    @property
    def makespan_s(self) -> float:
        """From the first submission to the last end."""
        first = min(stay.job.submitted_s for stay in self.stays.values())
        return max(stay.ended_s for stay in self.stays.values()) - first

    @property
    def efficiency(self) -> float:
        """Slot seconds of all iterations, were they full, over those that there were. With partial backwards it may be
        above 1: an iteration counts as one, however little of it is computed.
        """
        return sum(stay.job.work_s for stay in self.stays.values()) / (self.slots * self.makespan_s)

    @property
    def busy(self) -> float:
        """The share of the slots' time in which roles ran."""
        return self.busy_s / (self.slots * self.makespan_s)

    @property
    def mean_completion_s(self) -> float:
        return sum(stay.completion_s for stay in self.stays.values()) / len(self.stays)

    def done_by(self, instant_s: float) -> float:
        """Slot seconds of the iterations that had ended, were they full."""
        return sum(
            bisect_right(stay.iteration_ends_s, instant_s) * stay.job.roles * stay.job.full_s
            for stay in self.stays.values()
        )


def simulate(
    jobs: Iterable[SharedJob],
    slots: int,
    memory_bytes: float = inf,
    *,
    is_shared: bool = True,
    keep_tasks: bool = False,
) -> Outcome:
    """Run jobs to their ends on so many slots. SharingError for one that can't run there, or has no name of its own.

    Unless `is_shared`, each job has its slots for itself, as a gang.
    """
    ordered = sorted(jobs, key=lambda job: job.submitted_s)
    if not ordered:
        raise SharingError("there are no jobs: give one or more")
    scheduler = CoScheduler(slots, memory_bytes, is_shared=is_shared)
    # (instant, number, what happens); numbers keep those of one instant in the order in which they became known.
    numbers = count()
    events: list[tuple[float, int, SharedJob | int | str]] = [(job.submitted_s, next(numbers), job) for job in ordered]
    heapify(events)
    tasks: list[Task] = []
    began: dict[str, tuple[float, tuple[int, ...]]] = {}
    ends: dict[str, list[float]] = {job.name: [] for job in ordered}
    busy = 0.0
    while events:
        now = events[0][0]
        while events and events[0][0] == now:
            what = heappop(events)[2]
            if isinstance(what, SharedJob):
                scheduler.submit(what)
            elif isinstance(what, str):
                ends[what].append(now)
                scheduler.synced(what, now)
            elif (job := scheduler.ended(what, now)) is not None:
                heappush(events, (now + job.sync_s, next(numbers), job.name))
        for start in scheduler.decide(now):
            if isinstance(start, Begin):
                began[start.job.name] = now, start.slots
                continue
            seconds = start.job.seconds(start.role)
            busy += seconds
            heappush(events, (now + seconds, next(numbers), start.slot))
            if keep_tasks:
                tasks.append(Task(start.slot, start.job.name, start.iteration, start.role, now, now + seconds))
    stays = {
        job.name: Stay(job, began[job.name][1], began[job.name][0], ends[job.name][-1], ends[job.name])
        for job in ordered
    }
    return Outcome(slots, stays, tasks, busy)
