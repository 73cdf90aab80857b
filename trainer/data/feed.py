"""Where a rank's batches come from: read when wanted, by a thread that is ahead, or by the loader of its node."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from holdfast.trainer.data.batches import Batch, Batches
from holdfast.trainer.data.ring import Ring
from holdfast.trainer.data.shared_feed import Loader, SharedFeed
from holdfast.trainer.mesh.mesh import RankMesh
from holdfast.trainer.settings.config import Config
from holdfast.trainer.settings.errors import ConfigError
from holdfast.trainer.settings.launch import Launch


class Feed(Protocol):
    """One rank's inputs and targets, step by step."""

    def read(self, step: int) -> Batch:
        """Those of `step`, valid until the next call. Steps are asked for in order, from any first one on.

        Raises what reading them raised, in the step that needs them.
        """

    def close(self) -> None:
        """Stop reading ahead and release all resources."""


@dataclass(frozen=True, slots=True)
class Inline:
    """Batches read at the moment when they are wanted."""

    batches: Batches
    micro_batches: range
    """Those of this rank's replica."""

    def read(self, step: int) -> Batch:
        return self.batches.read(step, self.micro_batches)

    def close(self) -> None:
        pass


class Prefetched:
    """The same batches in the same order, read by a thread up to `depth` steps ahead."""

    def __init__(self, read: Callable[[int], Batch], depth: int, steps: int) -> None:
        """`steps`: no step from there on is read ahead."""
        self._read, self._depth, self._steps = read, depth, steps
        self._run: _Run | None = None

    def read(self, step: int) -> Batch:
        if self._run is None or self._run.next_step != step:
            self.close()
            self._run = _Run(self._read, self._depth, step, max(self._steps, step + 1))
        return self._run.take()

    def close(self) -> None:
        if self._run is not None:
            self._run.stop()
            self._run = None


class _Run:
    """A thread that reads the steps from `first` to before `end`, one after the other."""

    def __init__(self, read: Callable[[int], Batch], depth: int, first: int, end: int) -> None:
        self.next_step = first
        self._read, self._end = read, end
        self._ready: queue.Queue[Batch | BaseException] = queue.Queue()
        self._room = threading.Semaphore(depth)
        self._stopping = False
        self._thread = threading.Thread(target=self._work, args=(first,), name="holdfast-prefetch", daemon=True)
        self._thread.start()

    def take(self) -> Batch:
        found = self._ready.get()
        self._room.release()
        if isinstance(found, BaseException):
            self.next_step = -1  # the thread has ended: the next call makes another attempt
            raise found
        self.next_step += 1
        return found

    def stop(self) -> None:
        self._stopping = True
        self._room.release()
        self._thread.join()

    def _work(self, step: int) -> None:
        try:
            while step < self._end:
                self._room.acquire()
                if self._stopping:
                    return
                self._ready.put(self._read(step))
                step += 1
        except BaseException as error:
            self._ready.put(error)


class Owned:
    """A feed, and what must end with it."""

    def __init__(self, feed: Feed, end: Callable[[], None]) -> None:
        self.read, self._feed, self._end = feed.read, feed, end

    def close(self) -> None:
        self._feed.close()
        self._end()


def open_feed(config: Config, launch: Launch, mesh: RankMesh, batches: Batches, needed: bool) -> Feed:
    """The feed that the settings ask for. All ranks call it; `needed`: this one will read from it.

    Raises ConfigError when the node has no memory for a ring, or its ranks cannot find out how many they are.
    """
    micro_batches = mesh.layout.micro_batches_of(mesh.dp_rank)
    if config.data.loader == "inline":
        inline = Inline(batches, micro_batches)
        if not (needed and config.data.prefetch):
            return inline
        return Prefetched(inline.read, config.data.prefetch, config.train.steps)
    if launch.local_rank >= launch.local_world:
        raise ConfigError(
            f"data.loader shared: LOCAL_RANK={launch.local_rank} with LOCAL_WORLD_SIZE={launch.local_world}; "
            "start under holdfast run or torchrun, or use inline",
            is_local=True,
        )
    loader = None
    samples = len(micro_batches) * config.train.micro_batch_size
    if launch.local_rank == 0:
        try:
            loader = Loader(batches, samples, launch.local_world, max(config.data.prefetch, 1), config.train.steps)
        except OSError as error:
            raise ConfigError(
                f"data.loader shared: {error.strerror}; free some shared memory, or use inline", is_local=True
            ) from None
    key = f"holdfast/ring/{launch.generation}/{launch.node or launch.rank - launch.local_rank}"
    if loader is not None:
        mesh.store.set(key, str(loader.ring.path))
    path = mesh.store.get(key).decode() if loader is None else str(loader.ring.path)
    replica = mesh.dp_rank if needed else None
    feed = SharedFeed(Ring.open(Path(path)), launch.local_rank, replica, config.parallel.timeout_s)
    return feed if loader is None else Owned(feed, loader.close)
