"""NumPy's arrays and scalars as tensors and JSON, and back, bit for bit: nothing is pickled.

Arrays of a type that safetensors has lie in a tensor of that type. All others of a fixed width (big-endian, structured,
dates, fixed-width text, wider than 64 bits) lie in one of bytes; their type stands in the JSON.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_SAME_IN_TORCH = "?bBhHiIlLqQefdF"
"""Codes of NumPy's types that are a type of torch's, and of safetensors'."""
_DATES = {"datetime64": "M", "timedelta64": "m"}
_SCALARS = {kind.__name__: kind for kind in np.sctypeDict.values() if np.dtype(kind).kind in "biufc"}


def pack(array: npt.NDArray[Any]) -> tuple[Tensor, dict[str, Any]]:
    """A tensor with the array's content, and what else is needed to get it back, as JSON.

    The tensor shares the array's memory where that is possible. Raises ValueError with the reason for an array that
    is not kept.
    """
    if type(array) is not np.ndarray:
        raise ValueError(f"is a {type(array).__module__}.{type(array).__qualname__}: only plain arrays are kept")
    if array.dtype.hasobject:
        raise ValueError("is an array of Python objects: nothing is pickled")
    if array.dtype.char in _SAME_IN_TORCH and array.dtype.isnative:
        # Restoring writes into shared memory: never into what is read-only, or what several elements share. And torch
        # minds the strides also of dimensions that are 1.
        is_usual = array.flags.carray and all(one >= 0 and one % array.itemsize == 0 for one in array.strides)
        return torch.from_numpy(array if is_usual else np.array(array, order="C")), {}
    text = _described(array.dtype)
    return torch.frombuffer(bytearray(array.tobytes()), dtype=torch.uint8) if array.nbytes else torch.empty(
        0, dtype=torch.uint8
    ), {"type": text, "shape": list(array.shape)}  # fmt: skip


def unpack(tensor: Tensor, more: Mapping[str, Any]) -> npt.NDArray[Any]:
    """Undo `pack`. Raises ValueError, TypeError, KeyError for what `pack` did not make."""
    if "type" not in more:
        return tensor.numpy()
    dtype, shape = type_and_shape(more)
    if math.prod(shape) * dtype.itemsize != tensor.numel():
        raise ValueError(f"{tensor.numel()} bytes for an array of {dtype} and shape {shape}")
    if not tensor.numel():
        return np.zeros(shape, dtype)
    return np.ndarray(shape, dtype, buffer=bytearray(tensor.numpy().tobytes()))


def type_and_shape(more: Mapping[str, Any]) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """What `pack` says of an array of another type than torch's. Raises ValueError, TypeError, KeyError."""
    dtype = _type_of(more["type"])
    shape = tuple(more["shape"])
    if not all(type(size) is int and size >= 0 for size in shape):
        raise ValueError(f"no shape: {shape}")
    return dtype, shape


def pack_scalar(value: np.generic) -> dict[str, Any]:
    """A scalar as JSON. Raises ValueError with the reason for one that is not kept."""
    name = type(value).__name__
    found = {"type": name, "is": value.tobytes().hex()}
    if name in _DATES:
        found["dtype"] = value.dtype.str
    try:
        again = unpack_scalar(found)
    except (KeyError, TypeError, ValueError):
        again = None
    if type(again) is not type(value) or again.dtype != value.dtype:
        raise ValueError(f"is a numpy.{name}: of NumPy's scalars numbers, truth values, text and dates are kept")
    return found


def unpack_scalar(found: Mapping[str, Any]) -> Any:
    """Undo `pack_scalar`. Raises ValueError, TypeError, KeyError for what it did not make."""
    name = found["type"]
    dtype = np.dtype(_SCALARS[name]) if name in _SCALARS else np.dtype(found["dtype"])
    if name not in _SCALARS and (dtype.kind != _DATES[name] or dtype.itemsize != 8):
        raise ValueError(f"{dtype} is no {name}")
    content = bytes.fromhex(found["is"])
    if len(content) != dtype.itemsize:
        raise ValueError(f"{len(content)} bytes for a {name}")
    return np.frombuffer(content, dtype)[0]


def _described(dtype: np.dtype[Any]) -> Any:
    """A type as JSON. Raises ValueError when it is not one that can be described."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that something is lost: it is compared below
        try:
            text = _to_json(np.lib.format.dtype_to_descr(dtype))
            is_kept = _type_of(text) == dtype
        except (TypeError, ValueError):
            is_kept = False
    if not is_kept:
        raise ValueError(f"is an array of {dtype}, a type that cannot be described without a pickle")
    return text


def _type_of(text: Any) -> np.dtype[Any]:
    dtype = np.lib.format.descr_to_dtype(_from_json(text))
    if dtype.hasobject:
        raise ValueError("an array of Python objects")
    return dtype


def _to_json(descr: Any) -> Any:
    """NumPy distinguishes lists of fields from pairs by list and tuple: a tuple becomes an object."""
    if isinstance(descr, tuple):
        return {"tuple": [_to_json(one) for one in descr]}
    return [_to_json(one) for one in descr] if isinstance(descr, list) else descr


def _from_json(text: Any) -> Any:
    if isinstance(text, dict):
        return tuple(_from_json(one) for one in text["tuple"])
    return [_from_json(one) for one in text] if isinstance(text, list) else text
