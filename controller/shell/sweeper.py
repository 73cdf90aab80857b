"""Keeps the journal and the incident book within their bounds: a sweep soon after the start, then one an hour."""

import asyncio
import sqlite3
import threading
import time
from collections.abc import Callable

from holdfast.base import log
from holdfast.controller.journal.pruning import Sweep
from holdfast.controller.journal.retention import JournalRetention, Needed
from holdfast.controller.shell.shell import Shell

_FIRST = 60.0
"""Seconds after the start: first the agents come back."""
_EVERY = 3600.0


class Sweeper:
    def __init__(self, shell: Shell, bounds: JournalRetention, clock: Callable[[], float] = time.time) -> None:
        self._shell, self._bounds, self._clock = shell, bounds, clock

    async def run(self) -> None:
        """Sweeps until cancelled."""
        pause = _FIRST
        while True:
            await asyncio.sleep(pause)
            await self.sweep()
            pause = _EVERY

    async def sweep(self) -> None:
        """Drop what is beyond the bounds. A disk error is logged, and the next sweep retries."""
        sweep = Sweep(self._shell.journal.path, self.needed(), self._bounds, self._clock())
        is_over = threading.Event()
        try:
            await asyncio.to_thread(sweep.run, is_over.wait)
        except sqlite3.Error as error:
            log.error("journal.failed", error=str(error))
        finally:
            is_over.set()  # if this was cancelled, the thread ends with its batch
        dropped = {kind: [row.id for row in sweep.entities if row.kind == kind] for kind in ("incident", "node")}
        self._shell.brain.c.book.drop(dropped["incident"])
        for name in dropped["node"]:
            if name not in self._shell.brain.c.nodes:
                self._shell.brain.c.histories.pop(name, None)
        if sweep.rows:
            log.event(
                "journal.swept",
                entities=len(sweep.entities),
                history=sweep.history,
                steps=sweep.steps,
                moments=sweep.moments,
            )

    def needed(self) -> Needed:
        """What stays whatever its age: open incidents and the newest of each job that is not over, jobs about which
        something is left to decide or which could not be read, nodes that are here or that are kept out."""
        brain = self._shell.brain
        c, jobs = brain.c, [one.c.job for one in brain.jobs.unsettled()]
        incidents = {one.id for one in c.book.incidents.values() if one.is_open}
        gc_disabled = {name for name, history in c.histories.items() if history.cordoned or history.quarantined}
        return Needed(
            incidents=frozenset(incidents.union(*(c.book.needed(job) for job in jobs))),
            jobs=frozenset({job.spec.id for job in jobs} | c.unread_jobs),
            nodes=frozenset(gc_disabled.union(c.nodes)),
        )
