"""`holdfast status`: the cluster at a glance, once or with updates."""

import time
from typing import Annotated

import typer
from rich.console import Group, RenderableType

from holdfast.base.errors import Unavailable
from holdfast.cli.common import output
from holdfast.cli.common.client import OVER, Client
from holdfast.cli.common.options import Json, with_client
from holdfast.cli.job.job import job_table
from holdfast.cli.look.incidents import incident_table
from holdfast.cli.look.jobs import job_list

PERIOD_S = 1.0
_COLOURS = {"well": "green", "finished": "green", "starting": "cyan", "stopped": "dim"}


@with_client
def status(
    client: Client,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Refresh until Ctrl-C.")] = False,
    as_json: Json = False,
) -> int:
    """Show nodes, jobs and incidents at a glance."""
    if watch:
        return _watch(client, as_json)
    found = client.status()
    if as_json:
        output.print_json(found)
    else:
        output.out().print(overview(found))
    return 0


def _watch(client: Client, as_json: bool) -> int:
    seen = -1
    if as_json:  # one document a line, one line a change
        while True:
            found = client.status()
            if found.get("version") != seen:
                seen = found.get("version", -1)
                output.print_json(found)
            time.sleep(PERIOD_S)
    from rich.live import Live

    with Live(overview(client.status()), console=output.out(), auto_refresh=False) as live:
        while True:
            time.sleep(PERIOD_S)
            try:
                live.update(overview(client.status()), refresh=True)
            except Unavailable as error:  # the controller may be restarting
                live.update(output.text(error), refresh=True)


def overview(found: output.Json) -> RenderableType:
    parts: list[RenderableType] = health_lines((found.get("job") or {}).get("health"))
    counts = ", ".join(f"{n} {output.state(word)}" for word, n in (found.get("counts") or {}).items() if n)
    parts.append(f"[bold]nodes[/]  {counts or 'none'}")
    parts += _jobs(found)
    recent = found.get("incidents") or []
    parts.append(f"[bold]incidents[/]  {found.get('open_incidents', 0)} open")
    if recent:
        parts.append(incident_table(recent[:8]))
    return Group(*parts)


def health_lines(health: output.Json | None) -> list[RenderableType]:
    """What it is, what is being done, the next action; of the other conditions a line each."""
    if not health:
        return []
    colour = "red" if health["needs_person"] else _COLOURS.get(health["condition"], "yellow")
    lines = [f"[bold {colour}]{output.text(health['condition'])}[/]  {output.text(health['sentence'])}"]
    if health["doing"]:
        usual = f", usually {output.seconds(health['usual_s'])}" if health["usual_s"] else ""
        lines.append(f"  being done: {output.text(health['doing'])}{usual}")
    lines.append(f"  next: {output.text(health['action'])}")
    lines += [f"  also {output.text(o['condition'])}: {output.text(o['sentence'])}" for o in health["others"]]
    return list(lines)


def _jobs(found: output.Json) -> list[RenderableType]:
    """The newest job in full, or a list if there are other active jobs."""
    newest = found.get("job")
    if not newest:
        return ["no job yet: holdfast run script.py"]
    shown = [job for job in found.get("jobs") or [] if job["state"] not in OVER or job["id"] == newest["id"]]
    if len(shown) < 2:
        return [job_table(newest)]
    return ["[bold]jobs[/]  `holdfast job --job NAME` shows one", job_list(shown)]
