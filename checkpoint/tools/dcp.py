"""To and from torch's distributed checkpoint format (DCP), for reading and writing with stock torch.

Nothing that is read is unpickled but by two readers that know what they may make: that of the metadata in
`dcp_metadata`, and torch's own for weights. What a checkpoint of ours holds besides tensors, the settings of its run
and its values, lies beside DCP's files as JSON. Other programs pass over it.
"""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import save

from holdfast.checkpoint.errors import CheckpointError
from holdfast.checkpoint.format.arrays import HeldShard
from holdfast.checkpoint.format.manifest import DEPTH, is_deeper
from holdfast.checkpoint.format.tiles import GlobalTensor
from holdfast.checkpoint.tools.dcp_metadata import Chunk, contents
from holdfast.checkpoint.worker.torch_state import DTYPES, of_local, to_torch

NOTES = "holdfast.json"
_MOST_NOTES = 64 << 20


def write(folder: Path, whole: Mapping[str, HeldShard], state: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    """Write whole tensors as a DCP checkpoint of one rank, and `state` and `values` of a manifest beside it.

    Raises CheckpointError, OSError.
    """
    tensors = {name: to_torch(held) for name, held in whole.items()}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / NOTES).write_text(json.dumps({"state": dict(state), "values": dict(values)}, allow_nan=False) + "\n")
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is disabled")  # as `no_dist` asks for
            save(tensors, storage_writer=FileSystemWriter(folder, single_file_per_rank=True), no_dist=True)
    except CheckpointException as error:
        raise CheckpointError(f"{folder}: {_first(error)}") from None


def notes_of(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """`state` and `values` as `write` left them; empty beside a checkpoint of another program.

    Raises CheckpointError for a file that is damaged, OSError.
    """
    path = folder / NOTES
    if not path.exists():
        return {}, {}
    with open(path, "rb") as file:
        text = file.read(_MOST_NOTES + 1)
    try:
        if len(text) > _MOST_NOTES:
            raise ValueError(f"more than {_MOST_NOTES >> 20} MiB")
        notes = json.loads(text, parse_constant=_no_number)
        state, values = notes["state"], notes["values"]
        if not isinstance(state, dict) or not isinstance(values, dict) or is_deeper(notes, DEPTH):
            raise ValueError("state or values are no objects")
    except RecursionError:
        raise CheckpointError(f"{path} is not readable: more than {DEPTH} levels deep") from None
    except (ValueError, KeyError, TypeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise CheckpointError(f"{path} is not readable: {reason}; remove it to import the tensors alone") from None
    return state, values


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")


def tensors_of(folder: Path) -> dict[str, GlobalTensor]:
    """The tensors in a DCP checkpoint. Raises CheckpointError for one that is none, or is damaged."""
    return dict(contents(folder).tensors)


def objects_of(folder: Path) -> list[str]:
    """Names in a DCP checkpoint that are pickled objects and no tensors."""
    return list(contents(folder).objects)


def read(folder: Path, names: Iterable[str], each: Callable[[str], None] = lambda name: None) -> dict[str, HeldShard]:
    """Whole tensors of a DCP checkpoint. `each` is called with every one that is there. Raises CheckpointError."""
    known, reader = contents(folder), FileSystemReader(folder)
    found = {}
    for name in names:
        tensor = known.tensors[name]
        try:
            whole = torch.empty(tensor.shape, dtype=DTYPES[tensor.dtype])
            for chunk in known.chunks[name]:
                whole[chunk.shard.slices].copy_(_piece(folder, reader, tensor, chunk).detach())
        # What torch makes of bytes that are not what they should be, it does not say.
        except Exception as error:
            raise CheckpointError(f"{folder}: {name}: {_first(error)}") from None
        found[name] = of_local(tensor, tensor.shard, whole)
        each(name)
    return found


def _piece(folder: Path, reader: FileSystemReader, tensor: GlobalTensor, chunk: Chunk) -> Tensor:
    with open(folder / chunk.file, "rb") as opened:
        opened.seek(chunk.offset)
        stream = cast(Any, io.BytesIO(opened.read(chunk.length)))
    if chunk.transforms:
        stream = reader.transforms.transform_load_stream(cast(Any, None), chunk.transforms, stream)
        stream = io.BytesIO(stream.read(-1))
    piece = torch.load(stream, map_location="cpu", weights_only=True)
    if not isinstance(piece, Tensor) or piece.dtype != DTYPES[tensor.dtype] or tuple(piece.shape) != chunk.shard.size:
        raise CheckpointError(f"what lies in {chunk.file} at {chunk.offset} is not what the metadata says")
    return piece


def _first(error: BaseException) -> str:
    """The innermost reason that DCP wraps, in one line."""

    def reasons() -> Iterator[str]:
        for failure in getattr(error, "failures", {}).values():
            yield str(failure[0])

    return " ".join(next(reasons(), str(error)).split())[:200]
