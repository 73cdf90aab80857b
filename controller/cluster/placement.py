"""Which nodes run the next generation. Survivors keep their ranks, spares fill the gaps; if there are none and the job
may, it goes on with fewer."""

import re
from collections.abc import Iterable, Sequence

from holdfast.controller.cluster.ordering import ordered
from holdfast.controller.state.model import JobSpec, Node
from holdfast.planner.placement.sites import SlowLinks
from holdfast.wire import types as t


def natural(name: str) -> list[tuple[int, int | str]]:
    """Sort key under which node10 comes after node9."""
    return [(0, int(part)) if part.isdigit() else (1, part) for part in re.split(r"(\d+)", name) if part]


def place(
    spec: JobSpec, nodes: Iterable[Node], before: list[str], slow: SlowLinks | None = None
) -> tuple[list[str], str]:
    """Node names by group rank, and why none: ([], reason) when there is not enough room.

    Nodes of the last generation that are still usable stay where they were, so that ranks do not move. Of the others,
    those not on a switch where one was just lost come first, and then those with a running fork server. A job that
    begins waits for fork servers anyway, so there the order is that of names. Evicted nodes serve only
    where there are not enough others. With `slow`, those that do not stay where they were are ordered by the groups of
    the job, if it declares them; without, it is only asked whether there is room.
    """
    known = {n.name: n for n in nodes}
    fit = {n.name for n in known.values() if n.usable and n.identity.slots >= spec.nproc}
    sound = {name for name in fit if not known[name].history.evicted}
    size = largest(spec, len(sound))
    chosen = sound
    if not size:
        size, chosen = largest(spec, len(fit)), fit
    missing = f"needs {spec.needs} nodes with {spec.nproc} free slots each, has {len(fit)}"
    if not size:
        return [], missing
    if size < min(spec.nnodes, len(before) or spec.nnodes) and any(_may_be_back(known.get(name)) for name in before):
        return [], missing
    lost = {known[name].identity.switch for name in before if name in known and name not in fit} - {""}
    is_late = bool(before)

    def rank(n: str) -> tuple[bool, bool, bool]:
        return n not in sound, known[n].identity.switch in lost, is_late and _is_cold(known[n])

    spares = sorted((chosen - set(before)) | (chosen - sound), key=lambda n: (*rank(n), natural(n)))
    kept = [name if name in sound else "" for name in before]
    slots = (kept + [""] * size)[: max(size, len(kept))]
    filled = [name or (spares.pop(0) if spares else "") for name in slots]
    placed = [name for name in filled if name][:size]
    if slow is None or not spec.parallel:
        return placed, ""
    is_kept = [name in kept for name in placed]
    new = {rank(name) for name, stays in zip(placed, is_kept, strict=True) if not stays}
    others = [name for name in spares if new == {rank(name)}]  # none that is preferred less
    return ordered(spec, placed, is_kept, others, known, slow), ""


def largest(spec: JobSpec, room: int) -> int:
    """The most nodes that the job may run on, of so many; 0 when they are too few."""
    return max((count for count in spec.counts if count <= room), default=0)


def has_spare(spec: JobSpec, nodes: Iterable[Node], held: Sequence[str]) -> bool:
    """Is there an idle node, never evicted, that could take another's place?"""
    taken = frozenset(held)
    return any(
        n.usable and not n.history.evicted and n.identity.slots >= spec.nproc and n.name not in taken for n in nodes
    )


def may_shrink(spec: JobSpec, held: Sequence[str]) -> bool:
    """May the job go on with fewer nodes than it has?"""
    return largest(spec, len(held) - 1) > 0


def _is_cold(node: Node) -> bool:
    """It just came up: its workers would wait for imports."""
    return node.host.get("warm_ready", 1.0) < 1.0


def _may_be_back(node: Node | None) -> bool:
    """As far as is known, it only lost its agent."""
    return node is not None and not node.connected and node.state is t.NodeState.SUSPECT
