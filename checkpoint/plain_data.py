"""What `state_dict()` gives, as tensors by name and JSON for the rest, and back: nothing is pickled."""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from holdfast.errors import UsageError

_TAG = "$"


def split(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    """`value` as JSON; tensors and arrays go into `tensors` by their path.

    Raises UsageError, naming the path, for what is neither.
    """
    if isinstance(value, Tensor):
        tensors[path] = value
        return {_TAG: "tensor", "at": path}
    if isinstance(value, np.ndarray):
        tensors[path] = torch.from_numpy(value)
        return {_TAG: "array", "at": path}
    if value is None or isinstance(value, bool | str) or type(value) is int:
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {_TAG: "float", "is": repr(value)}
    if isinstance(value, bytes):
        return {_TAG: "bytes", "is": value.hex()}
    if type(value) in (list, tuple):
        found = [split(one, f"{path}.{at}", tensors) for at, one in enumerate(value)]
        return found if type(value) is list else {_TAG: "tuple", "is": found}
    if type(value) in (dict, OrderedDict, Counter):
        if type(value) is dict and all(type(key) is str for key in value) and _TAG not in value:
            return {key: split(one, f"{path}.{key}", tensors) for key, one in value.items()}
        pairs = [[split(k, path, tensors), split(one, f"{path}.{k}", tensors)] for k, one in value.items()]
        return {_TAG: type(value).__name__, "is": pairs}
    raise UsageError(
        f"{path} is a {type(value).__module__}.{type(value).__qualname__}: state is made of tensors, numbers, text, "
        "lists and dicts, for nothing is pickled"
    )


def join(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Undo `split`. KeyError when a tensor is not there."""
    if isinstance(value, list):
        return [join(one, tensors) for one in value]
    if not isinstance(value, dict):
        return value
    match value.get(_TAG):
        case None:
            return {key: join(one, tensors) for key, one in value.items()}
        case "tensor":
            return tensors[value["at"]]
        case "array":
            return tensors[value["at"]].numpy()
        case "float":
            return float(value["is"])
        case "bytes":
            return bytes.fromhex(value["is"])
        case "tuple":
            return tuple(join(one, tensors) for one in value["is"])
    pairs = [(join(key, tensors), join(one, tensors)) for key, one in value["is"]]
    made = dict(pairs)
    return {"OrderedDict": OrderedDict, "Counter": Counter}[value[_TAG]](made) if value[_TAG] != "dict" else made
