"""One job on this node, as the checkpoint daemon sees it: its workers, what is under way for each, its status.

Everything here runs in the daemon's loop; what blocks is handed to threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.base import log, private
from holdfast.base.errors import UsageError
from holdfast.checkpoint.daemon.attempts import AttemptRefused, UploadAttempt
from holdfast.checkpoint.daemon.in_thread import in_thread
from holdfast.checkpoint.daemon.messages import Join, SnapshotTaken, WorkerHello
from holdfast.checkpoint.daemon.peer_link import fetch
from holdfast.checkpoint.daemon.peer_push import Pusher
from holdfast.checkpoint.daemon.uploader import Outcomes, Pinned, Upload
from holdfast.checkpoint.errors import CheckpointError, SnapshotInvalid
from holdfast.checkpoint.snapshots import long_values
from holdfast.checkpoint.snapshots.arena import Arena
from holdfast.checkpoint.snapshots.description import Description, Snapshot
from holdfast.checkpoint.snapshots.files import STATUS, worker_of
from holdfast.checkpoint.stores.opening import open_store
from holdfast.checkpoint.stores.rate import Pace
from holdfast.checkpoint.stores.store import Store

_STATUS_EVERY = 0.2
_IN_MEMORY_TWICE = 2

Json = dict[str, Any]
Report = Callable[[Json], None]


class Member:
    """One worker of the newest generation."""

    def __init__(self, job: DaemonJob, hello: WorkerHello, node: str) -> None:
        self.job, self.hello, self.node = job, hello, node
        self.report: Report | None = None
        """To its connection; None while there is none."""
        self.order: Join | None = None
        self.path = Path()
        self.upload: Upload | None = None
        self.status: Json = {
            "snapshot": None, "peer": None, "upload": None, "committed": None, "repairs": 0, "failing": None,
        }  # fmt: skip
        self._store: Store | None = None
        self._pusher: Pusher | None = None
        self._pace = Pace(0)
        self._bytes = self._taken = 0

    @property
    def has_two(self) -> bool:
        """Whether it made a second snapshot in this generation: then the first is complete everywhere."""
        return self._taken >= _IN_MEMORY_TWICE

    async def join(self, order: Join) -> None:
        """Take its orders. Raises UsageError, CheckpointError."""
        path = Path(order.arena)
        if path.parent != self.job.folder:
            raise UsageError(f"join: {path} is not in {self.job.folder}")
        try:
            arena = await in_thread(lambda: Arena.open(path))
        except OSError as error:
            raise UsageError(f"join: {path}: {error.strerror}") from None
        what, complete = arena.description, arena.snapshots()
        arena.close()
        hello = self.hello
        if (what.job, what.worker, what.settings) != (hello.job, hello.worker, order.settings):
            raise UsageError(f"join: {path.name} holds snapshots of another worker, or of another run")
        if missing := [name for name, _ in order.shares if name not in what.tensors]:
            raise UsageError(f"join: {path.name} does not hold {missing[0]}, which is to be written")
        self._store = open_store(order.store, order.timeout_s) if order.store else None
        if self.order is None or order.rate != self.order.rate:
            self._pace = Pace(order.rate)
        self.order, self.path, self._bytes = order, path, what.num_bytes
        if (self.status["failing"] or {}).get("store") != order.store:
            self.status["failing"] = None
        self._follow(order)
        if complete:
            self._note_snapshot(complete[0].step, complete[0].generation, complete[0].created)

    async def take(self, taken: SnapshotTaken) -> None:
        """A snapshot is complete. Raises UsageError."""
        order = self.order
        if order is None:
            raise UsageError("snapshot: join first")
        # That may be every step: all but an upload is done without a look into the arena.
        self._taken += 1
        self._note_snapshot(taken.step, self.hello.generation, time.time())
        if taken.peer and self._pusher is not None:
            self._pusher.want(taken.seq)
        if self._taken == _IN_MEMORY_TWICE:
            self.job.sweep_files()
        if taken.persist:
            path = self.path
            try:
                arena = await in_thread(lambda: Arena.open(path))
            except (OSError, SnapshotInvalid) as error:
                raise UsageError(f"snapshot: {path.name}: {error}") from None
            self._persist(order, arena, taken)

    def stop(self) -> None:
        """End all that is under way: a newer generation is here, or the job is over."""
        if self.upload is not None:
            self.upload.stop()
        self.stop_copies()

    def stop_copies(self) -> None:
        """No worker will resume from this job's memory."""
        if self._pusher is not None:
            self._pusher.stop()

    @property
    def is_uploading(self) -> bool:
        return self.upload is not None and self.upload.progress.state != "idle"

    def document(self) -> Json:
        """Its part of the job's status file."""
        upload = self.upload.progress if self.upload is not None else None
        if upload is not None:
            is_over = upload.state == "idle"
            self.status["upload"] = {
                "state": upload.state, "step": upload.step, "bytes": upload.bytes_done,
                "bytes_total": upload.bytes_total, "error": upload.error, "write_seconds": upload.write_seconds,
                "seconds": round(upload.seconds if is_over else time.monotonic() - upload.began, 3),
            }  # fmt: skip
            if self.order is not None:
                error = upload.store_error
                self.status["failing"] = {"store": self.order.store, "error": error} if error else None
        if self._pusher is not None:
            self.status["peer"] = self._pusher.document()
        self.status["down"] = self.order.down if self.order is not None else ""
        return self.status

    def recall(self, status: Json) -> None:
        """What an earlier daemon reported of this worker."""
        self.status["committed"] = status.get("committed")
        self.status["repairs"] = int(status.get("repairs", 0))
        self.status["failing"] = status.get("failing")

    def _follow(self, order: Join) -> None:
        if self._pusher is not None:
            self._pusher.stop()
            self._pusher = None
        if order.peer is not None:
            self._pusher = Pusher(
                order.peer, order.secret, self.node, self.path, self._pace, self._say, self.job.changed
            )

    def _persist(self, order: Join, arena: Arena, taken: SnapshotTaken) -> None:
        if self._store is None or order.fence is None:
            arena.close()
            raise UsageError("snapshot: there is no store to write it to")
        attempt = UploadAttempt(order.fence, taken.step)
        before = self.upload
        if before is not None and before.attempt == attempt and self.is_uploading:
            arena.close()
            return
        done = self.status["committed"]
        if done and (done["step"], done["token"]) == (taken.step, order.fence.token):
            arena.close()
            self._say({"note": "persisted", "step": taken.step, "bytes": done["bytes"], "seconds": done["seconds"]})
            return
        if before is not None and self.is_uploading:
            before.stop()
            if not before.is_written:
                self._say({"note": "refused", "step": before.attempt.step, "error": f"step {taken.step} came after it"})
        pinned = Pinned.take(arena, taken.slot, taken.seq)
        failing = self.document()["failing"] or {}
        self.upload = Upload(
            self._store, attempt, self.hello.worker, order, pinned, self._pace, self.job.outcomes, self._repair,
            self._say, self.job.changed_in_thread, failing.get("error", ""),
        )  # fmt: skip
        self.upload.start(self._ended)
        self.job.changed()

    def _ended(self, upload: Upload, is_committed: bool) -> None:
        if is_committed:
            self.status["committed"] = {
                "step": upload.attempt.step, "token": upload.attempt.fence.token, "at": time.time(),
                "bytes": upload.num_bytes, "seconds": round(upload.progress.seconds, 3),
            }  # fmt: skip
        self.job.changed()

    async def _repair(self, pinned: Pinned, broken: list[int]) -> None:
        """Get MiB that changed in memory from the peer. Raises Refused."""
        order, snapshot, arena = self.order, pinned.snapshot, pinned.arena
        assert order is not None
        where = f"{len(broken)} MiB ({', '.join(map(str, broken[:5]))}) of the snapshot of step {snapshot.step}"
        if order.peer is None:
            raise AttemptRefused(f"{where} changed in memory, and no peer has a copy")
        if self._pusher is not None:
            await self._pusher.settled()
        peer, secret, what = order.peer, order.secret, arena.description
        try:
            good = await in_thread(lambda: fetch(peer.address, secret, self.node, what, snapshot, broken))
            await in_thread(lambda: arena.repair(snapshot, good))
        except (OSError, CheckpointError) as error:
            raise AttemptRefused(f"{where} changed in memory; the copy on {peer.node}: {error}") from None
        self.status["repairs"] += len(broken)
        self._say({"note": "repaired", "step": snapshot.step, "error": f"{where} repaired from {peer.node}"})
        log.warning("snapshot.repaired", worker=self.hello.worker, step=snapshot.step, mib=broken, peer=peer.node)

    def _note_snapshot(self, step: int, generation: int, at: float) -> None:
        self.status["snapshot"] = {"step": step, "generation": generation, "at": at, "bytes": self._bytes}
        self.job.changed()

    def _say(self, note: Json) -> None:
        say = log.debug if note["note"] == "peer" else log.event  # that one may come every step
        say("note", job=self.hello.job, worker=self.hello.worker, **note)
        if self.report is not None:
            self.report(note)


class DaemonJob:
    """A job that has, or had, workers or copies on this node."""

    def __init__(self, name: str, folder: Path, node: str, now: float) -> None:
        """`folder` is the job's own. Raises OSError."""
        self.name, self.folder, self.node = name, folder, node
        self.generation = 0
        self.secret: bytes | None = None
        self.members: dict[int, Member] = {}
        self.copies: dict[str, Json] = {}
        self.outcomes = Outcomes()
        self.seen = now
        self.is_forgotten = False
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._reported = -1.0
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._before: Json = {}
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            body = json.loads((folder / STATUS).read_bytes())
            self._before, self.copies = dict(body["workers"]), dict(body["copies"])

    def greet(self, hello: WorkerHello) -> Member:
        """The member that says hello. Raises UsageError when its generation is over."""
        if hello.generation < self.generation:
            raise UsageError(
                f"generation {hello.generation} of job {self.name} ended: {self.generation} already ran here"
            )
        known = self.members.get(hello.worker)
        if known is not None and known.hello == hello:
            return known
        return Member(self, hello, self.node)

    async def join(self, member: Member, order: Join) -> None:
        """Take a member in; a newer generation ends all that is under way for older ones. Raises UsageError."""
        if member.hello.generation < self.generation:
            raise UsageError(f"generation {member.hello.generation} of job {self.name} ended")
        if member.hello.generation > self.generation:
            self.generation = member.hello.generation
            for older in self.members.values():
                older.stop()
                self._before[str(older.hello.worker)] = older.document()
            self.members.clear()
            self.outcomes.close()
            self.outcomes = Outcomes()
        if self.members.get(member.hello.worker) is not member:
            member.recall(self._before.get(str(member.hello.worker), {}))
        self.secret = order.secret
        await member.join(order)
        self.members[member.hello.worker] = member
        self.is_forgotten = False
        self.changed()

    @property
    def is_connected(self) -> bool:
        return any(member.report is not None for member in self.members.values())

    def received(self, node: str, what: Description, snapshot: Snapshot, now: float) -> None:
        """A copy of another node's snapshot is complete here."""
        self.seen = now
        self.copies[str(what.worker)] = {
            "node": node, "step": snapshot.step, "generation": snapshot.generation, "bytes": what.num_bytes,
            "at": snapshot.created,
        }  # fmt: skip
        self.changed()

    def sweep_files(self) -> None:
        """Remove arenas of other layouts, once this generation's own cannot be lost any more.

        A worker that we do not know may be about to say hello, to a daemon that begins anew: what it has made stays.
        """
        if not self.members or not all(member.has_two for member in self.members.values()):
            return
        ours = {member.path.name for member in self.members.values()}
        world = max(member.hello.world for member in self.members.values())
        for path in self.folder.glob("own-*.snap"):
            worker = worker_of(path)
            if path.name not in ours and (worker in self.members or worker >= world):
                log.event("snapshot.swept", file=path.name)
                long_values.remove(path)

    @property
    def is_uploading(self) -> bool:
        """Whether a checkpoint is still to come of it."""
        return any(member.is_uploading for member in self.members.values())

    def finish(self) -> None:
        """The job is over: its last uploads go on, and nothing else."""
        for member in self.members.values():
            member.stop_copies()

    def stop(self) -> None:
        """End all that is under way."""
        for member in self.members.values():
            member.stop()
        self.outcomes.close()

    # --- the status file

    def changed_in_thread(self) -> None:
        """`changed`, from any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self.changed)

    def changed(self) -> None:
        """Write the status file soon."""
        if self._timer is None:
            wait = max(0.0, self._reported + _STATUS_EVERY - self._loop.time())
            self._timer = self._loop.call_later(wait, self._write)

    def _write(self) -> None:
        self._timer, self._reported = None, self._loop.time()
        if self.is_forgotten:
            return
        body = {
            "job": self.name, "node": self.node, "generation": self.generation, "at": time.time(),
            "workers": {str(worker): member.document() for worker, member in sorted(self.members.items())},
            "copies": self.copies,
        }  # fmt: skip
        aside = self.folder / f".{STATUS}.new"
        try:
            private.write_text(aside, json.dumps(body))
            os.replace(aside, self.folder / STATUS)
        except OSError as error:
            log.warning("status", job=self.name, error=str(error))
