"""Torch's tensors as boxes of global ones: the thin layer between a training process and everything else here."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Partial
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset  # torch's own planners use it too

from holdfast.checkpoint.arrays import Held, held, new
from holdfast.checkpoint.errors import CheckpointError
from holdfast.checkpoint.tiles import Box, GlobalTensor

DTYPES = {
    "BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2, "I16": torch.int16, "U16": torch.uint16, "F16": torch.float16,
    "BF16": torch.bfloat16, "I32": torch.int32, "U32": torch.uint32, "F32": torch.float32, "I64": torch.int64,
    "U64": torch.uint64, "F64": torch.float64, "C64": torch.complex64,
}  # fmt: skip
_NAMES = {dtype: name for name, dtype in DTYPES.items()}


def dtype_name(dtype: torch.dtype) -> str:
    """As safetensors spells it. Raises CheckpointError for one that it has no name for."""
    if dtype not in _NAMES:
        raise CheckpointError(f"tensors of {dtype} cannot be saved: safetensors has no name for them")
    return _NAMES[dtype]


def place(name: str, tensor: Tensor) -> tuple[GlobalTensor, Box]:
    """The global tensor that this one is a part of, and which part. A plain tensor is the whole.

    Raises CheckpointError for a DTensor that still has to be summed, or whose part is no box.
    """
    whole = GlobalTensor(name, tuple(tensor.shape), dtype_name(tensor.dtype))
    if not isinstance(tensor, DTensor):
        return whole, whole.box
    if any(isinstance(placement, Partial) for placement in tensor.placements):
        raise CheckpointError(f"{name} is a partial sum on every worker: reduce it before it is saved")
    size, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    box = Box(tuple(map(int, offset)), tuple(map(int, size)))
    if not box.count:  # torch puts an empty part one past the end; one form for all
        box = Box((0,) * len(box.size), box.size)
    local = tuple(tensor.to_local().shape)
    if box.size != local or not whole.box.holds(box):
        raise CheckpointError(f"{name}: the local part of shape {list(local)} is no box of {list(whole.shape)}")
    return whole, box


def of_local(tensor: GlobalTensor, box: Box, local: Tensor) -> Held:
    """The elements of a box that lie in a plain tensor of its shape: the same memory if it is contiguous on a CPU."""
    local = local.detach().cpu().contiguous()
    return held(tensor, box, memory(local))


def room_for(tensor: GlobalTensor, box: Box, local: Tensor) -> tuple[Held, bool]:
    """Memory for the elements of a box that are to go into `local`, and whether it is that tensor's own."""
    if local.device.type == "cpu" and local.is_contiguous():
        return of_local(tensor, box, local), True
    return new(tensor, box), False


def memory(local: Tensor) -> memoryview:
    """The bytes of a contiguous CPU tensor, shared."""
    return local.reshape(-1).view(torch.uint8).numpy().data if local.numel() else memoryview(b"")


def to_torch(one: Held) -> Tensor:
    """The same memory as a tensor of the right type."""
    # Nothing at all is never writable in numpy, which torch would warn of.
    flat = torch.from_numpy(one.data.reshape(-1).view("u1")) if one.data.size else torch.empty(0, dtype=torch.uint8)
    return flat.view(DTYPES[one.tensor.dtype]).reshape(one.box.size)
