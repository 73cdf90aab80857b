"""Settings from a TOML file, the environment and flags, merged into frozen dataclasses.

Precedence: flag > environment > file > default. An unknown key is an error that names the nearest known one,
because a setting that is silently ignored is worse than one that is refused. Names of environment variables come from
the section and the field: `HOLDFAST_AGENT_SLOTS` is `slots` in `[agent]`.
"""

import ast
import difflib
import inspect
import math
import re
import textwrap
import typing
from collections.abc import Collection, Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Annotated, Any, TypeVar

from holdfast.base import log
from holdfast.base.errors import UsageError
from holdfast.base.files import expand, parse_toml, read_text

Seconds = Annotated[float, "seconds"]
"""A duration: a number of seconds, or text such as "250ms", "5s", "2m", "1h"."""
Bytes = Annotated[int, "bytes"]
"""A size: a number of bytes, or text such as "64KiB", "100MB", "2G" (a bare letter is binary)."""

Assignments = Annotated[tuple[str, ...], "assignments"]
"""Settings of parts by name: tables in the file, texts "NAME.KEY=VALUE" with commas between them elsewhere."""

LONGEST_S = 10 * 366 * 86400.0
"""No duration is longer: ten years."""

T = TypeVar("T")

_NUMBER = r"\s*([0-9]*\.?[0-9]+(?:e[+-]?[0-9]+)?)\s*"
_SECONDS = {"": 1.0, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_TRUE, _FALSE = {"1", "true", "yes", "on"}, {"0", "false", "no", "off"}
# Kubernetes gives every pod variables for each service of its namespace: a service called "holdfast-controller" makes
# HOLDFAST_CONTROLLER_PORT, ..._SERVICE_HOST and so on. They are not settings.
_KUBERNETES = re.compile(r"^(SERVICE_(HOST|PORT\w*)|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$")


def parse_seconds(text: str) -> float:
    """Seconds in "250ms", "1.5s", "2m", "1h" or a bare number. ValueError for anything else."""
    match = re.fullmatch(_NUMBER + r"([a-z]*)\s*", text.lower())
    if not match or match[2] not in _SECONDS:
        raise ValueError(f"not a duration: {text!r}")
    return _finite(float(match[1]) * _SECONDS[match[2]])


def parse_bytes(text: str) -> int:
    """Bytes in "64KiB", "100MB", "2G" or a bare number: MB is a million, MiB and a bare M are 2**20."""
    match = re.fullmatch(_NUMBER + r"([kmgt]?)(i?b|i)?\s*", text.lower())
    if not match:
        raise ValueError(f"not a size: {text!r}")
    power = " kmgt".index(match[2] or " ")
    base = 1000 if match[2] and match[3] == "b" else 1024
    return round(_finite(float(match[1]) * float(base**power)))


def parse_whole(text: str, digits: int = 9) -> int | None:
    """The number in up to so many plain digits, None for any other text: Python takes "1_0" and "\u0663"."""
    return int(text) if re.fullmatch(f"[0-9]{{1,{digits}}}", text) else None


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise ValueError("not a finite number")
    return value


def nearest(word: str, known: Collection[str], quote: str = "") -> str:
    """ "; did you mean X?" for the closest known word, else the list of all that are known."""
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    if close:
        return f"; did you mean {quote}{close[0]}{quote}?"
    return f"; known: {', '.join(sorted(known))}"


def variable(section: str, name: str) -> str:
    return f"HOLDFAST_{section}_{name}".upper()


def load(
    cls: type[T],
    *,
    flags: Mapping[str, object],
    env: Mapping[str, str],
    file: Path | None,
    sections: Mapping[str, type[Any]],
) -> T:
    """One section's settings. `flags` are the options that were given (text, or bool); `file` must exist if named.
    A field's metadata may name a second environment variable under "env", and under "was" the name that it had before,
    which still works, with a warning."""
    section = next(name for name, known in sections.items() if known is cls)
    values: dict[str, Any] = {}
    hints = typing.get_type_hints(cls, include_extras=True)
    now, renamed = former_names(cls), {}
    if file is not None:
        for name, value in _read_file(file, sections).get(section, {}).items():
            key = now.get(name, name)
            if key != name:
                renamed[f"{file}: [{section}] {name}"] = key
            values[key] = from_toml(hints[key], value, f"{file}: [{section}] {name}", file.parent)
    values |= _from_environment(cls, section, hints, env)
    renamed |= {name: variable(section, now[was]) for was in now if (name := variable(section, was)) in env}
    for name, value in flags.items():
        flag, key = _flag(name), now.get(name, name)
        if key != name:
            renamed[flag] = _flag(key)
        values[key] = value if isinstance(value, bool) else from_text(hints[key], str(value), flag)
    for given, name in renamed.items():
        log.warning("settings.renamed", given=given, now=name)
    return cls(**values)


def former_names(cls: type[Any]) -> dict[str, str]:
    """The name that a setting had before -> the one that it has now."""
    return {f.metadata["was"]: f.name for f in fields(cls) if "was" in f.metadata}


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _from_environment(cls: type[Any], section: str, hints: Mapping[str, Any], env: Mapping[str, str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    former = {variable(section, was): now for was, now in former_names(cls).items()}
    names = {variable(section, f.name): f.name for f in fields(cls)}
    short = {f.metadata["env"]: f.name for f in fields(cls) if "env" in f.metadata}
    prefix = variable(section, "")
    for key in env:
        if key.startswith(prefix) and key not in (*names, *former) and not _KUBERNETES.match(key.removeprefix(prefix)):
            raise UsageError(f"unknown environment variable {key}{nearest(key, names)}")
    for key, name in former.items():
        if key in env:
            values[name] = from_text(hints[name], env[key], key)
    for key, name in [*short.items(), *names.items()]:
        if key in env:
            values[name] = from_text(hints[name], env[key], key)
    return values


def _read_file(file: Path, sections: Mapping[str, type[Any]]) -> dict[str, dict[str, object]]:
    content = parse_toml(read_text(file, "a file of settings in TOML"), str(file))
    for section, keys in content.items():
        if section not in sections:
            raise UsageError(f"{file}: unknown section [{section}]{nearest(section, sections)}")
        if not isinstance(keys, dict):
            raise UsageError(f"{file}: {section} must be a section: [{section}]")
        known = [f.name for f in fields(sections[section])]
        former = former_names(sections[section])
        for key in keys:
            if key not in known and key not in former:
                raise UsageError(f"{file}: unknown key {key!r} in [{section}]{nearest(key, known)}")
    return content


def from_text(hint: Any, text: str, where: str) -> object:
    """The value of an environment variable or a flag."""
    kind = _kind(hint)
    try:
        match kind:
            case "text":
                return _utf8(text)
            case "switch":
                if text.lower() in _TRUE | _FALSE:
                    return text.lower() in _TRUE
                raise ValueError
            case "whole number":
                return _whole(int(text))
            case "number":
                return _finite(float(text))
            case "duration":
                return _duration(parse_seconds(text))
            case "size":
                return parse_bytes(text)
            case "path":
                return _path(hint, text)
            case _:
                parts = tuple(part.strip() for part in _utf8(text).split(",") if part.strip())
                if kind == "assignments" and not all("=" in part for part in parts):
                    raise ValueError
                return parts
    except ValueError:
        raise _wrong(where, kind, text) from None


def from_toml(hint: Any, value: object, where: str, folder: Path) -> object:
    """A typed value out of the file; relative paths count from the file's own folder."""
    kind = _kind(hint)
    try:
        return _from_toml(hint, kind, value, where, folder)
    except ValueError:
        raise _wrong(where, kind, value) from None


def _from_toml(hint: Any, kind: str, value: object, where: str, folder: Path) -> object:
    if kind == "path" and isinstance(value, str):
        path = _path(hint, value)
        return None if path is None else folder / path
    if kind == "list" and isinstance(value, list) and all(isinstance(part, str) for part in value):
        return tuple(_utf8(part) for part in value)
    if kind in ("duration", "size") and isinstance(value, str):
        return from_text(hint, value, where)
    if kind == "assignments" and isinstance(value, dict) and all(isinstance(part, dict) for part in value.values()):
        return tuple(f"{part}.{key}={one}" for part, keys in value.items() for key, one in keys.items())
    accepts: dict[str, tuple[type, ...]] = {
        "text": (str,),
        "switch": (bool,),
        "whole number": (int,),
        "size": (int,),
        "number": (int, float),
        "duration": (int, float),
    }
    # A bool is an int to Python, never to a person.
    if not isinstance(value, accepts.get(kind, ())) or isinstance(value, bool) != (kind == "switch"):
        raise ValueError
    if isinstance(value, str):
        return _utf8(value)
    if kind in ("number", "duration") and isinstance(value, int | float):
        number = _finite(float(_whole(value) if isinstance(value, int) else value))
        return _duration(number) if kind == "duration" else number
    return _whole(value) if isinstance(value, int) else value


def _utf8(text: str) -> str:
    if "\0" in text or any("\ud800" <= character <= "\udfff" for character in text):
        raise ValueError("a NUL, or bytes that are not UTF-8")
    return text


def _path(hint: Any, text: str) -> Path | None:
    if not text and hint is Path:
        raise ValueError("this path cannot be left out")
    return expand(_utf8(text)) if text else None


def _duration(value: float) -> float:
    if not 0 <= value <= LONGEST_S:
        raise ValueError("negative, or longer than any job")
    return value


def _whole(value: int) -> int:
    if abs(value) >= 1 << 53:
        raise ValueError("beyond what JSON and SQLite keep exactly")
    return value


_KIND_HINTS = {
    "text": "text in UTF-8",
    "switch": "true or false",
    "whole number": "a whole number",
    "number": "a number",
    "duration": 'a duration such as 0.5, "250ms" or "2m", ten years at most',
    "size": 'a size such as 65536, "64KiB" or "1G"',
    "path": "a path",
    "list": "a list of texts",
    "assignments": "settings NAME.KEY=VALUE",
}


def _wrong(where: str, kind: str, value: object) -> UsageError:
    return UsageError(f"{where} must be {_KIND_HINTS[kind]}, not {value!r}")


def _kind(hint: Any) -> str:
    if hint == Seconds:
        return "duration"
    if hint == Bytes:
        return "size"
    if hint == Assignments:
        return "assignments"
    simple = {str: "text", bool: "switch", int: "whole number", float: "number", Path: "path", Path | None: "path"}
    return simple.get(hint, "list")


def placeholder(hint: Any) -> str:
    """What stands for a value in the help of an option."""
    names = {"whole number": "N", "number": "X", "duration": "DURATION", "size": "SIZE", "path": "PATH"}
    names["assignments"] = "NAME.KEY=VALUE,..."
    return names.get(_kind(hint), "LIST" if _kind(hint) == "list" else "TEXT")


def shown_default(cls: type[Any], name: str) -> str:
    """A field's default as a person would write it; empty where there is none to show."""
    default = next(f for f in fields(cls) if f.name == name).default
    if default is MISSING or default is None or default == "" or isinstance(default, bool):
        return ""
    if isinstance(default, tuple):
        return ",".join(default)
    return f"{default:.10g}" if isinstance(default, float) else str(default)


def field_docs(cls: type[Any]) -> dict[str, str]:
    """The docstring under each field: the one place where a setting is explained, so that help cannot drift."""
    body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(body, ast.ClassDef)
    docs: dict[str, str] = {}
    for statement, after in zip(body.body, body.body[1:], strict=False):
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            docs[statement.target.id] = inspect.cleandoc(str(after.value.value)).replace("\n", " ")
    return docs
