"""What must hold after every event of a simulation: the invariants of the design that a simulation can break."""

from collections.abc import Sequence

from holdfast.base.errors import HoldfastError
from holdfast.controller.simulation.hosts import SimulatedHost
from holdfast.controller.simulation.state import SimulationState
from holdfast.controller.state.events import Action, Record

_PATIENCE = 3600.0
"""Seconds without training after which an operator must have been notified what to do."""


class BrokenInvariant(HoldfastError):
    """What must never be, was."""


def after(world: SimulationState, actions: Sequence[Action]) -> None:
    """One incident at a time, time that adds up, no healthy node evicted."""
    kinds = {action.kind for action in actions if isinstance(action, Record)}
    brain = world.job_brain
    if brain is None:
        return
    c = brain.c
    if "incident" in kinds and (live := [i.id for i in world.brain.c.book.incidents.values() if i.live])[1:]:
        raise BrokenInvariant(f"{len(live)} incidents at once: {', '.join(live)}")
    if "time" in kinds:
        wall = world.instant.wall
        total = sum(c.time.totals(wall).values())
        if abs(total - c.time.wall(wall)) > 1e-3 * max(1.0, c.time.wall(wall)):
            raise BrokenInvariant(f"{total:.3f} s are accounted for, of {c.time.wall(wall):.3f} s")
    if "node" in kinds and world.evicted and not world.evicted[-1][1]:
        raise BrokenInvariant(f"{world.evicted[-1][0]} was evicted, but it was healthy")


def may_start(world: SimulationState, host: SimulatedHost, generation: int) -> None:
    """Two generations never train at the same time, where they can be reached."""
    if generation in world.checked:
        return  # those that are cut off at its start, and asked to stop when they are back, are no second generation
    world.checked.add(generation)
    older = [h.name for h in world.hosts.values() if h.reachable and 0 < h.generation < generation]
    if older:
        raise BrokenInvariant(f"generation {generation} starts on {host.name} while {older[0]} runs an older one")


def not_in_silence(world: SimulationState) -> None:
    """Every fault ends in training again or in an alert that names what to do."""
    if not world.now - world.stopped_at > _PATIENCE + world.shape.start + world.shape.restore:
        return
    live = world.live()
    if live is None or not any(finding.kind.value == "capacity" for finding in live.findings):
        raise BrokenInvariant(f"no training since {world.now - world.stopped_at:.0f} s, and no alert was sent")
