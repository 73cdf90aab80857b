"""The part of the documentation that lists the commands and their options."""

import inspect
from collections.abc import Iterator
from typing import Any

from markdown_table import table
from typer.main import get_command

from holdfast.cli.common import usage
from holdfast.cli.main import build as build_cli


def commands() -> str:
    """Commands by their group in the help, the options of the connection once."""
    root = get_command(build_cli())
    parts = []
    for group in usage.GROUPS:
        parts.append(f"### {group}")
        for name, command in root.commands.items():  # type: ignore[attr-defined]  # typer's group is not typed as one
            if command.rich_help_panel == group:
                parts += _command(command, f"holdfast {name}")
    status = root.commands["status"]  # type: ignore[attr-defined]
    parts += ["### Connection options", "Of every command that links to them."]
    parts.append(table(("option", "meaning"), _options(status, connection=True)))
    return "\n\n".join(parts)


def exit_codes() -> str:
    return table(("code", "meaning"), [(f"`{code}`", meaning) for code, meaning in usage.EXIT_CODES.items()])


def _command(command: Any, path: str) -> Iterator[str]:
    yield f"#### `{path}`"
    yield inspect.cleandoc(command.help or "").replace("\n\n", "\n").strip()
    if line := usage.example_of(command):
        yield f"```sh\n{line}\n```"
    if path != "holdfast train":  # its options are the trainer's own: docs/trainer.md
        if rows := _options(command, connection=False):
            yield table(("option", "meaning"), rows)
        if _options(command, connection=True):
            yield "And the [connection options](#connection-options)."
    for name in getattr(command, "commands", {}):
        yield from _command(command.commands[name], f"{path} {name}")


def _options(command: Any, connection: bool) -> list[tuple[str, str]]:
    rows = []
    for parameter in command.params:
        if (getattr(parameter, "rich_help_panel", None) == usage.CONNECTION) is not connection:
            continue
        if parameter.name in ("install_completion", "show_completion", "help") or getattr(parameter, "hidden", False):
            continue
        if parameter.param_type_name == "argument":
            name = parameter.metavar or parameter.name.upper()
        else:
            name = ", ".join([*parameter.opts, *parameter.secondary_opts])
            if not parameter.is_flag:
                name += f" {parameter.metavar or parameter.type.name.upper()}"
        rows.append((f"`{name}`", " ".join((parameter.help or "").split())))
    return rows
