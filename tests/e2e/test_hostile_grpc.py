"""Clients without a certificate, or with a stolen one, at the agents' port of a real controller: what they cost."""

import contextlib
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest

from holdfast.base.bounds import MAX_PIECE
from holdfast.controller.shell.ingest import HANDSHAKE_S, MOST_WAITING, STREAMS_EACH
from holdfast.wire import codec as wire
from holdfast.wire import messages as msg
from holdfast.wire import types as t
from tests.e2e.daemons import Running, commands, ready, wait_for
from tests.e2e.secured import METHOD

pytestmark = [pytest.mark.slow, pytest.mark.calm]
LATE_S = 30.0  # what a busy machine may add to a deadline
MOST = 64 << 20  # what a client of ours would send at most


@dataclass
class Victim:
    controller: Running
    address: str
    certs: Path

    def channel(self, node: str = "node0") -> grpc.Channel:
        folder = self.certs / "nodes" / node
        ca, key, cert = (folder / name for name in ("ca.pem", "node-key.pem", "node.pem"))
        credentials = grpc.ssl_channel_credentials(ca.read_bytes(), key.read_bytes(), cert.read_bytes())
        options = [("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
        return grpc.secure_channel(self.address, credentials, options)

    def memory(self) -> int:
        return int(psutil.Process(self.controller.process.pid).memory_info().rss)

    def is_well(self) -> None:
        """An agent of another name joins at once."""
        with self.channel("node1") as channel, Stream(channel) as one:
            one.say(wire.encode_agent(msg.Hello(t.Identity("node1", "h", f"i{time.monotonic_ns()}"))))
            assert isinstance(one.hears(), msg.Welcome)


class Stream:
    def __init__(self, channel: grpc.Channel) -> None:
        self.said: queue.Queue[bytes | None] = queue.Queue()
        session: Any = channel.stream_stream(METHOD)
        self.answers = session(iter(self.said.get, None), timeout=60)

    def say(self, data: bytes) -> None:
        self.said.put(data)

    def hears(self) -> msg.ControllerMessage:
        return wire.decode_controller(next(self.answers))

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *_: object) -> None:
        self.said.put(None)
        self.answers.cancel()


@pytest.fixture(scope="module")
def victim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victim]:
    folder = tmp_path_factory.mktemp("victim")
    with commands(folder / "commands") as one:
        certs, its = folder / "certs", folder / "certs" / "controller"
        made = one.run("certs", "--dir", str(certs), "--node", "node0", "--node", "node1")
        assert made.process.returncode == 0, made.err
        controller = one.start(
            "controller", "--grpc-port", "0", "--http-port", "0", "--state-dir", str(folder / "state"),
            "--tls-ca", str(its / "ca.pem"), "--tls-cert", str(its / "controller.pem"),
            "--tls-key", str(its / "controller-key.pem"),
        )  # fmt: skip
        rpc, _ = ready(controller)
        yield Victim(controller, rpc, certs)
        assert controller.process.poll() is None
        assert "Traceback" not in controller.err


def many(count: int, what: Callable[[int], None]) -> None:
    threads = [threading.Thread(target=what, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_a_first_message_of_64_mib_is_not_taken(victim: Victim) -> None:
    """Twenty at the same time, with a certificate that is good."""
    before, answers = victim.memory(), list[object]()
    big = wire.encode_agent(msg.LogChunk("j", 1, 0, "out", "x" * (MOST - 1000)))
    most, over = [before], threading.Event()

    def watch() -> None:
        while not over.wait(0.01):
            most.append(victim.memory())

    def send(_: int) -> None:
        with victim.channel() as channel, Stream(channel) as one:
            one.say(big)
            try:
                answers.append(type(one.hears()))
            except grpc.RpcError as error:
                answers.append(error.code())

    watcher = threading.Thread(target=watch)
    watcher.start()
    many(20, send)
    over.set()
    watcher.join()
    assert len(answers) == 20
    assert grpc.StatusCode.RESOURCE_EXHAUSTED in answers
    assert set(answers) <= {grpc.StatusCode.RESOURCE_EXHAUSTED, msg.Refused}  # too many at the same time
    assert max(most) - before < 32 << 20
    victim.is_well()


def test_pieces_before_a_hello_are_not_put_together(victim: Victim) -> None:
    with victim.channel() as channel, Stream(channel) as one:
        one.say(wire.encode_agent(msg.Piece(b"x" * (MAX_PIECE - 64), more=True)))
        answer = one.hears()
        assert isinstance(answer, msg.Refused)
        assert answer.reason == "the first message must be a hello"


def test_so_many_streams_of_one_certificate_may_be_silent(victim: Victim) -> None:
    with contextlib.ExitStack() as all_of_them:
        silent = [
            all_of_them.enter_context(Stream(all_of_them.enter_context(victim.channel()))) for _ in range(MOST_WAITING)
        ]
        refused: list[msg.ControllerMessage] = []

        def is_refused() -> bool:
            with victim.channel() as channel, Stream(channel) as one:
                one.say(b"\xff")
                refused.append(one.hears())
            return isinstance(refused[-1], msg.Refused) and "too many streams" in refused[-1].reason

        wait_for(is_refused, says=lambda: refused)
        victim.is_well()
        began = time.monotonic()
        for one in silent:
            answer = one.hears()
            assert isinstance(answer, msg.Refused)
            assert answer.reason == "no hello in time"
        assert time.monotonic() - began < 10 + LATE_S


def test_a_connection_has_so_many_streams(victim: Victim) -> None:
    with victim.channel("node1") as channel, contextlib.ExitStack() as all_of_them:
        first = all_of_them.enter_context(Stream(channel))
        first.say(wire.encode_agent(msg.Hello(t.Identity("node1", "h", f"i{time.monotonic_ns()}"))))
        assert isinstance(first.hears(), msg.Welcome)  # by now the client knows how many there may be
        *held, last = [all_of_them.enter_context(Stream(channel)) for _ in range(STREAMS_EACH)]
        answers: queue.Queue[msg.ControllerMessage] = queue.Queue()
        last.say(b"\xff")
        waits = threading.Thread(target=lambda: answers.put(last.hears()))
        waits.start()
        with pytest.raises(queue.Empty):
            answers.get(timeout=1.0)  # until another one ends
        held[0].answers.cancel()
        assert isinstance(answers.get(timeout=LATE_S), msg.Refused)
        waits.join()


def test_a_handshake_that_does_not_come_is_not_waited_for(victim: Victim) -> None:
    host, _, port = victim.address.rpartition(":")
    began = time.monotonic()
    with socket.create_connection((host, int(port)), timeout=HANDSHAKE_S + LATE_S) as one:
        assert one.recv(1) == b""
        assert time.monotonic() - began > HANDSHAKE_S - 1
