"""Is what a journal's document became of the types that its class says? Pure.

A document may have been edited, or damaged, and still be JSON: a number where a text belongs would raise far away from
here, in the middle of a decision, and again at each start.
"""

import math
import types
import typing
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

from holdfast.base.bounds import MAX_COUNT


def check(value: Any, where: str) -> None:
    """ValueError that names the first place of a dataclass's instance where a value is not of the type that it has."""
    for name, kind in _hints(type(value)).items():
        check_value(getattr(value, name), kind, f"{where}.{name}" if where else name)


def _hints(kind: type) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    return {one.name: hints[one.name] for one in fields(kind) if one.init}


def check_value(value: Any, kind: Any, where: str) -> None:
    """ValueError where it is not of the type; Any: whatever JSON can hold."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        _check_plain(value, where)
    elif origin in (types.UnionType, typing.Union):
        if value is None and type(None) in args:
            return
        (kind,) = (one for one in args if one is not type(None))
        check_value(value, kind, where)
    elif origin is tuple and args[-1:] != (...,):
        _expect(isinstance(value, tuple) and len(value) == len(args), value, where)
        for n, (one, its) in enumerate(zip(value, args, strict=True)):
            check_value(one, its, f"{where}[{n}]")
    elif origin in (list, tuple):
        _expect(isinstance(value, origin), value, where)
        for n, one in enumerate(value):
            check_value(one, args[0], f"{where}[{n}]")
    elif origin is dict:
        _expect(isinstance(value, dict), value, where)
        for key, one in value.items():
            check_value(key, args[0], where)
            check_value(one, args[1], f"{where}[{key!r:.40}]")
    elif kind is float:
        _expect(_is_number(value, (int, float)), value, where)
    elif kind is int:
        _expect(_is_number(value, (int,)), value, where)
    elif is_dataclass(kind):
        _expect(type(value) is kind, value, where)
        check(value, where)
    else:
        _expect(isinstance(value, kind) and (isinstance(value, Enum) or type(value) is kind), value, where)


def _check_plain(value: Any, where: str) -> None:
    """Python's JSON reads NaN and infinity, and a document has none."""
    if isinstance(value, dict):
        for key, one in value.items():
            _expect(type(key) is str, key, where)
            _check_plain(one, f"{where}[{key!r:.40}]")
    elif isinstance(value, (list, tuple)):
        for n, one in enumerate(value):
            _check_plain(one, f"{where}[{n}]")
    else:
        is_json = value is None or type(value) in (str, bool, int) or (type(value) is float and math.isfinite(value))
        _expect(is_json, value, where)


def _is_number(value: Any, kinds: tuple[type, ...]) -> bool:
    return type(value) in kinds and -MAX_COUNT <= value <= MAX_COUNT and math.isfinite(value)


def _expect(is_so: bool, value: Any, where: str) -> None:
    if not is_so:
        raise ValueError(f"{where} cannot be {value!r:.40}")
