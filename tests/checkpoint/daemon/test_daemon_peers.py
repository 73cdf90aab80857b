"""Copies of snapshots on another node: whole and from the expected owner, or absent; and what they repair."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import struct
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from holdfast.checkpoint.commit.fence import claim
from holdfast.checkpoint.daemon import peer_link
from holdfast.checkpoint.daemon.messages import WorkerHello
from holdfast.checkpoint.daemon.peer_link import PeerServer, TransferInterrupted, fetch, push
from holdfast.checkpoint.daemon.peer_wire import PeerRefused, PeerWire, greet
from holdfast.checkpoint.errors import SnapshotInvalid
from holdfast.checkpoint.format.checksum import CHUNK_BYTES, checksums
from holdfast.checkpoint.restore.inspect import list_checkpoints, verify
from holdfast.checkpoint.snapshots.arena import Arena
from holdfast.checkpoint.snapshots.description import Description, Snapshot
from holdfast.checkpoint.snapshots.files import PORT, peer_file
from holdfast.checkpoint.stores.file import FileStore
from holdfast.checkpoint.stores.rate import Pace
from holdfast.cli.local.ports import free_port
from tests.checkpoint.support.daemons import SECRET, DaemonProcess, Start, Worker, big, talk, until
from tests.checkpoint.support.jobs import layout_of

pytestmark = [pytest.mark.slow, pytest.mark.calm]


def pair(start: Start, num_mib: int = 3, **more: object) -> tuple[DaemonProcess, DaemonProcess, Worker, Worker]:
    """Two nodes with a worker each; the first one's snapshots are copied to the second."""
    first, second = start("n0"), start("n1")
    keeper = Worker(second, None, None, 1, 2, tensors=big(num_mib))
    owner = Worker(first, None, None, 0, 2, tensors=big(num_mib), peer=(second, keeper.place), **more)  # type: ignore[arg-type]
    return first, second, owner, keeper


def on_a_port_of_its_own(folder: Path) -> int:
    """That the daemon of this folder takes. One that the kernel chose it may give to others while a daemon is dead."""
    folder.mkdir(mode=0o700)
    port = free_port()
    (folder / PORT).write_text(f"{port}\n")
    return port


def copies(daemon: DaemonProcess, owner: Worker) -> list[Snapshot]:
    """What a node has of another's worker, newest first; every one of them whole."""
    path = peer_file(daemon.folder, "n0", owner.arena.description)
    if not path.exists():
        return []
    arena = Arena.open(path)
    try:
        found = arena.snapshots()
        assert all(arena.broken(one) == [] for one in found)
        return found
    finally:
        arena.close()


def test_a_snapshot_is_there_again_on_another_node(start: Start) -> None:
    first, second, owner, _ = pair(start)
    for step in (4, 5):
        made = owner.snapshot(step, peer=True)
        note = owner.note("peer", step)
        assert note["bytes"] == owner.arena.description.num_bytes
        newest = copies(second, owner)[0]
        assert (newest.step, newest.generation, newest.values) == (step, 1, {"applied": step})
        assert newest.sums == made.sums
    until(lambda: first.of("peer").get("step") == 5)
    until(lambda: second.status()["copies"].get("0", {}).get("step") == 5)
    # The lost node held nothing that the other does not have.
    first.close()
    assert [one.step for one in copies(second, owner)] == [5, 4]


def test_of_those_that_wait_the_newest_is_copied(start: Start) -> None:
    first, second, owner, keeper = pair(start, 4, slots=3)
    assert first.process is not None
    assert second.process is not None
    second.process.send_signal(signal.SIGSTOP)  # so that the first one is still on its way when the others come
    sender = psutil.Process(first.process.pid)
    try:
        owner.snapshot(1, peer=True)
        until(lambda: any(way.raddr == keeper.place.address for way in sender.net_connections("tcp")))
        for step in (2, 3, 4):
            owner.snapshot(step, peer=True)
    finally:
        second.process.send_signal(signal.SIGCONT)
    owner.note("peer", 4)
    assert 3 not in [one.step for one in copies(second, owner)]


def test_another_secret_gets_nothing(start: Start) -> None:
    _, second, owner, keeper = pair(start, secret=b"another secret of 32 bytes......")
    owner.snapshot(4, peer=True)
    assert "secret" in owner.note("peer-failing")["error"]
    assert copies(second, owner) == []
    with pytest.raises(PeerRefused, match="secret"):
        fetch(keeper.place.address, b"x" * 16, "n0", owner.arena.description, owner.arena.snapshots()[0], [0])


def test_a_peer_that_comes_back_gets_the_newest(start: Start, tmp_path: Path) -> None:
    on_a_port_of_its_own(tmp_path / "n1")
    _, second, owner, keeper = pair(start)
    second.kill()
    owner.snapshot(4, peer=True)
    assert owner.note("peer-failing")["error"]
    second.start()
    until(lambda: keeper.client.poll() == [] and keeper.client.is_connected)
    owner.snapshot(5, peer=True)
    owner.note("peer", 5)
    assert copies(second, owner)[0].step == 5


def test_a_flipped_bit_is_repaired_from_the_copy(start: Start, tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    store = FileStore(tmp_path / "store")
    fence = claim(store, "job", 1)
    first, second = start("n0"), start("n1")
    keeper = Worker(second, fence, store.url, 1, 2, tensors=big(6))
    owner = Worker(first, fence, store.url, 0, 2, tensors=big(6), peer=(second, keeper.place))
    made = owner.snapshot(7, peer=True)
    owner.note("peer", 7)
    for mib in (0, 2):
        owner.flip(made, mib * CHUNK_BYTES + 5)
    assert owner.arena.broken(made) == [0, 2]
    owner.report(made, persist=True)
    keeper.snapshot(7, persist=True)
    assert "MiB (0, 2) of the snapshot of step 7 repaired from n1" in owner.note("repaired")["error"]
    owner.note("persisted", 7)
    assert [one.step for one in list_checkpoints(store.url)] == [7]
    assert verify(store.url, 7) == []
    assert owner.arena.broken(made) == []
    until(lambda: first.status()["workers"]["0"]["repairs"] == 2)


def test_a_stranger_gets_nothing_and_no_traceback(start: Start) -> None:
    _, second, owner, keeper = pair(start)
    for words in (b"", b"GET / HTTP/1.0\r\n\r\n", struct.pack(">I", 1 << 31), struct.pack(">I", 2) + b"[]",
                  struct.pack(">I", 2) + b"{}"):  # fmt: skip
        with socket.create_connection(keeper.place.address, 5) as sock, contextlib.suppress(ConnectionError):
            sock.settimeout(30)
            sock.sendall(words)
            with contextlib.suppress(OSError):  # ENOTCONN: it may have hung up already
                sock.shutdown(socket.SHUT_WR)
            assert sock.recv(100) == b""
    owner.snapshot(4, peer=True)
    owner.note("peer", 4)
    assert "Traceback" not in second.said()


# --- the link alone, in this process


class Keeping:
    """What the server asks of a daemon."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.generation = 0
        self.got: list[int] = []

    def secret_of(self, job: str) -> bytes | None:
        return SECRET if job == "job" else None

    def generation_of(self, job: str) -> int:
        return self.generation

    def received(self, node: str, what: object, snapshot: Snapshot) -> None:
        self.got.append(snapshot.step)


@pytest.fixture
def link(tmp_path: Path) -> Iterator[SimpleNamespace]:
    """A server in a loop of its own thread, and an arena with a snapshot to send to it."""
    (tmp_path / "keep").mkdir()
    keeping = Keeping(tmp_path / "keep")
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    server = PeerServer(keeping)

    async def begin() -> tuple[str, int]:
        return server.start("127.0.0.1")

    address = asyncio.run_coroutine_threadsafe(begin(), loop).result(10)
    layout = layout_of(1, big(3))
    what = Description("job", 0, 1, "digest", layout.tensors, [(name, t.shard) for name, t in layout.tensors.items()])
    arena = Arena.create(tmp_path / "own.snap", what)

    def fill(step: int) -> Snapshot:
        slot = arena.begin()
        assert slot is not None
        memory = arena.memory(slot)
        memory[:] = bytes([step]) * len(memory)
        return arena.commit(slot, step, 3, {"applied": step}, checksums(memory))

    yield SimpleNamespace(address=address, keeping=keeping, arena=arena, fill=fill, what=what)
    asyncio.run_coroutine_threadsafe(server.close(), loop).result(10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)
    loop.close()
    arena.close()


def kept(link: SimpleNamespace) -> list[int]:
    path = peer_file(link.keeping.folder, "n0", link.what)
    if not path.exists():
        return []
    arena = Arena.open(path)
    found = arena.snapshots()
    assert all(arena.broken(one) == [] for one in found)
    arena.close()
    return [one.step for one in found]


def test_a_stream_that_breaks_off_leaves_the_copy_before_it(link: SimpleNamespace) -> None:
    push(link.address, SECRET, "n0", link.arena, link.fill(1), Pace(0))
    second, sent = link.fill(2), []

    def is_over() -> bool:
        sent.append(1)
        return len(sent) > 2

    with pytest.raises(TransferInterrupted):
        push(link.address, SECRET, "n0", link.arena, second, Pace(0), is_over)
    assert kept(link) == [1]
    push(link.address, SECRET, "n0", link.arena, second, Pace(0))
    assert kept(link) == [2, 1]
    assert link.keeping.got == [1, 2]
    # What is there already is not sent again.
    assert push(link.address, SECRET, "n0", link.arena, second, Pace(0)) == 0


def test_a_copy_counts_when_the_peer_has_it_and_not_when_it_is_sent(
    link: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_arrived, may_answer = threading.Event(), threading.Event()

    def received(node: str, what: object, snapshot: Snapshot) -> None:
        has_arrived.set()
        assert may_answer.wait(30)

    monkeypatch.setattr(link.keeping, "received", received)
    made = link.fill(1)
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(push, link.address, SECRET, "n0", link.arena, made, Pace(0))
        try:
            assert has_arrived.wait(30)
            with pytest.raises(TimeoutError):
                sending.result(0.3)
        finally:
            may_answer.set()
        assert sending.result(30) == link.what.num_bytes


def test_what_arrives_altered_is_refused(link: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    made = link.fill(1)
    real = peer_link._send

    def altered(wire: PeerWire, part: memoryview) -> None:
        real(wire, memoryview(bytes([part[0] ^ 4]) + bytes(part[1:])))

    monkeypatch.setattr(peer_link, "_send", altered)
    with pytest.raises((PeerRefused, ConnectionError)) as caught:
        push(link.address, SECRET, "n0", link.arena, made, Pace(0))
    assert "arrived corrupt" in str(caught.value) or caught.type is not PeerRefused
    assert kept(link) == []


def test_what_changed_in_our_memory_is_not_sent(link: SimpleNamespace) -> None:
    made = link.fill(1)
    link.arena.memory(made.slot)[CHUNK_BYTES + 3] ^= 1
    with pytest.raises(SnapshotInvalid, match="MiB 1 of the snapshot of step 1 has changed"):
        push(link.address, SECRET, "n0", link.arena, made, Pace(0))
    assert kept(link) == []


def test_a_generation_that_is_over_is_refused(link: SimpleNamespace) -> None:
    link.keeping.generation = 4
    with pytest.raises(PeerRefused, match="generation 3 of job job has ended"):
        push(link.address, SECRET, "n0", link.arena, link.fill(1), Pace(0))


def test_too_little_memory_is_reported_in_figures(link: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    real = psutil.virtual_memory()
    monkeypatch.setattr(psutil, "virtual_memory", lambda: real._replace(available=real.total // 20 + 1_000_000))
    with pytest.raises(PeerRefused, match=r"2 snapshots of 3\.1 MB take 6\.\d MB, the host has .* MB free"):
        push(link.address, SECRET, "n0", link.arena, link.fill(1), Pace(0))
    assert kept(link) == []


def test_a_proof_cannot_be_used_again(link: SimpleNamespace) -> None:
    """A captured exchange grants no access."""
    heard: list[bytes] = []

    class Ear(PeerWire):
        def send(self, message: dict[str, object]) -> None:
            heard.append(json.dumps(message).encode())
            super().send(message)

    with socket.create_connection(link.address, 5) as sock:
        greet(Ear(sock), "job", SECRET)
    with socket.create_connection(link.address, 5) as sock:
        sock.settimeout(10)
        for text in heard:
            sock.sendall(struct.pack(">I", len(text)) + text)
        wire = PeerWire(sock)
        wire.receive()
        with pytest.raises(ConnectionError):
            wire.receive()


def test_a_server_that_cannot_prove_itself_gets_nothing(link: SimpleNamespace) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def imposter() -> None:
            sock, _ = listener.accept()
            with sock:
                wire = PeerWire(sock)
                wire.receive()
                wire.send({"nonce": "0" * 32})
                # It has no secret; the best it can do is to send the client's own proof back.
                wire.send(wire.receive())
                sock.settimeout(5)
                assert sock.recv(100) == b""

        thread = threading.Thread(target=imposter)
        thread.start()
        with pytest.raises(PeerRefused, match="does not know the job's secret"):
            push(listener.getsockname(), SECRET, "n0", link.arena, link.fill(1), Pace(0))
        thread.join(10)


def test_the_pace_is_kept_by_all_that_share_it() -> None:
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    pace = Pace(1000.0, lambda: now[0], sleep)
    assert pace.piece == 4096
    for _ in range(20):
        pace.take(500)
    assert 9.3 <= now[0] <= 10.0  # 10,000 bytes, the last of which need not be waited for
    assert Pace(0).piece == CHUNK_BYTES
    free = Pace(0, lambda: now[0], sleep)
    before = now[0]
    free.take(1 << 40)
    assert now[0] == before


def test_an_address_survives_its_daemon(start: Start, tmp_path: Path) -> None:
    port = on_a_port_of_its_own(tmp_path / "n0")
    daemon = start("n0")
    address = talk(daemon).hello(WorkerHello("job", 1, 0, 1)).address
    assert address[1] == port
    daemon.kill()
    daemon.start()
    assert talk(daemon).hello(WorkerHello("job", 1, 0, 1)).address == address
