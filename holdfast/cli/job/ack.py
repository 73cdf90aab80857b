"""`holdfast ack`: somebody takes care of a failed job, and its alert ends."""

from typing import Annotated

import typer

from holdfast.base.errors import Conflict
from holdfast.cli.common import output
from holdfast.cli.common.client import Client
from holdfast.cli.common.options import Json, with_client


@with_client
def ack(
    client: Client,
    job: Annotated[str, typer.Argument(metavar="[NAME|ID]", help="Which job. Default: the newest that failed.")] = "",
    as_json: Json = False,
) -> int:
    """Acknowledge a failed job: receivers of notifications get its end. A new job of the same name does the same."""
    if not job:
        failed = [one for one in client.jobs() if one["state"] == "failed"]
        if not failed:
            raise Conflict("no job has failed")
        job = str(failed[0]["id"])
    client.acknowledge(job)
    if as_json:
        output.print_json({"job": job, "acknowledged": True})
    else:
        output.say(f"{job}: acknowledged")
    return 0
