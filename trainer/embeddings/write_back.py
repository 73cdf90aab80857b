"""What follows a batch beside the next one: gradients summed late, rows that leave written back.

One thread does it in order. One more for each server receives its confirmations, since a connection that broke is
noticed, and made again, by who receives: nobody else may have anything to do until the write-back is there.
"""

from __future__ import annotations

import functools
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from holdfast.base.errors import HoldfastError
from holdfast.trainer.embeddings.ranks import Ranks
from holdfast.trainer.embeddings.servers.keys import Keys, server_of
from holdfast.trainer.embeddings.servers.stream import REPLY_S, Stream
from holdfast.trainer.embeddings.settings import Run
from holdfast.trainer.embeddings.update import update

if TYPE_CHECKING:
    from holdfast.trainer.embeddings.cache import RowCache

MOST_OPEN = 32
"""Write-backs without a reply, of each server."""


@dataclass(frozen=True, slots=True)
class After:
    """Of one batch. Places are in the cache; gradients are not yet multiplied by the learning rate."""

    number: int
    later: torch.Tensor
    """Places of the rows of `sync_later`."""
    later_gradients: torch.Tensor
    """This trainer's part."""
    alone: torch.Tensor
    alone_gradients: torch.Tensor
    back: torch.Tensor
    """Places of what this trainer writes back, and their keys."""
    back_keys: Keys
    cut: bool
    freed: list[int]
    """Places that may be used again after it."""


class WriteBack:
    def __init__(self, run: Run, ranks: Ranks, servers: Sequence[Stream]) -> None:
        self._run, self._ranks, self._servers = run, ranks, servers
        self._work = queue.Queue[After | None]()
        self._changed = threading.Condition()
        self._applied = self._begun = run.first - 1
        self._freed: list[int] = []
        self._error: BaseException | None = None
        self._is_over = False
        self._asked = [threading.Semaphore(0) for _ in servers]
        self._thread = threading.Thread(target=self._guarded, args=(self._work_off,), daemon=True)

    def start(self, cache: RowCache) -> None:
        self._cache = cache
        self._thread.start()
        for number in range(len(self._servers)):
            confirm = functools.partial(self._confirm, number)
            threading.Thread(target=self._guarded, args=(confirm,), daemon=True).start()

    def begin(self, work: After) -> None:
        self._begun = work.number
        self._work.put(work)

    def wait_applied(self, number: int) -> list[int]:
        """Wait until the rows are changed and copied that batch `number` left to do; places that are free since the
        last call. Raises what went wrong in the thread."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._applied >= number or self._error is not None, REPLY_S):
                raise HoldfastError(f"the sums of batch {number} did not end within {REPLY_S:g} s")
            if self._error is not None:
                raise self._error
            freed, self._freed = self._freed, []
            return freed

    def wait_idle(self) -> None:
        """Wait until nothing that was begun needs the cache."""
        kept = self.wait_applied(self._begun)
        with self._changed:
            self._freed += kept

    def end(self) -> None:
        """Wait until the servers have confirmed everything."""
        self._work.put(None)
        self._thread.join(REPLY_S)
        if self._thread.is_alive():
            raise HoldfastError(f"the last write-backs were not confirmed within {REPLY_S:g} s")
        self._is_over = True
        for asked in self._asked:
            asked.release()
        if self._error is not None:
            raise self._error

    def _guarded(self, body: Callable[[], None]) -> None:
        try:
            body()
        except BaseException as error:
            with self._changed:
                self._error = self._error or error
                self._changed.notify_all()

    def _work_off(self) -> None:
        while (work := self._work.get()) is not None:
            self._do(work)
        self._wait_confirmed(0)

    def _confirm(self, server: int) -> None:
        while True:
            self._asked[server].acquire()
            if self._is_over:
                return
            self._servers[server].receive()
            with self._changed:
                self._changed.notify_all()

    def _do(self, work: After) -> None:
        rows, lr = self._cache.rows, self._run.lr
        update(rows, work.later, self._ranks.sum(work.later_gradients), lr)
        update(rows, work.alone, work.alone_gradients, lr)
        back = rows[work.back].numpy()
        with self._changed:
            self._applied = work.number
            self._freed += work.freed
            self._changed.notify_all()
        at = server_of(work.back_keys, len(self._servers))
        head = {"do": "write", "run": self._run.name, "trainer": self._ranks.rank}
        for server, stream in enumerate(self._servers):
            mine = at == server  # also when there is none: a server counts on one from each trainer
            stream.ask({**head, "number": work.number, "cut": work.cut}, work.back_keys[mine], back[mine])
            self._asked[server].release()
        self._wait_confirmed(MOST_OPEN)

    def _wait_confirmed(self, most: int) -> None:
        """Wait until each server has at most so many write-backs without a reply."""

        def is_so() -> bool:
            return self._error is not None or all(stream.waiting <= most for stream in self._servers)

        with self._changed:
            if not self._changed.wait_for(is_so, REPLY_S):
                raise HoldfastError(f"write-backs were not confirmed within {REPLY_S:g} s")
