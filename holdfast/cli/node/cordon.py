"""`holdfast cordon` and `holdfast uncordon`: keep a node out of later generations, and admit it again."""

from typing import Annotated

import typer

from holdfast.cli.common import completion, output
from holdfast.cli.common.client import Client
from holdfast.cli.common.options import Json, with_client

Node = Annotated[
    str,
    typer.Argument(
        metavar="NODE", help="A node's name, as `holdfast nodes` shows it.", autocompletion=completion.nodes
    ),
]


@with_client
def cordon(client: Client, node: Node, as_json: Json = False) -> int:
    """Keep a node out of later generations; its workers train on until the next restart."""
    client.cordon(node, True)
    return done(node, "cordoned", as_json)


@with_client
def uncordon(client: Client, node: Node, as_json: Json = False) -> int:
    """Admit a node again, and clear its failures."""
    client.cordon(node, False)
    return done(node, "uncordoned", as_json)


def done(node: str, what: str, as_json: bool) -> int:
    """Print what was done to a node."""
    if as_json:
        output.print_json({"node": node, "done": what})
    else:
        output.say(f"{node}: {what}")
    return 0
