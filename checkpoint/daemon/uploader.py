"""Stage 2 of one snapshot of one worker: check it, write its part, and wait until it is a checkpoint.

A store that fails is asked again for as long as the snapshot is pinned and the generation runs. The event loop
never waits for it: what blocks has a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from holdfast.base import log
from holdfast.base.retry import Backoff, retrying
from holdfast.checkpoint.daemon import attempts
from holdfast.checkpoint.daemon.attempts import AttemptRefused, Gathered, UploadAttempt
from holdfast.checkpoint.daemon.in_thread import in_thread
from holdfast.checkpoint.daemon.messages import Join
from holdfast.checkpoint.errors import CheckpointError, StaleGeneration
from holdfast.checkpoint.format.checksum import Buffer
from holdfast.checkpoint.format.parts import Part
from holdfast.checkpoint.snapshots.arena import Arena
from holdfast.checkpoint.snapshots.checked_reading import CheckedReading
from holdfast.checkpoint.snapshots.description import Snapshot
from holdfast.checkpoint.stores.rate import Pace
from holdfast.checkpoint.stores.store import Store

T = TypeVar("T")
RETRY = Backoff(initial=0.2, cap=5.0)
_GATHER = Backoff(initial=0.02, factor=1.5, cap=1.0)
_LOOK = Backoff(initial=0.1, factor=1.5, cap=3.0)


class Stopped(Exception):
    """The upload is no longer wanted."""


@dataclass(slots=True)
class Pinned:
    """A snapshot that is not overwritten until `free`."""

    arena: Arena
    snapshot: Snapshot
    _pin: contextlib.ExitStack

    @classmethod
    def take(cls, arena: Arena, slot: int, seq: int) -> Pinned | None:
        """None when it is not there any more; then the arena is closed, as by `free`."""
        found = next((one for one in arena.snapshots() if (one.slot, one.seq) == (slot, seq)), None)
        if found is not None:
            pin = contextlib.ExitStack()
            if pin.enter_context(arena.pinned(found)):
                return cls(arena, found, pin)
            pin.close()
        arena.close()
        return None

    def free(self) -> None:
        """Idempotent."""
        self._pin.close()
        self.arena.close()


class Outcomes:
    """How attempts ended, asked of the store once for all workers of a node that wait for it."""

    def __init__(self) -> None:
        self._found: dict[str, asyncio.Future[str]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def wait(self, store: Store, attempt: UploadAttempt) -> None:
        """Return when it is committed. Raises Refused, StaleGeneration."""
        future = self._of(attempt)
        if not future.done() and not any(task.get_name() == attempt.id for task in self._tasks):
            task = asyncio.create_task(self._look(store, attempt, future), name=attempt.id)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        reason = await asyncio.shield(future)
        if reason:
            raise AttemptRefused(reason)

    def settle(self, attempt: UploadAttempt, reason: str) -> None:
        """It ended: "" when it is committed."""
        future = self._of(attempt)
        if not future.done():
            future.set_result(reason)
        while len(self._found) > 16:
            self._found.pop(next(iter(self._found)))

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()

    def _of(self, attempt: UploadAttempt) -> asyncio.Future[str]:
        return self._found.setdefault(attempt.id, asyncio.get_running_loop().create_future())

    async def _look(self, store: Store, attempt: UploadAttempt, future: asyncio.Future[str]) -> None:
        for delay in _LOOK.delays():
            try:
                if future.done() or await in_thread(lambda: attempts.has_ended(store, attempt)):
                    self.settle(attempt, "")
                    return
            except CheckpointError as error:
                self.settle(attempt, str(error))
                return
            except OSError as error:
                log.debug("upload.look", error=str(error))
            await asyncio.sleep(delay)


@dataclass(slots=True)
class UploadProgress:
    """What is reported of an upload. Written in its thread, read in the loop."""

    step: int
    bytes_total: int
    state: str = "uploading"
    """Or "failing", and "idle" when it has ended."""
    bytes_done: int = 0
    error: str = ""
    began: float = field(default_factory=time.monotonic)
    seconds: float = 0.0
    write_seconds: float = 0.0
    """Until this worker's part was in the store; 0 before that."""
    store_error: str = ""
    """How the store failed last, from the first failure until a part or a commit has succeeded, whichever upload's."""


class Upload:
    """`run` it once; `stop` it at any time."""

    def __init__(
        self,
        store: Store,
        attempt: UploadAttempt,
        worker: int,
        order: Join,
        pinned: Pinned | None,
        pace: Pace,
        outcomes: Outcomes,
        repair: Callable[[Pinned, list[int]], Awaitable[None]],
        report: Callable[[dict[str, Any]], None],
        changed: Callable[[], None],
        store_error: str = "",
    ) -> None:
        """`pinned`: None when the snapshot is gone. `repair` puts MiB right that changed in memory, or raises Refused.
        `report` gets notes; `changed` is called, from any thread, when there is progress. `store_error`: how the store
        failed when it was last written to."""
        self._store, self._order, self._worker, self._pace = store, order, worker, pace
        self._pinned, self._outcomes, self._repair, self._report, self._changed = (
            pinned,
            outcomes,
            repair,
            report,
            changed,
        )
        self.attempt = attempt
        self._over = threading.Event()
        self.num_bytes = 0
        """Of the checkpoint, when it was committed; of our part where another node's daemon did that."""
        self.progress = UploadProgress(attempt.step, _bytes_of(order, pinned), store_error=store_error)
        self.is_written = not order.shares
        self._task: asyncio.Task[None] | None = None

    def start(self, ended: Callable[[Upload, bool], None]) -> None:
        """Run; `ended` gets whether it became a checkpoint."""
        self._task = asyncio.create_task(self._run(ended), name="holdfast-upload")

    def stop(self) -> None:
        """It is no longer wanted. Its end is not reported by a note."""
        self._over.set()  # before the pin goes: what is read after it must never count
        if self._task is not None:
            self._task.cancel()

    async def _run(self, ended: Callable[[Upload, bool], None]) -> None:
        is_committed = False
        try:
            self.num_bytes = await self._to_the_end()
            is_committed = True
            self.progress.store_error = ""
            self._note("persisted", bytes=self.num_bytes)
        except (StaleGeneration, AttemptRefused) as error:
            self._outcomes.settle(self.attempt, str(error))
            self._note("refused", error=str(error))
        except asyncio.CancelledError:
            raise
        except Exception as error:
            log.exception("upload.bug", step=self.attempt.step)
            self._note("refused", error=f"{type(error).__name__}: {error}")
        finally:
            self._over.set()
            self._free()
            self.progress.seconds = time.monotonic() - self.progress.began
            self.progress.state = "idle"
            ended(self, is_committed)

    async def _to_the_end(self) -> int:
        leader = self._order.leader
        gathered = Gathered(self._store, self.attempt, leader) if leader is not None else None
        try:
            await self._write(gathered)
            self.is_written = True
            self.progress.write_seconds = round(time.monotonic() - self.progress.began, 6)
            self._free()
            if gathered is None:
                await self._outcomes.wait(self._store, self.attempt)
                return self.progress.bytes_total
            for delay in _GATHER.delays():
                if await self._retried(gathered.look):
                    break
                await asyncio.sleep(delay)
            num_bytes = await self._retried(gathered.commit)
        except AttemptRefused as error:
            reason = str(error)
            self._free()
            if gathered is not None:
                await self._retried(lambda: gathered.give_up(reason))
            elif not self.is_written:
                await self._retried(lambda: attempts.put_refusal(self._store, self.attempt, self._worker, reason))
            raise
        self._outcomes.settle(self.attempt, "")
        try:
            await in_thread(gathered.tidy)
        except (OSError, CheckpointError) as error:
            log.warning("upload.tidy", error=str(error))  # the next one tidies up after both
        return num_bytes

    async def _write(self, gathered: Gathered | None) -> None:
        order, pinned = self._order, self._pinned
        if not order.shares:
            return
        if pinned is None:
            # A daemon that died may have written it before.
            if await self._retried(lambda: attempts.has_part(self._store, self.attempt, self._worker)):
                return
            raise AttemptRefused(f"the snapshot of step {self.attempt.step} was overwritten before it was uploaded")
        arena, snapshot = pinned.arena, pinned.snapshot
        reading = CheckedReading(arena, snapshot, order.shares)

        def write() -> Part | None:
            return attempts.write_part(
                self._store, self.attempt, self._worker, arena.description.tensors, reading.shards, reading.body,
                self._through,
            )  # fmt: skip

        # What is written counts for nothing until it is entered. The rest of the snapshot is checked meanwhile.
        checking = asyncio.create_task(in_thread(lambda: arena.broken(snapshot, reading.unread)))
        try:
            part = await self._retried(write)
            if broken := sorted({*reading.broken, *await checking}):
                await self._repair(pinned, broken)
                part = await self._retried(write)
                if reading.broken:
                    raise AttemptRefused(f"the snapshot of step {snapshot.step} changes in memory after each repair")
        finally:
            checking.cancel()
        if part is not None:
            await self._enter(part, snapshot.values, gathered)
        self.progress.store_error = ""

    async def _enter(self, part: Part, values: Mapping[str, Any], gathered: Gathered | None) -> None:
        if gathered is not None:
            gathered.add(self._worker, part, values)
            if await self._retried(gathered.look):
                return  # the manifest comes next, and reports it
        await self._retried(lambda: attempts.put_entry(self._store, self.attempt, self._worker, part, values))

    def _free(self) -> None:
        if self._pinned is not None:
            self._pinned.free()

    async def _retried(self, work: Callable[[], T]) -> T:
        """The result of `work`, however often the store fails before."""
        result = await retrying(lambda: in_thread(work), RETRY, (OSError,), on_retry=self._failing)
        if self.progress.state == "failing":
            self.progress.state, self.progress.error = "uploading", ""
            self._changed()
        return result

    def _failing(self, error: Exception, delay: float) -> None:
        text = str(getattr(error, "strerror", None) or error or type(error).__name__)
        self.progress.state, self.progress.store_error = "failing", text
        if text != self.progress.error:
            self.progress.error = text
            self._note("failing", error=text)

    def _through(self, pieces: Iterator[Buffer]) -> Iterator[Buffer]:
        """Count, and stop or slow down where that is wanted."""
        self.progress.bytes_done = 0
        reported = time.monotonic()
        for piece in pieces:
            view = memoryview(piece)
            for at in range(0, len(view), self._pace.piece):
                part = view[at : at + self._pace.piece]
                if self._over.is_set():
                    raise Stopped
                self._pace.take(len(part))
                yield part
                self.progress.bytes_done += len(part)
                if time.monotonic() - reported > 0.2:
                    reported = time.monotonic()
                    self._changed()

    def _note(self, kind: str, **more: Any) -> None:
        seconds = round(time.monotonic() - self.progress.began, 6)
        self._report({"note": kind, "step": self.attempt.step, "seconds": seconds, **more})
        self._changed()


def _bytes_of(order: Join, pinned: Pinned | None) -> int:
    """What this worker writes."""
    if pinned is None:
        return 0
    tensors = pinned.arena.description.tensors
    return sum(shard.count * tensors[name].item_bytes for name, shard in order.shares)
