"""A whole agent in this process against a real controller's gRPC end: it joins, obeys, reports and leaves in order."""

import asyncio
import itertools
import logging
import os
import signal
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from holdfast.agent import app
from holdfast.agent.app import Agent, crossed
from holdfast.agent.workers.environment import worker_environment
from holdfast.agent.workers.workers import shared_dir
from holdfast.base.config.agent import AgentConfig
from holdfast.base.errors import UsageError
from holdfast.controller.state.events import EventSeen, FrameSeen, ResultSeen
from holdfast.wire import messages as msg
from holdfast.wire import types as t
from tests.agent.support.sysfs import Sysfs, put
from tests.agent.support.warm_node import alive
from tests.controller.support.stage import Stage, eventually, stage

LOOP = "import time\nprint('up', flush=True)\nwhile True: time.sleep(1)\n"


def config(folder: Path, port: int, **more: object) -> AgentConfig:
    settings: dict[str, object] = {
        "controller": f"127.0.0.1:{port}", "node_name": "node0", "slots": 4, "state_dir": folder / "agent",
        "preload": (), "nics": ("lo",), "end_with_workers": True,
    }  # fmt: skip
    return AgentConfig(**(settings | more))  # type: ignore[arg-type]  # a test's own settings


@asynccontextmanager
async def running(settings: AgentConfig) -> AsyncIterator[Agent]:
    agent, stop = Agent(settings), asyncio.Event()
    task = asyncio.create_task(agent.main(stop))
    try:
        yield agent
    finally:
        stop.set()
        async with asyncio.timeout(60):
            assert await task == 0


def start(folder: Path, here: Stage, name: str, generation: int = 1, code: str = LOOP) -> None:
    (folder / "script.py").write_text(code)
    program = msg.Program(str(folder / "script.py"), cwd=str(folder), hooks=False)
    order = msg.StartWorkers(program, (msg.Rank(0, 0, 0),), 1, 1, "127.0.0.1", 29500)
    here.shell.send("node0", msg.Command(name, "j1", generation, order))


async def answered(here: Stage, count: int) -> list[msg.CommandResult]:
    await eventually(lambda: len(here.brain.of(ResultSeen)) >= count)
    return [seen.result for seen in here.brain.of(ResultSeen)]


@pytest.mark.parametrize(("heartbeat_interval", "times"), [(0.25, 10), (1.0, 2)])
def test_a_big_cluster_hears_of_checkpoints_together_with_the_hosts_gauges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, heartbeat_interval: float, times: int
) -> None:
    agent, reported = Agent(config(tmp_path, 1)), list[dict[str, float]]()
    monkeypatch.setattr(agent.heart, "report_host", reported.append)
    agent.link.heartbeat_interval, agent._looked_at = heartbeat_interval, 100.0
    for quarter in range(1, 41):
        agent._look(100.0 + quarter / 4)
    agent.sampler.close()
    agent.kernel.close()
    assert len(reported) == times


@pytest.mark.parametrize(("layer", "nic"), [("InfiniBand", "infiniband"), ("Ethernet", "roce"), ("", "ethernet")])
def test_workers_know_their_nodes_type_of_nic(tmp_path: Path, layer: str, nic: str) -> None:
    sysfs = Sysfs(tmp_path / "sys")
    sysfs.net("eth0")
    if layer:
        sysfs.rdma("mlx5_0", layer=layer)
    agent = Agent(config(tmp_path, 1, sysfs_root=sysfs.root))
    agent.sampler.close()
    agent.kernel.close()
    order = msg.StartWorkers(msg.Program("train.py"), (msg.Rank(0, 0, 0),), 1, 1, "127.0.0.1", 1, 0)
    env = worker_environment(agent.workers._environ, msg.Command("c", "j", 1, order), order, order.ranks[0])
    assert env["HOLDFAST_NIC"] == nic


def test_from_joining_to_leaving(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path) as here:
            here.shell.logs.begin("j1")
            async with running(config(tmp_path, here.port)) as agent:
                await eventually(lambda: len(here.brain.of(FrameSeen)) >= 2)
                node = here.brain.c.nodes["node0"]
                assert (node.identity.slots, node.connected) == (4, True)
                assert node.identity.incarnation == agent.identity.incarnation
                await eventually(lambda: node.host)
                start(tmp_path, here, "c1")
                [answer] = await answered(here, 1)
                assert (answer.ok, answer.data) == (True, {"started": "1"})
                [worker] = agent.workers.hello_workers()
                # The same command again is answered and not done again.
                start(tmp_path, here, "c1")
                first, second = await answered(here, 2)
                assert first == second
                assert [w.pid for w in agent.workers.hello_workers()] == [worker.pid]
                async with asyncio.timeout(30):
                    line = await anext(here.shell.logs.lines("j1"))
                assert (line["rank"], line["text"]) == (0, "up\n")
                os.kill(worker.pid, signal.SIGKILL)
                await eventually(lambda: here.brain.of(EventSeen))
                [seen] = here.brain.of(EventSeen)
                assert isinstance(seen.event, t.WorkerExited)
                assert (seen.event.rank, seen.event.signal) == (0, signal.SIGKILL)
                # The controller holds it: nothing of it stays here.
                await eventually(lambda: agent.workers.hello_workers() == ())
            await eventually(lambda: not here.brain.c.nodes["node0"].connected)
            assert not shared_dir(tmp_path / "agent").exists()

    asyncio.run(story())


CAREFUL = """
import signal, sys, time
def save(number, frame):
    open("saved", "w").close()
    sys.exit(143)
signal.signal(signal.SIGTERM, save)
print("up", flush=True)
while True: time.sleep(0.02)
"""


def test_workers_may_save_before_their_node_ends(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path) as here:
            here.shell.logs.begin("j1")
            async with running(config(tmp_path, here.port, drain=15.0)):
                await eventually(lambda: "node0" in here.shell.sessions.by_node)
                start(tmp_path, here, "c1", code=CAREFUL)
                async with asyncio.timeout(30):
                    assert (await anext(here.shell.logs.lines("j1")))["text"] == "up\n"
            # The news came before the agent left.
            notice, ended = [seen.event for seen in here.brain.of(EventSeen)]
            assert isinstance(notice, t.AgentNotice)
            assert notice.kind == "drain"
            assert isinstance(ended, t.WorkerExited)
            assert (ended.code, ended.signal) == (143, 0)
            assert (tmp_path / "saved").exists()

    asyncio.run(story())


def test_what_it_cannot_do_it_says_in_one_line(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path) as here, running(config(tmp_path, here.port)):
            await eventually(lambda: "node0" in here.shell.sessions.by_node)
            start(tmp_path, here, "c1", generation=3)
            start(tmp_path, here, "c2", generation=2)
            here.shell.send("node0", msg.Command("c3", "j1", 3, msg.Inject("kill", 9)))
            answers = await answered(here, 3)
            assert [(a.id, a.ok) for a in answers] == [("c1", True), ("c2", False), ("c3", False)]
            assert answers[1].error == "generation 2 of job j1 ended: 3 already ran here"
            assert answers[2].error == "rank 9 of generation 3 does not run here"

    asyncio.run(story())


def test_workers_live_on_and_the_next_agent_knows_them(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path) as here:
            async with running(config(tmp_path, here.port, end_with_workers=False)) as first:
                await eventually(lambda: "node0" in here.shell.sessions.by_node)
                start(tmp_path, here, "c1")
                await answered(here, 1)
                [worker] = first.workers.hello_workers()
            assert alive(worker.pid)
            await eventually(lambda: "node0" not in here.shell.sessions.by_node)
            async with running(config(tmp_path, here.port)) as second:
                # Known before the controller is spoken to: the hello says it.
                await eventually(lambda: "node0" in here.shell.sessions.by_node)
                assert [w.pid for w in here.shell.sessions.by_node["node0"].hello.workers] == [worker.pid]
                assert second.identity.incarnation != first.identity.incarnation
                # The brain knows of no such job: it has them ended.
                await eventually(lambda: not alive(worker.pid))

    asyncio.run(story())


def test_the_controller_may_come_later(tmp_path: Path, free_port: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "holdfast")

    async def story() -> None:
        async with running(config(tmp_path, free_port)) as agent:
            agent.report(t.AgentNotice(1, "test", t.Severity.INFO, "said to nobody"))
            await eventually(lambda: "controller.away" in caplog.messages)
            async with stage(tmp_path, free_port) as here:
                await eventually(lambda: here.brain.of(EventSeen))
                assert isinstance(here.brain.of(EventSeen)[0].event, t.AgentNotice)

    asyncio.run(story())


def test_a_worker_that_was_quiet_is_heard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "_QUIET_LOOKS", 1)
    code = "import os, time\nprint('up', flush=True)\nwhile not os.path.exists('go'): time.sleep(0.05)\n"
    code += "print('NCCL WARN Call to ibv_post_send failed: unhandled system error', flush=True)\ntime.sleep(60)\n"

    async def story() -> None:
        async with stage(tmp_path) as here:
            here.shell.logs.begin("j1")
            async with running(config(tmp_path, here.port)) as agent:
                await eventually(lambda: "node0" in here.shell.sessions.by_node)
                start(tmp_path, here, "c1", code=code)
                lines = here.shell.logs.lines("j1")
                async with asyncio.timeout(30):
                    assert (await anext(lines))["text"] == "up\n"
                await eventually(lambda: not agent._printing.is_set())
                (tmp_path / "go").touch()
                async with asyncio.timeout(30):
                    assert "ibv_post_send" in (await anext(lines))["text"]
                await eventually(lambda: here.brain.of(EventSeen))
                assert isinstance(here.brain.of(EventSeen)[0].event, t.LogMatched)

    asyncio.run(story())


def test_a_bug_in_one_part_ends_neither_the_agent_nor_the_other_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """All of them at once, again and again: the node still sends heartbeats, obeys, reports ends and errors."""
    monkeypatch.setattr(app, "_HOST_EVERY", 0.25)
    monkeypatch.setattr(app, "_NEWS_EVERY", 0.25)
    monkeypatch.setattr(app, "_SPANS_EVERY", 0.25)

    async def story() -> None:
        async with stage(tmp_path) as here, running(config(tmp_path, here.port)) as agent:
            await eventually(lambda: "node0" in here.shell.sessions.by_node)
            start(tmp_path, here, "c1")
            await answered(here, 1)
            [worker] = agent.workers.hello_workers()
            broken = (
                (agent.kernel, "poll"), (agent.logs, "poll"), (agent.heart, "read_host"), (agent.heart, "frame"),
                (agent, "_look_at_outbox"), (agent.workers, "look_for_announcements"), (agent.checkpoints, "look"),
                (agent.spans, "read"), (agent.workers, "_dump_stacks"), (agent.workers._probes, "last_words"),
                (agent.logs, "drain"), (agent.logs, "tail"),
            )  # fmt: skip
            for where, name in broken:

                def raises(*_: object, of: str = name) -> None:
                    raise MemoryError(of)

                monkeypatch.setattr(where, name, raises)
            before = len(here.brain.of(FrameSeen))
            here.shell.send("node0", msg.Command("c2", "j1", 1, msg.DumpStacks()))
            _, answer = await answered(here, 2)
            assert (answer.ok, answer.error) == (False, "an error in Holdfast itself: MemoryError('_dump_stacks')")
            os.kill(worker.pid, signal.SIGKILL)
            await eventually(lambda: [s for s in here.brain.of(EventSeen) if isinstance(s.event, t.WorkerExited)])
            await eventually(lambda: len(here.brain.of(FrameSeen)) >= before + 8)

            def reported() -> list[str]:
                return [seen.event.text for seen in here.brain.of(EventSeen) if isinstance(seen.event, t.AgentNotice)]

            await eventually(lambda: len(reported()) >= 12, reported)
            assert len(reported()) == len(set(reported())) == 12
            monkeypatch.undo()

    asyncio.run(story())
    parts = [r.fields["part"] for r in caplog.records if r.message == "agent.bug"]  # type: ignore[attr-defined]
    assert sorted(parts) == [
        "announcements", "checkpoints", "commands", "frames", "host", "kernel", "last lines", "last words", "logs",
        "outbox", "spans", "traceback",
    ]  # fmt: skip


def test_absent_hardware_is_reported_once(tmp_path: Path, free_port: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "holdfast")

    async def story() -> None:
        (tmp_path / "empty").mkdir()
        async with running(config(tmp_path, free_port, sysfs_root=tmp_path / "empty", nics=("auto",))) as agent:
            # By then every collector has been asked, or left out.
            await eventually(lambda: agent.outbox.frame_seq >= 1)

    asyncio.run(story())
    absent = [r.fields["collector"] for r in caplog.records if r.message == "collector.absent"]  # type: ignore[attr-defined]
    assert len(absent) == len(set(absent))
    assert "rdma" in absent


@pytest.mark.parametrize("how", ["soft", "no PMA", "refused"])
def test_beside_an_rdma_device_without_counters_frames_carry_the_bytes_of_ethernet(
    tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "holdfast")
    sysfs = Sysfs(tmp_path / "sys")
    statistics = sysfs.net("eth0")
    if how == "refused":  # as a virtual function that may not ask: the files are there, and are no numbers
        port = sysfs.rdma("mlx5_0")
        for counter in ("port_xmit_data", "port_rcv_data"):
            put(port / "counters" / counter, "")
    else:
        sysfs.rxe("rxe0", no_pma=how == "no PMA")
    sent, received = 7_000_000, 5_000_000

    def seen(here: Stage) -> dict[str, tuple[int, int]]:
        """Bytes out and in of all frames, by NIC."""
        found: dict[str, tuple[int, int]] = {}
        for event in here.brain.of(FrameSeen):
            for one in event.frame.nics:
                out, into = found.get(one.name, (0, 0))
                tx, rx = (sum(value for (value,) in struct.iter_unpack("<I", part)) for part in (one.tx, one.rx))
                found[one.name] = out + tx, into + rx
        return found

    async def story() -> None:
        settings = {"sysfs_root": sysfs.root, "nics": ("auto",), "sample_interval": 0.01}
        async with stage(tmp_path) as here, running(config(tmp_path, here.port, **settings)):
            await eventually(lambda: seen(here))
            put(statistics / "tx_bytes", sent)
            put(statistics / "rx_bytes", received)
            await eventually(lambda: seen(here) == {"eth0": (sent, received)})
            identity = here.brain.c.nodes["node0"].identity
            assert [one.kind for one in identity.nics] == ["rdma", "ethernet"]

    asyncio.run(story())
    (reported,) = [r.fields for r in caplog.records if r.message == "nic.uncounted"]  # type: ignore[attr-defined]
    assert reported["sampled"] == "eth0"


def test_a_sysfs_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="gone: no such folder"):
        Agent(config(tmp_path, 1, sysfs_root=tmp_path / "gone"))


def test_a_state_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="give another --state-dir"):
        Agent(config(tmp_path, 1, state_dir=tmp_path / "file" / "state"))


def test_periods_fall_together() -> None:
    looks = [100.1 + 0.25 * n for n in range(41)]
    between = list(itertools.pairwise(looks))
    assert [sum(crossed(a, b, every) for a, b in between) for every in (0.25, 0.5, 1.0, 5.0)] == [40, 20, 10, 2]
    assert {b for a, b in between if crossed(a, b, 5.0)} <= {b for a, b in between if crossed(a, b, 1.0)}
    assert crossed(0.0, 100.1, 5.0)  # the first look is due for everything
