"""`holdfast blame`: slow ranks, their cost, and ranks that only wait."""

from pathlib import Path
from typing import Annotated

import typer

from holdfast.base.errors import UsageError
from holdfast.base.settings import parse_whole
from holdfast.cli.common import completion, output
from holdfast.cli.common.client import Client
from holdfast.cli.common.extras import needs
from holdfast.cli.common.jobs import shown_job
from holdfast.cli.common.options import Json, with_client
from holdfast.cli.common.progress import progress
from holdfast.cli.look import heat_view

Source = Annotated[
    Path | None,
    typer.Argument(metavar="[FOLDER]", help="Spans of a job on disk (a folder, or one .parquet file); else live."),
]
Job = Annotated[
    str,
    typer.Option(
        "--job",
        metavar="NAME|ID",
        help="Name or id; the id of a job of which only spans are left. Default: the newest.",
        autocompletion=completion.jobs,
    ),
]
Steps = Annotated[str, typer.Option("--steps", metavar="A:B", help="Only steps A to B; A: or :B leaves one end open.")]
Heat = Annotated[bool, typer.Option("--heat", help="Heat maps instead: rank by phase of the step, node by step.")]


@with_client
def blame(
    client: Client,
    folder: Source = None,
    job: Job = "",
    steps: Steps = "",
    heat: Heat = False,
    as_json: Json = False,
) -> int:
    """Show the ranks that slow a job down: the newest, another one (--job), or one from span files."""
    first, last = parse_steps(steps)
    if folder is None:
        check_job(client, job)
    with progress("reading spans"):
        found = _found(client, folder, job, first, last, heat)
    if as_json:
        output.print_json(found)
    elif heat:
        heat_view.show(found)
    else:
        show(found)
    return 0


def _found(client: Client, folder: Path | None, job: str, first: int, last: int, heat: bool) -> output.Json:
    if folder is None:
        return (client.heat if heat else client.blame)(job, first, last)
    with needs("controller"):
        from holdfast.diagnostics.blame import report as blame_report
        from holdfast.diagnostics.files import span_files
    read = span_files.read(folder, max(first, 0), 1 << 30 if last < 0 else last)
    return (blame_report.heat_report if heat else blame_report.report)(*read)


def check_job(client: Client, job: str) -> None:
    """Conflict if the newest job is wanted and there is none yet."""
    if not job:
        shown_job(client, job)


def parse_steps(text: str) -> tuple[int, int]:
    """First and last step of "A:B", "A:", ":B" or "A"; -1 for an end that is open. UsageError for anything else."""
    low, colon, high = text.partition(":")
    ends = [parse_whole(end) if end else -1 for end in (low, high if colon else low)]
    first, last = (-2 if end is None else end for end in ends)
    if min(first, last) < -1:
        raise UsageError(f"--steps {text}: write A:B, as in 100:200")
    if 0 <= last < first:
        raise UsageError(f"--steps {text}: the first step must not come after the last")
    return first, last


def show(found: output.Json) -> None:
    """Print `blame_report.report`."""
    console = output.out()
    steps = f"steps {found['first']} to {found['last']} of {output.text(found['name'] or found['job'])}"
    console.print(f"{steps}: {output.text(found['account']['text'])}", soft_wrap=True)
    if not found["culprits"]:
        console.print("no rank stands out")
    for culprit in found["culprits"]:
        console.print(f"[bold]{output.text(culprit['kind'])}[/]: {output.text(culprit['text'])}", soft_wrap=True)
    if found["incomplete"]:
        console.print(f"spans missing of ranks {output.spans(found['incomplete'])}")
    path = output.table("CRITICAL PATH", "WHAT", ">TIME", ">SHARE")
    for part in found["path"][:10]:
        ends = f"rank {part['rank']}" + (f" from {part['peer']}" if part["peer"] >= 0 else "")
        share = part["seconds"] / found["step_s"] if found["step_s"] else None
        path.add_row(ends, output.text(part["what"]), _ms(part["seconds"]), output.percent(share))
    console.print(path)
    columns = found["ranks"]
    waits = ("named_s", "plan_s", "jitter_s")
    times = ("compute_s", "other_s", "transfer_s", *waits, "self_s", "induced_s")
    ranks = output.table(
        "RANK", ">COMPUTE", ">OTHER", ">TRANSFER", ">WAIT: NAMED", ">PLAN", ">JITTER", ">SELF", ">INDUCED",
        ">COMPUTE/PEERS",
    )  # fmt: skip
    # None: a rank without spans is unknown. It comes last.
    worst = sorted(
        range(len(columns["rank"])), key=lambda i: [-(columns[n][i] or 0.0) for n in ("self_s", "named_s", "compute_s")]
    )
    for i in worst[:16]:
        ratio = columns["self_ratio"][i]
        ranks.add_row(str(columns["rank"][i]), *(_ms(columns[n][i]) for n in times), output.number(ratio, 3))
    console.print(ranks)


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:,.1f} ms"
