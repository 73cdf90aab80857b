"""A cluster with the certificates and tokens of `holdfast certs`, and agents with scripted messages."""

import contextlib
import dataclasses
import queue
import ssl
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import grpc
import httpx

from holdfast.base.certs import Credential, load_authority
from holdfast.wire import codec as wire
from holdfast.wire import messages as msg
from holdfast.wire import types as t
from tests.e2e.daemons import wait_for

METHOD = "/holdfast.v1.Controller/Session"
Order = TypeVar("Order", bound=msg.Order)


@dataclass
class Cluster:
    certs: Path
    grpc: str
    http: str
    folder: Path

    def token(self, role: str) -> str:
        return (self.certs / role / "api-token").read_text().strip()

    def api(self, token: str = "", cert: tuple[Path, Path] | None = None, **headers: str) -> httpx.Client:
        context = ssl.create_default_context(cafile=str(self.certs / "reader" / "ca.pem"))
        if cert is not None:
            context.load_cert_chain(*cert)
        if token:
            headers["Authorization"] = f"Bearer {token}"
        return httpx.Client(
            base_url=f"https://{self.http}", verify=context, headers=headers, trust_env=False, timeout=30
        )

    def ours(self) -> Credential:
        found = load_authority(self.certs / "ca" / "ca.pem", self.certs / "ca" / "ca-key.pem")
        assert found is not None
        return found

    def node(self, name: str = "node0") -> tuple[Path, Path]:
        folder = self.certs / "nodes" / name
        return folder / "node.pem", folder / "node-key.pem"

    def joins(
        self, name: str, cert: bytes | None, key: bytes | None, more: list[msg.AgentMessage] | None = None
    ) -> bool:
        """Whether an agent of this name with this certificate is welcome; `more` is what it says then."""
        ca = (self.certs / "reader" / "ca.pem").read_bytes()
        said = [msg.Hello(t.Identity(name, "host", f"i{time.monotonic_ns()}")), *(more or [])]
        leave = threading.Event()

        def speak() -> Iterator[bytes]:
            yield from map(wire.encode_agent, said)
            leave.wait(20)

        with grpc.secure_channel(self.grpc, grpc.ssl_channel_credentials(ca, key, cert)) as channel:
            session: Any = channel.stream_stream(METHOD)
            answers = session(speak(), timeout=20)
            try:
                welcome = wire.decode_controller(next(answers))
                for _ in more or []:
                    next(answers)  # acknowledged
            except grpc.RpcError as error:
                if error.code() is not grpc.StatusCode.UNAVAILABLE:
                    raise
                return False  # the handshake failed
            finally:
                leave.set()
                answers.cancel()
        return isinstance(welcome, msg.Welcome)


def read(paths: tuple[Path, Path]) -> tuple[bytes, bytes]:
    return paths[0].read_bytes(), paths[1].read_bytes()


class Agent:
    """A node with a certificate and one slot, which sends heartbeats, and seems to do as it is asked."""

    def __init__(self, cluster: Cluster, node: str, answers: bool = True) -> None:
        """`answers`: does it answer commands?"""
        self.node, self.answers = node, answers
        self.commands: list[msg.Command] = []
        self.said: queue.Queue[msg.AgentMessage | None] = queue.Queue()
        self._events = 0
        ca = (cluster.certs / "reader" / "ca.pem").read_bytes()
        cert, key = read(cluster.node(node))
        self.channel = grpc.secure_channel(cluster.grpc, grpc.ssl_channel_credentials(ca, key, cert))
        session: Any = self.channel.stream_stream(METHOD)
        self.stream = session(self._speak(), timeout=60)
        assert isinstance(wire.decode_controller(next(self.stream)), msg.Welcome)
        self.thread = threading.Thread(target=self._listen)
        self.thread.start()

    def _speak(self) -> Iterator[bytes]:
        identity = t.Identity(self.node, self.node, f"i{time.monotonic_ns()}", slots=1, address=self.node)
        yield wire.encode_agent(msg.Hello(identity))
        frames = 0
        while True:
            try:
                message = self.said.get(timeout=0.1)
            except queue.Empty:
                message = t.Frame(0, 1, 1)
            if message is None:
                return
            if isinstance(message, t.Frame):
                frames += 1
                message = dataclasses.replace(message, seq=frames)
            yield wire.encode_agent(message)

    def _listen(self) -> None:
        with contextlib.suppress(grpc.RpcError):
            for data in self.stream:
                if isinstance(command := wire.decode_controller(data), msg.Command):
                    self.commands.append(command)
                    if self.answers:
                        self.answer(command)

    def say(self, message: msg.AgentMessage | t.Event) -> None:
        if not isinstance(message, t.Frame | msg.LogChunk | msg.CommandResult):
            self._events += 1
            message = msg.Numbered(self._events, message)  # type: ignore[arg-type]  # an event
        self.said.put(message)

    def answer(self, command: msg.Command, host: str = "127.0.0.1") -> None:
        self.say(msg.CommandResult(command.id, True, data={"host": host, "port": "29500", "started": "1"}))

    def order(self, kind: type[Order]) -> tuple[msg.Command, Order]:
        """The first command of this kind."""
        wait_for(lambda: any(isinstance(one.order, kind) for one in list(self.commands)))
        return next((one, one.order) for one in list(self.commands) if isinstance(one.order, kind))

    def __enter__(self) -> "Agent":
        return self

    def __exit__(self, *_: object) -> None:
        self.said.put(None)
        self.stream.cancel()
        self.thread.join()
        self.channel.close()


@contextlib.contextmanager
def a_job(cluster: Cluster, answers: bool = True) -> Iterator[tuple[Agent, str, httpx.Client]]:
    """A job of one worker on node0, whose agent is ours: agent, id, and an operator's client."""
    with cluster.api(cluster.token("operator")) as api, Agent(cluster, "node0", answers) as holder:
        spec = {"program": {"target": "x.py"}, "nnodes": 1, "nproc_per_node": 1}
        job = api.post("/api/v1/jobs", json=spec).raise_for_status().json()["id"]
        if answers:
            holder.order(msg.StartWorkers)
        yield holder, job, api
        holder.answers = True
        api.post("/api/v1/job/stop").raise_for_status()
        wait_for(lambda: api.get("/api/v1/job").json()["state"] == "stopped")
