"""The parallel sizes of a job, by which the controller orders its nodes: as given, or as the embedded trainer's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.base.errors import UsageError
from holdfast.cli.job.launch import embedded

AXES = ("pp", "dp", "tp")
MOST = 1 << 20


def parse_parallel(text: str) -> dict[str, int]:
    """`pp=4,dp=2,tp=1` as sizes; empty for no text. UsageError says what is wrong."""
    found: dict[str, int] = {}
    for part in filter(None, text.split(",")):
        axis, _, value = part.strip().partition("=")
        if axis not in AXES or not value.isdecimal() or not 1 <= int(value[:9]) <= MOST:
            raise UsageError(f"--parallel has {part.strip()[:40]!r}: write sizes from 1 as pp=4,dp=2,tp=1")
        if axis in found:
            raise UsageError(f"--parallel gives {axis} twice: write each of pp, dp and tp once at most")
        found[axis] = int(value)
    if text and not found:
        raise UsageError("--parallel is empty: write sizes as pp=4,dp=2,tp=1")
    return found


def check_parallel(sizes: dict[str, int], world: int) -> None:
    """UsageError unless so many workers can be those of these sizes."""
    rest = sizes.get("pp", 1) * sizes.get("tp", 1)
    if sizes and (world % rest or sizes.get("dp", world // rest) != world // rest):
        given = ",".join(f"{axis}={size}" for axis, size in sizes.items())
        raise UsageError(
            f"--parallel {given} are not the sizes of {world} workers: the product of pp, dp and tp is their number; "
            "leave dp out, and it is what remains"
        )


def declared(
    sizes: dict[str, int], trainer_args: Sequence[str] | None, worlds: tuple[int, int], here: bool
) -> dict[str, Any]:
    """What a job's submission says of its groups. `trainer_args`: of the embedded trainer, whose settings have the
    sizes; None: another program. `worlds`: workers at first, and at the job's full size."""
    if sizes or trainer_args is None:
        return {"parallel": sizes} if sizes else {}
    found = embedded.declared(trainer_args, worlds[0], here)
    rest = found.get("parallel", {})
    if found and worlds[1] % (rest["pp"] * rest["tp"]):
        return {}  # at its full size some would have nothing to do: the trainer refuses it, if it comes to that
    return found
