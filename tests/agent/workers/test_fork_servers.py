"""Jobs with modules of their own: who imports them, when, and what happens to their fork servers."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from holdfast.agent.workers.environment import program_folder
from holdfast.base.errors import Refused
from holdfast.wire import messages as msg
from holdfast.wire import types as t
from tests.agent.support.warm_node import alive, eventually
from tests.agent.workers.test_workers import Node, node

HEAVY = """
import os
with open(os.environ["IMPORTS"], "a") as file:
    file.write(f"{os.getpid()}\\n")
"""
SCRIPT = "import os, heavy, signal\nos.write(1, b'parent %d\\n' % os.getppid())\nsignal.pause()\n"


class Job:
    """One that imports `heavy`, which lies beside its script and notes each process that imports it."""

    def __init__(self, one: Node, *preload: str) -> None:
        self.one, self.imports = one, one.folder / "imports"
        (one.folder / "heavy.py").write_text(HEAVY)
        self.script = one.folder / "train.py"
        self.script.write_text(SCRIPT)
        self.program = msg.Program(
            str(self.script), cwd="/", env={"IMPORTS": str(self.imports)}, hooks=False, preload=preload
        )

    async def start(self, generation: int = 1, name: str = "j1") -> None:
        places = (msg.Rank(0, 0, 0), msg.Rank(1, 1, 0))
        order = msg.StartWorkers(self.program, places, 2, 1, "127.0.0.1", 29500)
        await self.one.do(order, generation, name)

    async def parents(self, generation: int = 1) -> set[str]:
        return {(await self.one.printed("parent", rank, generation)).split()[1] for rank in (0, 1)}

    def importers(self) -> list[str]:
        return self.imports.read_text().split() if self.imports.exists() else []


def notices(one: Node) -> list[str]:
    return [event.text for event in one.events if isinstance(event, t.AgentNotice)]


def test_a_rank_that_restarts_imports_nothing_again(tmp_path: Path) -> None:
    async def story() -> None:
        async with node(tmp_path) as one:
            job = Job(one, "heavy")
            await job.start()
            [server] = await job.parents()
            await job.start(generation=2)
            assert await job.parents(2) == {server}
            assert job.importers() == [server]
            assert notices(one) == []

    asyncio.run(story())


def test_without_the_option_each_worker_imports_it(tmp_path: Path) -> None:
    async def story() -> None:
        async with node(tmp_path) as one:
            job = Job(one)
            await job.start()
            [server] = await job.parents()
            assert len(job.importers()) == 2
            assert server not in job.importers()

    asyncio.run(story())


def test_a_missing_module_is_refused_before_a_worker_starts(tmp_path: Path) -> None:
    async def story() -> None:
        async with node(tmp_path) as one:
            job = Job(one, "heavy", "haevy")
            with pytest.raises(Refused, match="--preload: no module named haevy for the workers' Python"):
                await job.start()
            assert job.importers() == []
            assert one.workers.hello_workers() == ()
            assert not list((tmp_path / "state" / "run" / "jobs").glob("*"))

    asyncio.run(story())


DEADLY = "import os\nos._exit(7)\n"
# ... only when the agent has connected: its connection waits to be accepted.
LATE_DEADLY = """
import os, select, socket
listeners = []
for fd in map(int, os.listdir("/proc/self/fd")):
    try:
        one = socket.socket(fileno=os.dup(fd))
        listeners += [one] * one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    except OSError:
        pass
select.select(listeners, [], [], 20)
os._exit(7)
"""


@pytest.mark.parametrize("module", [DEADLY, LATE_DEADLY], ids=["at once", "when the agent has connected"])
def test_a_module_that_ends_its_process_is_left_to_the_workers(tmp_path: Path, module: str) -> None:
    async def story() -> None:
        (tmp_path / "deadly.py").write_text(module)
        async with node(tmp_path) as one:
            job = Job(one, "deadly")
            await job.start()
            await job.parents()
            [text] = notices(one)
            assert text.startswith("--preload deadly: the fork server ended with 7 at its start")
            assert text.endswith("workers start without them")
            await job.start(generation=2)  # which does not try it again
            await job.parents(2)
            assert len(notices(one)) == 1

    asyncio.run(story())


def test_what_could_not_be_imported_is_one_line(tmp_path: Path) -> None:
    async def story() -> None:
        (tmp_path / "broken.py").write_text("1 / 0")
        async with node(tmp_path) as one:
            job = Job(one, "broken", "heavy")
            await job.start()
            [server] = await job.parents()
            assert job.importers() == [server]
            assert notices(one) == ["--preload: broken ZeroDivisionError: division by zero; workers start without"]

    asyncio.run(story())


def test_the_next_agent_finds_the_workers_and_the_imports(tmp_path: Path) -> None:
    async def story() -> None:
        first = Node(tmp_path)
        job = Job(first, "heavy")
        await job.start()
        [server] = await job.parents()
        await first.workers.close(end_workers=False)
        first.logs.close()
        async with node(tmp_path) as second:
            assert second.workers.existing
            await second.workers.open()
            assert {worker.rank for worker in second.workers.hello_workers() if worker.running} == {0, 1}
            job.one = second
            await job.start(generation=2)
            assert await job.parents(2) == {server}
            assert job.importers() == [server]

    asyncio.run(story())


def test_workers_outlive_the_fork_server_of_their_job(tmp_path: Path) -> None:
    async def story() -> None:
        async with node(tmp_path) as one:
            job = Job(one, "heavy")
            await job.start()
            [server] = await job.parents()
            os.kill(int(server), signal.SIGKILL)
            await eventually(lambda: notices(one))
            assert notices(one) == ["the fork server of job j1 died; its workers continue, a new one is started"]
            assert all(alive(one.pid(rank)) for rank in (0, 1))
            await job.start(generation=2)  # ends them, and imports again
            [later] = await job.parents(2)
            assert job.importers() == [server, later]

    asyncio.run(story())


def test_the_next_job_ends_the_fork_server_of_the_last(tmp_path: Path) -> None:
    async def story() -> None:
        async with node(tmp_path) as one:
            job = Job(one, "heavy")
            await job.start()
            [server] = await job.parents()
            await one.do(msg.StopWorkers())
            await eventually(lambda: len(one.exits()) == 2)
            for event in one.exits().values():
                one.workers.durable(event)
            assert alive(int(server))
            await job.start(name="j2")
            assert not alive(int(server))

    asyncio.run(story())


@pytest.mark.parametrize(
    ("target", "module", "folder"),
    [("train.py", False, "/w"), ("/s/train.py", False, "/s"), ("pack.train", True, "/w"), ("a.zip", False, "/w/a.zip")],
)
def test_modules_are_looked_up_where_the_program_looks(target: str, module: bool, folder: str) -> None:
    assert program_folder(msg.Program(target, module=module, cwd="/w")) == folder
