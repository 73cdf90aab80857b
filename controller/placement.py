"""Which nodes run the next generation. Survivors keep their ranks; spares fill the gaps."""

import re
from collections.abc import Iterable

from holdfast.controller.model import JobSpec, Node


def natural(name: str) -> list[tuple[int, int | str]]:
    """Sort key under which node10 comes after node9."""
    return [(0, int(part)) if part.isdigit() else (1, part) for part in re.split(r"(\d+)", name) if part]


def place(spec: JobSpec, nodes: Iterable[Node], before: list[str]) -> tuple[list[str], str]:
    """Node names by group rank, and why none: ([], reason) when there is not enough room.

    Nodes of the last generation that are still usable stay where they were, so that ranks do not move. Of the others,
    those come first that are not on a switch where one was just lost; those that were taken out for doubts, last.
    """
    known = {n.name: n for n in nodes}
    fit = {n.name for n in known.values() if n.usable and n.identity.slots >= spec.nproc}
    lost = {known[name].identity.switch for name in before if name in known and name not in fit} - {""}
    spares = sorted(
        (n for n in fit if known[n].history.evicted or n not in before),
        key=lambda n: (bool(known[n].history.evicted), known[n].identity.switch in lost, natural(n)),
    )
    chosen = [name if name in fit and name not in spares else "" for name in before] or [""] * spec.nnodes
    for group, name in enumerate(chosen):
        if not name:
            if not spares:
                need, have = spec.nnodes, len(fit)
                return [], f"needs {need} nodes with {spec.nproc} free slots each, has {have}"
            chosen[group] = spares.pop(0)
    return chosen, ""


def has_spare(spec: JobSpec, nodes: Iterable[Node], held: list[str]) -> bool:
    """Does a node without doubts wait that could take another's place?"""
    return any(
        n.usable and not n.history.evicted and n.identity.slots >= spec.nproc and n.name not in held for n in nodes
    )
