"""Reconciles the scheduler with the controller: compare wanted and actual state, request the difference, repeat."""

import asyncio
import time
from collections.abc import Callable

from holdfast.base import log
from holdfast.base.errors import Unavailable
from holdfast.base.retry import Backoff
from holdfast.controller.schedulers.base import Out, Scheduler, changes, outs
from holdfast.controller.shell.shell import Shell
from holdfast.controller.state.events import EventSeen
from holdfast.wire import types as t

EVERY = 1.0
_LOOK_AGAIN = 30.0
"""Seconds after which the scheduler's state is read although nothing changed here: others may have changed it."""


class SchedulerReconciler:
    """`wanted`: nodes that should be out. `report`: logs a line about a node. `waits`: why the job does, if it does."""

    def __init__(
        self,
        scheduler: Scheduler,
        wanted: Callable[[], dict[str, Out]],
        report: Callable[[str, str], None],
        waits: Callable[[], str] = lambda: "",
    ) -> None:
        self._scheduler, self._wanted, self._report, self._waits = scheduler, wanted, report, waits
        self._known: set[str] = set()
        self._refused: set[str] = set()
        self._agreed: set[str] | None = None  # nodes that should have been out at the last look
        self._looked = 0.0
        self._asked = False

    async def run(self) -> None:
        """Until cancelled."""
        delays = Backoff().delays()
        while True:
            try:
                await self.once()
            except Unavailable as error:
                wait = next(delays)
                log.warning("scheduler.failed", scheduler=self._scheduler.name, error=str(error), again_s=wait)
                await asyncio.sleep(wait)
            else:
                delays = Backoff().delays()
                await asyncio.sleep(EVERY)

    async def once(self) -> None:
        """One comparison and what follows from it. Unavailable when the scheduler is."""
        wanted = self._wanted()
        self._known |= wanted.keys()
        if self._agreed != wanted.keys() or time.monotonic() - self._looked > _LOOK_AGAIN:
            await self._agree(wanted)
        if not (reason := self._waits()):
            self._asked = False
        elif not self._asked:
            self._asked = True
            if await self._scheduler.ask_for_nodes(reason):
                log.event("scheduler.asked", scheduler=self._scheduler.name, reason=reason)

    async def _agree(self, wanted: dict[str, Out]) -> None:
        orders, back = changes(wanted, self._known, await self._scheduler.taken_out())
        for order in orders:
            try:
                await self._scheduler.evict(order)
            except Unavailable as error:
                if order.node not in self._refused:  # it may not know the name, and will not know it next time
                    self._refused.add(order.node)
                    self._report(order.node, f"{self._scheduler.name} did not drain it: {error}")
            else:
                self._refused.discard(order.node)
                log.event("scheduler.out", scheduler=self._scheduler.name, node=order.node, reason=order.reason)
        for name in back:
            await self._scheduler.let_in(name)
            log.event("scheduler.in", scheduler=self._scheduler.name, node=name)
        self._agreed, self._looked = set(wanted), time.monotonic()


def of_shell(scheduler: Scheduler, shell: Shell) -> SchedulerReconciler:
    """For a running controller."""
    brain = shell.brain

    def report(node: str, text: str) -> None:
        notice = t.AgentNotice(time.time_ns(), "scheduler", t.Severity.WARNING, text)
        shell.handle(EventSeen(node, notice))

    def waits() -> str:
        waiting = (one.c.life.missing for one in brain.jobs.active() if one.c.life.waiting_since is not None)
        return next(waiting, "")

    return SchedulerReconciler(scheduler, lambda: outs(brain.c.nodes, brain.c.histories), report, waits)
