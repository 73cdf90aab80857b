"""What outlives what: workers their agent, the record of their ends the fork server."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.agent.forkserver.client import ForkServer
from holdfast.agent.forkserver.journal import WorkerJournal
from holdfast.base.errors import Unavailable
from holdfast.wire.messages import KeptWorker
from tests.agent.support.processes import ROOT
from tests.agent.support.warm_node import Node, alive, eventually, node

SLEEP = "import time\nprint('here')\nwhile True: time.sleep(60)"

AGENT = """
import asyncio, json, sys
from holdfast.agent.forkserver.client import ForkServer
from holdfast.agent.forkserver.worker_spec import WorkerSpec

async def main():
    warm = await ForkServer.open(sys.argv[1], idle_exit=30.0)
    pids = [await warm.start_worker(WorkerSpec.from_json(spec)) for spec in json.loads(sys.argv[2])]
    print(warm.pid, *pids, flush=True)
    await asyncio.sleep(300)

asyncio.run(main())
"""


def test_workers_outlive_a_killed_agent_and_the_next_one_learns_everything(tmp_path: Path) -> None:
    async def story() -> None:
        one = Node(tmp_path)
        specs = [one.spec(SLEEP, rank).to_json() for rank in range(3)]
        agent = subprocess.Popen(
            [sys.executable, "-c", AGENT, str(tmp_path / "run"), json.dumps(specs)], cwd=ROOT, stdout=subprocess.PIPE
        )
        assert agent.stdout
        warm_pid, *pids = map(int, agent.stdout.readline().split())
        for rank in range(3):
            await one.printed("here", rank)
        agent.kill()
        agent.communicate()
        assert all(map(alive, pids))
        os.kill(pids[1], signal.SIGKILL)  # ends while no agent listens
        await eventually(lambda: not alive(pids[1]))

        warm = await one.open()
        try:
            assert warm.pid == warm_pid
            assert {(w.rank, w.pid, w.running) for w in warm.kept} == {
                (0, pids[0], True),
                (1, pids[1], False),
                (2, pids[2], True),
            }
            assert [(e.rank, e.pid, e.code, e.signal) for e in warm.exits] == [(1, pids[1], -1, signal.SIGKILL)]
            os.kill(pids[0], signal.SIGTERM)
            assert (await one.ended(0)).signal == signal.SIGTERM
            await warm.ack_exit("j", 1, 1)
            await warm.close()
            warm = await one.open()
            assert [e.rank for e in warm.exits] == [0]
        finally:
            await warm.shutdown()
        assert not alive(warm_pid)
        assert not alive(pids[2])

    asyncio.run(story())


def test_a_lost_fork_server_is_noticed_and_its_successor_takes_over(tmp_path: Path) -> None:
    async def story() -> None:
        async with node(tmp_path) as one:
            assert one.warm
            first = one.warm
            pids = [await one.start(SLEEP, rank) for rank in range(3)]
            for rank in range(3):
                await one.printed("here", rank)
            os.kill(pids[0], signal.SIGKILL)
            await one.ended(0)
            os.kill(first.pid, signal.SIGKILL)
            async with asyncio.timeout(30):
                await one.lost.wait()
            with pytest.raises(Unavailable, match="not connected to the fork server"):
                await one.start(SLEEP, 5)
            await first.close()
            assert alive(pids[1])
            os.kill(pids[2], signal.SIGKILL)  # has no parent that could learn how
            await eventually(lambda: not alive(pids[2]))

            second = await one.open()
            assert second.pid != first.pid
            assert {(w.rank, w.running) for w in second.kept} == {(0, False), (1, True), (2, False)}
            assert {(e.rank, e.code, e.signal) for e in second.exits} == {(0, -1, 9), (2, -1, 0)}
            assert await second.kill("j", 1, 1, signal.SIGKILL) == 1
            assert (await one.ended(1)).pid == pids[1]
            await first.close()

    asyncio.run(story())


def test_two_agents_share_one_fork_server(tmp_path: Path) -> None:
    async def story() -> None:
        # Both find nothing and start one; the slower of the two processes sees the lock and leaves.
        first, second = await asyncio.gather(*(ForkServer.open(tmp_path / "run", idle_exit=30.0) for _ in range(2)))
        assert first.pid == second.pid
        await second.close()
        await first.shutdown()

    asyncio.run(story())


def test_sigterm_and_idleness_end_it_with_all_it_has(tmp_path: Path) -> None:
    async def story() -> None:
        async with node(tmp_path) as one:
            assert one.warm
            pid = await one.start(SLEEP)
            await one.printed("here")
            os.kill(one.warm.pid, signal.SIGTERM)
            async with asyncio.timeout(30):
                await one.lost.wait()
            assert not alive(pid)
            assert not (tmp_path / "run" / "warm.sock").exists()
            await one.warm.close()
            one.warm = await ForkServer.open(tmp_path / "run", idle_exit=1.0)  # longer than it takes to connect
            warm_pid = one.warm.pid
            await one.warm.close()
            await eventually(lambda: not alive(warm_pid))

    asyncio.run(story())


def test_a_start_that_fails_says_why(tmp_path: Path) -> None:
    async def story() -> None:
        (tmp_path / "sitecustomize.py").write_text("import sys; sys.stderr.write('no way\\n'); import os; os._exit(4)")
        with pytest.raises(Unavailable, match=r"the fork server ended with 4 at its start: no way \(.*warm.log\)"):
            await ForkServer.open(tmp_path / "run", env={**os.environ, "PYTHONPATH": str(tmp_path)})

    asyncio.run(story())


def test_imports_that_take_too_long_run_into_the_deadline(tmp_path: Path) -> None:
    async def story() -> None:
        (tmp_path / "slow.py").write_text(
            f"import os, time; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(60)"
        )
        env = {**os.environ, "PYTHONPATH": str(tmp_path)}
        patient = asyncio.create_task(ForkServer.open(tmp_path / "run", preload=["slow"], env=env))
        await eventually((tmp_path / "pid").exists)
        with pytest.raises(Unavailable, match=r"not ready: the fork server did not answer hello within"):
            await ForkServer.open(tmp_path / "run", ready_timeout=0.3)
        await eventually(lambda: (tmp_path / "pid").read_text())
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
        with pytest.raises(Unavailable, match=r"the fork server ended with -9 at its start"):
            await patient

    asyncio.run(story())


def test_garbage_on_the_socket_ends_that_client_only(tmp_path: Path) -> None:
    async def story() -> None:
        async with node(tmp_path) as one:
            assert one.warm
            for garbage in (b"\xff\xfe\n", b"[1]\n", b"{}\n"):
                with socket.socket(socket.AF_UNIX) as raw:
                    raw.settimeout(60)
                    raw.connect(str(tmp_path / "run" / "warm.sock"))
                    raw.sendall(garbage)
                    answer = raw.recv(4096)
                    assert answer == b"" if garbage != b"{}\n" else b"bad request" in answer
            await one.start("print('fine')")
            assert (await one.ended()).code == 0

    asyncio.run(story())


def test_the_journal_reads_past_a_line_cut_off_by_a_crash(tmp_path: Path) -> None:
    journal = WorkerJournal(tmp_path)
    journal.close()
    line = {"exited": {"job": "j", "generation": 1, "rank": 2, "pid": 5, "wall_ns": 7, "code": 3}}
    (tmp_path / "exits.jsonl").write_text(json.dumps(line) + '\n{"started": {"job"\nnull\n{"exi')
    again = WorkerJournal(tmp_path)
    assert [ended.code for ended in again.exits.values()] == [3]
    assert again.started == {}
    again.close()
    assert len((tmp_path / "exits.jsonl").read_text().splitlines()) == 1


def test_a_process_id_that_was_given_to_another_is_not_taken_for_the_worker(tmp_path: Path) -> None:
    async def story() -> None:
        (tmp_path / "run").mkdir()
        worker = KeptWorker("j", 1, 0, 0, os.getpid(), running=True)
        fields = {"start_ticks": 1, "boot_id": "another"}
        line = {f: getattr(worker, f) for f in ("job", "generation", "rank", "local_rank", "pid", "running")} | fields
        (tmp_path / "run" / "exits.jsonl").write_text(json.dumps({"started": line}) + "\n")
        async with node(tmp_path) as one:
            assert one.warm
            assert [(e.rank, e.code, e.signal) for e in one.warm.exits] == [(0, -1, 0)]
            assert await one.warm.kill("j", 1, -1, signal.SIGKILL) == 0

    asyncio.run(story())
