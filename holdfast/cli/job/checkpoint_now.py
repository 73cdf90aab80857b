"""`holdfast checkpoint now`: request a checkpoint of a running job, and wait until it is committed."""

import time
from typing import Annotated

import typer

from holdfast.base.errors import Unavailable
from holdfast.cli.common import output
from holdfast.cli.common.client import Client
from holdfast.cli.common.jobs import JobOption, active_job
from holdfast.cli.common.options import Json, with_client
from holdfast.cli.common.progress import progress

_EVERY = 0.2
_STEP = "checkpoint_step"


@with_client
def now(
    client: Client,
    wait: Annotated[
        float,
        typer.Option(
            "--wait", metavar="SECONDS", min=0, max=86_400, help="How long to wait for the commit; 0: not at all."
        ),
    ] = 60.0,
    job: JobOption = "",
    as_json: Json = False,
) -> int:
    """Make a checkpoint of the next step that all workers agree on."""
    id = str(active_job(client, job)["id"])
    before = _committed(client, id)
    began = time.monotonic()
    client.checkpoint(id)
    step: float | None = None
    with progress("waiting for the commit"):
        while wait and step is None:
            found = _committed(client, id)
            if found is not None and found != before:
                step = found
            elif time.monotonic() - began > wait:
                raise Unavailable(
                    f"asked, but within {wait:g} s no checkpoint was committed: look at `holdfast incidents`"
                )
            else:
                time.sleep(_EVERY)
    seconds = time.monotonic() - began
    if as_json:
        output.print_json({"step": None if step is None else int(step), "seconds": round(seconds, 3)})
    elif step is None:
        output.say("asked: the workers take it at the next step that they agree on")
    else:
        output.say(f"checkpoint of step {int(step)} committed after {output.seconds(seconds)}")
    return 0


def _committed(client: Client, job: str) -> float | None:
    """The step of the newest checkpoint that any node of the job reports."""
    seen = (node.get("host", {}) for node in client.nodes() if node.get("job") == job)
    return max((float(host[_STEP]) for host in seen if _STEP in host), default=None)
