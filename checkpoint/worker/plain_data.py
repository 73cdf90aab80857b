"""What `state_dict()` gives, as tensors by name and JSON for the rest, and back: nothing is pickled.

What `split` accepts, `join` returns equal: values bit for bit, types, order of dicts, types of keys. All else is
refused by the name of its entry. No two entries share a name, whatever their keys are.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
import re
import struct
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor, nn

from holdfast.base.errors import UsageError
from holdfast.checkpoint.errors import CheckpointError
from holdfast.checkpoint.worker import numpy_data
from holdfast.checkpoint.worker.torch_state import unkept

DEPTH = 100
"""Levels of lists and dicts. Each is up to three of JSON, of which a manifest may have `manifest.DEPTH`."""
_TAG = "$"
_LONG = 1024  # bits, from which on a number is written in base 16: Python limits the digits of others
_DICTS = {"dict": dict, "OrderedDict": OrderedDict, "Counter": Counter}
_GROUPS = {"tuple": tuple, "set": set, "frozenset": frozenset, "Size": torch.Size}
_WHAT = "state is made of tensors, numbers, text, lists and dicts, for nothing is pickled"


@dataclass(frozen=True, slots=True)
class EntryPlace:
    """Where an entry is: the keys on the way to it."""

    plain: str
    """Keys with dots between them, as they are read. Two entries may have the same."""
    exact: str
    """The same with what makes it unique: dots in a key, and types of keys that are no text, are marked."""

    @classmethod
    def of(cls, name: str) -> EntryPlace:
        return cls(name, _marked(name))

    def child(self, key: Any) -> EntryPlace:
        """The entry under a key of a dict, or at a place in a list."""
        mark = _marked(key) if type(key) is str else "\\:" + _marked(json.dumps(_split(key, _NOWHERE, [], [])))
        return EntryPlace(f"{self.plain}.{key}", f"{self.exact}.{mark}")

    def item(self, number: int) -> EntryPlace:
        return EntryPlace(f"{self.plain}.{number}", f"{self.exact}.{number}")

    def __str__(self) -> str:
        """For a message: one line, not too long."""
        text = self.plain if self.plain.isprintable() else self.plain.encode("unicode_escape").decode()
        return text if len(text) <= 200 else f"{text[:100]}...{text[-97:]}"


_NOWHERE = EntryPlace("", "")


@dataclass(slots=True)
class Leaf:
    """A tensor in a state, or an array as one."""

    place: EntryPlace
    value: Tensor
    node: dict[str, Any] = field(default_factory=dict)
    """What stands for it in the JSON."""

    @property
    def name(self) -> str:
        """Set by `name_all`."""
        return str(self.node["at"])


def name_all(leaves: Sequence[Leaf]) -> None:
    """Give each leaf of a state a name of its own: the plain one, wherever that is no other's.

    A function of the set of places alone. Raises UsageError when two places cannot be distinguished.
    """
    counts = Counter(leaf.place.plain for leaf in leaves)
    odd = [leaf for leaf in leaves if counts[leaf.place.plain] > 1 or not _is_text(leaf.place.plain)]
    taken: set[str] = set()
    while odd:
        for leaf in odd:
            if leaf.place.exact in taken:
                raise UsageError(f"{leaf.place} is there twice, under keys that cannot be distinguished")
            taken.add(leaf.place.exact)
            leaf.node["at"] = leaf.place.exact
        # What a marked name looks like may be another leaf's plain one.
        odd = [leaf for leaf in leaves if "at" not in leaf.node and leaf.place.plain in taken]
    for leaf in leaves:
        leaf.node.setdefault("at", leaf.place.plain)


def split(value: Any, place: EntryPlace, leaves: list[Leaf]) -> Any:
    """`value` as JSON; tensors and arrays go into `leaves`, and are yet to be named.

    Raises UsageError, naming the entry, for what is not kept.
    """
    return _split(value, place, leaves, [])


def _split(value: Any, place: EntryPlace, leaves: list[Leaf], outer: list[int]) -> Any:
    """`outer`: ids of the lists and dicts around it."""
    kind = type(value)
    if value is None or kind is bool:
        return value
    if kind is int:
        return value if value.bit_length() <= _LONG else {_TAG: "int", "is": hex(value)}
    if kind is str:
        return value if _is_text(value) else {_TAG: "text", "is": value.encode("utf-8", "surrogatepass").hex()}
    if kind is float:
        return _float(value)
    if kind is complex:
        return {_TAG: "complex", "is": [_float(value.real), _float(value.imag)]}
    if kind is bytes:
        return {_TAG: "bytes", "is": value.hex()}
    if isinstance(value, Tensor | np.ndarray):
        return _leaf(value, place, leaves)
    if isinstance(value, np.generic):
        return _scalar(value, place)
    if kind is not list and kind not in _DICTS.values() and kind not in _GROUPS.values():
        _refuse(place, f"is a {kind.__module__}.{kind.__qualname__}: {_WHAT}")
    if id(value) in outer:
        _refuse(place, "contains itself: state is a tree")
    if len(outer) == DEPTH:
        _refuse(place, f"lies more than {DEPTH} levels deep: keep it flatter")
    outer.append(id(value))
    if kind in _DICTS.values():
        found: Any = _dict(value, place, leaves, outer)
    elif kind in (set, frozenset):
        members = [_split(one, place, leaves, outer) for one in value if _is_key(one) or _refuse_member(place, one)]
        found = {_TAG: kind.__name__, "is": sorted(members, key=json.dumps)}
    else:
        found = [_split(one, place.item(at), leaves, outer) for at, one in enumerate(value)]
        found = found if kind is list else {_TAG: kind.__name__, "is": found}
    outer.pop()
    return found


def named_child(place: EntryPlace, key: Any) -> EntryPlace:
    """Like `place.child(key)`, of a dict whose entries are matched with those of another run's by their keys.

    Raises UsageError, naming the dict, for a key that is not kept, or is not equal to itself when it comes back.
    """
    if type(key) is not str:
        _require_key(place, key)
        if _checked(_split(key, _NOWHERE, [], []), lambda node: None) != key:
            _refuse(place, f"has a key that is not equal to itself ({key!r:.60}): name the entry otherwise")
    return place.child(key)


def as_dict(entries: Mapping[Any, Any], place: EntryPlace) -> dict[str, Any]:
    """JSON that `join` makes a dict of, from keys and what is JSON already."""
    if all(type(key) is str and _is_text(key) for key in entries) and _TAG not in entries:
        return dict(entries)
    return {_TAG: "dict", "is": [[_split(key, place, [], []), one] for key, one in entries.items()]}


def _require_key(place: EntryPlace, key: Any) -> None:
    if not _is_key(key):
        kind = type(key)
        _refuse(place, f"has a key of type {kind.__module__}.{kind.__qualname__}: keys are numbers, text, tuples")


def _dict(value: Mapping[Any, Any], place: EntryPlace, leaves: list[Leaf], outer: list[int]) -> dict[str, Any]:
    for key in value:
        _require_key(place, key)
    # A manifest's objects are sorted: an order that is another is written as pairs.
    if (
        type(value) is dict
        and all(type(key) is str and _is_text(key) for key in value)
        and _TAG not in value
        and all(a < b for a, b in itertools.pairwise(value))
    ):
        return {key: _split(one, place.child(key), leaves, outer) for key, one in value.items()}
    pairs = [[_split(k, place, [], []), _split(one, place.child(k), leaves, outer)] for k, one in value.items()]
    return {_TAG: type(value).__name__, "is": pairs}


def _leaf(value: Any, place: EntryPlace, leaves: list[Leaf]) -> dict[str, Any]:
    if isinstance(value, Tensor):
        node: dict[str, Any] = {_TAG: "tensor"}
        if reason := unkept(value):
            _refuse(place, reason)
        if type(value) is nn.Parameter:
            node["as"] = "parameter"
        if value.requires_grad:
            node["grad"] = True
    else:
        try:
            value, more = numpy_data.pack(value)
        except ValueError as error:
            _refuse(place, str(error))
        node = {_TAG: "array", **more}
    leaves.append(Leaf(place, value, node))
    return node


def _scalar(value: np.generic, place: EntryPlace) -> dict[str, Any]:
    if type(value) is np.str_:
        return {_TAG: "np.str_", "is": _split(str.__str__(value), place, [], [])}  # str() cuts zeros off
    if type(value) is np.bytes_:
        return {_TAG: "np.bytes_", "is": bytes(value).hex()}
    try:
        return {_TAG: "scalar", **numpy_data.pack_scalar(value)}
    except ValueError as error:
        _refuse(place, str(error))


def _float(value: float) -> Any:
    if math.isfinite(value):
        return value
    found = {_TAG: "float", "is": repr(value)}
    bits = struct.pack(">d", value)
    return found if bits == struct.pack(">d", float(repr(value))) else {**found, "bits": bits.hex()}


def _is_key(key: Any) -> bool:
    """Whether it is what a dict's key may be: unchanging, and equal to itself when it comes back."""
    if type(key) in (tuple, frozenset):
        return all(map(_is_key, key))
    return key is None or type(key) in (bool, int, float, complex, str, bytes) or isinstance(key, np.generic)


def _is_text(text: str) -> bool:
    """Whether JSON keeps it: halves of a surrogate pair that meet would become one character."""
    return text.isascii() or not any("\ud800" <= one <= "\udfff" for one in text)


@functools.lru_cache(1 << 14)  # the same thousands of names after every step
def _marked(key: str) -> str:
    return re.sub("[\\\\.\ud800-\udfff]", lambda m: f"\\{m[0]}" if m[0] in "\\." else f"\\u{ord(m[0]):x}", key)


def _refuse(place: EntryPlace, reason: str) -> NoReturn:
    raise UsageError(f"{place} {reason}")


def _refuse_member(place: EntryPlace, one: Any) -> NoReturn:
    kind = type(one)
    _refuse(place, f"has a member of type {kind.__module__}.{kind.__qualname__}: sets have numbers, text, tuples")


def join(tree: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Undo `split`. Raises CheckpointError when a tensor is not there, or it is nothing that `split` made."""

    def leaf(node: Mapping[str, Any]) -> Any:
        if node["at"] not in tensors:
            raise CheckpointError(f"{node['at']} is in the checkpoint, but not in this run's state")
        found = tensors[node["at"]]
        if node[_TAG] == "array":
            return numpy_data.unpack(found, node)
        if node.get("as") == "parameter":
            return nn.Parameter(found, requires_grad=bool(node.get("grad")))
        return found.detach().requires_grad_() if node.get("grad") else found

    return _checked(tree, leaf)


def check(tree: Any) -> None:
    """Raise CheckpointError, in one line, unless it is what `split` makes."""

    def leaf(node: Mapping[str, Any]) -> Any:
        if not isinstance(node["at"], str):
            raise TypeError("the name of a tensor is no text")
        if "type" in node:
            numpy_data.type_and_shape(node)

    _checked(tree, leaf)


def _checked(tree: Any, leaf: Callable[[Mapping[str, Any]], Any]) -> Any:
    try:
        return _joined(tree, leaf)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError, struct.error) as error:
        reason = " ".join(str(error).split())[:200]
        raise CheckpointError(f"state that cannot be read: {type(error).__name__}: {reason}") from None


def _joined(tree: Any, leaf: Callable[[Mapping[str, Any]], Any]) -> Any:
    if isinstance(tree, list):
        return [_joined(one, leaf) for one in tree]
    if not isinstance(tree, dict):
        return tree
    kind = tree.get(_TAG)
    if kind is None:
        return {key: _joined(one, leaf) for key, one in tree.items()}
    if kind in ("tensor", "array"):
        return leaf(tree)
    if kind in _GROUPS:
        return _GROUPS[kind]([_joined(one, leaf) for one in tree["is"]])
    if kind in _DICTS:
        return _DICTS[kind]({_joined(key, leaf): _joined(one, leaf) for key, one in tree["is"]})
    match kind:
        case "float":
            return struct.unpack(">d", bytes.fromhex(tree["bits"]))[0] if "bits" in tree else float(tree["is"])
        case "complex":
            return complex(*(_joined(one, leaf) for one in tree["is"]))
        case "int":
            return int(tree["is"], 16)
        case "text":
            return bytes.fromhex(tree["is"]).decode("utf-8", "surrogatepass")
        case "bytes":
            return bytes.fromhex(tree["is"])
        case "np.str_":
            return np.str_(_joined(tree["is"], leaf))
        case "np.bytes_":
            return np.bytes_(bytes.fromhex(tree["is"]))
        case "scalar":
            return numpy_data.unpack_scalar(tree)
    raise ValueError(f"{kind!r} is nothing that this build knows")


def names_of(leaves: Iterable[Leaf]) -> dict[str, str]:
    """By exact place, the name."""
    return {leaf.place.exact: leaf.name for leaf in leaves}
