"""A node's fork server for a test: opened, fed with small scripts, always ended with all its workers."""

import asyncio
import os
import select
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from holdfast.agent.forkserver.client import ForkServer
from holdfast.agent.forkserver.worker_spec import WorkerSpec
from holdfast.base.errors import Unavailable
from holdfast.wire.messages import Program
from holdfast.wire.types import WorkerExited


@dataclass
class Node:
    """`exits` collects what the fork server reports, by rank; `arrived` is set at each."""

    folder: Path
    warm: ForkServer | None = None
    exits: dict[int, WorkerExited] = field(default_factory=dict)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    lost: asyncio.Event = field(default_factory=asyncio.Event)

    def heard(self, ended: WorkerExited) -> None:
        self.exits[ended.rank] = ended
        self.arrived.set()

    async def open(self, *preload: str) -> ForkServer:
        self.warm = await ForkServer.open(
            self.folder / "run", preload=preload, on_exit=self.heard, on_lost=self.lost.set, idle_exit=30.0
        )
        return self.warm

    def spec(self, code: str, rank: int = 0, **changes: object) -> WorkerSpec:
        script = self.folder / f"script{rank}.py"
        script.write_text(code)
        spec = WorkerSpec(
            job="j",
            generation=1,
            rank=rank,
            local_rank=rank,
            env={"PATH": os.environ["PATH"], "HOME": str(self.folder)},
            program=Program(str(script), cwd=str(self.folder), hooks=False),
            out_path=str(self.folder / f"out{rank}"),
            err_path=str(self.folder / f"err{rank}"),
            error_file=str(self.folder / f"error{rank}.json"),
            probe_path=str(self.folder / f"probe{rank}"),
        )
        return replace(spec, **changes)  # type: ignore[arg-type]  # a test's own changes

    async def start(self, code: str, rank: int = 0, **changes: object) -> int:
        assert self.warm is not None
        return await self.warm.start_worker(self.spec(code, rank, **changes))

    async def ended(self, rank: int = 0, deadline_s: float = 60.0) -> WorkerExited:
        async with asyncio.timeout(deadline_s):
            while rank not in self.exits:
                self.arrived.clear()
                await self.arrived.wait()
        return self.exits[rank]

    async def printed(self, text: str, rank: int = 0, deadline_s: float = 60.0) -> None:
        await eventually(lambda: text in self.out(rank), deadline_s)

    def out(self, rank: int = 0) -> str:
        path = self.folder / f"out{rank}"
        return path.read_text() if path.exists() else ""

    def err(self, rank: int = 0) -> str:
        return (self.folder / f"err{rank}").read_text()


async def eventually(what: object, deadline_s: float = 60.0) -> None:
    assert callable(what)
    async with asyncio.timeout(deadline_s):
        while not what():
            await asyncio.sleep(0.002)


def alive(pid: int) -> bool:
    """False once all threads have ended, so that its parent can learn how (a zombie leader may still have some)."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        return not select.select([pidfd], [], [], 0)[0]
    finally:
        os.close(pidfd)


@asynccontextmanager
async def node(folder: Path, *preload: str) -> AsyncIterator[Node]:
    one = Node(folder)
    await one.open(*preload)
    try:
        yield one
    finally:
        assert one.warm is not None
        pid = one.warm.pid
        try:
            await one.warm.shutdown()
        except Unavailable:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
