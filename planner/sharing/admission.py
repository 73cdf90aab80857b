"""Which slots a job begins on. Pure.

Slots of its own if there are enough. Otherwise slots of other jobs, two jobs a slot unless more are allowed, and then
it shares all of its slots and covers all slots of each partner: a job that shares some of its slots only would wait on
these, iteration after iteration, while its others idle. Where a partner's partner has ended before it, the slots that
this left may be taken one by one. Two jobs of one role each have nothing that the other could fill, and do not share.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from holdfast.planner.sharing.fit import matches
from holdfast.planner.sharing.jobs import SharedJob
from holdfast.planner.sharing.state import Resident, SlotState


def choose_slots(job: SharedJob, slots: Sequence[SlotState], memory_bytes: float, is_shared: bool) -> tuple[int, ...]:
    """Slots for a job that fits an empty one; none where it has to wait."""
    empty = [one.index for one in slots if not one.residents]
    if len(empty) >= job.roles:
        return tuple(empty[: job.roles])
    return shared_slots(job, slots, memory_bytes, least=2 if job.roles == 1 else 1) if is_shared else ()


def shared_slots(
    job: SharedJob, slots: Sequence[SlotState], memory_bytes: float, *, most: int = 2, least: int = 1
) -> tuple[int, ...]:
    """Slots that other jobs have, `most` jobs a slot with this one; partners of `least` roles or more. None: no room.

    Groups of slots that are taken as a whole are tried from the largest on; of equal ones those with fewest jobs, then
    that with most room first.
    """
    rooms = [one.room(memory_bytes) for one in slots]
    groups = sorted(
        _groups(slots, most, least),
        key=lambda group: (-len(group), len(slots[group[0]].residents), -min(rooms[i] for i in group), group),
    )
    taken: set[int] = set()
    for group in groups:
        if len(taken) + len(group) > job.roles:
            continue
        wider = taken | set(group)
        if all(_goes_on(slots[i], rooms, wider, job.states_bytes) for i in group):
            taken = wider
    needs = [job.activations(role) for role in range(1, job.roles + 1)]
    if len(taken) < job.roles or not matches([rooms[i] - job.states_bytes for i in taken], needs):
        return ()
    return tuple(sorted(taken))


def _groups(slots: Sequence[SlotState], most: int, least: int) -> Iterator[tuple[int, ...]]:
    """All slots of jobs that have the same ones, with no other there; each other slot that has jobs, and fewer than
    `most`. Of jobs with `least` roles or more.
    """
    for one in slots:
        if not 0 < len(one.residents) < most or any(len(each.places) < least for each in one.residents):
            continue
        places = one.residents[0].places
        if all(slots[i].residents == one.residents for i in places) and all(
            each.places == places for each in one.residents
        ):
            if one.index == places[0]:
                yield places
        else:
            yield (one.index,)


def _goes_on(one: SlotState, rooms: Sequence[float], taken: set[int], states_bytes: float) -> bool:
    """With more states on the taken slots: does what runs on this one fit, and has each role of its job a slot?"""

    def room(i: int) -> float:
        return rooms[i] - states_bytes * (i in taken)

    if one.running is not None and one.running[0].job.activations(one.running[1]) > room(one.index):
        return False
    return all(
        _has_slots(each, [room(i) for i in each.places], [room(i) for i in each.waiting]) for each in one.residents
    )


def _has_slots(each: Resident, places: Sequence[float], waiting: Sequence[float]) -> bool:
    """Of a whole iteration, and of what is left of this one."""
    needs = [each.job.activations(role) for role in range(1, each.job.roles + 1)]
    left = [each.job.activations(role) for role in each.left]
    return matches(places, needs) and matches(waiting, left)
