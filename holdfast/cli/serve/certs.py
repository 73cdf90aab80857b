"""`holdfast certs`: what a cluster needs to speak beyond loopback."""

import datetime
import socket
from pathlib import Path
from typing import Annotated

import typer

from holdfast.base.config import AgentConfig
from holdfast.base.errors import UsageError
from holdfast.cli.common import output
from holdfast.cli.common.extras import needs


def certs(
    folder: Annotated[Path, typer.Option("--dir", metavar="DIR", help="Where the files go.")],
    host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Name or IP address at which the controller is reached; may repeat."),
    ] = None,
    node: Annotated[list[str] | None, typer.Option(metavar="NAME", help="A node's name; may repeat.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite what is there, with a new authority.")] = False,
    renew: Annotated[
        bool,
        typer.Option(
            "--renew",
            help="Make certificates anew with the same authority, and keep the tokens: those of the hosts and nodes "
            "that are named, or all, and the authority's own.",
        ),
    ] = False,
) -> int:
    """Make an authority, certificates for controller and nodes, and API tokens: a folder for each role.

    DIR/ca stays where it is made. DIR/controller goes to the controller, DIR/nodes/NAME to that node, DIR/operator and
    DIR/reader to people. Run again with other --node names, it adds them to the same authority.
    """
    if force and renew:
        raise UsageError("--force makes a new authority, --renew keeps it: give one of the two")
    with needs("controller"):
        from holdfast.base.certs import write_cluster
    for name in node or []:
        AgentConfig(node_name=name)  # refuses names that no agent would take
    hosts = host or []
    if not hosts and (force or not (folder / "ca" / "ca.pem").exists()):
        hosts = [socket.gethostname()]
    now = datetime.datetime.now(datetime.UTC)
    for path in write_cluster(folder, hosts, node or [], now, force=force, renew=renew):
        output.say(str(path))
    return 0
