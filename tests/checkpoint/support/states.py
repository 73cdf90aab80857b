"""States as users' objects may have them, generated; and whether two are the same, bit for bit."""

from __future__ import annotations

import math
import struct
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from hypothesis.extra import numpy as nps
from torch import Tensor, nn

from holdfast.checkpoint.worker.torch_state import DTYPES

# Dots, what marks them, halves of a surrogate pair, and what looks like a type.
_TEXT = st.text(st.sampled_from("ab.\\:1$\n\ud83d\ude00é"), max_size=4) | st.text(max_size=6)
_NUMBERS = st.booleans() | st.integers() | st.integers().map(lambda n: n**400) | st.floats() | st.complex_numbers()
_DTYPES = (
    nps.boolean_dtypes()
    | nps.integer_dtypes(endianness="?")
    | nps.unsigned_integer_dtypes(endianness="?")
    | nps.floating_dtypes(endianness="?", sizes=(16, 32, 64))
    | nps.complex_number_dtypes(endianness="?")
    | nps.datetime64_dtypes(endianness="?")
    | nps.timedelta64_dtypes(endianness="?")
    | nps.byte_string_dtypes(max_len=5)
    | nps.unicode_string_dtypes(max_len=5)
)
_SCALARS = _DTYPES.map(lambda dtype: dtype.newbyteorder("=")).flatmap(
    lambda dtype: nps.from_dtype(dtype) if dtype.kind not in "SU" else _TEXT.map(np.str_)
)
_PLAIN = st.none() | _NUMBERS | _TEXT | st.binary(max_size=5) | _SCALARS | st.binary(max_size=4).map(np.bytes_)
_KEYS = st.none() | _TEXT | st.integers(-2, 12) | st.floats() | st.binary(max_size=2) | _SCALARS | st.booleans()
_KEYS = _KEYS | st.tuples(_KEYS, _KEYS) | st.frozensets(st.integers(0, 3), max_size=2)


@st.composite
def arrays(draw: st.DrawFn) -> Any:
    """Arrays of any type that is kept, lying in memory in any way."""
    structured = nps.array_dtypes(_DTYPES, min_size=1, max_size=3, allow_subarrays=True)
    dtype = draw(_DTYPES | structured)
    shape = draw(nps.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3))
    num_bytes = math.prod(shape) * dtype.itemsize
    if dtype.kind in "iufc" or dtype.fields:
        content = draw(st.binary(min_size=num_bytes, max_size=num_bytes))
        found = np.frombuffer(content, dtype).reshape(shape) if num_bytes else np.zeros(shape, dtype)
    else:
        found = draw(nps.arrays(dtype, shape))
    if found.ndim:
        turned: Callable[[Any], Any] = draw(st.sampled_from(_WAYS))
        found = turned(found)
    return found


_WAYS: list[Callable[[Any], Any]] = [
    lambda a: a, lambda a: a.T, lambda a: a[::-1], lambda a: a[::2], lambda a: np.asfortranarray(a), lambda a: a.copy(),
    lambda a: np.broadcast_to(a, (2, *a.shape)),
]  # fmt: skip


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    """Tensors of any type that is kept, lying in memory in any way."""
    dtype = DTYPES[draw(st.sampled_from(sorted(DTYPES)))]
    shape = draw(nps.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3))
    num_bytes = math.prod(shape) * dtype.itemsize
    content = bytearray(draw(st.binary(min_size=num_bytes, max_size=num_bytes)))
    if dtype is torch.bool:
        content = bytearray(one % 2 for one in content)
    found = torch.frombuffer(content, dtype=dtype).reshape(shape) if num_bytes else torch.empty(shape, dtype=dtype)
    way = draw(st.sampled_from(["as it is", "turned", "strided", "expanded", "other", "parameter", "grad"]))
    if way == "turned" and found.ndim:
        found = found.transpose(0, -1)
    if way == "strided" and found.ndim:
        found = found[::2]
    if way == "expanded":
        found = found.expand(3, *found.shape)
    if way == "other" and dtype.is_complex:
        found = draw(st.sampled_from([found.conj(), found.conj().imag, found[..., None].expand(*shape, 2).conj()]))
    if way == "parameter" and (dtype.is_floating_point or dtype.is_complex):
        found = nn.Parameter(found, requires_grad=draw(st.booleans()))
    if way == "grad" and dtype.is_floating_point and found.is_leaf:
        found.requires_grad_()
    return found


def states(leaves: st.SearchStrategy[Any] | None = None) -> st.SearchStrategy[Any]:
    """Trees of all that is kept."""
    return st.recursive(
        _PLAIN | tensors() | arrays() if leaves is None else leaves,
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.lists(inner, max_size=3).map(tuple)
            | st.dictionaries(_KEYS, inner, max_size=4)
            | st.dictionaries(_TEXT, inner, max_size=4)
            | st.dictionaries(_KEYS, inner, max_size=3).map(OrderedDict)
            | st.dictionaries(_KEYS, st.integers(), max_size=3).map(Counter)
            | st.sets(st.integers() | st.text(max_size=3), max_size=3)
            | st.lists(st.integers(0, 9), max_size=3).map(torch.Size)
        ),
        max_leaves=12,
    )


def dicts() -> st.SearchStrategy[Any]:
    return st.dictionaries(_KEYS, states(), min_size=1, max_size=5)


def entries(values: st.SearchStrategy[Any] | None = None) -> st.SearchStrategy[Any]:
    """What an optimizer may have of a parameter, in a dict of any type: keys are equal to themselves."""
    keys = _KEYS.filter(lambda key: "na" not in repr(key).lower())
    found = st.dictionaries(keys, states(values), max_size=4)
    return found | found.map(OrderedDict)


def blank(state: Any) -> Any:
    """The same tensors and arrays in the same places with other content, and nothing else as it is."""
    if isinstance(state, Tensor):
        return torch.zeros(state.shape, dtype=state.dtype)
    if isinstance(state, np.ndarray):
        return np.zeros(state.shape, state.dtype)
    if isinstance(state, Counter) or not isinstance(state, dict | list | tuple) or isinstance(state, torch.Size):
        return None
    if isinstance(state, dict):
        return type(state)((key, blank(one)) for key, one in reversed(state.items()))
    return type(state)(blank(one) for one in state)


def same(one: Any, other: Any) -> bool:
    """Whether they are equal in every bit that a program can see: values, types, order, keys."""
    if type(one) is not type(other):
        return False
    if isinstance(one, Tensor):
        return (one.dtype, one.shape, one.requires_grad) == (other.dtype, other.shape, other.requires_grad) and (
            bits(one) == bits(other)
        )
    if isinstance(one, str | bytes):
        return bool(one == other)
    if isinstance(one, np.ndarray | np.generic):
        return (one.dtype, one.shape) == (other.dtype, other.shape) and one.tobytes() == other.tobytes()
    if isinstance(one, dict):
        return len(one) == len(other) and all(
            same(a, b) and same(x, y) for (a, x), (b, y) in zip(one.items(), other.items(), strict=True)
        )
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, set | frozenset):
        return sorted(map(repr, one)) == sorted(map(repr, other))
    if isinstance(one, float):
        return struct.pack("d", one) == struct.pack("d", other)
    if isinstance(one, complex):
        return same(one.real, other.real) and same(one.imag, other.imag)
    return bool(one == other)


def bits(tensor: Tensor) -> bytes:
    plain = tensor.detach().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
    return plain.reshape(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b""
