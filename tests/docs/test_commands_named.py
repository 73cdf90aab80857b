"""Every `holdfast ...` that a text tells somebody to type exists, with its options: in the docs, the alert rules, the
table of findings, and the messages and help of the code."""

import ast
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from holdfast.dashboards.rules import ALERTS
from holdfast.trainer.__main__ import build_parser
from tests.command_tree import command_tree

ROOT = Path(__file__).parents[2]
ROOMS = ("agent", "checkpoint", "controller", "dashboards", "diagnostics", "holdfast", "trainer")
FINDINGS = ROOT / "controller" / "detectors" / "base" / "findings.toml"
NAMED = re.compile(r"`holdfast ((?:[^`])+)`")
COMMANDS = command_tree()


def problem(typed: str) -> str:
    """Why these words after `holdfast` are no command line; empty: they are one, or the name of a command."""
    try:
        words = shlex.split(" ".join(typed.split()))
    except ValueError:
        return f"not a command line: {typed}"
    if words[0].startswith("-"):
        return _problem_of(COMMANDS, words)
    command, path = COMMANDS, ""
    while words and hasattr(command, "commands") and not words[0].startswith("-"):
        if words[0] not in command.commands:
            return f"no command `holdfast{path} {words[0]}`"
        command, path = command.commands[words[0]], f"{path} {words[0]}"
        words = words[1:]
    if command.name in ("train", "memory"):  # the trainer's options
        known = {option for action in build_parser()._actions for option in action.option_strings}
        known |= {option for parameter in command.params for option in parameter.opts}
        unknown = [word for word in words if word.startswith("--") and word.partition("=")[0] not in known]
        return f"No such option: {unknown[0]}" if unknown else ""
    return _problem_of(command, words)


def _problem_of(command: Any, words: list[str]) -> str:
    # An ellipsis stands for any value, also for one that is not typed.
    words = [word for word in words if word not in ("...", "…")]
    try:
        command.make_parser(click.Context(command)).parse_args(words)
    except Exception as error:  # typer's errors are not click's in all versions
        message = getattr(error, "format_message", None)
        if message is None:
            raise
        return "" if "requires an argument" in message() else str(message())
    return ""


def texts_of(file: Path) -> Iterator[str]:
    """Strings of a program, those with values in them as one text; none of a program that names no command."""
    if "`holdfast " not in (source := file.read_text()):
        return  # most of them: the rest of the work takes seconds for all
    tree = ast.parse(source)
    inner = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "VALUE" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inner:
            yield node.value


def strings(found: object) -> Iterator[str]:
    if isinstance(found, str):
        yield found
    elif isinstance(found, dict):
        for value in found.values():
            yield from strings(value)


def named() -> Iterator[tuple[str, str]]:
    """Where, and the words after `holdfast`."""
    sources: list[tuple[str, Iterator[str]]] = [
        ("findings.toml", strings(tomllib.loads(FINDINGS.read_text()))),
        ("the alert rules", (text for alert in ALERTS for text in strings(vars_of(alert)))),
    ]
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        sources.append((str(page.relative_to(ROOT)), iter([page.read_text()])))
    for room in ROOMS:
        for file in (ROOT / room).rglob("*.py"):
            if not any(part.is_symlink() for part in file.parents if part != ROOT):
                sources.append((str(file.relative_to(ROOT)), texts_of(file)))
    for where, texts in sources:
        for text in texts:
            for typed in NAMED.findall(text):
                yield where, " ".join(typed.split())


def vars_of(alert: Any) -> dict[str, object]:
    return {name: getattr(alert, name) for name in alert.__dataclass_fields__}


def test_every_command_that_a_text_names_exists_with_its_options() -> None:
    found = list(named())
    wheres = {where for where, _ in found}
    assert {"findings.toml", "the alert rules", "docs/runbook.md", "controller/health/judge.py"} <= wheres
    assert len(found) > 150
    wrong = {f"{where}: holdfast {typed}: {why}" for where, typed in found if (why := problem(typed))}
    assert not wrong, "\n".join(sorted(wrong))


@pytest.mark.parametrize(
    ("typed", "why"),
    [
        ("job logs", "no command `holdfast job logs`"),
        ("stauts", "no command"),
        ("status --wach", "No such option"),
        ("train --trafic", "No such option"),
        ("train --traffic", ""),
        ("incidents --job NAME", ""),
        ("logs rank3 --generation -1 -f", ""),
        ("checkpoint verify URL --step 3", ""),
        ("checkpoint erase URL", "no command"),
    ],
)
def test_it_notices_what_does_not_exist(typed: str, why: str) -> None:
    assert problem(typed).startswith(why)
    assert bool(problem(typed)) == bool(why)
