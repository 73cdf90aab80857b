"""What one worker has read, for those that run on its host: they read it from shared memory. No torch.

A worker that shows something has a few slots in a nameless file in memory, which ends with it. It fills one, sends its
number to the host peers as a message of one byte, and fills it again when each has answered that it is done. All go
through the same plan in the same order, so a worker only ever waits for something earlier in it.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import queue
import secrets
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Protocol

from holdfast.checkpoint.format.arrays import Buffer
from holdfast.checkpoint.restore.reading import ByteSpan
from holdfast.checkpoint.restore.routes import line_of

AHEAD = 2
"""Spans that may lie read and not yet passed on, beside the one that is being read."""
_SHOWN = 3
SLOTS = AHEAD + 1 + _SHOWN
_SEEN = 1
_PAGE = mmap.PAGESIZE


class Sending(Protocol):
    """A message on its way."""

    def wait(self) -> object:
        """Return when it is gone."""


class HostWire(Protocol):
    """Messages between two workers, in the order they were sent; those of another `tag` in an order of their own."""

    rank: int

    def send(self, payload: Buffer, to: int, tag: int = 0) -> Sending:
        """Begin to send; the payload must stay as it is until the end."""

    def receive(self, num_bytes: int, source: int, tag: int = 0) -> memoryview:
        """The next message from `source`, whose length both know."""


class PeerTransport(HostWire, Protocol):
    """Workers that are about to read together."""

    host: str
    """The same for workers that can share memory."""

    def gather(self, payload: bytes) -> list[bytes]:
        """The payloads of all, at rank 0."""

    def broadcast(self, payload: bytes) -> bytes:
        """Rank 0's payload, everywhere."""

    def all_agree(self, ok: bool) -> bool:
        """True when every worker says True."""


@cache
def this_host() -> str:
    """Names the kernel and the processes that this one can see: with those it can share memory."""
    processes = os.stat("/proc/self/ns/pid").st_ino
    return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()}-{processes}"


class HostPeers:
    """Which worker is on which host, and the slots. But for `put` it is used from one thread."""

    def __init__(
        self,
        wire: HostWire,
        hosts: Sequence[str] = (),
        own: memoryview | None = None,
        others: Mapping[int, memoryview] | None = None,
        slot_bytes: int = 0,
    ) -> None:
        """`hosts` of all workers; none: no memory is shared. `own`: this worker's slots, `others`: its host peers'."""
        self.hosts = hosts
        self._wire, self._slot = wire, slot_bytes
        self._own, self._others = own, others or {}
        self._free: queue.SimpleQueue[int] = queue.SimpleQueue()
        for slot in range(SLOTS):
            self._free.put(slot)
        self._shown: deque[tuple[int, dict[int, Sending]]] = deque()
        self._looking: dict[int, int] = {}
        self._seen: dict[tuple[int, int], Sending] = {}

    # --- which worker is on which host

    def beside(self, worker: int, targets: Iterable[int]) -> tuple[int, ...]:
        """Those of `targets` that take what `worker` has out of its memory."""
        if not self.hosts:
            return ()
        host = self.hosts[worker]
        return tuple(sorted({target for target in targets if target != worker and self.hosts[target] == host}))

    def line(self, reader: int, targets: Sequence[int]) -> list[int]:
        """The reader, and for each other host that wants it the worker that gets it as a message."""
        return line_of(reader, targets, self.hosts)

    def speaker(self, line: Sequence[int]) -> int:
        """The worker of a line that this one gets it from, maybe itself."""
        me = self._wire.rank
        return next(one for one in line if one == me or (self.hosts and self.hosts[one] == self.hosts[me]))

    # --- what is shown

    def put(self, content: Buffer, is_over: Callable[[], bool] = lambda: False) -> int:
        """Fill a slot, when one is free; its number. From any thread."""
        while not is_over():
            try:
                slot = self._free.get(timeout=0.2)
            except queue.Empty:
                continue
            assert self._own is not None
            self._own[slot * self._slot : slot * self._slot + len(content)] = content
            return slot
        return -1

    def show(self, slot: int, to: Sequence[int]) -> None:
        """Let them look at it. Frees the slots of those before it that all have seen."""
        said = bytes([slot])
        self._shown.append((slot, {one: self._wire.send(said, one) for one in to}))
        while len(self._shown) >= _SHOWN:
            self._collect()

    def look(self, source: int, num_bytes: int) -> memoryview:
        """What `source` shows next; it is valid until `seen` is called."""
        slot = self._looking[source] = self._wire.receive(1, source)[0]
        if before := self._seen.pop((source, slot), None):
            before.wait()  # it has come, or the slot would not have been filled again
        return self._others[source][slot * self._slot : slot * self._slot + num_bytes]

    def seen(self, source: int) -> None:
        """We are done with what we looked at."""
        self._seen[source, self._looking[source]] = self._wire.send(b"\1", source, _SEEN)

    def settle(self) -> None:
        """Return when all have seen all."""
        while self._shown:
            self._collect()
        while self._seen:
            self._seen.popitem()[1].wait()

    def _collect(self) -> None:
        slot, said = self._shown.popleft()
        for one, sending in said.items():
            self._wire.receive(1, one, _SEEN)
            sending.wait()
        self._free.put(slot)


def find_host_peers(group: PeerTransport, plan: Sequence[ByteSpan]) -> HostPeers:
    """Slots in memory for what the plan lets workers of one host share. Called by all workers together.

    Where they cannot be had, on whichever worker, all is sent as messages.
    """
    apart = HostPeers(group)
    if not plan:
        return apart
    hosts = _reported(group, group.host)
    found = speakers(plan, hosts)
    if not found:
        return apart
    slot = max(span.stop - span.start for span in plan)
    own: _Slots | None = None
    if group.rank in found:
        with contextlib.suppress(OSError):
            own = _Slots(slot)
    where = _reported(group, own.where if own is not None else "")
    others: dict[int, memoryview] = {}
    try:
        for rank in found:
            if rank != group.rank and hosts[rank] == hosts[group.rank]:
                others[rank] = _seen_from_outside(where[rank], slot)
        ok = own is not None or group.rank not in found
    except (OSError, ValueError):
        ok = False
    ok = group.all_agree(ok)
    if own is not None:
        own.close_file()  # its mappings stay
    if not ok:
        return apart
    return HostPeers(group, hosts, own.memory if own is not None else None, others, slot)


def _reported(group: PeerTransport, text: str) -> list[str]:
    """What each worker says, everywhere."""
    everyone = [one.decode() for one in group.gather(text.encode())]
    found: list[str] = json.loads(group.broadcast(json.dumps(everyone).encode()))
    return found


def speakers(plan: Iterable[ByteSpan], hosts: Sequence[str]) -> set[int]:
    """Which workers have something for others of their host, or may have. Pure."""
    groups: dict[tuple[int, ...], set[int]] = {}
    for span in plan:
        for delivery in span.deliveries:
            groups.setdefault(delivery.targets, set()).add(span.reader)
    found: set[int] = set()
    for targets, readers in groups.items():
        there: dict[str, list[int]] = {}
        for target in targets:
            there.setdefault(hosts[target], []).append(target)
        found.update(one for one in readers if any(target != one for target in there.get(hosts[one], ())))
        found.update(several[0] for several in there.values() if len(several) > 1)
    return found


class _Slots:
    """Memory that others can map while its file is open: a page that identifies it, then the slots."""

    def __init__(self, slot_bytes: int) -> None:
        """Raises OSError."""
        total = _PAGE + SLOTS * slot_bytes
        self._file = os.memfd_create("holdfast-restore")
        try:
            os.posix_fallocate(self._file, 0, total)
            whole = memoryview(mmap.mmap(self._file, total))
        except OSError:
            os.close(self._file)
            raise
        key = secrets.token_hex(16)
        whole[: len(key)] = key.encode()
        self.memory = whole[_PAGE:]
        self.where = f"{os.getpid()} {self._file} {key}"

    def close_file(self) -> None:
        os.close(self._file)


def _seen_from_outside(where: str, slot_bytes: int) -> memoryview:
    """The slots of another process. Raises OSError, ValueError."""
    pid, number, key = where.split()
    file = os.open(f"/proc/{int(pid)}/fd/{int(number)}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        whole = memoryview(mmap.mmap(file, _PAGE + SLOTS * slot_bytes, prot=mmap.PROT_READ))
    finally:
        os.close(file)
    if whole[: len(key)] != key.encode():
        raise ValueError("it has another owner")
    return whole[_PAGE:]
