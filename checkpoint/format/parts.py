"""A part: one file of a checkpoint, a plain safetensors file of the shards that one worker writes. No torch.

The format (https://huggingface.co/docs/safetensors) is 8 bytes with the length of a JSON header, the header, and the
tensors' bytes. An entry is called like its tensor, with the shard behind it if it is not the whole: `w[0:8,16:32]`.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.checkpoint.errors import CheckpointError
from holdfast.checkpoint.format.checksum import Buffer, Summed
from holdfast.checkpoint.format.tiles import GlobalTensor
from holdfast.checkpoint.format.transfer import Share
from holdfast.plan.tiles import TensorShard

if TYPE_CHECKING:  # a process that only inspects checkpoints has no numpy
    from holdfast.checkpoint.format.arrays import HeldShard

_ALIGN = 64


@dataclass(frozen=True, slots=True)
class Entry:
    """One shard in a part."""

    tensor: str
    shard: TensorShard
    start: int
    """Where its first byte is in the file; the rest follows in row-major order."""


@dataclass(frozen=True, slots=True)
class Part:
    """One file of a checkpoint, as the manifest knows it."""

    file: str
    """Name inside the checkpoint's folder."""
    bytes: int
    sums: tuple[int, ...]
    """A checksum for each MiB of the file, the last one for what is left."""
    writer: int
    """The worker that wrote it."""
    entries: tuple[Entry, ...]


def part_name(worker: int) -> str:
    """File name of one worker's part."""
    return f"part-{worker:05d}.safetensors"


def entry_name(tensor: GlobalTensor, shard: TensorShard) -> str:
    """The name of a shard in its file."""
    if shard == tensor.shard:
        return tensor.name
    ranges = ",".join(f"{low}:{high}" for low, high in zip(shard.offset, shard.stop, strict=True))
    return f"{tensor.name}[{ranges}]"


def header(
    tensors: Mapping[str, GlobalTensor], shards: Sequence[tuple[str, TensorShard]], metadata: Mapping[str, str]
) -> tuple[bytes, list[Entry]]:
    """The first bytes of a file with these shards, and where each of them will lie.

    Wide elements come first, so that none lies across a multiple of its width; otherwise they stay in their order.
    """
    order = sorted(shards, key=lambda one: -tensors[one[0]].item_bytes)
    table: dict[str, object] = {"__metadata__": dict(metadata)}
    places, at = [], 0
    for name, shard in order:
        tensor = tensors[name]
        stop = at + shard.count * tensor.item_bytes
        entry = entry_name(tensor, shard)
        while entry in table:  # a tensor may be called like a part of another one
            entry += "'"
        table[entry] = {"dtype": tensor.dtype, "shape": list(shard.size), "data_offsets": [at, stop]}
        places.append((name, shard, at))
        at = stop
    text = json.dumps(table, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % _ALIGN)
    begin = len(text) + 8
    return len(text).to_bytes(8, "little") + text, [Entry(name, shard, begin + at) for name, shard, at in places]


def held_bytes(entries: Sequence[Entry], held: Mapping[str, Sequence[HeldShard]]) -> Iterator[Buffer]:
    """The bytes of these shards one after the other, out of what is held of each tensor."""
    from holdfast.checkpoint.format.arrays import to_bytes

    for entry in entries:
        if entry.shard.count:
            origin = next(one for one in held[entry.tensor] if one.shard.holds(entry.shard))
            yield to_bytes(origin.part(entry.shard))


Body = Callable[[Sequence[Entry]], Iterable[Buffer]]
"""The bytes of shards one after the other, in pieces of any size. May be asked for again."""
Write = Callable[[Callable[[], Iterator[Buffer]]], None]


def write_part(
    write: Write,
    worker: int,
    tensors: Mapping[str, GlobalTensor],
    shares: Sequence[Share],
    body: Body,
    metadata: Mapping[str, str],
) -> Part | None:
    """Write what falls to `worker`; None when that is nothing. `write` may ask for the stream more than once.

    Raises what `write` raises.
    """
    own = [(share.tensor, share.shard) for share in shares if share.worker == worker]
    if not own:
        return None
    head, entries = header(tensors, own, metadata)
    attempts: list[Summed] = []

    def pieces() -> Iterator[Buffer]:
        attempts.append(Summed(itertools.chain([head], body(entries))))
        return iter(attempts[-1])

    write(pieces)
    if not attempts:
        raise CheckpointError("the store asked for no byte of a part")
    return Part(part_name(worker), attempts[-1].num_bytes, attempts[-1].sums(), worker, tuple(entries))
