"""`holdfast incidents`: faults with cause, action and duration."""

from typing import Annotated

import typer
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from holdfast.base.errors import UsageError
from holdfast.cli.common import completion, output
from holdfast.cli.common.client import Client
from holdfast.cli.common.fit import flow, lines_of
from holdfast.cli.common.options import Json, with_client
from holdfast.cli.look.stacks import show_stacks

TABLE_WIDTH = 150
"""On a narrower terminal each incident has lines of its own: eleven columns would cut every word."""


@with_client
def incidents(
    client: Client,
    incident: Annotated[
        str, typer.Argument(metavar="[ID]", help="One incident, in full.", autocompletion=completion.incidents)
    ] = "",
    job: Annotated[
        str,
        typer.Option(
            "--job",
            metavar="NAME|ID",
            help="Only incidents of this job. Default: all, including those of nodes.",
            autocompletion=completion.jobs,
        ),
    ] = "",
    as_json: Json = False,
) -> int:
    """List the incidents, newest first, or show one in full."""
    if incident and job:
        raise UsageError("one incident or one job: --job goes with the list")
    if incident:
        one = client.incident(incident)
        if as_json:
            output.print_json(one)
        else:
            _show(one)
        return 0
    found = client.incidents(job)
    if as_json:
        output.print_json(found)
    elif not found:
        output.say("no incidents")
    else:
        console = output.out()
        console.print(incident_list(console, found))
    return 0


def incident_list(console: Console, found: list[output.Json]) -> RenderableType:
    if console.width >= TABLE_WIDTH:
        return incident_table(found)
    has_jobs = len({one.get("job") for one in found}) > 1
    return Group(*(line for one in found for line in _entry(console, one, has_jobs)))


def _entry(console: Console, one: output.Json, has_job: bool) -> list[Text]:
    """What and who, then what was done and how long it took, then the summary: nothing is cut."""
    id, state = output.text(one["id"]), output.state(one["state"])
    of_job = f" of {output.text(one.get('job'))}" if has_job else ""
    head = f"[bold]{id}[/]  {state}  {output.clock(one.get('opened'))}  {output.text(one['kind'])} on "
    head += f"{output.text(one['culprit'])}{of_job}"
    done = output.incident_parts(one)
    return [
        *lines_of(console, Text.from_markup(head, emoji=False)),
        *flow(console, map(output.text, done), indent=4),
        *lines_of(console, Text(output.shown(one.get("summary"))), indent=4),
    ]


def incident_table(found: list[output.Json]) -> Table:
    jobs = {one.get("job") for one in found}
    of_job = ["JOB"] if len(jobs) > 1 else []
    table = output.table(
        "ID", *of_job, "OPENED", "KIND", "CULPRIT", "STATE", "ACTION", ">DETECTED", ">RECOVERED", "FROM", "SUMMARY"
    )
    for one in found:
        table.add_row(
            output.text(one["id"]),
            *(output.text(one.get("job")) for _ in of_job),
            output.clock(one.get("opened")),
            output.text(one["kind"]),
            output.text(one["culprit"]),
            output.state(one["state"]),
            output.text(one.get("action")),
            output.seconds(one.get("detect_s")),
            output.seconds(one.get("recover_s")),
            output.text(one.get("source")),
            output.text(one.get("summary")),
        )
    return table


def _origin(one: output.Json) -> str:
    """memory (12.3 MB read, 24.6 MB sent, in 0.05 s)"""
    source = output.text(one.get("source"))
    if one.get("restore_s") is None:
        return source
    moved = f"{output.size(one.get('restored_bytes'))} read"
    if one.get("restore_sent_bytes") is not None:
        moved += f", {output.size(one.get('restore_sent_bytes'))} sent"
    return f"{source} ({moved}, in {output.seconds(one.get('restore_s'))})"


def _resumed(one: output.Json) -> str:
    """The first step after the restart; unknown for a program that does not number its steps."""
    is_back = one.get("state") == "closed" and one.get("generation_to")
    return "unknown" if one.get("step_resumed") is None and is_back else output.text(one.get("step_resumed"))


def _show(one: output.Json) -> None:
    console = output.out()
    of_job = f" of job {output.text(one['job'])}" if one.get("job") else ""
    console.print(
        f"[bold]{output.text(one['id'])}[/]  {output.text(one['kind'])} on {output.text(one['culprit'])}{of_job}"
    )
    console.print(
        f"{output.state(one['state'])}, {output.text(one.get('severity'))}: {output.text(one.get('summary'))}"
    )
    console.print(f"action: {output.text(one.get('action'))} ({output.text(one.get('reason'))})")
    if one.get("hint"):
        console.print(f"hint: {output.text(one['hint'])}")
    # A watched incident stopped no training, so only the agent or controller recovered.
    back = "back" if one.get("action") == "watch" else "training again"
    console.print(
        f"detected after {output.seconds(one.get('detect_s'))}, "
        f"{back} after {output.seconds(one.get('recover_s'))}, state from {_origin(one)}"
    )
    console.print(
        f"generation {output.text(one.get('generation_from'))} -> {output.text(one.get('generation_to'))}, "
        f"step {output.text(one.get('step_at_fault'))} -> {_resumed(one)}"
    )
    phases = output.table("PHASE", "START", ">TOOK")
    for phase in one.get("phases") or []:
        end = phase.get("end")
        took = None if end is None else end - phase["start"]
        phases.add_row(output.text(phase["name"]), output.clock(phase["start"]), output.seconds(took))
    console.print(phases)
    console.print("[bold]FINDINGS[/]")
    for finding in one.get("findings") or []:
        kind, severity, subject = (output.text(finding.get(key)) for key in ("kind", "severity", "subject"))
        console.print(f"{output.clock(finding.get('at'))}  {kind} on {subject}, {severity}")
        console.print(*lines_of(console, Text(output.shown(finding.get("text"))), indent=2), sep="\n")
        for link in finding.get("evidence", {}).get("proof", []):
            console.print(*lines_of(console, Text(f"proof: {output.shown(link)}"), indent=4), sep="\n")
    for finding in one.get("findings") or []:
        for wait in finding.get("evidence", {}).get("waits", []):
            console.print(f"waiting in {output.text(wait)}")
    if one.get("earlier"):
        console.print("[bold]EARLIER[/]")
    for other in one.get("earlier") or []:
        same = ", ".join(output.text(name) for name in other["same"])
        text = f"{other['id']} {output.shown(other['kind'])} on {output.shown(other['culprit'])}, the same {same}"
        console.print(*lines_of(console, Text(f"{output.clock(other['opened'])}  {text}"), indent=0), sep="\n")
    if one.get("stacks"):
        console.print()
        show_stacks(one["stacks"])
