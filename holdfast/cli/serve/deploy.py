"""`holdfast deploy`: files to install daemons with, to edit and to use."""

from pathlib import Path
from typing import Annotated

import typer

from holdfast.base.errors import UsageError
from holdfast.base.settings import nearest
from holdfast.cli.common import output
from holdfast.cli.common.options import Json
from holdfast.cli.common.usage import example
from holdfast.deploy.export import PARTS, write

app = typer.Typer(no_args_is_help=True, help="Files that install the daemons: units, images, manifests, scripts.")


@app.callback()
def _group() -> None:
    """Keeps `export` a subcommand while it is the only one."""


@app.command(epilog=example("holdfast deploy export deploy --what systemd"))
def export(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Output folder; created if missing.")],
    what: Annotated[
        list[str] | None,
        typer.Option(metavar="PART", help=f"One of {', '.join(PARTS)}; may repeat (default: all)."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite files that differ.")] = False,
    as_json: Json = False,
) -> int:
    """Write systemd units, Dockerfile, Kubernetes manifests, a Slurm batch script, an Ansible role, and monitoring."""
    for part in what or []:
        if part not in PARTS:
            raise UsageError(f"--what: unknown part {part!r}{nearest(part, PARTS)}")
    try:
        written = [str(path) for path in write(folder, what or list(PARTS), force=force)]
    except OSError as error:
        raise UsageError(f"cannot write to {folder}: {error.strerror}; name a folder that can be written to") from None
    if as_json:
        output.print_json({"files": written})
    else:
        for path in written:
            output.say(path)
    return 0
