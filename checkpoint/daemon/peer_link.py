"""Copies of snapshots on another node: `push` sends one, `fetch` gets parts of it back, `PeerServer` keeps them.

A copy goes into an arena of the receiver's own, is checked piece by piece against the sender's checksums, and counts
when the last one was right. Until then, and if anything breaks, the copy before it stays.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from holdfast.base import log
from holdfast.checkpoint.daemon.peer_wire import PeerRefused, PeerWire, be_greeted, greet
from holdfast.checkpoint.errors import CheckpointError, SnapshotInvalid, SnapshotRefused
from holdfast.checkpoint.format.checksum import CHUNK_BYTES, chunk_sum
from holdfast.checkpoint.snapshots.arena import Arena
from holdfast.checkpoint.snapshots.description import Description, Snapshot
from holdfast.checkpoint.snapshots.files import is_plain, peer_file
from holdfast.checkpoint.stores.rate import Pace

_CONNECT_S = 5.0
_CONNECTIONS = 64
_MOST_PIECES = 4096
_DRAIN_S = 1.0
_TURN_S = 5.0

Address = tuple[str, int]


class TransferInterrupted(Exception):
    """The sender was asked to stop."""


@contextlib.contextmanager
def _line(address: Address, job: str, secret: bytes) -> Iterator[PeerWire]:
    with socket.create_connection(address, timeout=_CONNECT_S) as sock:
        wire = PeerWire(sock)
        greet(wire, job, secret)
        try:
            yield wire
        except ValueError as error:
            raise PeerRefused(f"sent an invalid message: {error}") from None


def push(
    address: Address,
    secret: bytes,
    node: str,
    arena: Arena,
    snapshot: Snapshot,
    pace: Pace,
    is_over: Callable[[], bool] = lambda: False,
) -> int:
    """Copy a pinned snapshot of a worker on `node` to the daemon at `address`; the bytes that were sent.

    Raises PeerRefused, OSError, Interrupted; SnapshotInvalid when our own memory is not what was written.
    """
    what, memory = arena.description, arena.memory(snapshot.slot)
    header = {
        "do": "push", "node": node, "description": what.encode().decode(), "step": snapshot.step,
        "generation": snapshot.generation, "values": dict(snapshot.values), "bytes": len(memory),
        "sums": "".join(f"{one:016x}" for one in snapshot.sums),
    }  # fmt: skip
    with _line(address, what.job, secret) as wire:
        wire.send(header)
        if _answer(wire)["have"]:
            return 0
        for index, want in enumerate(snapshot.sums):
            chunk = memory[index * CHUNK_BYTES : (index + 1) * CHUNK_BYTES]
            if chunk_sum(chunk) != want:
                raise SnapshotInvalid(f"MiB {index} of the snapshot of step {snapshot.step} has changed in memory")
            for at in range(0, len(chunk), pace.piece):
                part = chunk[at : at + pace.piece]
                if is_over():
                    raise TransferInterrupted
                pace.take(len(part))
                _send(wire, part)
        _answer(wire)
    return len(memory)


def fetch(
    address: Address, secret: bytes, node: str, what: Description, snapshot: Snapshot, indices: Sequence[int]
) -> dict[int, bytes]:
    """MiB of the copy that the daemon at `address` has of a snapshot from `node`. Raises PeerRefused, OSError."""
    if len(indices) > _MOST_PIECES:
        raise PeerRefused(f"{len(indices)} MiB are broken: at most {_MOST_PIECES} are repaired")
    with _line(address, what.job, secret) as wire:
        wire.send({
            "do": "pieces", "node": node, "description": what.encode().decode(), "step": snapshot.step,
            "generation": snapshot.generation, "indices": list(indices),
        })  # fmt: skip
        _answer(wire)
        found = {}
        for index in indices:
            piece = bytearray(min(CHUNK_BYTES, what.num_bytes - index * CHUNK_BYTES))
            wire.receive_into(memoryview(piece))
            found[index] = bytes(piece)
    return found


def _answer(wire: PeerWire) -> dict[str, Any]:
    answer = wire.receive()
    if not answer.get("ok"):
        raise PeerRefused(str(answer.get("error", "no reason given"))[:500])
    return answer


def _send(wire: PeerWire, part: memoryview) -> None:
    # A peer that refuses says so while we are still sending, and its answer must be read first.
    readable, _, _ = select.select([wire.sock], [], [], 0)
    if readable:
        _answer(wire)
        raise PeerRefused("ended the copy before its end")
    wire.sock.sendall(part)


class Keeping(Protocol):
    """What the server asks of the daemon. Called from threads."""

    folder: Path

    def secret_of(self, job: str) -> bytes | None:
        """The job's secret, if it runs here."""

    def generation_of(self, job: str) -> int:
        """The newest generation of a job that is known here; 0 for none."""

    def received(self, node: str, what: Description, snapshot: Snapshot) -> None:
        """A copy is complete."""


class PeerServer:
    """Takes copies from the daemons of other nodes, and gives parts of them back."""

    def __init__(self, keeping: Keeping) -> None:
        self._keeping = keeping
        self._room = threading.BoundedSemaphore(_CONNECTIONS)
        self._turn = threading.Condition()
        self._busy: set[Path] = set()
        self._task: asyncio.Task[None] | None = None
        self.address: Address = ("", 0)

    def start(self, host: str, port: int = 0) -> Address:
        """Listen, on any port if that one is taken; where. Raises OSError."""
        listener = _listener(host, port)
        listener.setblocking(False)
        self.address = (host, listener.getsockname()[1])
        self._task = asyncio.create_task(self._accept(listener), name="holdfast-peers")
        return self.address

    async def close(self) -> None:
        """Listen no more."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with listener:
            while True:
                try:
                    sock, _ = await loop.sock_accept(listener)
                except OSError as error:
                    log.warning("peer.accept", error=str(error))
                    await asyncio.sleep(0.5)  # no descriptors left, most likely
                    continue
                if self._room.acquire(blocking=False):
                    threading.Thread(target=self._serve, args=(sock,), name="holdfast-peer", daemon=True).start()
                else:
                    sock.close()

    def _serve(self, sock: socket.socket) -> None:
        try:
            with sock:
                sock.setblocking(True)
                wire = PeerWire(sock)
                job = be_greeted(wire, self._keeping.secret_of)
                message = wire.receive()
                try:
                    what = _description(message, job)
                    path = peer_file(self._keeping.folder, str(message["node"]), what)
                    with self._alone(path):
                        if message["do"] == "push":
                            self._take(wire, path, what, message)
                        elif message["do"] == "pieces":
                            _give(wire, path, message)
                except (CheckpointError, KeyError, TypeError, ValueError) as error:
                    text = str(error) if isinstance(error, CheckpointError) else f"{type(error).__name__}: {error}"
                    log.warning("peer.refused", job=job, error=text)
                    _refuse(wire, text)
        except (OSError, ValueError, PeerRefused) as error:
            log.warning("peer.broken", error=f"{type(error).__name__}: {error}")
        except Exception:
            log.exception("peer.bug")
        finally:
            self._room.release()

    def _take(self, wire: PeerWire, path: Path, what: Description, message: Mapping[str, Any]) -> None:
        step, generation, values = int(message["step"]), int(message["generation"]), dict(message["values"])
        text = str(message["sums"])
        sums = tuple(int(text[at : at + 16], 16) for at in range(0, len(text), 16))
        if message["bytes"] != what.num_bytes or len(sums) != -(-what.num_bytes // CHUNK_BYTES):
            raise SnapshotRefused(f"{message['bytes']} bytes and {len(sums)} checksums for {what.num_bytes} bytes")
        if generation < self._keeping.generation_of(what.job):
            raise SnapshotRefused(f"generation {generation} of job {what.job} has ended")
        path.parent.mkdir(mode=0o700, exist_ok=True)
        arena = Arena.create(path, what)
        try:
            if (have := _find(arena, step, generation)) is not None and have.sums == sums:
                wire.send({"ok": True, "have": True})
                self._keeping.received(str(message["node"]), what, have)
                return
            slot = arena.begin()
            if slot is None:
                raise SnapshotRefused("the older copy is being read")
            try:
                wire.send({"ok": True, "have": False})
                memory = arena.memory(slot)
                for index, want in enumerate(sums):
                    chunk = memory[index * CHUNK_BYTES : (index + 1) * CHUNK_BYTES]
                    wire.receive_into(chunk)
                    if chunk_sum(chunk) != want:
                        raise SnapshotRefused(f"MiB {index} arrived corrupt")
            except BaseException:
                arena.drop(slot)
                raise
            made = arena.commit(slot, step, generation, values, sums)
        finally:
            arena.close()
        self._keeping.received(str(message["node"]), what, made)
        wire.send({"ok": True})

    @contextlib.contextmanager
    def _alone(self, path: Path) -> Iterator[None]:
        with self._turn:
            if not self._turn.wait_for(lambda: path not in self._busy, _TURN_S):
                raise SnapshotRefused("another copy of this worker is in progress")
            self._busy.add(path)
        try:
            yield
        finally:
            with self._turn:
                self._busy.discard(path)
                self._turn.notify_all()


def _give(wire: PeerWire, path: Path, message: Mapping[str, Any]) -> None:
    try:
        arena = Arena.open(path)
    except FileNotFoundError:
        raise SnapshotRefused("no copy of that worker here") from None
    try:
        snapshot = _find(arena, int(message["step"]), int(message["generation"]))
        if snapshot is None:
            raise SnapshotRefused(f"no copy of step {message['step']} here")
        with arena.pinned(snapshot) as is_held:
            indices = [int(index) for index in message["indices"]]
            if not is_held or len(indices) > _MOST_PIECES or not all(0 <= i < len(snapshot.sums) for i in indices):
                raise SnapshotRefused(f"no such part of step {snapshot.step} here")
            wire.send({"ok": True})
            memory = arena.memory(snapshot.slot)
            for index in indices:
                wire.sock.sendall(memory[index * CHUNK_BYTES : (index + 1) * CHUNK_BYTES])
    finally:
        arena.close()


def _find(arena: Arena, step: int, generation: int) -> Snapshot | None:
    return next((one for one in arena.snapshots() if (one.step, one.generation) == (step, generation)), None)


def _description(message: Mapping[str, Any], job: str) -> Description:
    what = Description.decode(str(message["description"]).encode())
    if what.job != job or not is_plain(job):
        raise SnapshotRefused("a snapshot of another job")
    if not is_plain(str(message["node"])):
        raise SnapshotRefused(f"{message['node']!r} is no name for a node")
    return what


def _refuse(wire: PeerWire, text: str) -> None:
    with contextlib.suppress(OSError):
        wire.send({"ok": False, "error": text})
        # Closing with unread bytes would reset the line, and the reason be lost.
        wire.sock.shutdown(socket.SHUT_WR)
        wire.sock.settimeout(_DRAIN_S)
        for _ in range(64):
            if not wire.sock.recv(1 << 20):
                break


def _listener(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for wanted in (port, 0):
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, wanted))
            listener.listen(_CONNECTIONS)
            return listener
        except OSError:
            listener.close()
            if not wanted:
                raise
    raise AssertionError
