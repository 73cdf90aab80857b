"""Sends the snapshots of one worker to its peer, one at a time; of those that wait, the newest."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.base import log
from holdfast.base.retry import Backoff
from holdfast.checkpoint.daemon.in_thread import in_thread
from holdfast.checkpoint.daemon.messages import Peer
from holdfast.checkpoint.daemon.peer_link import TransferInterrupted, push
from holdfast.checkpoint.errors import CheckpointError
from holdfast.checkpoint.snapshots.arena import Arena
from holdfast.checkpoint.snapshots.description import Snapshot
from holdfast.checkpoint.stores.rate import Pace

RETRY = Backoff(initial=0.2, cap=5.0)
_SETTLE_S = 30.0

Json = dict[str, Any]


class Pusher:
    """`want` a snapshot copied, as often as there is one."""

    def __init__(
        self,
        peer: Peer,
        secret: bytes,
        node: str,
        path: Path,
        pace: Pace,
        report: Callable[[Json], None],
        changed: Callable[[], None],
    ) -> None:
        """`path`: the worker's arena; `node`: where it is. `report` gets notes."""
        self._peer, self._secret, self._node, self._path, self._pace = peer, secret, node, path, pace
        self._report, self._changed = report, changed
        self._wanted = 0
        self._news = asyncio.Event()
        self._over = threading.Event()
        self._task: asyncio.Task[None] | None = None
        self._done: Json = {"step": None, "at": None, "bytes": 0, "seconds": 0.0, "error": ""}

    def want(self, seq: int) -> None:
        """Copy the snapshot of this number, unless a newer one comes before its turn."""
        self._wanted = seq
        self._news.set()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="holdfast-push")

    async def settled(self) -> None:
        """Return when nothing is under way, or after half a minute."""
        if self._task is not None and not self._task.done():
            await asyncio.wait({self._task}, timeout=_SETTLE_S)

    def stop(self) -> None:
        self._over.set()
        if self._task is not None:
            self._task.cancel()

    def document(self) -> Json:
        """Its part of the status file."""
        return {"node": self._peer.node, **self._done}

    async def _run(self) -> None:
        delays = RETRY.delays()
        sent = 0
        while sent != self._wanted:
            seq = self._wanted
            self._news.clear()
            try:
                await self._once(seq)
            except (OSError, CheckpointError) as error:
                self._failing(error)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._news.wait(), next(delays))
                continue
            except Exception:
                log.exception("push.bug", seq=seq)
            sent, delays = seq, RETRY.delays()

    async def _once(self, seq: int) -> None:
        began = time.monotonic()
        done = await in_thread(lambda: self._send(seq))
        if done is None:
            return  # overwritten by now: a newer one is on its way to us
        snapshot, num_bytes = done
        seconds = round(time.monotonic() - began, 6)
        self._done = {"step": snapshot.step, "at": time.time(), "bytes": num_bytes, "seconds": seconds, "error": ""}
        self._report({"note": "peer", "step": snapshot.step, "bytes": num_bytes, "seconds": seconds})
        self._changed()

    def _send(self, seq: int) -> tuple[Snapshot, int] | None:
        """In a thread."""
        arena = Arena.open(self._path)
        try:
            snapshot = next((one for one in arena.snapshots() if one.seq == seq), None)
            if snapshot is None:
                return None
            with arena.pinned(snapshot) as is_held:
                if not is_held:
                    return None
                push(self._peer.address, self._secret, self._node, arena, snapshot, self._pace, self._over.is_set)
                return snapshot, arena.description.num_bytes
        except TransferInterrupted:
            return None
        finally:
            arena.close()

    def _failing(self, error: Exception) -> None:
        text = str(getattr(error, "strerror", None) or error or type(error).__name__)
        if text != self._done["error"]:
            self._done["error"] = text
            self._report({"note": "peer-failing", "error": text, "step": self._done["step"]})
            self._changed()
