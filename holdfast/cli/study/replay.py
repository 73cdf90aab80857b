"""`holdfast replay`: what a controller recorded, decided again."""

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.common import output
from holdfast.cli.common.extras import require
from holdfast.cli.common.options import Json


def replay(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Written by `holdfast controller --record FILE`.")],
    through: Annotated[
        bool, typer.Option("--through", help="Go on where the decisions part, and compare the incidents.")
    ] = False,
    as_json: Json = False,
) -> int:
    """Run a recording again, in no time, and compare what is decided. Ends with 1 where the decisions part."""
    require("controller", "numpy", "google.protobuf")
    from holdfast.controller.journal.replay import replay as run

    found = run(file, through)
    if as_json:
        incidents = [one.to_doc() for one in found.incidents]
        parted = dataclasses.asdict(found.difference) if found.difference else None
        counts = {"lives": found.lives, "events": found.events, "decisions": found.decisions}
        changes = {"then": found.then, "now": found.now, "changed": found.changed}
        output.print_json({**counts, **changes, "difference": parted, "incidents": incidents})
        return 1 if parted else 0
    for one in found.incidents:
        output.say(
            f"{output.clock(one.opened)} {one.id} {one.cause.kind} {one.cause.subject}: {one.action}, {one.reason}"
        )
    lives = "1 life" if found.lives == 1 else f"{found.lives} lives"
    output.say(f"{found.events} events of {lives} of the controller, {found.decisions} actions")
    if found.difference is None:
        output.say("the same decisions")
        return 0
    if through:
        output.say(f"{len(found.then)} incidents then, {len(found.now)} now, {len(found.changed)} changed")
        for changed in found.changed:
            then, now = (f"line {at[changed]}" if changed in at else "none" for at in (found.then, found.now))
            output.say(f"{changed}: then {then}; now {now}")
    d = found.difference
    output.say(f"line {d.line}, {d.event}: then {d.then or 'nothing more'}; now {d.now or 'nothing more'}")
    return 1
