"""The metadata of torch's distributed checkpoint format, which is a pickle: what is in it, checked, as plain data.

It is read by an unpickler that knows the classes which such metadata is made of and nothing else, that changes none of
them, and takes no more memory than the file has bytes for. Whatever else is in the file, it is a CheckpointError.
"""

from __future__ import annotations

import io
import math
import os
import pickle
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PosixPath, PurePosixPath
from typing import Any, ClassVar

import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)

from holdfast.checkpoint.errors import CheckpointError
from holdfast.checkpoint.format.tiles import GlobalTensor
from holdfast.checkpoint.worker.torch_state import dtype_name
from holdfast.plan.tiles import TensorShard, cells

# Module and name, no dots in the name: what such metadata is made of, and no way to anything else.
_METADATA = (
    "Metadata TensorStorageMetadata BytesStorageMetadata ChunkStorageMetadata TensorProperties MetadataIndex "
    "StorageMeta _MEM_FORMAT_ENCODING"
)
_TRUSTED = {
    *(("torch.distributed.checkpoint.metadata", name) for name in _METADATA.split()),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("torch", "Size"),
    ("torch.serialization", "_get_layout"),
    ("collections", "OrderedDict"),
    ("pathlib", "PosixPath"),
}
_DTYPES = {str(value).removeprefix("torch.") for value in vars(torch).values() if isinstance(value, torch.dtype)}
_FILLED = (
    Metadata, TensorStorageMetadata, BytesStorageMetadata, ChunkStorageMetadata, TensorProperties, MetadataIndex,
    StorageMeta, _StorageInfo, OrderedDict, PosixPath,
)  # fmt: skip
"""Objects of these may be given attributes."""
_MOST = 1 << 60
_MOST_BYTES = 1 << 30
"""Of the metadata: a hundred for each of ten million parts."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of a tensor, and where it lies."""

    shard: TensorShard
    file: str
    offset: int
    length: int
    transforms: tuple[str, ...]
    """What its bytes went through, by names that torch knows."""


@dataclass(frozen=True, slots=True)
class Contents:
    """What a DCP checkpoint holds."""

    tensors: Mapping[str, GlobalTensor]
    chunks: Mapping[str, tuple[Chunk, ...]]
    """Of each tensor, so that they hold all of it."""
    objects: tuple[str, ...]
    """Names of what is no tensor: pickled objects, which are left where they are."""


def contents(folder: Path) -> Contents:
    """What the metadata of a DCP checkpoint says. Raises CheckpointError for anything that is not one, OSError."""
    path = folder / ".metadata"
    try:
        with open(path, "rb") as file:
            text = file.read(_MOST_BYTES + 1) if os.fstat(file.fileno()).st_size <= _MOST_BYTES else b""
    except FileNotFoundError:
        raise CheckpointError(f"{folder} is no DCP checkpoint: there is no {path.name}") from None
    if not text:
        raise CheckpointError(f"{path} is not readable: it has no byte, or more than {_MOST_BYTES >> 30} GiB")
    try:
        return _contents(_Limited(io.BytesIO(text)).load())
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from None
    # What is unpickled here may call what it likes of the classes above, with anything: they raise what they like.
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise CheckpointError(f"{path} is not readable: {reason[:200]}") from None


_InPython: Any = pickle._Unpickler  # the one in C takes as much memory as a few bytes ask for


class _Limited(_InPython):  # type: ignore[misc]  # private, and typed in part
    def find_class(self, module: str, name: str) -> Any:
        is_dtype = module == "torch" and name in _DTYPES
        if (module, name) not in _TRUSTED and not is_dtype:
            raise pickle.UnpicklingError(f"it wants {module}.{name}, which no checkpoint needs")
        return super().find_class(module, name)

    def _build(self) -> None:
        """Give an object its attributes: never a class, nor a function, which would stay changed."""
        state, filled = self.stack[-1], self.stack[-2]
        if type(filled) not in _FILLED or (isinstance(state, tuple) and len(state) == 2):
            raise pickle.UnpicklingError(f"it would change a {type(filled).__name__}")
        self.load_build()

    def _refuse(self) -> None:
        raise pickle.UnpicklingError("it has what no checkpoint needs")

    dispatch: ClassVar[dict[int, Any]] = {
        **_InPython.dispatch,
        pickle.BUILD[0]: _build,
        pickle.BYTEARRAY8[0]: _refuse,
        pickle.NEXT_BUFFER[0]: _refuse,
        pickle.EXT1[0]: _refuse,
        pickle.EXT2[0]: _refuse,
        pickle.EXT4[0]: _refuse,
    }


def _contents(metadata: Any) -> Contents:
    _require(type(metadata) is Metadata, "is not DCP's metadata")
    entries, places = metadata.state_dict_metadata, metadata.storage_data
    _require(isinstance(entries, dict) and all(type(name) is str for name in entries), "names nothing")
    _require(isinstance(places, dict), "does not say where anything lies")
    found, chunks, objects = {}, {}, []
    for name, entry in entries.items():
        if type(entry) is BytesStorageMetadata:
            objects.append(name)
            continue
        tensor = found[name] = _tensor(name, entry)
        chunks[name] = tuple(_chunk(tensor, one, places) for one in entry.chunks)
        _require_whole(tensor, [chunk.shard for chunk in chunks[name]])
    _require(bool(found), "holds no tensors")
    return Contents(found, chunks, tuple(sorted(objects)))


def _tensor(name: str, entry: Any) -> GlobalTensor:
    is_tensor = type(entry) is TensorStorageMetadata and type(entry.properties) is TensorProperties
    _require(is_tensor and type(entry.chunks) is list and _are_counts(entry.size), f"{_named(name)} is no tensor")
    kind = entry.properties.dtype
    _require(isinstance(kind, torch.dtype), f"{_named(name)} is of no type")
    try:
        tensor = GlobalTensor(name, tuple(entry.size), dtype_name(kind))
    except CheckpointError as error:
        raise CheckpointError(f"{_named(name)}: {error}") from None
    _require(math.prod(n or 1 for n in tensor.shape) < _MOST, f"{_named(name)} is of shape {list(tensor.shape)}")
    return tensor


def _chunk(tensor: GlobalTensor, chunk: Any, places: Mapping[Any, Any]) -> Chunk:
    is_chunk = type(chunk) is ChunkStorageMetadata and _are_counts(chunk.offsets) and _are_counts(chunk.sizes)
    dims = len(tensor.shape)
    is_chunk = is_chunk and len(chunk.offsets) == len(chunk.sizes) == dims
    shard = TensorShard(tuple(chunk.offsets), tuple(chunk.sizes)) if is_chunk else tensor.shard
    _require(is_chunk and tensor.shard.holds(shard), f"{_named(tensor.name)} has a part that is none of it")
    place = places.get(MetadataIndex(tensor.name, shard.offset))
    _require(type(place) is _StorageInfo, f"the part of {_named(tensor.name)} at {list(shard.offset)} is nowhere")
    assert isinstance(place, _StorageInfo)
    file, transforms = place.relative_path, place.transform_descriptors or ()
    parts = PurePosixPath(file).parts if type(file) is str and "\0" not in file else ("..",)
    is_inside = ".." not in parts and not PurePosixPath(*parts).is_absolute()
    _require(is_inside, f"the file of {_named(tensor.name)} is not in the folder")
    _require(_are_counts([place.offset, place.length]), f"the part of {_named(tensor.name)} lies at no place")
    is_list = isinstance(transforms, list | tuple) and all(type(one) is str for one in transforms)
    _require(is_list, f"{_named(tensor.name)} went through unknown transforms")
    return Chunk(shard, file, place.offset, place.length, tuple(transforms))


def _require_whole(tensor: GlobalTensor, shards: list[TensorShard]) -> None:
    """What no part holds would be whatever was in memory."""
    sources = {shard: [number] for number, shard in enumerate(shards) if shard.count}
    for cell in cells(sources, {tensor.shard: [0]} if tensor.shard.count else {}):
        _require(bool(cell.sources), f"the part of {_named(tensor.name)} at {list(cell.shard.offset)} is not there")


def _are_counts(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(type(one) is int and 0 <= one < _MOST for one in value)


def _named(name: str) -> str:
    return name if name.isprintable() and len(name) <= 80 else ascii(name)[:80]


def _require(ok: bool, reason: str) -> None:
    if not ok:
        raise CheckpointError(reason)
