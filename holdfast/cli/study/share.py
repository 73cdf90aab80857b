"""`holdfast share`: jobs that share GPUs by the parts of their iterations, beside each job on GPUs of its own."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.base.files import read_text
from holdfast.cli.common import output
from holdfast.cli.common.options import Json
from holdfast.cli.common.progress import progress

if TYPE_CHECKING:
    from holdfast.planner.sharing.file import Shared
    from holdfast.planner.sharing.simulate import Outcome, Task

_MOST_SHOWN = 1000


def share(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Slots and jobs, as TOML (docs/planning.md).")],
    first: Annotated[
        int, typer.Option(metavar="N", min=0, max=_MOST_SHOWN, help="Print the first N roles of each slot.")
    ] = 8,
    as_json: Json = False,
) -> int:
    """Simulate jobs with partial backwards that share GPUs: who runs where, how long each takes, and what is gained.

    Beside it, the same jobs with full backwards, each with GPUs of its own (a gang), in the order of submission.
    Nothing runs, and nothing is submitted.
    """
    from holdfast.planner.sharing.file import parse

    shared = parse(read_text(file), str(file))
    with progress("simulating"):
        together, apart = outcomes(shared)
    if as_json:
        output.print_json(_document(together, apart, first))
    else:
        _print(together, apart, first)
    return 0


def outcomes(shared: Shared) -> tuple[Outcome, Outcome]:
    """Shared by roles, and as gangs with full backwards."""
    from holdfast.planner.sharing.simulate import simulate

    together = simulate(shared.jobs, shared.slots, shared.memory_bytes, keep_tasks=True)
    full = [replace(job, is_partial=False) for job in shared.jobs]
    return together, simulate(full, shared.slots, shared.memory_bytes, is_shared=False)


def _document(together: Outcome, apart: Outcome, first: int) -> dict[str, Any]:
    return {
        "jobs": [
            {
                "name": name,
                "slots": list(stay.slots),
                "began_s": stay.began_s,
                "ended_s": stay.ended_s,
                "alone_s": stay.job.alone_s,
                "gang_ended_s": apart.stays[name].ended_s,
            }
            for name, stay in together.stays.items()
        ],
        "shared": _figures(together),
        "gangs": _figures(apart),
        "roles": [asdict(task) for tasks in by_slot(together, first) for task in tasks],
    }


def _figures(outcome: Outcome) -> dict[str, float]:
    return {
        "makespan_s": outcome.makespan_s,
        "efficiency": outcome.efficiency,
        "busy": outcome.busy,
        "mean_completion_s": outcome.mean_completion_s,
    }


def by_slot(outcome: Outcome, first: int) -> list[list[Task]]:
    """The first roles of each slot."""
    found: list[list[Task]] = [[] for _ in range(outcome.slots)]
    for task in outcome.tasks:
        if len(found[task.slot]) < first:
            found[task.slot].append(task)
    return found


def _print(together: Outcome, apart: Outcome, first: int) -> None:
    table = output.table("JOB", "SLOTS", ">BEGINS S", ">ENDS S", ">ALONE S", ">AS GANGS, ENDS S")
    for name, stay in together.stays.items():
        figures = (stay.began_s, stay.ended_s, stay.job.alone_s, apart.stays[name].ended_s)
        table.add_row(output.text(name), ranges(stay.slots), *(f"{value:.5g}" for value in figures))
    output.out().print(table)
    if first:
        table = output.table("SLOT", "ROLES")
        for slot, tasks in enumerate(by_slot(together, first)):
            table.add_row(str(slot), " ".join(f"{output.text(task.job)}:{task.role}" for task in tasks))
        output.out().print(table)
    table = output.table("", ">MAKESPAN S", ">EFFICIENCY", ">BUSY", ">MEAN COMPLETION S")
    for what, one in (("shared", together), ("as gangs, full backward", apart)):
        table.add_row(
            what, f"{one.makespan_s:.5g}", f"{one.efficiency:.3f}", f"{one.busy:.3f}", f"{one.mean_completion_s:.5g}"
        )
    output.out().print(table)
    output.say(
        f"shared: efficiency {together.efficiency / apart.efficiency - 1:+.1%}, "
        f"mean completion {together.mean_completion_s / apart.mean_completion_s - 1:+.1%}"
    )


def ranges(slots: tuple[int, ...]) -> str:
    """0-3,6 of ascending numbers."""
    runs: list[list[int]] = []
    for slot in slots:
        if runs and runs[-1][1] == slot - 1:
            runs[-1][1] = slot
        else:
            runs.append([slot, slot])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)
