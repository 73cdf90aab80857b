"""The tree of `holdfast`'s commands, built once a session: typer takes longer for all of them than a test for its own
work. Tests read it; one that changes a command builds its own."""

from __future__ import annotations

import functools
from typing import Any

from typer.main import get_command

from holdfast.cli.main import build


@functools.cache
def command_tree() -> Any:
    """The group of all commands. Typer does not type it as a group."""
    return get_command(build())
