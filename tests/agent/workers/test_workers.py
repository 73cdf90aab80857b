"""Workers of a node, under a real fork server: started, found again, broken, and ended with all that is theirs."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from holdfast.agent.collectors.kernel_log import KernelLog
from holdfast.agent.forkserver import client as warm_client
from holdfast.agent.logs import rules as log_rules
from holdfast.agent.logs.worker_logs import WorkerLogs
from holdfast.agent.probe_file import layout as probe_layout
from holdfast.agent.workers.unended import UnendedError
from holdfast.agent.workers.workers import Workers, shared_dir
from holdfast.base.errors import Unavailable, UsageError
from holdfast.wire import messages as msg
from holdfast.wire import types as t
from holdfast.wire.holds import Hold
from tests.agent.support.processes import until
from tests.agent.support.warm_node import alive, eventually

STEPS = """
from holdfast.agent import probe
import time
probe.attach()
print("up", flush=True)
n = 0
while True:
    probe.step(n); n += 1; time.sleep(0.005)
"""
FAMILY = """
import subprocess, sys, time
code = "import os, time; os.setsid(); print(os.getpid(), flush=True); time.sleep(600)"
subprocess.Popen([sys.executable, "-c", code])
time.sleep(600)
"""


@dataclass
class Node:
    """`Workers` as an agent has them; a second one on the same folder is the agent after a restart."""

    folder: Path
    events: list[t.Event] = field(default_factory=list)
    lines: list[msg.LogChunk] = field(default_factory=list)
    steps: list[t.StepRecord] = field(default_factory=list)
    serial: int = 0

    def __post_init__(self) -> None:
        state = self.folder / "state"
        state.mkdir(exist_ok=True)
        self.logs = WorkerLogs(state / "logs", rules=log_rules.load(), on_match=lambda *_: None)
        self.workers = Workers(
            state, self.logs, KernelLog(str(self.folder / "none")), lambda: "127.0.0.1",
            on_event=self.events.append, on_log=self.lines.append, on_last_steps=self.steps.extend,
        )  # fmt: skip

    async def do(self, order: msg.Order, generation: int = 1, job: str = "j1") -> dict[str, str]:
        self.serial += 1
        return await self.workers.obey(msg.Command(f"c{self.serial}", job, generation, order))

    async def start(self, code: str, ranks: int = 1, generation: int = 1) -> None:
        script = self.folder / f"script{generation}.py"
        script.write_text(code)
        program = msg.Program(str(script), cwd=str(self.folder), hooks=False)
        places = tuple(msg.Rank(rank, rank, 0) for rank in range(ranks))
        await self.do(msg.StartWorkers(program, places, ranks, 1, "127.0.0.1", 29500), generation)

    def exits(self) -> dict[int, t.WorkerExited]:
        return {event.rank: event for event in self.events if isinstance(event, t.WorkerExited)}

    def pid(self, rank: int = 0, generation: int = 1) -> int:
        return self.workers.kept["j1", generation, rank].pid

    async def stepping(self, rank: int = 0) -> None:
        def is_stepping() -> bool:
            return any(r.rank == rank and r.sample(0).step > 0 for r in self.workers.readers())

        await eventually(is_stepping)

    async def printed(self, text: str, rank: int = 0, generation: int = 1) -> str:
        path = self.folder / "state" / "logs"

        def found() -> str:
            return self.logs.tail("j1", generation, rank, "out", 4096)

        await eventually(lambda: text in found())
        assert path.is_dir()
        return found()


@asynccontextmanager
async def node(folder: Path) -> AsyncIterator[Node]:
    one = Node(folder)
    try:
        yield one
    finally:
        await one.workers.close(end_workers=True)
        one.logs.close()


def test_from_start_to_exit(tmp_path: Path) -> None:
    async def story() -> None:
        async with node(tmp_path) as one:
            code = "import os, sys\nprint(os.environ['RANK'])\nsys.exit(3 if os.environ['RANK'] == '1' else 0)"
            await one.start(code, 2)
            await eventually(lambda: len(one.exits()) == 2)
            assert {rank: event.code for rank, event in one.exits().items()} == {0: 0, 1: 3}
            assert {chunk.rank: chunk.text for chunk in one.lines} == {0: "0\n", 1: "1\n"}
            assert not one.workers.running
            for event in one.exits().values():
                one.workers.durable(event)
            assert one.workers.hello_workers() == ()

    asyncio.run(story())


def test_a_traceback_comes_with_the_exit(tmp_path: Path) -> None:
    async def story() -> None:
        async with node(tmp_path) as one:
            await one.start("def f():\n    raise ValueError('bad batch')\nf()")
            await eventually(one.exits)
            assert one.exits()[0].error.endswith("ValueError: bad batch\n")
            assert "bad batch" in one.exits()[0].tail

    asyncio.run(story())


def test_what_a_forked_worker_was_started_with_is_known_until_its_exit_is_durable(tmp_path: Path) -> None:
    """The kernel shows the fork server's environment instead."""

    async def story() -> None:
        async with node(tmp_path) as one:
            await one.start("import time\nprint('up', flush=True)\ntime.sleep(60)", 2)
            await one.printed("up", 1)
            pid = one.pid(1)
            assert b"RANK=1\0" not in Path(f"/proc/{pid}/environ").read_bytes()
            assert [one.workers.variable(pid, name) for name in ("RANK", "NO_SUCH")] == ["1", ""]
            assert one.workers.variable(1, "RANK") == ""
            os.kill(pid, signal.SIGKILL)
            await eventually(lambda: 1 in one.exits())
            one.workers.durable(one.exits()[1])
            assert one.workers.variable(pid, "RANK") == ""

    asyncio.run(story())


def test_a_run_shorter_than_a_heartbeat_leaves_its_steps(tmp_path: Path) -> None:
    """No look was taken while it ran: its last steps are read when it ends, and its probe's file goes
    once they have been handed on."""

    async def story() -> None:
        async with node(tmp_path) as one:
            code = "from holdfast.agent import probe\nprobe.attach()\nfor n in range(5): probe.step(n, loss=1.0 + n)"
            await one.start(code)
            await eventually(one.exits)
            assert [(record.step, record.loss) for record in one.steps] == [(n, 1.0 + n) for n in range(5)]
            assert len(list(one.workers.shm.glob("j1-*"))) == 1
            one.workers.durable(one.exits()[0])
            assert list(one.workers.shm.glob("j1-*")) == []

    asyncio.run(story())


def test_a_worker_that_starts_after_all_ends_with_its_generation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The start was marked failed while the fork server was not scheduled; then it is."""
    monkeypatch.setattr(warm_client, "START_TIMEOUT_S", 0.2)

    async def story() -> None:
        async with node(tmp_path) as one:
            warm = await one.workers.open()
            os.kill(warm.pid, signal.SIGSTOP)
            try:
                with pytest.raises(Unavailable, match="did not answer start_worker"):
                    await one.start("import time; time.sleep(600)")
            finally:
                os.kill(warm.pid, signal.SIGCONT)
            assert await one.do(msg.StopWorkers(0.0)) == {"stopped": "1"}
            assert one.exits()[0].signal == signal.SIGKILL
            assert await one.do(msg.StopWorkers(0.0)) == {"stopped": "0"}

    asyncio.run(story())


def test_stop_ends_grandchildren_too(tmp_path: Path) -> None:
    async def story() -> None:
        async with node(tmp_path) as one:
            await one.start(FAMILY)
            grandchild = int((await one.printed("\n")).strip())
            assert alive(grandchild)
            assert await one.do(msg.StopWorkers(0.0)) == {"stopped": "1"}
            await eventually(lambda: not alive(grandchild))
            assert await one.do(msg.StopWorkers(0.0)) == {"stopped": "0"}

    asyncio.run(story())


def test_a_polite_stop_lets_a_worker_finish(tmp_path: Path) -> None:
    code = (
        "import signal, sys, time\nsignal.signal(15, lambda *_: sys.exit(5))\nprint('up', flush=True)\ntime.sleep(600)"
    )

    async def story() -> None:
        async with node(tmp_path) as one:
            await one.start(code)
            await one.printed("up")
            await one.do(msg.StopWorkers(10.0))
            assert one.exits()[0].code == 5

    asyncio.run(story())


def test_the_next_agent_takes_the_workers_over(tmp_path: Path) -> None:
    async def story() -> None:
        first = Node(tmp_path)
        await first.start(STEPS, 2)
        await first.stepping(0)
        await first.stepping(1)
        pids = {rank: first.pid(rank) for rank in range(2)}
        await first.workers.close(end_workers=False)
        first.logs.close()
        os.kill(pids[1], signal.SIGKILL)  # while no agent watches
        async with node(tmp_path) as second:
            assert second.workers.existing
            await second.workers.open()
            held = {worker.rank: worker for worker in second.workers.hello_workers()}
            assert held[0].pid == pids[0]
            assert held[0].running
            await eventually(lambda: 1 in second.exits())
            assert second.exits()[1].signal == signal.SIGKILL
            await second.stepping(0)
            with pytest.raises(UsageError, match="generation 0 of job j1 ended"):
                await second.start("", generation=0)
            os.kill(pids[0], signal.SIGKILL)
            await eventually(lambda: 0 in second.exits())

    asyncio.run(story())


def test_an_older_generation_is_never_started_and_a_newer_one_ends_it(tmp_path: Path) -> None:
    async def story() -> None:
        async with node(tmp_path) as one:
            await one.start(STEPS, generation=2)
            old = one.pid(generation=2)
            with pytest.raises(UsageError, match="generation 1 of job j1 ended: 2 already ran here"):
                await one.start(STEPS, generation=1)
            assert alive(old)
            await one.start(STEPS, generation=3)
            assert not alive(old)
            assert alive(one.pid(generation=3))

    asyncio.run(story())


def test_a_checkpoint_is_asked_of_a_worker_that_runs_here(tmp_path: Path) -> None:
    async def story() -> None:
        async with node(tmp_path) as one:
            with pytest.raises(Unavailable, match="no worker of generation 1 here"):
                await one.do(msg.RequestCheckpoint())
            await one.start(STEPS, 2)
            await one.stepping(0)
            answer = await one.do(msg.RequestCheckpoint())
            reader = next(r for r in one.workers.readers() if str(r.rank) == answer["rank"])
            assert reader._map.word(probe_layout.WORD_REQUEST) == 1

    asyncio.run(story())


def test_faults_strike_the_intended_ranks(tmp_path: Path) -> None:
    async def story() -> None:
        async with node(tmp_path) as one:
            await one.start(STEPS, 3)
            for rank in range(3):
                await one.stepping(rank)
            await one.do(msg.Inject("kill", 0))
            await one.do(msg.Inject("stop", 1))
            await one.do(msg.Inject("exit", 2))
            await eventually(lambda: len(one.exits()) == 2)
            assert (one.exits()[0].signal, one.exits()[2].code) == (signal.SIGKILL, 7)
            [reader] = one.workers.readers()
            await eventually(lambda: reader.sample(time.monotonic_ns()).stopped)
            with pytest.raises(UsageError, match="rank 0 of generation 1 does not run here"):
                await one.do(msg.Inject("kill", 0))

    asyncio.run(story())


def test_workers_outlive_the_fork_server_and_are_still_watched(tmp_path: Path) -> None:
    async def story() -> None:
        async with node(tmp_path) as one:
            await one.start(STEPS)
            await one.stepping()
            warm = (await one.workers.open()).pid
            os.kill(warm, signal.SIGKILL)
            await eventually(lambda: any(isinstance(e, t.AgentNotice) and e.kind == "warm" for e in one.events))
            assert alive(one.pid())
            pid = one.pid()
            assert (await one.workers.open()).pid != warm
            await one.do(msg.StopWorkers(0.0))
            assert not alive(pid)
            assert one.exits()[0].pid == pid

    asyncio.run(story())


def test_nothing_stays_after_the_end(tmp_path: Path) -> None:
    async def story() -> None:
        async with node(tmp_path) as one:
            await one.start(STEPS, 2)
            await one.stepping()
            pids = [one.pid(0), one.pid(1), (await one.workers.open()).pid]
            shm = shared_dir(tmp_path / "state")
            assert shm.is_dir()
        await eventually(lambda: not any(alive(pid) for pid in pids))
        assert not shm.exists()

    asyncio.run(story())


def test_an_event_for_an_unknown_worker_is_no_error(tmp_path: Path) -> None:
    async def story() -> None:
        one = Node(tmp_path)
        one.workers.durable(t.AgentNotice(1, "x", t.Severity.INFO, "x"))
        one.workers.durable(t.WorkerExited("j9", 1, 0, 1, 1, 0))
        with suppress(Exception):
            await one.workers.close(end_workers=False)
        one.logs.close()

    asyncio.run(story())


@pytest.fixture
def freezer() -> Iterator[Path]:
    """A cgroup that freezes; skipped where there is none of version 1, or none may be made."""
    folder = Path(f"/sys/fs/cgroup/freezer/holdfast-test-{os.getpid()}")
    try:
        folder.mkdir()
    except OSError:
        pytest.skip("no cgroup of version 1 can be made here")
    try:
        yield folder
    finally:
        (folder / "freezer.state").write_text("THAWED")
        until(lambda: not (folder / "cgroup.procs").read_text())
        folder.rmdir()


def test_workers_in_a_frozen_cgroup_are_reported_as_held_and_end_when_it_is_thawed(
    tmp_path: Path, freezer: Path
) -> None:
    async def story() -> None:
        async with node(tmp_path) as one:
            await one.start("import time\nprint('up', flush=True)\ntime.sleep(600)")
            await one.printed("up")
            (freezer / "cgroup.procs").write_text(str(one.pid()))
            (freezer / "freezer.state").write_text("FROZEN")
            with pytest.raises(UnendedError, match=f"rank 0 .*its cgroup /{freezer.name} is frozen") as caught:
                await one.do(msg.StopWorkers(0.0))
            assert caught.value.hold is Hold.HELD
            (freezer / "freezer.state").write_text("THAWED")
            await one.do(msg.StopWorkers(0.0))
            assert one.exits()[0].signal == signal.SIGKILL

    asyncio.run(story())
