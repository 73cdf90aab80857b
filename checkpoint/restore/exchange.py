"""From files to the shards that workers want: each byte read by one of them, checked, and passed on. No torch.

Workers go through the spans of a plan in the same order (`routes.arranged`). What a worker has read, its host peers
read from shared memory (`host_peers`). One worker of each other host that wants something of it gets that as a message,
along the message's route from host to host (`routes.route`), and shows it to its own host peers. Meanwhile the next
spans are being read.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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
from holdfast.checkpoint.restore.routes import Route, route
from holdfast.plan.tiles import TensorShard

_IN_FLIGHT_BYTES = 64 << 20
"""Of messages that a worker sends and that are not gone: memory that nothing else can use."""
Array = npt.NDArray[Any]


class PartSource(Protocol):
    """Where the bytes of parts come from."""

    def read(self, part: Part, start: int, stop: int) -> memoryview:
        """Bytes [start, stop) of a part, checked; both at edges of chunks, or `stop` at the end. PartInvalid."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """How a worker's part of a plan went."""

    problems: tuple[str, ...]
    """A line for each span that it could not read. No worker may use anything unless all workers got none."""
    bytes_sent: int
    """Bytes of shards that it sent to other hosts: what it had read, and what it passed on."""


def fetch(
    manifest: Manifest,
    plan: Sequence[ByteSpan],
    copies: PartSource,
    wire: HostWire,
    places: Mapping[str, Sequence[HeldShard]],
    near: HostPeers | None = None,
) -> Fetched:
    """Do this worker's part of the plan: fill `places`. Called by all workers together.

    `near`: which workers share memory. What could not be read is zero everywhere, and is a problem of its reader's.
    Raises what the wire raises when a peer is gone: what is in `places` then must not be used.
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
        for targets, deliveries in span.groups():
            line = near.line(span.reader, targets)
            if content is None and me in targets:
                far.receive(deliveries, line, places)
            elif content is not None:
                if span.reader == me and len(line) > 1:
                    message = b"".join(to_bytes(_cut(d, content, span.start)) for d in deliveries)
                    far.send(message, route(line, len(message)))
                if me in targets:
                    take(deliveries, content, span.start, places)
        if me in beside:
            near.seen(span.reader)
    near.settle()
    far.settle()
    return Fetched(tuple(problems), far.bytes_sent)


def _targets(span: ByteSpan) -> set[int]:
    return set().union(*{delivery.targets for delivery in span.deliveries})


class _Far:
    """Shards on their way from host to host."""

    def __init__(self, wire: HostWire, near: HostPeers) -> None:
        self._wire, self._near = wire, near
        self._sending: deque[tuple[Sending, Buffer]] = deque()
        self._in_flight = self.bytes_sent = 0

    def send(self, message: Buffer, way: Route) -> None:
        """Send it to those behind us, piece by piece."""
        for low, high in way.pieces:
            self._pass_on(memoryview(message)[low:high], way)

    def receive(
        self, deliveries: Sequence[Delivery], line: Sequence[int], places: Mapping[str, Sequence[HeldShard]]
    ) -> None:
        """Fill `places` with shards that all go to the same workers, us among them, and pass them on."""
        wire, near = self._wire, self._near
        num_bytes = sum(d.num_bytes for d in deliveries)
        speaker = near.speaker(line)
        if speaker == wire.rank:
            message = self._received(route(line, num_bytes), num_bytes)
            if beside := near.beside(speaker, deliveries[0].targets):
                near.show(near.put(message), beside)
        else:
            message = near.look(speaker, num_bytes)
        for delivery, array in zip(deliveries, _unpacked(deliveries, message), strict=True):
            _put(delivery, array, places)
        if speaker != wire.rank:
            near.seen(speaker)

    def _received(self, way: Route, num_bytes: int) -> memoryview:
        """A message out of its pieces, each of which was passed on when it came."""
        source, pieces = way.source(self._wire.rank), way.pieces
        if len(pieces) == 1:
            message = self._wire.receive(num_bytes, source)
            self._pass_on(message, way)
            return message
        whole = memoryview(bytearray(num_bytes))
        for low, high in pieces:
            whole[low:high] = self._wire.receive(high - low, source)
            self._pass_on(whole[low:high], way)
        return whole

    def _pass_on(self, piece: memoryview, way: Route) -> None:
        for child in way.targets(self._wire.rank):
            self._sending.append((self._wire.send(piece, child), piece))
            self._in_flight += len(piece)
            self.bytes_sent += len(piece)
        while self._in_flight > _IN_FLIGHT_BYTES:
            self._gone()

    def _gone(self) -> None:
        sending, piece = self._sending.popleft()
        sending.wait()
        self._in_flight -= len(piece)

    def settle(self) -> None:
        """Return when all is gone."""
        while self._sending:
            self._gone()


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
        size = delivery.num_bytes
        piece = memoryview(message)[at : at + size]
        yield np.frombuffer(piece, dtype=f"u{delivery.tensor.item_bytes}").reshape(delivery.shard.size)
        at += size


def _put(delivery: Delivery, array: Array, places: Mapping[str, Sequence[HeldShard]]) -> None:
    for place in places[delivery.tensor.name]:
        both = place.shard.meet(delivery.shard)
        if both is not None:
            where: Any = (*both.within(delivery.shard).slices, ...)
            place.part(both)[...] = array[where]
