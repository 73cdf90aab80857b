"""`holdfast replay`: repeat the decisions of a recording."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.common import output
from holdfast.cli.common.extras import require
from holdfast.cli.common.options import Json
from holdfast.cli.common.progress import progress

if TYPE_CHECKING:
    from holdfast.controller.journal.replay import Replay


def replay(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Written by `holdfast controller --record FILE`.")],
    through: Annotated[
        bool, typer.Option("--through", help="Continue after the first difference, and list the changed incidents.")
    ] = False,
    as_json: Json = False,
) -> int:
    """Run a recording again and compare the decisions. Exit code 1 if a decision or a verdict differs."""
    require("controller", "numpy", "google.protobuf")
    from holdfast.controller.journal.replay import replay as run

    with progress("replaying events") as report:
        found = run(file, through, lambda events: report(events, 0))
    if as_json:
        output.print_json(_document(found))
        return 0 if found.is_same else 1
    for one in found.incidents:
        output.say(
            f"{output.clock(one.opened)} {one.id} {one.cause.kind} {one.cause.subject}: {one.action}, {one.reason}"
        )
    runs = "1 run" if found.runs == 1 else f"{found.runs} runs"
    output.say(f"{found.events} events of {runs} of the controller, {found.decisions} actions")
    if found.is_same:
        output.say("the same decisions")
    if through or found.changed:
        unknown = sum(not trace.summary.is_known for trace in found.then)
        then = f"{len(found.then)} incidents then" + (f" ({unknown} unknown)" if unknown else "")
        output.say(f"{then}, {len(found.now)} now, {len(found.changed)} changed")
    for change in found.changed:
        output.say(change.text)
    for trace in found.aftermath:
        output.say(f"not compared: {trace.summary.text} (now line {trace.line}): stopped by the recorded controller")
    if d := found.difference:
        output.say(f"line {d.line}, {d.event}: then {d.then or 'nothing more'}; now {d.now or 'nothing more'}")
    return 0 if found.is_same else 1


def _document(found: "Replay") -> dict[str, Any]:
    return {
        "runs": found.runs,
        "events": found.events,
        "decisions": found.decisions,
        "then": [trace.to_doc() for trace in found.then],
        "now": [trace.to_doc() for trace in found.now],
        "changed": [change.to_doc() for change in found.changed],
        "aftermath": [trace.to_doc() for trace in found.aftermath],
        "difference": dataclasses.asdict(found.difference) if found.difference else None,
        "incidents": [one.to_doc() for one in found.incidents],
    }
