"""Which worker reads what of a checkpoint's files, and for which others, so that each byte is read once. Pure.

A file is read in spans of whole chunks, since only whole chunks can be checked; so no byte is read twice, whatever the
layouts. A span is read by one of those that need something of it, balanced by bytes; `exchange` does it.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from holdfast.checkpoint.errors import CheckpointMismatch
from holdfast.checkpoint.format.checksum import CHUNK_BYTES
from holdfast.checkpoint.format.manifest import Manifest
from holdfast.checkpoint.format.tiles import GlobalTensor, Layout, runs, shards_of_run
from holdfast.checkpoint.format.transfer import balanced
from holdfast.plan.tiles import Cell, TensorShard, cells

SPAN_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class Delivery:
    """A shard that lies in a span as one run of bytes of the file, or as part of one, and the workers that want it."""

    tensor: GlobalTensor
    shard: TensorShard
    outer: TensorShard
    """The shard of the file's entry that it is a part of."""
    start: int
    """Where in the file that entry begins."""
    targets: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        return self.shard.count * self.tensor.item_bytes


@dataclass(frozen=True, slots=True)
class ByteSpan:
    """Consecutive chunks of one part that one worker reads."""

    part: int
    start: int
    stop: int
    reader: int
    deliveries: tuple[Delivery, ...]

    def groups(self) -> list[tuple[tuple[int, ...], list[Delivery]]]:
        """Its deliveries by the workers that want them: each group is one message. The same for all workers."""
        ordered = sorted(self.deliveries, key=lambda d: d.targets)
        return [(targets, list(group)) for targets, group in itertools.groupby(ordered, key=lambda d: d.targets)]


def read_plan(
    manifest: Manifest, target: Layout, span_bytes: int = SPAN_BYTES, able: Sequence[Sequence[int]] | None = None
) -> list[ByteSpan]:
    """Which worker reads what of a checkpoint, and for which others, so that all of `target` is filled. Pure.

    `able`: for each part the workers that can read it, where not all can. Chunks of which no worker wants anything are
    not read. In the order of work, the same for all workers: readers take
    turns. Raises CheckpointMismatch when the checkpoint has not all that is wanted.
    """
    wanted = _wanted(manifest, target)
    found: list[tuple[int, int, int, tuple[Delivery, ...]]] = []
    for number, part in enumerate(manifest.parts):
        entries = [(entry, sought) for at, entry in enumerate(part.entries) if (sought := wanted.get((number, at)))]
        entries.sort(key=lambda pair: pair[0].start)
        stops = [entry.start + entry.shard.count * manifest.tensors[entry.tensor].item_bytes for entry, _ in entries]
        needed: set[int] = set()
        for entry, parts in entries:
            width = manifest.tensors[entry.tensor].item_bytes
            for cell in parts:
                for first, count in runs(cell.shard, entry.shard):
                    low = entry.start + first * width
                    needed.update(range(low // CHUNK_BYTES, (low + count * width - 1) // CHUNK_BYTES + 1))
        for start, stop in _stretches(needed, max(span_bytes // CHUNK_BYTES, 1)):
            low, high = start * CHUNK_BYTES, min(stop * CHUNK_BYTES, part.bytes)
            here: list[Delivery] = []
            for entry, parts in itertools.islice(entries, bisect.bisect_right(stops, low), None):
                if entry.start >= high:
                    break
                here += _clipped(manifest.tensors[entry.tensor], entry.shard, entry.start, parts, low, high)
            found.append((number, low, high, tuple(here)))
    who = []
    for number, _, _, deliveries in found:
        wanting = {target for d in deliveries for target in d.targets}
        who.append(sorted(wanting if able is None else wanting.intersection(able[number]) or able[number]))
    sizes = [high - low for _, low, high, _ in found]
    readers = balanced(list(zip(who, sizes, strict=True)), len(target.held))
    turns: dict[int, int] = {}
    order = []
    for (number, low, high, deliveries), reader in zip(found, readers, strict=True):
        turns[reader] = turns.get(reader, 0) + 1
        order.append((turns[reader], ByteSpan(number, low, high, reader, deliveries)))
    return [span for _, span in sorted(order, key=lambda pair: pair[0])]


def _wanted(manifest: Manifest, target: Layout) -> dict[tuple[int, int], list[Cell]]:
    """For each entry of each part, by their numbers: what is wanted of it."""
    at: dict[str, dict[TensorShard, tuple[int, int]]] = {}
    for number, part in enumerate(manifest.parts):
        for place, entry in enumerate(part.entries):
            at.setdefault(entry.tensor, {}).setdefault(entry.shard, (number, place))
    wanted: dict[tuple[int, int], list[Cell]] = {}
    for name, tensor in target.tensors.items():
        theirs = manifest.tensors.get(name)
        if theirs != tensor:
            there = f"{theirs.dtype}{list(theirs.shape)}" if theirs else "not there"
            ours = f"{tensor.dtype}{list(tensor.shape)}"
            raise CheckpointMismatch(f"checkpoint of step {manifest.step}: {name} is {there}, this run has {ours}")
        places = list(at.get(name, {}).values())
        sources = {shard: [index] for index, shard in enumerate(at.get(name, {})) if shard.count}
        for cell in cells(sources, target.holders(name)):
            if not cell.sources:
                raise CheckpointMismatch(
                    f"checkpoint of step {manifest.step}: the part of {name} at {list(cell.shard.offset)} is not there"
                )
            wanted.setdefault(places[cell.sources[0]], []).append(cell)
    return wanted


def _stretches(chunks: set[int], longest: int) -> Iterator[tuple[int, int]]:
    """Neighbouring numbers as ranges of at most `longest`."""
    start = previous = None
    for chunk in sorted(chunks):
        if start is None or previous is None or chunk != previous + 1 or chunk - start >= longest:
            if start is not None and previous is not None:
                yield start, previous + 1
            start = chunk
        previous = chunk
    if start is not None and previous is not None:
        yield start, previous + 1


def _clipped(
    tensor: GlobalTensor, outer: TensorShard, begin: int, wanted: Sequence[Cell], low: int, high: int
) -> Iterator[Delivery]:
    width = tensor.item_bytes
    first, stop = max(0, -(-(low - begin) // width)), min(outer.count, (high - begin) // width)
    for shard in shards_of_run(outer, first, stop):
        for cell in wanted:
            both = shard.meet(cell.shard)
            if both is not None:
                yield Delivery(tensor, both, outer, begin, cell.targets)


def without_targets(plan: Sequence[ByteSpan], done: Sequence[Sequence[int]]) -> list[ByteSpan]:
    """The plan without those workers that have each part's bytes already: `done`, by the part's number. Pure."""
    found = []
    for span in plan:
        have = set(done[span.part])
        left = [replace(d, targets=others) for d in span.deliveries if (others := _others(d.targets, have))]
        if left:
            found.append(replace(span, deliveries=tuple(left)))
    return found


def _others(targets: Sequence[int], have: set[int]) -> tuple[int, ...]:
    return tuple(target for target in targets if target not in have)
