"""Which job a command is about: the one that `--job` names, else the only one that is active."""

from typing import Annotated

import typer

from holdfast.base.errors import Conflict, UsageError
from holdfast.base.settings import nearest
from holdfast.cli.common import completion
from holdfast.cli.common.client import OVER, Client, Json

JobOption = Annotated[
    str,
    typer.Option(
        "--job",
        metavar="NAME|ID",
        help="Which job, as `holdfast jobs` lists it. Default: the only active one.",
        autocompletion=completion.jobs,
    ),
]
"""For commands that change a job, or need replies of its workers."""
ShownJob = Annotated[
    str,
    typer.Option(
        "--job",
        metavar="NAME|ID",
        help="Which job, as `holdfast jobs` lists it. Default: the newest.",
        autocompletion=completion.jobs,
    ),
]
"""For commands that show a job."""


NO_JOB = "no job yet: holdfast run script.py"


def shown_job(client: Client, job: str) -> Json:
    """The selected job, else the newest. UsageError: unknown. Conflict: there is none yet."""
    found = client.job(job)
    if found is None:
        raise Conflict(NO_JOB)
    return found


def active_job(client: Client, job: str) -> Json:
    """The selected active job. UsageError: unknown, or several without a selection. Conflict: none runs."""
    found = find_active(client, job)
    if found is None:
        raise Conflict("no job is running" if client.jobs() else NO_JOB)
    return found


def find_active(client: Client, job: str) -> Json | None:
    """The same; None when no job is active and none is named."""
    known = client.jobs()
    active = [one for one in known if one["state"] not in OVER]
    if not job:
        if len(active) > 1:
            names = ", ".join(f"{one['name']} ({one['id']})" for one in active)
            raise UsageError(f"several jobs are active: {names}; name one with --job")
        return active[0] if active else None
    for key in ("id", "name"):
        for one in active:
            if one[key] == job:
                return one
    over = next((one for one in known if job in (one["id"], one["name"])), None)
    if over is not None:
        raise Conflict(f"job {over['name']} ({over['id']}) is {over['state']} already")
    if not known:
        raise Conflict(f"no job is called {job!r}: there is none yet")
    raise UsageError(f"no job is called {job!r}{nearest(job, [one[key] for one in known for key in ('name', 'id')])}")
