"""From files to the shards that workers want: each byte read by one of them, checked, and passed on. No torch.

Workers go through the spans of a plan in the same order. What a worker has read, its host peers read from shared
memory (`host_peers`). One worker of each other host that wants something of it gets that as a message, along a binary
tree of hosts, and shows it to its own host peers. Meanwhile the next spans are being read.
"""

from __future__ import annotations

import itertools
import queue
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from holdfast.checkpoint.errors import CheckpointError
from holdfast.checkpoint.format.arrays import Buffer, HeldShard, to_bytes
from holdfast.checkpoint.format.manifest import Manifest
from holdfast.checkpoint.format.parts import Part
from holdfast.checkpoint.format.tiles import runs
from holdfast.checkpoint.restore.host_peers import AHEAD, HostPeers, HostWire, Sending
from holdfast.checkpoint.restore.reading import ByteSpan, Delivery
from holdfast.plan.tiles import TensorShard

_IN_FLIGHT = 8
Array = npt.NDArray[Any]


class PartSource(Protocol):
    """Where the bytes of parts come from."""

    def read(self, part: Part, start: int, stop: int) -> memoryview:
        """Bytes [start, stop) of a part, checked; both at edges of chunks, or `stop` at the end. PartInvalid."""


def fetch(
    manifest: Manifest,
    plan: Sequence[ByteSpan],
    copies: PartSource,
    wire: HostWire,
    places: Mapping[str, Sequence[HeldShard]],
    near: HostPeers | None = None,
) -> list[str]:
    """Do this worker's part of the plan: fill `places`. Called by all workers together.

    `near`: which workers share memory. What could not be read is zero everywhere, and its reader gets a line for each
    span: no worker may use anything unless all workers got none.
    """
    problems: list[str] = []
    me, near = wire.rank, near or HostPeers(wire)
    mine = [span for span in plan if span.reader == me or any(me in d.targets for d in span.deliveries)]
    reads = _read_ahead(manifest, [span for span in mine if span.reader == me], copies, near, problems)
    far = _Far(wire, near)
    for span in mine:
        content: memoryview | None = None
        beside = near.beside(span.reader, _targets(span))
        if span.reader == me:
            content, slot = next(reads)
            if beside:
                near.show(slot, beside)
        elif me in beside:
            content = near.look(span.reader, span.stop - span.start)
        for targets, group in itertools.groupby(
            sorted(span.deliveries, key=lambda d: d.targets), key=lambda d: d.targets
        ):
            deliveries, line = list(group), near.line(span.reader, targets)
            if content is None and me in targets:
                far.receive(deliveries, line, places)
            elif content is not None:
                if span.reader == me and len(line) > 1:
                    far.send(b"".join(to_bytes(_cut(d, content, span.start)) for d in deliveries), line)
                if me in targets:
                    take(deliveries, content, span.start, places)
        if me in beside:
            near.seen(span.reader)
    near.settle()
    far.settle()
    return problems


def _targets(span: ByteSpan) -> set[int]:
    return set().union(*{delivery.targets for delivery in span.deliveries})


class _Far:
    """Shards on their way from host to host. In each line of workers the first has them, and each sends to two more."""

    def __init__(self, wire: HostWire, near: HostPeers) -> None:
        self._wire, self._near = wire, near
        self._sending: deque[tuple[Sending, Buffer]] = deque()

    def send(self, message: Buffer, line: Sequence[int]) -> None:
        """Pass it on to those behind us."""
        at = line.index(self._wire.rank)
        for child in line[2 * at + 1 : 2 * at + 3]:
            self._sending.append((self._wire.send(message, child), message))
        while len(self._sending) > _IN_FLIGHT:
            self._sending.popleft()[0].wait()

    def receive(
        self, deliveries: Sequence[Delivery], line: Sequence[int], places: Mapping[str, Sequence[HeldShard]]
    ) -> None:
        """Fill `places` with shards that all go to the same workers, us among them, and pass them on."""
        wire, near = self._wire, self._near
        num_bytes = sum(d.shard.count * d.tensor.item_bytes for d in deliveries)
        speaker = near.speaker(line)
        if speaker == wire.rank:
            message: Buffer = wire.receive(num_bytes, line[(line.index(speaker) - 1) // 2])
            self.send(message, line)
            if beside := near.beside(speaker, deliveries[0].targets):
                near.show(near.put(message), beside)
        else:
            message = near.look(speaker, num_bytes)
        for delivery, array in zip(deliveries, _unpacked(deliveries, message), strict=True):
            _put(delivery, array, places)
        if speaker != wire.rank:
            near.seen(speaker)

    def settle(self) -> None:
        """Return when all is gone."""
        while self._sending:
            self._sending.popleft()[0].wait()


def _read_ahead(
    manifest: Manifest, spans: Sequence[ByteSpan], copies: PartSource, near: HostPeers, problems: list[str]
) -> Iterator[tuple[memoryview, int]]:
    """The bytes of each span in turn, and the slot where host peers see them too; a thread reads the next ones."""
    ready: queue.Queue[tuple[memoryview, int] | BaseException] = queue.Queue(AHEAD)
    stopped = threading.Event()

    def put(item: tuple[memoryview, int] | BaseException) -> None:
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
                content = _checked(manifest.parts[span.part], span, copies, problems)
                is_shown = bool(near.beside(span.reader, _targets(span)))
                put((content, near.put(content, stopped.is_set) if is_shown else -1))
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


def _checked(part: Part, span: ByteSpan, copies: PartSource, problems: list[str]) -> memoryview:
    try:
        return copies.read(part, span.start, span.stop)
    except CheckpointError as error:
        problems.append(str(error))
        return memoryview(bytes(span.stop - span.start))


def take(
    deliveries: Sequence[Delivery], content: memoryview, start: int, places: Mapping[str, Sequence[HeldShard]]
) -> None:
    """Fill `places` with shards out of a span's bytes, which begin at byte `start` of the file."""
    for delivery in deliveries:
        _put(delivery, _cut(delivery, content, start), places)


def _cut(delivery: Delivery, content: memoryview, start: int) -> Array:
    """The delivery's elements out of the span's bytes, which begin at byte `start` of the file."""
    width = delivery.tensor.item_bytes
    found = list(runs(delivery.shard, delivery.outer))
    first = found[0][0]
    last = found[-1][0] + found[-1][1]
    low = delivery.start + first * width - start
    flat = np.frombuffer(content[low : low + (last - first) * width], dtype=f"u{width}")
    strides = _strides(delivery.outer, width)
    # All between the first and the last element lies in the span, so a strided view stays inside it.
    return np.lib.stride_tricks.as_strided(flat, delivery.shard.size, strides, writeable=False)


def _strides(outer: TensorShard, width: int) -> tuple[int, ...]:
    strides = [width]
    for size in reversed(outer.size[1:]):
        strides.append(strides[-1] * size)
    return tuple(reversed(strides[: len(outer.size)])) if outer.size else ()


def _unpacked(deliveries: Iterable[Delivery], message: Buffer) -> Iterator[Array]:
    at = 0
    for delivery in deliveries:
        size = delivery.shard.count * delivery.tensor.item_bytes
        piece = memoryview(message)[at : at + size]
        yield np.frombuffer(piece, dtype=f"u{delivery.tensor.item_bytes}").reshape(delivery.shard.size)
        at += size


def _put(delivery: Delivery, array: Array, places: Mapping[str, Sequence[HeldShard]]) -> None:
    for place in places[delivery.tensor.name]:
        both = place.shard.meet(delivery.shard)
        if both is not None:
            where: Any = (*both.within(delivery.shard).slices, ...)
            place.part(both)[...] = array[where]
