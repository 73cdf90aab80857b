"""`holdfast rows`: the decisive check of every technique, as expected and as measured."""

import gc
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.base.errors import UsageError
from holdfast.base.service import gc_paused
from holdfast.base.settings import nearest
from holdfast.cli.common import output
from holdfast.cli.common.extras import require
from holdfast.cli.common.options import Json
from holdfast.cli.common.progress import progress

if TYPE_CHECKING:
    from holdfast.trainer.rows.row import Row, Technique


def rows(
    ids: Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="Only these: C1, M0, ...")] = None,
    as_json: Json = False,
) -> int:
    """Check the training techniques: what the source of each says, what comes out here, and whether that passes.

    Schedules and transfers are simulated; nothing is trained. Exit code 1 if a row does not pass.
    """
    require("trainer,planner", "torch", "scipy")
    with gc_paused():
        import torch

        from holdfast.trainer.determinism import fix_products
        from holdfast.trainer.rows.table import TECHNIQUES

    fix_products()
    torch.set_num_threads(1)  # tensors this small are slower on more
    for id in ids or ():
        if id not in TECHNIQUES:
            raise UsageError(f"there are no rows of {id[:100]!r}{nearest(id.upper()[:100], TECHNIQUES)}")
    chosen = [TECHNIQUES[id] for id in dict.fromkeys(ids)] if ids else list(TECHNIQUES.values())
    found: list[tuple[Technique, list[Row]]] = []
    with progress("checking") as report:
        for done, one in enumerate(chosen):
            report(done, len(chosen))
            gc.collect()
            gc.freeze()  # what is imported by now: rows that count tensors look at all objects, many times
            found.append((one, list(one.check())))
    if as_json:
        output.print_json([_document(one, each) for one, each in found])
    else:
        _print(found, bool(ids))
    return 0 if all(row.passes for _, each in found for row in each) else 1


def _document(one: "Technique", each: "list[Row]") -> dict[str, object]:
    return {
        "id": one.id,
        "name": one.name,
        "source": one.source,
        "rows": [
            {"what": row.what, "expected": row.expected, "measured": row.measured, "tolerance": row.tolerance,
             "passes": row.passes}
            for row in each
        ],
    }  # fmt: skip


def _print(found: "list[tuple[Technique, list[Row]]]", whole: bool) -> None:
    """Every row of those that were asked for; of all, one line each and the rows that do not pass."""
    if whole:
        for one, each in found:
            output.out().print(f"{one.id}  {one.name}  ({one.source})")
            table = output.table("", ">EXPECTED", ">MEASURED", ">TOLERANCE", "")
            for row in each:
                table.add_row(
                    row.what, f"{row.expected:g}", f"{row.measured:g}", f"{row.tolerance:g}", _word(row.passes)
                )
            output.out().print(table)
        return
    table = output.table("ID", "TECHNIQUE", ">ROWS", "")
    for one, each in found:
        table.add_row(one.id, one.name, str(len(each)), _word(all(row.passes for row in each)))
        for row in each:
            if not row.passes:
                table.add_row("", f"{row.what}: expected {row.expected:g}, measured {row.measured:g}", "", "")
    output.out().print(table)


def _word(passes: bool) -> str:
    return "pass" if passes else "FAIL"
