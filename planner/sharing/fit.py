"""Which roles fit where: memory, and the role that fills a gap. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from holdfast.planner.sharing.jobs import SharedJob


def matches(rooms: Iterable[float], needs: Iterable[float]) -> bool:
    """Can each need have a room of its own that is large enough? There are as many rooms as needs."""
    return all(need <= room for room, need in zip(sorted(rooms), sorted(needs), strict=True))


def allowed(job: SharedJob, left: Sequence[int], room: float, others: Sequence[float]) -> list[int]:
    """Roles of `left` that fit a slot with this room, with a slot for each other role afterwards.

    `others`: rooms of the other slots that have had no role of this iteration; one fewer than `left`. Where all of `left`
    match all slots, there is one.
    """
    return [
        role
        for role in left
        if job.activations(role) <= room
        and matches(others, [job.activations(other) for other in left if other != role])
    ]


def best_fit(job: SharedJob, roles: Sequence[int], gap_s: float) -> int:
    """The longest role that ends within the gap; the longest of all where none does.

    A slot that nobody else is about to use has an infinite gap, and gets the longest.
    """
    return max(roles, key=lambda role: (job.seconds(role) <= gap_s, job.seconds(role), role))
