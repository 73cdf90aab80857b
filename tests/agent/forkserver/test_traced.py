"""A worker that is killed while a debugger has it at its prompt has ended, although its parent cannot reap it yet."""

import asyncio
import signal
from pathlib import Path

import pytest

from holdfast.agent.processes import tree
from tests.agent.support.tracing import traced
from tests.agent.support.warm_node import eventually, node

ALONE = "import time\nprint('up', flush=True)\ntime.sleep(600)"
THREADS = f"import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n{ALONE}"


@pytest.mark.parametrize("code", [ALONE, THREADS], ids=["one thread", "several threads"])
def test_a_traced_worker_that_is_killed_is_reported_at_once_and_reaped_later(code: str, tmp_path: Path) -> None:
    async def story() -> None:
        async with node(tmp_path) as one:
            pid = await one.start(code)
            await one.printed("up")
            with traced(pid):
                assert one.warm is not None
                await one.warm.kill("j", 1, -1, signal.SIGKILL)
                ended = await one.ended()
                assert (ended.code, ended.signal, ended.ordered) == (-1, signal.SIGKILL, True)
                assert not [w for w in await one.warm.workers() if w.running]
                left = tree.read(pid)
                assert left is not None
                assert left.state == "Z"  # the tracer keeps it
            await eventually(lambda: tree.read(pid) is None)

    asyncio.run(story())


def test_a_traced_worker_that_is_not_killed_has_not_ended(tmp_path: Path) -> None:
    async def story() -> None:
        async with node(tmp_path) as one:
            pid = await one.start(ALONE)
            await one.printed("up")
            with traced(pid):
                assert one.warm is not None
                assert [w.running for w in await one.warm.workers()] == [True]
            assert not one.exits

    asyncio.run(story())
