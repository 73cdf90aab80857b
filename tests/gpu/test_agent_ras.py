"""NCCL's own RAS, of two real ranks on one GPU: its answers, its threads, and the rank that is behind."""

from __future__ import annotations

import math
import os
import socket
import time
from pathlib import Path

import pytest

from holdfast.agent.activity import nccl_ras
from holdfast.agent.activity.nccl_ras import RasStatus
from holdfast.agent.activity.operations import NcclOperations
from holdfast.agent.activity.ras_thread import NAME, RasThread
from holdfast.cli.local.ports import free_ports
from tests.conftest import Until
from tests.gpu.conftest import Child, OneGpuHosts, Start

pytestmark = [pytest.mark.slow, pytest.mark.timeout(90)]

SCRIPT = str(Path(__file__).parent / "scripts" / "nccl_pair.py")
KIND = "AllReduce"


def raw(address: str, *words: str) -> str:
    """What it says, as it is. One line at a time, as its own client does."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), 5) as talk:
        talk.settimeout(10)
        read = b""
        for word in ("client protocol 2", *words):
            talk.sendall(f"{word}\n".encode())
            read += talk.recv(1024)
        talk.sendall(b"verbose status\n")
        while more := talk.recv(65536):
            read += more
    return read.decode(errors="replace")


def counts(status: RasStatus) -> dict[int, int]:
    return {one.rank: one.counts.get(KIND, 0) for one in status.members}


def ras_threads(pid: int) -> list[tuple[int, str]]:
    tasks = Path(f"/proc/{pid}/task")
    return [(int(one.name), (one / "comm").read_text().strip()) for one in tasks.iterdir()]


def test_counts_grow_and_name_the_rank_that_is_behind(
    start: Start, until: Until, one_gpu_hosts: OneGpuHosts, tmp_path: Path
) -> None:
    ports = free_ports(2)
    address = f"127.0.0.1:{ports[0]}"
    ranks = [
        start(SCRIPT, str(tmp_path), str(rank), str(ports[1]), env={**env, nccl_ras.ENV_ADDRESS: address})
        for rank, env in enumerate(one_gpu_hosts(2))
    ]
    for child in ranks:
        child.says("ready", 50)
    for form in ("json", "text"):
        print(f"\n--- as {form}:\n{raw(address, *(['set format json'] if form == 'json' else []))[:6000]}\n---")

    times = []

    def asked() -> RasStatus:
        began = time.perf_counter()
        try:
            return nccl_ras.ask(address)
        finally:
            times.append(round((time.perf_counter() - began) * 1e3, 1))

    first = asked()
    print("members:", first.members)
    assert {one.pid: one.rank for one in first.members} == {child.pid: rank for rank, child in enumerate(ranks)}
    until(lambda: all(count > counts(first)[rank] for rank, count in counts(asked()).items()), 10, "counts do not grow")

    operations = NcclOperations()
    pids = [child.pid for child in ranks]

    def grown() -> bool:
        """A step takes 20 ms: two looks in a row may see the same counts."""
        operations.look(pids)
        return all(not math.isnan(operations.grew_at(pid)) for pid in pids)

    until(grown, 10, "no count grows between two looks")
    grew = [operations.grew_at(pid) for pid in pids]
    print("grew at:", grew, "behind:", [operations.behind(pid) for pid in pids])

    (tmp_path / "lag").touch()
    until((tmp_path / "lags").exists, 10)
    until(lambda: (now := counts(asked()))[0] == now[1] + 1, 10, f"{counts(asked())}: rank 1 is not one behind")
    begun = counts(asked())[1]
    print(f"rank 1 has begun {(tmp_path / 'lags').read_text()}, and by NCCL {counts(asked())}")
    operations.forget(pids[0])
    operations.forget(pids[1])
    operations.look(pids)
    operations.look(pids)  # counts stand now: two looks in a row are enough
    said = [operations.behind(pid) for pid in pids]
    print(f"with rank 1 missing after {begun} operations: {said}")
    assert said[0] == ""
    assert f"begun {begun} {KIND} operations as rank 1" in said[1]
    assert f"a peer {begun + 1}" in said[1]
    as_text = nccl_ras.ask(address, as_text=True)
    text = raw(address)
    print(f"as text: {as_text}\n{text[-3000:]}")
    print(f"as json:\n{raw(address, 'set format json')[:3000]}")
    print("ms of each question:", times)
    _its_threads(ranks)
    (tmp_path / "lag").unlink()
    (tmp_path / "stop").touch()
    for child in ranks:
        child.wait(20)
    assert ranks[0].output.split()[1:] == ranks[1].output.split()[1:]
    named = {one.rank for one in as_text.members if one.counts.get(KIND) == begun}
    assert 1 in named, "the text, as the client reads it, names the rank that is behind as well"


def _its_threads(ranks: list[Child]) -> None:
    """Each process has a thread that the agent knows by its name, and can see what it polls."""
    for child in ranks:
        threads = ras_threads(child.pid)
        print("threads:", sorted({name for _, name in threads}))
        (tid,) = [tid for tid, name in threads if name == NAME]
        thread = RasThread(child.pid)
        thread.tid = tid
        deadline = time.monotonic() + 5
        while not (fds := thread.fds("R")):
            assert time.monotonic() < deadline, "what the RAS thread polls is not seen"
            time.sleep(0.01)
        links = {fd: os.readlink(f"/proc/{child.pid}/fd/{fd}") for fd in fds}
        print(f"the RAS thread of {child.pid} polls {links}")
        assert any(link.startswith("socket:") for link in links.values())
