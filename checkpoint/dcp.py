"""To and from torch's distributed checkpoint format (DCP), for whoever reads or writes with stock torch.

Its metadata is a pickle. What `read` unpickles is limited to the classes that such metadata is made of.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, Metadata, StorageMeta, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from holdfast.checkpoint.arrays import Held
from holdfast.checkpoint.errors import CheckpointError
from holdfast.checkpoint.tiles import GlobalTensor
from holdfast.checkpoint.torch_state import DTYPES, dtype_name, of_local, to_torch

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


def write(folder: Path, whole: Mapping[str, Held]) -> None:
    """Write whole tensors as a DCP checkpoint of one rank. Raises CheckpointError, OSError."""
    state = {name: to_torch(held) for name, held in whole.items()}
    folder.mkdir(parents=True, exist_ok=True)
    try:
        save(state, storage_writer=FileSystemWriter(folder, single_file_per_rank=True), no_dist=True)
    except CheckpointException as error:
        raise CheckpointError(f"{folder}: {_first(error)}") from None


def tensors_of(folder: Path) -> dict[str, GlobalTensor]:
    """The tensors in a DCP checkpoint. Raises CheckpointError for one that is none, or holds other objects."""
    metadata = _metadata(folder)
    found = {}
    for name, entry in metadata.state_dict_metadata.items():
        if isinstance(entry, BytesStorageMetadata):
            continue  # pickled objects are left where they are
        assert isinstance(entry, TensorStorageMetadata)
        found[name] = GlobalTensor(name, tuple(entry.size), dtype_name(entry.properties.dtype))
    if not found:
        raise CheckpointError(f"{folder} holds no tensors")
    return found


def objects_of(folder: Path) -> list[str]:
    """Names in a DCP checkpoint that are pickled objects and no tensors."""
    entries = _metadata(folder).state_dict_metadata.items()
    return sorted(name for name, entry in entries if isinstance(entry, BytesStorageMetadata))


def read(folder: Path, names: Iterable[str], each: Callable[[str], None] = lambda name: None) -> dict[str, Held]:
    """Whole tensors of a DCP checkpoint. `each` is told of every one that is there. Raises CheckpointError."""
    known = tensors_of(folder)
    found = {}
    for name in names:
        tensor = known[name]
        place: dict[str, Tensor] = {name: torch.empty(tensor.shape, dtype=_torch_dtype(tensor))}
        try:
            load(place, storage_reader=_Reader(folder), no_dist=True)
        except CheckpointException as error:
            raise CheckpointError(f"{folder}: {name}: {_first(error)}") from None
        found[name] = of_local(tensor, tensor.box, place[name])
        each(name)
    return found


class _Reader(FileSystemReader):
    """torch's own, but what it unpickles is limited."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        metadata = _metadata(Path(self.path))
        metadata.storage_meta = metadata.storage_meta or StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata


class _Limited(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        is_dtype = module == "torch" and name in _DTYPES
        if (module, name) not in _TRUSTED and not is_dtype:
            raise pickle.UnpicklingError(f"it wants {module}.{name}, which no checkpoint needs")
        return super().find_class(module, name)


def _metadata(folder: Path) -> Metadata:
    path = folder / ".metadata"
    try:
        with open(path, "rb") as opened:
            metadata = _Limited(opened).load()
    except FileNotFoundError:
        raise CheckpointError(f"{folder} is no DCP checkpoint: there is no {path.name}") from None
    except (pickle.UnpicklingError, EOFError, AttributeError, ImportError, IndexError, KeyError, ValueError) as error:
        raise CheckpointError(f"{path} is not readable: {error}") from None
    if not isinstance(metadata, Metadata):
        raise CheckpointError(f"{path} is not DCP's metadata")
    return metadata


def _torch_dtype(tensor: GlobalTensor) -> torch.dtype:
    return DTYPES[tensor.dtype]


def _first(error: BaseException) -> str:
    """The innermost reason that DCP wraps, in one line."""

    def reasons() -> Iterator[str]:
        for failure in getattr(error, "failures", {}).values():
            yield str(failure[0])

    return " ".join(next(reasons(), str(error)).split())[:200]
