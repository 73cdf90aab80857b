"""Turns settings into options: each field of a config class is a flag, and its docstring the flag's help.

Values arrive as text and are parsed where the file and the environment are parsed too, so that all three accept the
same and complain alike.
"""

import inspect
import typing
from collections.abc import Callable, Iterable
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from holdfast.base import log, settings
from holdfast.base.config.agent import AgentConfig
from holdfast.base.config.client import ClientConfig
from holdfast.base.config.controller import ControllerConfig
from holdfast.base.config.load import load
from holdfast.cli.common import completion
from holdfast.cli.common.client import Client
from holdfast.cli.common.usage import CONNECTION

Config = TypeVar("Config")
Command = Callable[..., int]

Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


def configured(cls: type[Config]) -> Callable[[Command], Command]:
    """Give the command a `config: cls` from flags, environment and file. Its other parameters are unchanged."""

    def decorate(body: Command) -> Command:
        def command(**values: Any) -> int:
            file = values.pop("config_file")
            log.configure(verbose=values.pop("verbose"), daemon=cls in (ControllerConfig, AgentConfig))
            flags = {name: values.pop(name) for name in _names(cls)}
            given = {name: value for name, value in flags.items() if value is not None}
            return body(load(cls, given, file=file), **values)

        return _reshape(command, body, "config", [*_options(cls), *_common("Options")])

    return decorate


def with_client(body: Command) -> Command:
    """Give the command a `client` of the controller that flags, environment or file name."""
    return _with_client(body, _common(CONNECTION))


def with_client_only(body: Command) -> Command:
    """The same of a command whose --config is another program's: of holdfast.toml the one that is found."""
    return _with_client(body, [])


def _with_client(body: Command, common: list[inspect.Parameter]) -> Command:
    def command(**values: Any) -> int:
        file = values.pop("config_file", None)
        log.configure(verbose=values.pop("verbose", False), daemon=False)
        flags = {name: values.pop(name) for name in _names(ClientConfig)}
        given = {name: value for name, value in flags.items() if value is not None}
        with Client(load(ClientConfig, given, file=file)) as client:
            return body(client, **values)

    return _reshape(command, body, "client", [*_options(ClientConfig, CONNECTION), *common])


def _common(panel: str) -> list[inspect.Parameter]:
    file = typer.Option(
        "--config",
        metavar="FILE",
        help="Settings (holdfast.toml here, or /etc/holdfast/holdfast.toml).",
        rich_help_panel=panel,
    )
    more = typer.Option("--verbose", "-v", help="Log more.", rich_help_panel=panel)
    return [
        _parameter("config_file", Annotated[Path | None, file], None),
        _parameter("verbose", Annotated[bool, more], False),
    ]


def _names(cls: type[Any]) -> list[str]:
    """Of the parameters that `_options` makes: earlier names first, so that a newer one counts."""
    return [*settings.former_names(cls), *(f.name for f in fields(cls))]


def _options(cls: type[Any], panel: str = "Options") -> Iterable[inspect.Parameter]:
    docs = settings.field_docs(cls)
    hints = typing.get_type_hints(cls, include_extras=True)
    for was, now in settings.former_names(cls).items():
        option = typer.Option("--" + was.replace("_", "-"), metavar=settings.placeholder(hints[now]), hidden=True)
        yield _parameter(was, Annotated[str | None, option], None)
    for setting in fields(cls):
        flag = "--" + setting.name.replace("_", "-")
        text = docs.get(setting.name, "")
        if hints[setting.name] is bool:
            option = typer.Option(f"{flag}/--no-{flag[2:]}", help=text, show_default=False, rich_help_panel=panel)
            yield _parameter(setting.name, Annotated[bool | None, option], None)
            continue
        shown = settings.shown_default(cls, setting.name)
        if shown and shown not in text:
            text = f"{text} Default: {shown}."
        metavar = settings.placeholder(hints[setting.name])
        option = typer.Option(
            flag,
            help=text,
            metavar=metavar,
            show_default=False,
            rich_help_panel=panel,
            autocompletion=completion.receivers if setting.name == "notify" else None,
        )
        yield _parameter(setting.name, Annotated[str | None, option], None)


def _parameter(name: str, annotation: Any, default: object) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _reshape(command: Command, body: Command, replaced: str, more: list[inspect.Parameter]) -> Command:
    """Give `command` the face of `body`, with the parameter `replaced` exchanged for `more`: typer reads faces."""
    kept = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for parameter in inspect.signature(body).parameters.values()
        if parameter.name != replaced
    ]
    face = [*kept, *more]
    command.__signature__ = inspect.Signature(face)  # type: ignore[attr-defined]  # read by inspect
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in face}
    command.__name__, command.__doc__ = body.__name__, body.__doc__
    return command
