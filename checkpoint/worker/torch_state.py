"""Torch's tensors as shards of global ones: the thin layer between a training process and everything else here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset  # torch's own planners use it too

from holdfast.checkpoint.errors import CheckpointError
from holdfast.checkpoint.format.arrays import HeldShard, held, new
from holdfast.checkpoint.format.tiles import GlobalTensor
from holdfast.plan.tiles import TensorShard

DTYPES = {
    "BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2, "I16": torch.int16, "U16": torch.uint16, "F16": torch.float16,
    "BF16": torch.bfloat16, "I32": torch.int32, "U32": torch.uint32, "F32": torch.float32, "I64": torch.int64,
    "U64": torch.uint64, "F64": torch.float64, "C64": torch.complex64,
}  # fmt: skip
_NAMES = {dtype: name for name, dtype in DTYPES.items()}


_PLAIN_TYPES = (Tensor, nn.Parameter, DTensor)


def unkept(tensor: Tensor, in_place: bool = False) -> str:
    """Why a tensor cannot be kept, "" for one that can. `in_place`: it is itself filled again, and keeps its type."""
    kind = type(tensor)
    if nn.parameter.is_lazy(tensor):
        return "has no shape yet: run its module once first"
    has_memory = kind.__torch_dispatch__ is Tensor.__torch_dispatch__  # it is no wrapper around other tensors
    if kind not in _PLAIN_TYPES and not (in_place and has_memory):
        return f"is a {kind.__module__}.{kind.__qualname__}: only plain tensors and DTensors are kept"
    if tensor.is_nested:
        return "is a nested tensor: pad it, or keep its values and offsets"
    if tensor.layout is not torch.strided:
        return f"is sparse ({tensor.layout}): keep its indices and values, or make it dense"
    if tensor.is_meta:
        return "is on the meta device, where tensors have no values"
    if tensor.dtype not in _NAMES:
        return f"is of type {tensor.dtype}, for which safetensors has no name"
    if in_place and not is_dense(local_of(tensor)):
        return "has elements that share memory, as expand makes them, and cannot be filled again: use .contiguous()"
    return ""


def is_dense(tensor: Tensor) -> bool:
    """Whether each element surely has memory of its own."""
    if tensor.is_contiguous():
        return True
    reach = 0
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1:
            if stride <= reach:
                return False
            reach += stride * (size - 1)
    return True


def local_part(tensor: Tensor) -> Tensor:
    """What this worker holds of a tensor: the same memory, or a copy where that cannot be read and written as it is."""
    local = local_of(tensor).detach()
    if local.is_conj() or local.is_neg() or local.is_inference() or not is_dense(local):
        return local.resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
    return local


def local_of(tensor: Tensor) -> Tensor:
    """What this worker holds of a tensor: the same memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def dtype_name(dtype: torch.dtype) -> str:
    """As safetensors spells it. Raises CheckpointError for one that it has no name for."""
    if dtype not in _NAMES:
        raise CheckpointError(f"tensors of {dtype} cannot be saved: safetensors has no name for them")
    return _NAMES[dtype]


def place(name: str, tensor: Tensor) -> tuple[GlobalTensor, TensorShard]:
    """The global tensor that this one is a part of, and which part. A plain tensor is the whole.

    Raises CheckpointError for a DTensor that still has to be summed, or whose part is no shard.
    """
    whole = GlobalTensor(name, tuple(tensor.shape), dtype_name(tensor.dtype))
    if not isinstance(tensor, DTensor):
        return whole, whole.shard
    if any(isinstance(placement, Partial) for placement in tensor.placements):
        raise CheckpointError(f"{name} is a partial sum on every worker: reduce it before it is saved")
    size, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    shard = TensorShard(tuple(map(int, offset)), tuple(map(int, size)))
    if not shard.count:  # torch puts an empty part one past the end; one form for all
        shard = TensorShard((0,) * len(shard.size), shard.size)
    local = tuple(tensor.to_local().shape)
    if shard.size != local or not whole.shard.holds(shard):
        raise CheckpointError(f"{name}: the local part of shape {list(local)} is no shard of {list(whole.shape)}")
    return whole, shard


def of_local(tensor: GlobalTensor, shard: TensorShard, local: Tensor) -> HeldShard:
    """The elements of a shard that lie in a plain tensor of its shape: the same memory if it is contiguous on a CPU."""
    local = local.detach().cpu().contiguous()
    return held(tensor, shard, memory(local))


def room_for(tensor: GlobalTensor, shard: TensorShard, local: Tensor) -> tuple[HeldShard, bool]:
    """Memory for the elements of a shard that are to go into `local`, and whether it is that tensor's own."""
    if local.device.type == "cpu" and local.is_contiguous():
        return of_local(tensor, shard, local), True
    return new(tensor, shard), False


class Rooms:
    """Memory for what is to be restored: a worker's own tensors wherever they can be filled in place."""

    def __init__(self, tensors: Mapping[str, tuple[GlobalTensor, TensorShard, Tensor]]) -> None:
        self._tensors = tensors
        # They may have been different when they were kept, and are returned as tensors of their own.
        self._apart = _overlapping(tensors)
        self._rooms = {name: room_for(*one) for name, one in tensors.items() if name not in self._apart}
        self._rooms |= {name: (new(*tensors[name][:2]), False) for name in self._apart}

    @property
    def places(self) -> dict[str, list[HeldShard]]:
        """To be filled."""
        return {name: [held] for name, (held, _) in self._rooms.items()}

    def filled(self, names: Iterable[str]) -> dict[str, Tensor]:
        """These, now that their places are filled."""
        found = {}
        with torch.no_grad():
            for name in names:
                (held, is_own), found[name] = self._rooms[name], self._tensors[name][2]
                if name in self._apart:
                    found[name] = to_torch(held).to(found[name].device)
                elif not is_own:
                    found[name].copy_(to_torch(held))
        return found


def _overlapping(tensors: Mapping[str, tuple[GlobalTensor, TensorShard, Tensor]]) -> set[str]:
    """Those that share memory with one that is not named here: filled in place, one would overwrite the other."""
    spans = []
    for name, (_, _, local) in tensors.items():
        if local.numel():
            reach = sum(stride * (size - 1) for stride, size in zip(local.stride(), local.shape, strict=True)) + 1
            start = local.data_ptr()
            spans.append((str(local.device), start, start + reach * local.element_size(), name))
    found, end, where = set(), 0, ""
    for device, start, stop, name in sorted(spans):
        if device == where and start < end:
            found.add(name)
        end, where = max(end, stop) if device == where else stop, device
    return found


def memory(local: Tensor) -> memoryview:
    """The bytes of a contiguous CPU tensor, shared."""
    # A dimension of size 1 may have any stride, which reshape keeps and view minds.
    flat = local.as_strided((local.numel(),), (1,))
    return flat.view(torch.uint8).numpy().data if local.numel() else memoryview(b"")


def to_torch(one: HeldShard) -> Tensor:
    """The same memory as a tensor of the right type."""
    # Nothing at all is never writable in numpy, which torch would warn of.
    flat = torch.from_numpy(one.data.reshape(-1).view("u1")) if one.data.size else torch.empty(0, dtype=torch.uint8)
    return flat.view(DTYPES[one.tensor.dtype]).reshape(one.shard.size)
