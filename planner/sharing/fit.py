"""Which roles fit where, by memory. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from holdfast.planner.sharing.jobs import SharedJob


def matches(rooms: Iterable[float], needs: Iterable[float]) -> bool:
    """Can each need have a room of its own that is large enough? There are as many rooms as needs."""
    return all(need <= room for room, need in zip(sorted(rooms), sorted(needs), strict=True))


def allowed(job: SharedJob, left: Sequence[int], room: float, others: Sequence[float]) -> list[int]:
    """Roles of `left` that fit a slot with this room, with a slot for each other role afterwards.

    `others`: rooms of the other slots that have had no role of this iteration; one fewer than `left`. Where all of
    `left` match all slots, there is one.
    """
    return [
        role
        for role in left
        if job.activations(role) <= room
        and matches(others, [job.activations(other) for other in left if other != role])
    ]
