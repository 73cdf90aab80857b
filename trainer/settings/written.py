"""Settings as TOML, such that `load` reads the same ones."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

from holdfast.trainer.settings.config import Config

_DEFAULT = Config()


def written(config: Config) -> str:
    """Whatever is not at its default, section by section."""
    sections = []
    for section in fields(config):
        own, usual = getattr(config, section.name), getattr(_DEFAULT, section.name)
        lines = [
            f"{one.name} = {toml(getattr(own, one.name))}"
            for one in fields(own)
            if getattr(own, one.name) != getattr(usual, one.name)
        ]
        if lines:
            sections.append("\n".join([f"[{section.name}]", *lines]))
    return "\n\n".join(sections) + "\n"


def toml(value: Any) -> str:
    """A setting's value as TOML has it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # JSON's strings are TOML's, but for this, and for characters beyond 16 bits where they are escaped.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, tuple | list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return repr(value)  # numbers: inf and nan are TOML's words too
