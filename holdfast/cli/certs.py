"""`holdfast certs`: what a cluster needs to speak beyond loopback."""

import datetime
import socket
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.extras import needs
from holdfast.config import AgentConfig


def certs(
    folder: Annotated[Path, typer.Option("--dir", metavar="DIR", help="Where the files go.")],
    host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Name or IP address at which the controller is reached; may repeat."),
    ] = None,
    node: Annotated[list[str] | None, typer.Option(metavar="NAME", help="A node's name; may repeat.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite what is there, with a new authority.")] = False,
) -> int:
    """Make an authority, certificates for controller and nodes, and an API token.

    Run again with other --node names, it adds them to the same authority.
    """
    with needs("controller"):
        from holdfast.certs import write_cluster
    for name in node or []:
        AgentConfig(node_name=name)  # refuses names that no agent would take
    hosts = host or []
    if not hosts and not (folder / "ca.pem").exists():
        hosts = [socket.gethostname()]
    for path in write_cluster(folder, hosts, node or [], datetime.datetime.now(datetime.UTC), force=force):
        print(path)
    return 0
