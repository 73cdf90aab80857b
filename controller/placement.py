"""Which nodes run the next generation. Survivors keep their ranks; spares fill the gaps."""

import re
from collections.abc import Iterable

from holdfast.controller.model import JobSpec, Node


def natural(name: str) -> list[tuple[int, int | str]]:
    """Sort key under which node10 comes after node9."""
    return [(0, int(part)) if part.isdigit() else (1, part) for part in re.split(r"(\d+)", name) if part]


def place(spec: JobSpec, nodes: Iterable[Node], before: list[str]) -> tuple[list[str], str]:
    """Node names by group rank, and why none: ([], reason) when there is not enough room.

    Nodes of the last generation that are still usable stay where they were, so that ranks do not move.
    """
    fit = {n.name for n in nodes if n.usable and n.identity.slots >= spec.nproc}
    chosen = [name if name in fit else "" for name in before] or [""] * spec.nnodes
    spare = sorted(fit - set(chosen), key=natural)
    for group, name in enumerate(chosen):
        if not name:
            if not spare:
                need, have = spec.nnodes, len(fit)
                return [], f"needs {need} nodes with {spec.nproc} free slots each, has {have}"
            chosen[group] = spare.pop(0)
    return chosen, ""
