"""`holdfast notify test`: whether messages arrive."""

from typing import Annotated

import typer

from holdfast.base.errors import UsageError
from holdfast.cli.common import output
from holdfast.cli.common.client import Client
from holdfast.cli.common.options import Json, with_client
from holdfast.cli.common.usage import example

app = typer.Typer(help="Notifications of people.", no_args_is_help=True)


@app.callback()
def notify() -> None:
    """Notifications of people."""


@app.command("test", epilog=example("holdfast notify test slack"))
@with_client
def send_test(
    client: Client,
    receiver: Annotated[
        str, typer.Argument(metavar="[RECEIVER]", help="Which receiver, as slack or slack-2. Default: all.")
    ] = "",
    as_json: Json = False,
) -> int:
    """Send a marked test message, and print what each receiver answers. Exit code 1 when one refuses it."""
    answers = client.notify_test(receiver)
    if not answers:
        raise UsageError("the controller has no receivers: set `notify`")
    if as_json:
        output.print_json(answers)
    else:
        for one in answers:
            output.say(f"{one['receiver']}: {'sent' if one['ok'] else 'refused'}: {one['answer']}")
    return 0 if all(one["ok"] for one in answers) else 1
