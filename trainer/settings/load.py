"""Settings read from TOML, overridden by `section.key=value`.

Flags and overrides outrank the file, the file outranks the defaults; the environment sets nothing.
"""

from __future__ import annotations

import difflib
import functools
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import Field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_args, get_type_hints

from holdfast.base.errors import UsageError
from holdfast.base.files import parse_toml, read_text
from holdfast.trainer.settings.checks import check
from holdfast.trainer.settings.config import Config
from holdfast.trainer.settings.errors import ConfigError


def load(path: Path | None = None, overrides: Iterable[tuple[str, Any]] = ()) -> Config:
    """Read the file, if any, then apply `overrides`, pairs of "section.key" and value, in order.

    Raises ConfigError naming file, key and what would be right.
    """
    config = Config()
    if path is not None:
        config = _merge(config, _parse(path), str(path))
    for key, value in overrides:
        section, dot, name = key.partition(".")
        if not dot:
            raise ConfigError(f"{key!r} in --set: write section.key=value, as in train.steps=100")
        config = _merge(config, {section: {name: value}}, "the command line")
    check(config)
    return config


def parse_override(text: str) -> tuple[str, Any]:
    """`section.key=value` as a pair; the value as TOML, or as a plain string if it is none."""
    key, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"{text!r} in --set: write section.key=value, as in train.steps=100")
    try:
        return key.strip(), tomllib.loads(f"value = {value}")["value"]
    except (ValueError, RecursionError):
        return key.strip(), value


def _parse(path: Path) -> dict[str, Any]:
    try:
        return parse_toml(read_text(path), str(path))
    except UsageError as error:
        raise ConfigError(f"{error}; --config takes a file in TOML") from None


def _merge(config: Config, sections: Mapping[str, Any], source: str) -> Config:
    for section, values in sections.items():
        known = [entry.name for entry in fields(Config)]
        if section not in known:
            raise ConfigError(f"unknown section [{section}] in {source}{_nearest(section, known)}")
        if not isinstance(values, Mapping):
            raise ConfigError(f"{section} in {source} is a section: write [{section}], then its keys")
        config = replace(config, **{section: _fill(getattr(config, section), section, values, source)})
    return config


def _fill(part: Any, section: str, values: Mapping[str, Any], source: str) -> Any:
    kind: Any = type(part)  # mypy has a type[Any] that is not hashable
    types, entries = _types(kind), {entry.name: entry for entry in fields(part)}
    changed = {}
    for key, value in values.items():
        if key not in types:
            raise ConfigError(f"unknown key {section}.{key} in {source}{_nearest(key, list(types))}")
        where = f"{section}.{key} in {source}"
        changed[key] = _converted(types[key], value, where, choices(types[key], entries[key]))
    return replace(part, **changed)


@functools.cache
def _types(section: type[Any]) -> Mapping[str, Any]:
    """Of a section's settings. They are written as text, and reading all of that takes most of the time of a `load`."""
    return MappingProxyType(get_type_hints(section))


def read_types() -> None:
    """Read all of it now, so that processes forked from this one need not."""
    for section in fields(Config):
        kind: Any = type(getattr(Config(), section.name))  # as in `_fill`
        _types(kind)


def choices(kind: Any, entry: Field[Any]) -> tuple[str, ...]:
    """The words that a setting may be, () if it may be any: those of its type, or of its field's table."""
    words = (*get_args(kind), *entry.metadata.get("choices", ()))
    return tuple(word for word in words if isinstance(word, str))


def _converted(kind: Any, value: Any, where: str, words: Sequence[str]) -> Any:
    """`value` as the field's type; numbers widen, nothing else changes its type."""
    if words:
        if value not in words:
            raise ConfigError(f"{where} is {value!r}: choose one of {', '.join(words)}")
        return value
    if kind == tuple[str, ...]:
        if isinstance(value, list) and all(isinstance(entry, str) for entry in value):
            return tuple(value)
        raise ConfigError(f'{where} is {value!r}: write a list of strings, as in [".txt"]')
    if kind == tuple[int, ...]:
        if isinstance(value, list) and all(type(entry) is int for entry in value):
            return tuple(value)
        raise ConfigError(f"{where} is {value!r}: write a list of whole numbers, as in [1, 2]")
    if kind == tuple[float, ...]:
        if isinstance(value, list) and all(type(entry) in (int, float) and abs(entry) < 1 << 53 for entry in value):
            return tuple(map(float, value))
        raise ConfigError(f"{where} is {value!r}: write a list of numbers, as in [0.5, 0.25]")
    if kind is float and type(value) is int and abs(value) < 1 << 53:
        return float(value)
    if type(value) is not kind:
        name = {int: "a whole number", float: "a number", bool: "true or false", str: "a string"}[kind]
        raise ConfigError(f"{where} is {value!r}: write {name}")
    if isinstance(value, int | float) and not abs(value) < 1 << 53:  # NaN too, which no limit below would catch
        raise ConfigError(f"{where} is {value!r}: write a finite number of a sensible size")
    if isinstance(value, str) and ("\0" in value or any("\ud800" <= c <= "\udfff" for c in value)):
        raise ConfigError(f"{where} is {value!r}: write it in UTF-8")
    return value


def _nearest(word: str, known: list[str]) -> str:
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.4)
    return f": did you mean {close[0]}?" if close else f": known are {', '.join(known)}"
