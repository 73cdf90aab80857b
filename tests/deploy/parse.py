"""Holdfast's command lines as they stand in files: parsed by the command line's own parser."""

from collections.abc import Sequence
from typing import Any

from tests.command_tree import command_tree


def parse(words: Sequence[str]) -> dict[str, Any]:
    """Values by parameter of `holdfast WORDS`. The parser's own error when a command or an option does not exist."""
    group, rest = command_tree(), list(words)
    while hasattr(group, "commands"):
        group = group.commands[rest.pop(0)]
    context = group.context_class(group, info_name=" ".join(words[:1]), **group.context_settings)
    values, left, _ = group.make_parser(context).parse_args(rest)
    assert not left or "args" in values, f"{words}: words that are no options: {left}"
    return dict(values)
