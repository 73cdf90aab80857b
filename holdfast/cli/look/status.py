"""`holdfast status`: the cluster at a glance, once or with updates."""

import time
from typing import Annotated

import typer
from rich.console import Console, RenderableType
from rich.text import Text

from holdfast.base.errors import Unavailable, UsageError
from holdfast.cli.common import output
from holdfast.cli.common.client import Client
from holdfast.cli.common.live import keep_showing
from holdfast.cli.common.options import Json, with_client
from holdfast.cli.look import then
from holdfast.cli.look.glance import overview

PERIOD_S = 1.0


@with_client
def status(
    client: Client,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Refresh until Ctrl-C.")] = False,
    at: Annotated[
        str | None,
        typer.Option("--at", metavar="TIME", help="The newest job as it was at 02:10, at a date, or 3h ago."),
    ] = None,
    as_json: Json = False,
) -> int:
    """Show nodes, jobs and incidents at a glance."""
    if at is not None and watch:
        raise UsageError("--at and --watch: the past does not change, choose one")
    if at is not None:
        return then.show(client, at, as_json)
    try:
        return _watch(client, as_json) if watch else _once(client, as_json)
    except Unavailable as error:
        raise Unavailable(f"{error}; training does not depend on it") from None


def _once(client: Client, as_json: bool) -> int:
    found = client.status()
    if as_json:
        output.print_json(found)
    else:
        console = output.out()
        console.print(overview(found, console))
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
    client.status()  # a wrong address is an error, not a picture

    def shown(console: Console, height: int | None) -> RenderableType:
        try:
            return overview(client.status(), console, height)
        except Unavailable as error:  # the controller may be restarting
            return Text(output.shown(f"{error}; training does not depend on it"))

    keep_showing(shown, PERIOD_S)
