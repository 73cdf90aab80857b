"""`holdfast timeline`: all ranks on one clock, as a trace for Perfetto."""

import json
from pathlib import Path
from typing import Annotated

import typer

from holdfast.base.errors import UsageError
from holdfast.cli.common import output
from holdfast.cli.common.client import Client
from holdfast.cli.common.extras import needs
from holdfast.cli.common.options import Json, with_client
from holdfast.cli.common.progress import progress
from holdfast.cli.look.blame import Job, Source, Steps, check_job, parse_steps

Out = Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="Where to write the trace.")]


@with_client
def timeline(
    client: Client,
    folder: Source = None,
    output_file: Out = Path("trace.json"),
    job: Job = "",
    steps: Steps = "",
    as_json: Json = False,
) -> int:
    """Write the spans of all ranks, with the waits between them, as a trace for https://ui.perfetto.dev."""
    first, last = parse_steps(steps)
    if folder is None:
        check_job(client, job)
    try:
        with progress("timeline"):
            _write(client, folder, output_file, job, first, last)
    except OSError as error:
        raise UsageError(f"{output_file}: {error.strerror or error}") from None
    size = output_file.stat().st_size
    if as_json:
        output.print_json({"file": str(output_file), "bytes": size})
    else:
        output.note(f"wrote {output_file}, {output.size(size)}: open it in https://ui.perfetto.dev")
    return 0


def _write(client: Client, folder: Path | None, to: Path, job: str, first: int, last: int) -> None:
    if folder is None:
        to.write_text(json.dumps(client.timeline(job, first, last)))
        return
    with needs("controller"):
        from holdfast.diagnostics.files import span_files
        from holdfast.diagnostics.timeline import timeline as trace
    table, shape = span_files.read(folder, max(first, 0), 1 << 30 if last < 0 else last)
    with to.open("w") as out:
        trace.write(table, shape, out)
