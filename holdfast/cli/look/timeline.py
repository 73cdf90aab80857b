"""`holdfast timeline`: all ranks on one clock, as a trace for Perfetto; and a step beside its prediction."""

import json
from pathlib import Path
from typing import Annotated

import typer

from holdfast.base.bounds import MAX_SPAN_STEP
from holdfast.base.errors import UsageError
from holdfast.base.settings import parse_whole
from holdfast.cli.common import output
from holdfast.cli.common.client import Client
from holdfast.cli.common.extras import needs
from holdfast.cli.common.options import Json, with_client
from holdfast.cli.common.progress import progress
from holdfast.cli.look import predicted_view
from holdfast.cli.look.blame import Job, Source, Steps, check_job, parse_steps

DEFAULT_FILE = Path("trace.json")
Out = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FILE", help="Where to write the trace. Default: trace.json.")
]
Predicted = Annotated[
    str | None,
    typer.Option(
        "--predicted",
        metavar="STEP",
        help="Compare STEP, or newest, with what the job's plan predicts, and write no trace.",
    ),
]
TimesOf = Annotated[
    str | None,
    typer.Option(
        "--times-of",
        metavar="STEP",
        help="With --predicted: predict with the times of this step, for example one before a slowdown. "
        "Default: the same step.",
    ),
]


@with_client
def timeline(
    client: Client,
    folder: Source = None,
    output_file: Out = None,
    job: Job = "",
    steps: Steps = "",
    predicted: Predicted = None,
    times_of: TimesOf = None,
    as_json: Json = False,
) -> int:
    """Write the spans of all ranks as a trace for https://ui.perfetto.dev, or compare a step with its prediction."""
    if predicted is not None or times_of is not None:
        if predicted is None:
            raise UsageError("--times-of goes with --predicted STEP")
        if steps or output_file:
            raise UsageError(f"--predicted {predicted} writes no trace: leave {'--steps' if steps else '--output'} out")
        return _compare(client, folder, job, predicted, times_of, as_json)
    first, last = parse_steps(steps)
    if folder is None:
        check_job(client, job)
    output_file = output_file or DEFAULT_FILE
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


def _compare(client: Client, folder: Path | None, job: str, predicted: str, times_of: str | None, as_json: bool) -> int:
    step, base = _step("--predicted", predicted), -1 if times_of is None else _step("--times-of", times_of)
    if folder is None:
        check_job(client, job)
    with progress("reading spans"):
        found = client.predicted(job, step, base) if folder is None else _of_files(folder, step, base)
    if as_json:
        output.print_json(found)
    else:
        predicted_view.show(found)
    return 0


def _step(option: str, text: str) -> int:
    """-1 for the newest. UsageError for what is no step."""
    if text == "newest":
        return -1
    number = parse_whole(text)
    if number is None or not 0 <= number <= MAX_SPAN_STEP:
        raise UsageError(f"{option} {text!r}: write the number of a step, as in 120, or newest")
    return number


def _of_files(folder: Path, step: int, times_of: int) -> output.Json:
    with needs("controller"):
        from holdfast.diagnostics.files import span_files
        from holdfast.diagnostics.timeline.beside import beside
    table, shape = span_files.read(folder, max(step, 0), 1 << 30 if step < 0 else step)
    base = None if times_of < 0 else lambda: span_files.read(folder, times_of, times_of)[0]
    return beside(table, shape, base)
