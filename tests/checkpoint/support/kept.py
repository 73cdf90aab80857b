"""Objects with a state, saved and restored; and what is never kept."""

from __future__ import annotations

import warnings
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from holdfast.checkpoint import Checkpointer


class Thing:
    """A user's object that has just this state."""

    def __init__(self, state: Any) -> None:
        self.state, self.loaded = state, None

    def state_dict(self) -> Any:
        return self.state

    def load_state_dict(self, state: Any) -> None:
        self.loaded = state


def save(folder: Path | str, **state: Any) -> None:
    checkpointer = Checkpointer(str(folder), state, every=1, rng=False)
    checkpointer.step(1)
    checkpointer.close()


def restored(folder: Path | str, **state: Any) -> dict[str, Any]:
    checkpointer = Checkpointer(str(folder), state, every=1, rng=False)
    assert checkpointer.restore() == 1
    checkpointer.close()
    return state


class Unkept:
    def __repr__(self) -> str:
        return "Unkept()"


def _unkept() -> list[tuple[Any, str]]:
    loop: list[Any] = []
    loop.append({"again": loop})
    deep: Any = 0
    for _ in range(150):
        deep = [deep]
    return [
        (Unkept(), "kept.Unkept"), (len, "builtin_function_or_method"), (bytearray(b"x"), "bytearray"),
        (defaultdict(list), "defaultdict"), (range(3), "range"), (torch.float32, "torch.dtype"),
        (torch.eye(2).to_sparse(), "sparse"), (torch.eye(2).to_sparse_csr(), "sparse"),
        (torch.empty(2, device="meta"), "meta device"), (torch.zeros(2, dtype=torch.complex128), "complex128"),
        (torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.quint8), "quint8"),
        (torch.nested.nested_tensor([torch.ones(1), torch.ones(2)]), "nested"),
        (torch.ones(2).as_subclass(type("Mine", (torch.Tensor,), {})), "Mine"),
        (np.array([{}, 1]), "Python objects"), (np.zeros(2, [("a", "O")]), "Python objects"),
        (np.ma.array([1, 2]), "MaskedArray"), (np.zeros(2).view(np.recarray), "recarray"),
        (np.array(["a"], np.dtypes.StringDType()), ""), (np.void(b"ab"), "void"),
        ({torch.ones(1): 1}, "key"), ({Unkept(): 1}, "key"), ({(1, len): 1}, "key"), ({torch.ones(1)}, "member"),
        (loop, "contains itself"), (deep, "levels deep"),
    ]  # fmt: skip


with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch's, of tensors that it does not recommend either
    UNKEPT = _unkept()
