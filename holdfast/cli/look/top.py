"""`holdfast top`: ranks or nodes live, the worst first."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from holdfast.base.errors import Unavailable
from holdfast.cli.common import output
from holdfast.cli.common.client import Client
from holdfast.cli.common.fit import single
from holdfast.cli.common.jobs import ShownJob, shown_job
from holdfast.cli.common.live import keep_showing
from holdfast.cli.common.options import Json, with_client
from holdfast.cli.look.top_rows import By, TopRow, node_rows, ordered, rank_rows

PERIOD_S = 1.0
WIDE = 110
"""Columns of a terminal from which all figures have a place."""
ROWS_OF_FILES = 50


@with_client
def top(
    client: Client,
    by: Annotated[
        By, typer.Option("--by", metavar="FIGURE", help=f"What to sort by: {', '.join(By)}. The worst is first.")
    ] = By.hurt,
    nodes: Annotated[bool, typer.Option("--nodes", help="Nodes, each with the worst of its ranks.")] = False,
    rows: Annotated[int, typer.Option("--rows", "-n", metavar="N", min=0, help="Rows to show; 0: as many as fit.")] = 0,
    once: Annotated[bool, typer.Option("--once", help="Print it once, and end.")] = False,
    job: ShownJob = "",
    as_json: Json = False,
) -> int:
    """Show ranks, or nodes, the worst first: by state, own lateness, steps behind, silence, GPU.

    Lateness is the share of the step that a rank costs the whole job, as `holdfast blame` finds it.
    """
    found, listed = _read(client, job, nodes, by)
    if as_json:
        shown = listed[:rows] if rows else listed
        documents = [asdict(row) for row in shown]
        output.print_json({"job": found["id"], "by": by, "rows": documents, "left_out": len(listed) - len(shown)})
        return 0
    console = output.out()
    if once or not console.is_terminal:
        fits = console.is_terminal and not rows
        most = rows or ROWS_OF_FILES
        console.print(picture(found, listed, by, console.width, console.height if fits else None, 0 if fits else most))
        return 0

    def draw(console: Console, height: int | None) -> RenderableType:
        try:
            found, listed = _read(client, job, nodes, by)
        except Unavailable as error:  # the controller may be restarting
            return Text(output.shown(error))
        return picture(found, listed, by, console.width, height, rows)

    keep_showing(draw, PERIOD_S)


def _read(client: Client, job: str, nodes: bool, by: By) -> tuple[output.Json, list[TopRow]]:
    found = shown_job(client, job)
    id = str(found["id"])
    hosts = client.nodes()
    listed = rank_rows(client.ranks(id), client.newest_blame(id), hosts, id)
    return found, ordered(node_rows(hosts, listed, id) if nodes else listed, by)


def picture(
    job: output.Json, rows: Sequence[TopRow], by: By, width: int, height: int | None = None, most: int = 0
) -> RenderableType:
    """Health, the job, a head and the first rows, at most `most` of them (0: any number) in at most `height` lines;
    what is left out is counted."""
    health = job.get("health")
    lines: list[RenderableType] = []
    if health:
        colour = "red" if health["needs_person"] else "default"
        lines.append(single(f"[bold {colour}]{output.text(health['condition'])}[/]  {output.text(health['sentence'])}"))
    of = f" of {job['max_steps']:,}" if job.get("max_steps") else ""
    what = "nodes" if rows and rows[0].rank is None else "ranks"
    lines.append(
        single(
            f"{output.text(job['name'])} ({output.text(job['id'])}), step {job['step']:,}{of}, "
            f"{len(rows):,} {what} by {by}"
        )
    )
    shown = rows[:most] if most else rows
    if height is not None:
        room = height - len(lines) - 1  # the head of the table is a line, and what counts the rest is one
        shown = shown if len(rows) == len(shown) <= room else shown[: max(room - 1, 0)]
    lines.append(rank_table(shown, width) if what == "ranks" else node_table(shown, width))
    if len(shown) < len(rows):
        left = len(rows) - len(shown)
        lines.append(Text(f"… {left:,} more {what if left != 1 else what[:-1]}", style="dim"))
    return Group(*lines)


def rank_table(rows: Sequence[TopRow], width: int) -> Table:
    names = [">RANK", "NODE", "STATE", ">STEP", ">LAG", ">LATE", ">SILENT", ">GPU"]
    wide = [">STEP TIME", ">TEMP", ">MEMORY"] if width >= WIDE else []
    return _table(
        [*names, *wide, "DOING"],
        [
            [
                str(row.rank), _short(row.node, width), output.state(row.state), *_figures(row),
                *([output.seconds(row.step_s), _degrees(row), output.size(row.memory)] if wide else []),
                output.text(row.doing),
            ]
            for row in rows
        ],
    )  # fmt: skip


def plain_table(rows: Sequence[TopRow], width: int) -> Table:
    """Ranks without what only large clusters have."""
    return _table(
        [">RANK", "NODE", "STATE", ">STEP", ">STEP TIME", "DOING"],
        [
            [
                str(row.rank), _short(row.node, width), output.state(row.state),
                "-" if row.step is None else str(row.step), output.seconds(row.step_s), output.text(row.doing),
            ]
            for row in rows
        ],
    )  # fmt: skip


def node_table(rows: Sequence[TopRow], width: int) -> Table:
    names = ["NODE", "STATE", ">RANKS", ">STEP", ">LAG", ">LATE", ">SILENT", ">GPU"]
    wide = [">STEP TIME", ">TEMP", ">MEMORY", ">NET/S"] if width >= WIDE else []
    return _table(
        [*names, *wide, "WHY"],
        [
            [
                _short(row.node, width), output.state(row.state), str(row.ranks), *_figures(row),
                *([output.seconds(row.step_s), _degrees(row), output.size(row.memory), output.size(row.network)]
                  if wide else []),
                output.text(row.doing),
            ]
            for row in rows
        ],
    )  # fmt: skip


def _figures(row: TopRow) -> list[str]:
    late = "-" if row.late is None else f"[yellow]{row.late:.1%}[/]"
    lag = f"[yellow]{row.lag:,}[/]" if row.lag > 1 else str(row.lag)
    gpu = "-" if row.gpu is None else f"{row.gpu:.0%}"
    return ["-" if row.step is None else str(row.step), lag, late, _age(row.silent_s), gpu]


def _age(seconds: float | None) -> str:
    """Seconds, then minutes: a column is narrow."""
    if seconds is None:
        return "-"
    return f"{seconds:.1f} s" if seconds < 100 else output.seconds(seconds).replace(" min ", "m").replace(" s", "s")


def _degrees(row: TopRow) -> str:
    return "-" if row.temperature is None else f"{row.temperature:.0f} °C"


def _short(name: str, width: int) -> str:
    """A name in a quarter of the width; both of its ends tell nodes apart."""
    most = max(width // 4, 8)
    name = output.shown(name)
    cut = name if len(name) <= most else f"{name[: most // 2]}…{name[-(most - most // 2 - 1) :]}"
    return output.text(cut)


def _table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """One line for each row: the last column has what is left of the width."""
    table = Table(box=None, pad_edge=False, header_style="bold", expand=True)
    for i, name in enumerate(names):
        head, right = name.removeprefix(">"), name.startswith(">")
        widest = max((Text.from_markup(row[i], emoji=False).cell_len for row in rows), default=0)
        is_last = i == len(names) - 1
        table.add_column(
            head,
            justify="right" if right else "left",
            no_wrap=True,
            overflow="ellipsis",
            width=None if is_last else max(widest, len(head)),
            ratio=1 if is_last else None,
        )
    for row in rows:
        table.add_row(*row)
    return table
