"""From files to the boxes that workers want: each byte read by one of them, checked, and passed on. No torch.

A file is read in spans of whole chunks, since only whole chunks can be checked; so no byte is read twice, whatever the
layouts. A span is read by one of those that need something of it, balanced by bytes, and each box in it goes to all
that want it along a binary tree, while the next span is being read.
"""

from __future__ import annotations

import bisect
import itertools
import queue
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from holdfast.checkpoint.arrays import Buffer, Held, to_bytes
from holdfast.checkpoint.checksum import CHUNK_BYTES
from holdfast.checkpoint.errors import CheckpointError, CheckpointMismatch
from holdfast.checkpoint.manifest import Manifest
from holdfast.checkpoint.parts import Part
from holdfast.checkpoint.tiles import Box, Cell, GlobalTensor, Layout, boxes_of_run, cells, runs
from holdfast.checkpoint.transfer import balanced

SPAN_BYTES = 8 << 20
_AHEAD = 2
Array = npt.NDArray[Any]
_IN_FLIGHT = 8


@dataclass(frozen=True, slots=True)
class Delivery:
    """A box that lies in a span as one run of bytes of the file, or as a part of one, and who wants it."""

    tensor: GlobalTensor
    box: Box
    outer: Box
    """The box of the file's entry that it is a part of."""
    start: int
    """Where in the file that entry begins."""
    targets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive chunks of one part that one worker reads."""

    part: int
    start: int
    stop: int
    reader: int
    deliveries: tuple[Delivery, ...]


def read_plan(
    manifest: Manifest, target: Layout, span_bytes: int = SPAN_BYTES, able: Sequence[Sequence[int]] | None = None
) -> list[Span]:
    """Who reads what of a checkpoint, and for whom, so that all of `target` is filled. Pure.

    `able`: for each part the workers that can read it, where not all can. Chunks of which nobody wants anything are
    not read. In the order of work, the same for everybody: readers take
    turns. Raises CheckpointMismatch when the checkpoint has not all that is wanted.
    """
    wanted = _wanted(manifest, target)
    found: list[tuple[int, int, int, tuple[Delivery, ...]]] = []
    for number, part in enumerate(manifest.parts):
        entries = [(entry, sought) for at, entry in enumerate(part.entries) if (sought := wanted.get((number, at)))]
        entries.sort(key=lambda pair: pair[0].start)
        stops = [entry.start + entry.box.count * manifest.tensors[entry.tensor].item_bytes for entry, _ in entries]
        needed: set[int] = set()
        for entry, parts in entries:
            width = manifest.tensors[entry.tensor].item_bytes
            for cell in parts:
                for first, count in runs(cell.box, entry.box):
                    low = entry.start + first * width
                    needed.update(range(low // CHUNK_BYTES, (low + count * width - 1) // CHUNK_BYTES + 1))
        for start, stop in _stretches(needed, max(span_bytes // CHUNK_BYTES, 1)):
            low, high = start * CHUNK_BYTES, min(stop * CHUNK_BYTES, part.bytes)
            here: list[Delivery] = []
            for entry, parts in itertools.islice(entries, bisect.bisect_right(stops, low), None):
                if entry.start >= high:
                    break
                here += _clipped(manifest.tensors[entry.tensor], entry.box, entry.start, parts, low, high)
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
        order.append((turns[reader], Span(number, low, high, reader, deliveries)))
    return [span for _, span in sorted(order, key=lambda pair: pair[0])]


def _wanted(manifest: Manifest, target: Layout) -> dict[tuple[int, int], list[Cell]]:
    """For each entry of each part, by their numbers: what is wanted of it."""
    at: dict[str, dict[Box, tuple[int, int]]] = {}
    for number, part in enumerate(manifest.parts):
        for place, entry in enumerate(part.entries):
            at.setdefault(entry.tensor, {}).setdefault(entry.box, (number, place))
    wanted: dict[tuple[int, int], list[Cell]] = {}
    for name, tensor in target.tensors.items():
        theirs = manifest.tensors.get(name)
        if theirs != tensor:
            there = f"{theirs.dtype}{list(theirs.shape)}" if theirs else "not there"
            ours = f"{tensor.dtype}{list(tensor.shape)}"
            raise CheckpointMismatch(f"checkpoint of step {manifest.step}: {name} is {there}, this run has {ours}")
        places = list(at.get(name, {}).values())
        sources = {box: [index] for index, box in enumerate(at.get(name, {})) if box.count}
        for cell in cells(sources, target.holders(name)):
            if not cell.sources:
                raise CheckpointMismatch(
                    f"checkpoint of step {manifest.step}: the part of {name} at {list(cell.box.offset)} is not there"
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
    tensor: GlobalTensor, outer: Box, begin: int, wanted: Sequence[Cell], low: int, high: int
) -> Iterator[Delivery]:
    width = tensor.item_bytes
    first, stop = max(0, -(-(low - begin) // width)), min(outer.count, (high - begin) // width)
    for box in boxes_of_run(outer, first, stop):
        for cell in wanted:
            both = box.meet(cell.box)
            if both is not None:
                yield Delivery(tensor, both, outer, begin, cell.targets)


def without_targets(plan: Sequence[Span], done: Sequence[Sequence[int]]) -> list[Span]:
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


def take(deliveries: Sequence[Delivery], content: memoryview, start: int, places: Mapping[str, Sequence[Held]]) -> None:
    """Fill `places` with boxes out of a span's bytes, which begin at byte `start` of the file."""
    for delivery in deliveries:
        _put(delivery, _cut(delivery, content, start), places)


class Source(Protocol):
    """Where the bytes of parts come from."""

    def read(self, part: Part, start: int, stop: int) -> memoryview:
        """Bytes [start, stop) of a part, checked; both at edges of chunks, or `stop` at the end. PartInvalid."""


class Wire(Protocol):
    """Messages between two workers, in the order they were sent."""

    rank: int

    def send(self, payload: Buffer, to: int) -> Sending:
        """Begin to send; the payload must stay as it is until the end."""

    def receive(self, num_bytes: int, source: int) -> memoryview:
        """The next message from `source`, whose length both know."""


class Sending(Protocol):
    """A message on its way."""

    def wait(self) -> object:
        """Return when it is gone."""


def fetch(
    manifest: Manifest, plan: Sequence[Span], copies: Source, wire: Wire, places: Mapping[str, Sequence[Held]]
) -> list[str]:
    """Do this worker's part of the plan: fill `places`. Called by all workers together.

    What could not be read is zero everywhere, and its reader gets a line for each span: nobody may use anything
    unless all workers got none.
    """
    problems: list[str] = []
    me = wire.rank
    mine = [span for span in plan if span.reader == me or any(me in d.targets for d in span.deliveries)]
    sending: deque[tuple[Sending, Buffer]] = deque()
    reads = _read_ahead(manifest, [span for span in mine if span.reader == me], copies, problems)
    for span in mine:
        content = next(reads) if span.reader == me else None
        for targets, group in itertools.groupby(
            sorted(span.deliveries, key=lambda d: d.targets), key=lambda d: d.targets
        ):
            deliveries = list(group)
            line = [span.reader, *(t for t in targets if t != span.reader)]
            if me not in line:
                continue
            at = line.index(me)
            num_bytes = sum(d.box.count * d.tensor.item_bytes for d in deliveries)
            if content is not None:
                arrays = [_cut(d, content, span.start) for d in deliveries]
                message: Buffer = b"".join(map(to_bytes, arrays)) if len(line) > 1 else b""
            else:
                message = wire.receive(num_bytes, line[(at - 1) // 2])
                arrays = list(_unpacked(deliveries, message))
            for child in (2 * at + 1, 2 * at + 2):
                if child < len(line):
                    sending.append((wire.send(message, line[child]), message))
            if me in targets:
                for delivery, array in zip(deliveries, arrays, strict=True):
                    _put(delivery, array, places)
            while len(sending) > _IN_FLIGHT:
                sending.popleft()[0].wait()
    for one, _ in sending:
        one.wait()
    return problems


def _read_ahead(manifest: Manifest, spans: Sequence[Span], copies: Source, problems: list[str]) -> Iterator[memoryview]:
    """The bytes of each span in turn; a thread reads the next ones meanwhile."""
    ready: queue.Queue[memoryview | BaseException] = queue.Queue(_AHEAD)
    stopped = threading.Event()

    def put(item: memoryview | BaseException) -> None:
        while not stopped.is_set():
            try:
                ready.put(item, timeout=0.2)
                return
            except queue.Full:
                continue

    def work() -> None:
        try:
            for span in spans:
                if stopped.is_set():
                    return
                put(_checked(manifest.parts[span.part], span, copies, problems))
        except BaseException as error:
            put(error)

    thread = threading.Thread(target=work, name="checkpoint-read", daemon=True)
    thread.start()
    try:
        for _ in spans:
            item = ready.get()
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        stopped.set()
        thread.join()


def _checked(part: Part, span: Span, copies: Source, problems: list[str]) -> memoryview:
    try:
        return copies.read(part, span.start, span.stop)
    except CheckpointError as error:
        problems.append(str(error))
        return memoryview(bytes(span.stop - span.start))


def _cut(delivery: Delivery, content: memoryview, start: int) -> Array:
    """The delivery's elements out of the span's bytes, which begin at byte `start` of the file."""
    width = delivery.tensor.item_bytes
    found = list(runs(delivery.box, delivery.outer))
    first = found[0][0]
    last = found[-1][0] + found[-1][1]
    low = delivery.start + first * width - start
    flat = np.frombuffer(content[low : low + (last - first) * width], dtype=f"u{width}")
    strides = _strides(delivery.outer, width)
    # All between the first and the last element lies in the span, so a strided view stays inside it.
    return np.lib.stride_tricks.as_strided(flat, delivery.box.size, strides, writeable=False)


def _strides(outer: Box, width: int) -> tuple[int, ...]:
    strides = [width]
    for size in reversed(outer.size[1:]):
        strides.append(strides[-1] * size)
    return tuple(reversed(strides[: len(outer.size)])) if outer.size else ()


def _unpacked(deliveries: Iterable[Delivery], message: Buffer) -> Iterator[Array]:
    at = 0
    for delivery in deliveries:
        size = delivery.box.count * delivery.tensor.item_bytes
        piece = memoryview(message)[at : at + size]
        yield np.frombuffer(piece, dtype=f"u{delivery.tensor.item_bytes}").reshape(delivery.box.size)
        at += size


def _put(delivery: Delivery, array: Array, places: Mapping[str, Sequence[Held]]) -> None:
    for place in places[delivery.tensor.name]:
        both = place.box.meet(delivery.box)
        if both is not None:
            where: Any = (*both.within(delivery.box).slices, ...)
            place.part(both)[...] = array[where]
