"""A fork server that is forked from another one, with real processes: what it has of the other, and what it has not."""

import asyncio
import os
import selectors
import signal
import socket
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from holdfast.agent.forkserver import fork_from
from holdfast.agent.forkserver.client import ForkServer
from holdfast.agent.forkserver.json_lines import Connection
from holdfast.agent.forkserver.server_forks import ServerForks
from holdfast.agent.processes import inherited
from holdfast.agent.processes import tree as process_tree
from tests.agent.support.warm_node import Node, alive, eventually

SLEEP = "import time\nprint('here')\nwhile True: time.sleep(60)"
DRAW = "import sys\nassert 'torch' in sys.modules\nimport random, numpy, torch\n" + (
    "print(random.random(), numpy.random.rand(), torch.rand(1).item())"
)
NOTED = """
import os, tempfile
tempfile.gettempdir()
with open(os.environ["NOTES"], "a") as file:
    file.write(f"{os.getpid()}\\n")
"""


class Host:
    """Agents of one host; the fork server of the first is the source of the others'. `noted` notes who imports it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, *preload: str) -> None:
        self.folder, self.preload = folder, (*preload, "noted")
        (folder / "noted.py").write_text(NOTED)
        monkeypatch.setenv("PYTHONPATH", str(folder))
        monkeypatch.setenv("NOTES", str(folder / "notes"))
        self.run_dirs = {name: folder / name / "run" for name in ("first", "second", "third")}
        self.opened: list[ForkServer] = []

    def agent(self, name: str, warm: ForkServer) -> Node:
        one = Node(self.run_dirs[name].parent, warm)
        warm.on_exit = one.heard
        return one

    async def open(
        self, name: str, source: str = "", env: Mapping[str, str] | None = None, **more: float
    ) -> ForkServer:
        warm = await ForkServer.open(
            self.run_dirs[name], preload=self.preload, env={**os.environ, **(env or {})},
            source=self.run_dirs[source] if source else "", **{"idle_exit": 30.0, **more},
        )  # fmt: skip
        self.opened.append(warm)
        return warm

    def importers(self) -> list[int]:
        return [int(line) for line in (self.folder / "notes").read_text().split()]

    async def __aenter__(self) -> "Host":
        return self

    async def __aexit__(self, *_: object) -> None:
        for warm in self.opened:
            await warm.close()
            for number in (signal.SIGTERM, signal.SIGCONT):  # in order: it ends its workers
                if alive(warm.pid):
                    os.kill(warm.pid, number)
            await eventually(lambda warm=warm: not alive(warm.pid))


def descriptors(pid: int) -> set[str]:
    folder = Path(f"/proc/{pid}/fd")
    return {os.readlink(path) for path in folder.iterdir()}


def shown(pid: int, what: str) -> list[str]:
    return Path(f"/proc/{pid}/{what}").read_text().split("\0")


@pytest.mark.slow
def test_it_has_the_modules_of_the_other_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        async with Host(tmp_path, monkeypatch, "torch", "nowhere_to_be_found") as host:
            first = await host.open("first")
            kept = host.agent("first", first)
            worker = await kept.start(SLEEP, 7)  # the other has a worker, its pidfd and its output
            second = await host.open("second", "first", env={"HOLDFAST_LOCAL_CLUSTER": "other"})
            assert host.importers() == [first.pid]
            assert second.preload_errors == first.preload_errors
            assert list(second.preload_errors) == ["nowhere_to_be_found"]
            assert second.kept == ()

            found = process_tree.read(second.pid)
            assert found is not None
            assert found.session == second.pid
            assert found.parent not in (first.pid, os.getpid())
            assert str(host.run_dirs["second"]) in shown(second.pid, "cmdline")
            assert "holdfast.agent.forkserver.fork_server" in shown(second.pid, "cmdline")
            assert "HOLDFAST_LOCAL_CLUSTER=other" in shown(second.pid, "environ")
            theirs, own = descriptors(first.pid), descriptors(second.pid)
            assert {link for link in theirs & own if ":[" not in link} <= {
                "/dev/null", "anon_inode:[eventpoll]", "/memfd:holdfast-output (deleted)",
            }  # fmt: skip
            assert {link for link in theirs & own if link.startswith("socket")} == set()
            foreign = ("pipe", "anon_inode:[pidfd]", str(host.run_dirs["first"]))
            assert not [link for link in own if link.startswith(foreign)]

            one = host.agent("second", second)
            await one.start(DRAW, 0)
            await one.start(DRAW, 1)
            await kept.start(DRAW, 2)
            for agent, rank in ((one, 0), (one, 1), (kept, 2)):
                assert (await agent.ended(rank)).code == 0, agent.err(rank)
            drawn = [number for agent, rank in ((one, 0), (one, 1), (kept, 2)) for number in agent.out(rank).split()]
            assert len(set(drawn)) == len(drawn) == 9

            for pid in (first.pid, worker):
                os.kill(pid, signal.SIGKILL)
                await eventually(lambda pid=pid: not alive(pid))
            await one.start(SLEEP, 3)
            await one.printed("here", 3)
            assert await second.kill("j", 1, 3, signal.SIGTERM) == 1
            assert (await one.ended(3)).signal == signal.SIGTERM
            await second.shutdown()
            assert not alive(second.pid)

    asyncio.run(story())


def test_neither_waits_for_the_other_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        async with Host(tmp_path, monkeypatch) as host:
            first = await host.open("first", idle_exit=1.0)  # longer than it takes to connect
            monkeypatch.chdir(tmp_path)
            before = os.umask(0o077)
            try:
                second = await host.open("second", "first", env={"TMPDIR": str(tmp_path)})
            finally:
                os.umask(before)
            assert os.readlink(f"/proc/{second.pid}/cwd") == str(tmp_path)
            assert "Umask:\t0077" in Path(f"/proc/{second.pid}/status").read_text()
            third = await host.open("third", "second")
            assert host.importers() == [first.pid]
            await third.shutdown()
            children = Path(f"/proc/{second.pid}/task/{second.pid}/children")
            assert children.read_text() == ""  # no zombie: it has never been a child
            one = host.agent("second", second)
            await one.start("import tempfile\nprint(tempfile.gettempdir())", 1, env={"TMPDIR": str(tmp_path)})
            await one.printed(f"{tmp_path}\n", 1)
            await one.start(SLEEP)
            await one.printed("here")
            await first.close()
            await eventually(lambda: not alive(first.pid))  # what was forked from it is no work of its own
            assert await second.kill("j", 1, 0, signal.SIGKILL) == 1
            assert (await one.ended()).signal == signal.SIGKILL

    asyncio.run(story())


def test_where_a_new_process_would_be_another_one_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        async with Host(tmp_path, monkeypatch) as host:
            first = await host.open("first")
            second = await host.open("second", "first", env={"MALLOC_ARENA_MAX": "2"})
            host.preload = ("noted", "json")
            third = await host.open("third", "first")
            assert host.importers() == [first.pid, second.pid, third.pid]

    asyncio.run(story())


def test_without_an_answer_one_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        async with Host(tmp_path, monkeypatch) as host:
            first = await host.open("first", "third")  # no such folder
            os.kill(first.pid, signal.SIGSTOP)
            began = time.monotonic()
            second = await host.open("second", "first", ready_timeout=24.0)
            assert time.monotonic() - began >= 6.0 - 0.1  # a quarter of it
            os.kill(first.pid, signal.SIGCONT)
            await first.workers()  # it has read the request by now, and that its client has left
            await first.shutdown()
            third = await host.open("third", "first")  # it has left its folder
            assert host.importers() == [first.pid, second.pid, third.pid]
            os.kill(third.pid, signal.SIGKILL)
            await eventually(lambda: not alive(third.pid))
            again = await host.open("first", "third")  # it has left its socket
            assert host.importers()[3:] == [again.pid]
            assert (host.run_dirs["second"] / "warm.log").read_text() == ""  # no fork of the first came too late

    asyncio.run(story())


def test_it_waits_for_one_that_is_about_to_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        async with Host(tmp_path, monkeypatch) as host:
            host.run_dirs["first"].mkdir(parents=True)
            second = asyncio.create_task(host.open("second", "first"))
            await asyncio.sleep(0.1)  # it looks for the other meanwhile
            first = await host.open("first")
            await second
            assert host.importers() == [first.pid]

    asyncio.run(story())


def test_where_one_serves_already_the_fork_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        async with Host(tmp_path, monkeypatch) as host:
            await host.open("first")
            second = await host.open("second", "first")
            asked = ["--run-dir", str(host.run_dirs["second"]), "--preload", "noted"]
            assert await fork_from.ask(host.run_dirs["first"], asked, os.environ, 20.0) == 0
            assert [worker.pid for worker in await second.workers()] == []  # it answers as before
            refused = await fork_from.ask(host.run_dirs["first"], ["--no-such-flag"], os.environ, 20.0)
            assert refused == 0
            assert await host.opened[0].workers() == ()

    asyncio.run(story())


def test_what_the_other_sends_to_all_is_no_answer(tmp_path: Path) -> None:
    lines = [b'{"exited": {"rank": 3}}', b'{"id": 0, "ok": true, "pid": 17}']

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b"".join(line + b"\n" for line in lines))
        writer.close()

    async def story() -> None:
        async with await asyncio.start_unix_server(serve, tmp_path / "warm.sock"):
            assert await fork_from.ask(tmp_path, [], {}, 20.0) == 17
            lines.pop()
            assert await fork_from.ask(tmp_path, [], {}, 20.0) == 0

    asyncio.run(story())


def test_what_counts_was_installed_when_it_imported() -> None:
    theirs, ours = socket.socketpair()
    ask = {"situation": inherited.situation({"A": "1"})}
    with selectors.DefaultSelector() as selector, ours, theirs:
        asker = Connection(ours)
        old, new = (
            ServerForks(selector, {"A": "1"}, packages, lambda: None) for packages in ("older", inherited.packages())
        )
        assert old.refusal(asker, ask) == "this fork server has another set of installed packages"
        assert new.refusal(asker, ask) == ""
        theirs.close()
        assert new.refusal(asker, ask) == "the client has left"


def test_what_a_fork_inherits_has_to_be_equal() -> None:
    ours = inherited.situation({"A": "1", "HOLDFAST_X": "1", "PWD": "/", "OMP_NUM_THREADS": "1"})
    theirs = inherited.situation({"A": "1", "HOLDFAST_X": "2", "PWD": "/tmp", "OMP_NUM_THREADS": "4"})
    assert inherited.difference(ours, theirs) == ""
    assert inherited.difference(ours, inherited.situation({"A": "2"})) == "variable A"
    assert inherited.difference(ours, inherited.situation({})) == "variable A"
    assert inherited.difference(inherited.situation({}), ours) == "variable A"
    names = ("Uid", "Groups", "CapEff", "namespace pid", "cgroup", "RLIMIT_NOFILE", "niceness", "Python")
    for name in (*names, inherited.PACKAGES):
        assert inherited.difference(ours, {**ours, name: "another"}) == name
    before = os.umask(0o027)
    try:
        assert inherited.umask() == 0o027
    finally:
        os.umask(before)
