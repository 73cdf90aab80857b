"""Rows on their way into a trainer's cache: two threads, ahead of the one that trains.

One asks the cacher for what comes next, and the servers for rows as early as the plan allows. The other receives them
and exchanges them with the other trainers. What went wrong in either is raised where the batch is awaited.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import torch

from holdfast.base.errors import HoldfastError
from holdfast.trainer.embeddings.batch import Batch, decode
from holdfast.trainer.embeddings.ranks import Ranks
from holdfast.trainer.embeddings.servers.keys import Keys, Rows, dtype_of, server_of
from holdfast.trainer.embeddings.servers.stream import REPLY_S, Stream
from holdfast.trainer.embeddings.settings import Run

T = TypeVar("T")
AHEAD = 2
"""Plans that are asked for before the batch that is trained is done. The servers hold requests back themselves until
the write-backs are there that they may not overtake."""


class Staged(NamedTuple):
    batch: Batch
    keys: Keys
    """Rows that come into the cache for this batch."""
    rows: torch.Tensor


class Stage:
    def __init__(self, run: Run, ranks: Ranks, cacher: Stream, servers: Sequence[Stream]) -> None:
        self._run, self._ranks, self._cacher, self._servers = run, ranks, cacher, servers
        self._room = threading.Semaphore(AHEAD)
        self._fetching: dict[int, Keys] = {}
        self._plans = queue.Queue[Batch | BaseException]()
        self._staged = queue.Queue[Staged | BaseException](maxsize=1)
        for body in (self._plan, self._receive):
            threading.Thread(target=self._guarded, args=(body,), daemon=True).start()

    def next(self) -> Staged:
        """The next batch, with the rows that come into the cache for it. HoldfastError and whatever went wrong."""
        found = _get(self._staged)
        self._room.release()
        return found

    def _guarded(self, body: Callable[[], None]) -> None:
        try:
            body()
        except BaseException as error:
            # Each of the threads behind this one passes it on.
            (self._plans if body == self._plan else self._staged).put(error)

    def _plan(self) -> None:
        run = self._run
        for number in range(run.first, run.steps):
            if not self._room.acquire(timeout=REPLY_S):
                raise HoldfastError(f"batch {number} was not needed within {REPLY_S:g} s")
            self._cacher.ask({"do": "plan", "trainer": self._ranks.rank, "number": number})
            batch = decode(self._cacher.receive())
            for needed, keys in batch.fetch:
                self._fetching[needed] = keys
                at = server_of(keys, len(self._servers))
                for server, stream in enumerate(self._servers):
                    head = {"do": "fetch", "run": run.name, "trainer": self._ranks.rank, "batch": needed}
                    if len(mine := keys[at == server]):
                        stream.ask({**head, "after": number - 1}, mine)
            self._plans.put(batch)

    def _receive(self) -> None:
        for _ in range(self._run.first, self._run.steps):
            batch = _get(self._plans)
            keys = self._fetching.pop(batch.number)
            rows = self._fetched(keys)
            own = batch.arriving[self._ranks.rank]
            arrived = self._ranks.gather(
                torch.from_numpy(rows[np.searchsorted(keys, own)]), [len(one) for one in batch.arriving]
            )
            lone = torch.from_numpy(rows[np.searchsorted(keys, batch.lone)])
            self._staged.put(Staged(batch, np.concatenate([*batch.arriving, batch.lone]), torch.cat([arrived, lone])))

    def _fetched(self, keys: Keys) -> Rows:
        """(keys, width): what the servers reply to the oldest requests that are open."""
        found = np.empty((len(keys), self._run.spec.width), dtype_of(self._run.dtype))
        at = server_of(keys, len(self._servers))
        for server, stream in enumerate(self._servers):
            if (mine := at == server).any():
                found[mine] = stream.receive().rows
        return found


def _get(source: queue.Queue[T | BaseException]) -> T:
    try:
        found = source.get(timeout=REPLY_S)
    except queue.Empty:
        raise HoldfastError(f"no batch came within {REPLY_S:g} s") from None
    if isinstance(found, BaseException):
        raise found
    return found
