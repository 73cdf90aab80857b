"""`holdfast certs`: certificates and tokens for a cluster beyond loopback."""

import datetime
import socket
from pathlib import Path
from typing import Annotated

import typer

from holdfast.base.config.agent import AgentConfig
from holdfast.base.errors import UsageError
from holdfast.cli.common import output
from holdfast.cli.common.extras import needs
from holdfast.cli.common.options import Json


def certs(
    folder: Annotated[Path, typer.Option("--dir", metavar="DIR", help="Where the files go.")],
    host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Name or IP address at which the controller is reached; may repeat."),
    ] = None,
    node: Annotated[list[str] | None, typer.Option(metavar="NAME", help="A node's name; may repeat.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Make a new authority, and overwrite existing files.")] = False,
    renew: Annotated[
        bool,
        typer.Option(
            "--renew",
            help="Renew certificates with the same authority, and keep the tokens: those of the named hosts and nodes, "
            "or all and the authority's own certificate.",
        ),
    ] = False,
    as_json: Json = False,
) -> int:
    """Make an authority, certificates for controller and nodes, and API tokens: a folder for each role.

    DIR/ca stays on this machine. DIR/controller goes to the controller, DIR/nodes/NAME to that node, DIR/operator and
    DIR/reader to people. Run again with other --node names, it adds them to the same authority.
    """
    if force and renew:
        raise UsageError("--force makes a new authority, --renew keeps it: give one of the two")
    with needs("controller"):
        from holdfast.base.certs import write_cluster
    for name in node or []:
        AgentConfig(node_name=name)  # refuses invalid node names
    hosts = host or []
    if not hosts and (force or not (folder / "ca" / "ca.pem").exists()):
        hosts = [socket.gethostname()]
    now = datetime.datetime.now(datetime.UTC)
    written = [str(path) for path in write_cluster(folder, hosts, node or [], now, force=force, renew=renew)]
    if as_json:
        output.print_json({"files": written})
    else:
        for path in written:
            output.say(path)
    return 0
