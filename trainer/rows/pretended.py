"""The tensors of a rank without the others, counted. Needs torch."""

from __future__ import annotations

import gc

import torch


def tensor_bytes() -> int:
    """Of all tensors that Python can reach and their gradients, shared memory counted once."""
    gc.collect()
    storages: dict[int, int] = {}
    for thing in gc.get_objects():
        if not issubclass(type(thing), torch.Tensor) or type(thing).__name__ == "FakeTensor":
            continue
        for tensor in (thing, thing.grad if thing.is_leaf else None):
            if tensor is None:
                continue
            local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
            if local.layout is not torch.strided:  # a sparse one has no storage of its own
                continue
            storage = local.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())
