"""A controller whose cluster is made up: the real brain, shell, blame and page around simulated agents."""

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.controller.http.auth import Auth
from holdfast.controller.http.routes import create_app
from holdfast.controller.http.serve import serving
from holdfast.controller.journal.journal import Journal
from holdfast.controller.shell.blame_watch import BlameWatch
from holdfast.controller.shell.days import Days
from holdfast.controller.shell.log_hub import LogHub
from holdfast.controller.shell.report import Report
from holdfast.controller.shell.shell import Shell
from holdfast.controller.simulation.breaks import Breaks
from holdfast.controller.simulation.faults import How, SimulatedFault, draw
from holdfast.controller.simulation.hosts import ClusterShape
from holdfast.controller.simulation.real_time import PretendedJob, RealTimeWorld
from holdfast.controller.spans.samples import Samples
from holdfast.controller.spans.window import SpanWindows
from holdfast.controller.state.model import Options

CYCLE: tuple[tuple[float, How], ...] = (
    (20.0, How.SLOW), (90.0, How.CRASH), (150.0, How.PAUSE), (240.0, How.DEAD), (330.0, How.HANG), (420.0, How.NAN),
)  # fmt: skip
"""Seconds after the start of each round, and what happens then."""
ROUND_S = 500.0
_PAST_RATE = 12.0
"""Faults in the made-up past, in units of Llama 3's rate: some hours are to show some."""
_MEMORY = 256 << 20


@dataclass(frozen=True, slots=True)
class Pretended:
    world: RealTimeWorld
    breaks: Breaks
    shell: Shell
    watch: BlameWatch

    def strike(self, how: How, where: float = 0.5, seed: int = 1) -> None:
        """`where`: which node of the job, 0 to 1."""
        self.breaks.strike(SimulatedFault(self.world.now, how.value, how, where, seed))


def pretend(
    shape: ClusterShape, job: PretendedJob, folder: Path, history: float, seed: int = 1, options: Options | None = None
) -> Pretended:
    """The cluster as of now, with `history` seconds behind it. Takes some seconds for a large one."""
    world = RealTimeWorld(shape, job, seed, history, options)
    breaks = Breaks(world)
    for fault in draw(seed, shape.nodes * shape.gpus, shape.nodes, max(history - 120.0, 0.0), _PAST_RATE):
        if fault.how not in (How.CONTROLLER, How.BUG):  # this controller lives, and no script fails three times
            world.later(fault.at, breaks.strike, fault)
    world.run(time.monotonic())
    shell = Shell(
        world.brain,
        Journal(folder / "controller.sqlite"),
        Samples(_MEMORY),
        LogHub(),
        spans=SpanWindows(_MEMORY),
        sessions=world.sessions(),
    )
    world.go_live(shell)
    return Pretended(world, breaks, shell, BlameWatch(shell, world.brain.c.tuning))


@asynccontextmanager
async def serving_pretended(pretended: Pretended, host: str, port: int) -> AsyncIterator[int]:
    """Serve it while the block runs, and let its time go by; gives the port."""
    days = Days(pretended.shell)
    report = Report(pretended.shell, pretended.world.options.restart_attempts, pretended.watch, days)
    lasting: Iterable[Callable[[], Coroutine[Any, Any, None]]] = (
        pretended.shell.run, pretended.watch.run, pretended.world.go_on, days.run,
    )  # fmt: skip
    async with serving(create_app(report, Auth()), host, port) as bound:
        tasks = [asyncio.ensure_future(one()) for one in lasting]
        try:
            yield bound
        finally:
            for task in tasks:
                task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.gather(*tasks)
            pretended.shell.logs.close()
            pretended.shell.journal.close()


async def fault_rounds(pretended: Pretended, seed: int = 1) -> None:
    """Faults one after the other, until cancelled."""
    rng = random.Random(seed)
    while True:
        begun = time.monotonic()
        for at, how in CYCLE:
            await asyncio.sleep(max(0.0, begun + at - time.monotonic()))
            pretended.strike(how, rng.random(), rng.getrandbits(32))
        await asyncio.sleep(max(0.0, begun + ROUND_S - time.monotonic()))
