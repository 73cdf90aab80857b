"""A server in a process of its own, and its clients: order, repeats after a reconnect, snapshots, who is served."""

from __future__ import annotations

import itertools
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from holdfast.base.errors import HoldfastError, Unavailable, UsageError
from holdfast.base.retry import Backoff
from holdfast.checkpoint.errors import PartInvalid
from holdfast.cli.local.ports import free_port
from holdfast.trainer.embeddings.servers import snapshots
from holdfast.trainer.embeddings.servers.keys import as_keys, dtype_of, first_values, server_of
from holdfast.trainer.embeddings.servers.link import Link, accept, ask, connect
from holdfast.trainer.embeddings.servers.server import Server
from holdfast.trainer.embeddings.servers.stream import Stream
from holdfast.trainer.embeddings.servers.tables import Spec

SECRET = b"0123456789abcdef"
SPEC = Spec(2, 4, "float64", 1, 0)
KEYS = as_keys(range(10, 20))
OTHERS = as_keys(range(100, 300))
WAIT_S = 30.0


def opening(**changed: Any) -> dict[str, Any]:
    return {"do": "open", "run": "r", "spec": asdict(SPEC), "number": 0, "servers": 1, "store": "", "step": 0} | changed


def fetching(**changed: Any) -> dict[str, Any]:
    return {"do": "fetch", "run": "r", "trainer": 0, "batch": 0, "after": -1} | changed


def writing(**changed: Any) -> dict[str, Any]:
    return {"do": "write", "run": "r", "trainer": 0, "number": 0, "cut": False} | changed


def full(count: int, value: float) -> np.ndarray:
    return np.full((count, 4), value)


@contextmanager
def server() -> Iterator[str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "holdfast.trainer.embeddings.servers.server"],
        env={**os.environ, "HOLDFAST_EMBEDDINGS_SECRET": SECRET.decode()},
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["address"]
    finally:
        process.kill()
        process.wait()
        process.stdout.close()  # type: ignore[union-attr]  # a pipe, as asked for


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with server() as found:
        yield found


@contextmanager
def linked(address: str) -> Iterator[Link]:
    link = connect(address, SECRET, WAIT_S)
    try:
        yield link
    finally:
        link.shut()


def test_a_repeat_after_a_reconnect_is_applied_once(address: str) -> None:
    ask(address, SECRET, opening())
    with linked(address) as link:
        link.send(writing(), KEYS, full(10, 1.0))
        link.receive()
    # The reply was lost, as far as the trainer knows; in between, another one has changed nothing of this.
    with linked(address) as link:
        link.send(writing(), KEYS, full(10, 2.0))
        assert link.receive().head == {}
        link.send(fetching(batch=1), KEYS)
        assert np.array_equal(link.receive().rows, full(10, 1.0))
    figures = ask(address, SECRET, {"do": "figures", "run": "r"}).head
    assert (figures["write_backs"], figures["written_bytes"], figures["repeats"]) == (10, 10 * 4 * 8, 1)
    assert (figures["fetches"], figures["fetched_bytes"]) == (10, 10 * 4 * 8)


def test_a_fetch_does_not_overtake_a_write_back(address: str) -> None:
    ask(address, SECRET, opening())
    with linked(address) as early, linked(address) as link:
        early.send(fetching(batch=1, after=0), KEYS)
        early.wire.sock.settimeout(0.3)
        link.send(writing(), KEYS, full(10, 1.0))
        link.receive()
        with pytest.raises(TimeoutError):  # trainer 1 has not written back
            early.receive()
        link.send(writing(trainer=1), KEYS[:5], full(5, 2.0))
        link.receive()
        early.wire.sock.settimeout(WAIT_S)
        assert np.array_equal(early.receive().rows, np.concatenate([full(5, 2.0), full(5, 1.0)]))


@pytest.mark.parametrize(
    ("request_", "what"),
    [
        ({"do": "fetch", "run": "another", "trainer": 0, "batch": 0, "after": -1}, "does not know this run"),
        (fetching(trainer=5), "trainer 5: this run has 2"),
        (writing(number=3), "lost what came between"),
        ({"do": "nothing"}, "a request that is none"),
        ({"do": "fetch", "run": "r"}, "a request that is none"),
        (opening(step=7, store="/nowhere"), "cannot read the snapshot of step 7"),
    ],
)
def test_a_wrong_request_is_refused_in_one_line(address: str, request_: dict[str, Any], what: str) -> None:
    ask(address, SECRET, opening())
    with pytest.raises(HoldfastError, match=what) as raised:
        ask(address, SECRET, request_)
    assert "\n" not in str(raised.value)


def test_who_does_not_know_the_secret_is_not_served(address: str) -> None:
    with pytest.raises(Unavailable, match="another secret"):
        connect(address, b"fedcba9876543210", WAIT_S)


def test_a_waiting_request_ends_when_another_run_begins_or_time_is_over() -> None:
    one = Server(wait_s=0.05)
    from holdfast.trainer.embeddings.servers.link import Message

    one.serve(Message(opening(), KEYS[:0], full(0, 0)))
    with pytest.raises(HoldfastError, match=r"waited 0\.05 s for write-backs of iteration 3"):
        one.serve(Message(fetching(after=3), KEYS, full(0, 0)))


@pytest.mark.parametrize("servers", [1, 3])
def test_a_snapshot_comes_back_on_another_number_of_servers(address: str, tmp_path: Path, servers: int) -> None:
    url = str(tmp_path / "store")
    ask(address, SECRET, opening(store=url))
    with linked(address) as link, linked(address) as second:
        link.send(writing(cut=True), OTHERS, full(200, 1.0))
        link.receive()
        # What trainer 0 does next must not be in the snapshot that trainer 1 is late for.
        link.send(writing(number=1), OTHERS, full(200, 5.0))
        second.send(writing(trainer=1, cut=True), KEYS, full(10, 2.0))
        second.receive()
        link.receive()
    files = ask(address, SECRET, {"do": "stored", "run": "r", "step": 1}).head["files"]
    assert snapshots.newest(url) == 0, "it does not exist before it is whole"
    snapshots.commit(url, 1, "r", {"dim": 4}, files)
    assert snapshots.newest(url) == 1
    expected = {**dict.fromkeys(OTHERS.tolist(), 1.0), **dict.fromkeys(KEYS.tolist(), 2.0)}
    found: dict[int, float] = {}
    for number in range(servers):
        with server() as other:
            ask(other, SECRET, opening(store=url, step=1, number=number, servers=servers))
            with linked(other) as link:
                link.send({"do": "dump", "run": "r"})
                _, keys, rows = link.receive()
        assert np.array_equal(server_of(keys, servers), np.full(len(keys), number))
        assert (rows == rows[:, :1]).all()
        found |= dict(zip(keys.tolist(), rows[:, 0].tolist(), strict=True))
    assert found == expected


def test_a_snapshot_that_is_altered_is_not_used(tmp_path: Path) -> None:
    url = str(tmp_path)
    files = snapshots.write_share(url, 5, "r", 0, 1, KEYS, full(10, 1.0))
    snapshots.commit(url, 5, "r", {"dim": 4}, files)
    assert len(snapshots.load_share(url, 5, SPEC, 0, 1)) == 10
    with pytest.raises(UsageError, match="step 5 was trained with --dim 4, not 8: give --dim 4, or another --store"):
        snapshots.check_settings(url, 5, {"dim": 8})
    path = tmp_path / "step-00000005" / "server-0-of-1.rows"
    path.write_bytes(b"\1" + path.read_bytes()[1:])
    with pytest.raises(PartInvalid, match=r"server-0-of-1\.rows is altered"):
        snapshots.load_share(url, 5, SPEC, 0, 1)


class Breaking:
    """Serves like `Server`, and breaks the connection before each of the replies of these numbers."""

    def __init__(self, breaks: set[int]) -> None:
        self.real, self._breaks, self._count = Server(), breaks, itertools.count()
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._socket.close()

    def _accept(self) -> None:
        while True:
            try:
                link = accept(self._socket.accept()[0], SECRET)
            except OSError:
                return
            self._converse(link)

    def _converse(self, link: Link) -> None:
        try:
            while True:
                reply = self.real.serve(link.receive())
                if next(self._count) in self._breaks:
                    break
                head, *arrays = reply if isinstance(reply, tuple) else (reply,)
                link.send(head, *arrays)
        except OSError:
            pass
        link.shut()


def test_a_stream_goes_on_over_broken_connections() -> None:
    broken = Breaking({1, 4, 5})  # not the opening: that is one request without a stream
    ask(broken.address, SECRET, opening(spec=asdict(SPEC) | {"trainers": 1}))
    stream = Stream(broken.address, SECRET, "embedding server 0", Backoff(initial=0.01, deadline=WAIT_S))
    for number in range(6):
        stream.ask(writing(number=number), KEYS[number:], full(10 - number, number + 1.0))
    stream.ask(fetching(), KEYS)
    replies = [stream.receive() for _ in range(7)]
    assert stream.waiting == 0
    assert replies[-1].rows[:, 0].tolist() == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 6.0, 6.0, 6.0, 6.0]
    stream.close()
    figures = ask(broken.address, SECRET, {"do": "figures", "run": "r"}).head
    assert figures["write_backs"] == 10 + 9 + 8 + 7 + 6 + 5
    assert figures["fetches"] == 10
    assert figures["repeats"] >= 3  # a break may also take replies with it that were on their way
    broken.close()


@pytest.mark.parametrize(("count", "rows"), [(5, 1), (4, 1 << 18)], ids=["small", "more than the sockets hold"])
def test_what_was_asked_before_there_was_a_connection_waits_for_no_reply(count: int, rows: int) -> None:
    """The other end replies to nothing before it has all requests, or to each at once, and then reads no further."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def reply() -> None:
            link = accept(listening.accept()[0], SECRET)
            link.wire.sock.settimeout(WAIT_S)
            ahead = count if rows == 1 else 1
            for _ in range(count // ahead):
                found = [link.receive() for _ in range(ahead)]
                for one in found:
                    link.send(one.head, one.keys, one.rows)
            link.shut()

        threading.Thread(target=reply, daemon=True).start()
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        stream = Stream(address, SECRET, "embedding server 0", Backoff(initial=0.01, deadline=0.05))
        for number in range(count):
            stream.ask({"number": number}, KEYS, full(rows, float(number)))
        for number in range(count):
            message = stream.receive()
            assert message.head == {"number": number}
            assert (message.rows[[0, -1]] == number).all()
        assert stream.waiting == 0
        stream.close()


def test_a_server_that_is_gone_is_one_line_with_its_name() -> None:
    address = f"127.0.0.1:{free_port()}"
    stream = Stream(address, SECRET, "embedding server 3", Backoff(initial=0.01, deadline=0.05))
    stream.ask(fetching(), KEYS)
    with pytest.raises(Unavailable, match=f"embedding server 3 at {address} does not reply: Connection refused"):
        stream.receive()


def test_rows_begin_at_the_server_as_they_do_anywhere(address: str) -> None:
    ask(address, SECRET, opening())
    with linked(address) as link:
        link.send(fetching(), KEYS)
        assert np.array_equal(link.receive().rows, first_values(KEYS, 4, 1, dtype_of("float64")))
