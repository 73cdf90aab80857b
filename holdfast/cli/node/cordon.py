"""`holdfast cordon` and `holdfast uncordon`: keep a node out of later generations, and admit it again."""

from typing import Annotated

import typer

from holdfast.cli.common import completion, output
from holdfast.cli.common.client import Client
from holdfast.cli.common.options import with_client

Node = Annotated[
    str,
    typer.Argument(
        metavar="NODE", help="A node's name, as `holdfast nodes` shows it.", autocompletion=completion.nodes
    ),
]


@with_client
def cordon(client: Client, node: Node) -> int:
    """Keep a node out of later generations; its workers train on until the next restart."""
    client.cordon(node, True)
    output.say(f"{node}: cordoned")
    return 0


@with_client
def uncordon(client: Client, node: Node) -> int:
    """Admit a node again, and clear its failures."""
    client.cordon(node, False)
    output.say(f"{node}: uncordoned")
    return 0
