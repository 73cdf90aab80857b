"""The gRPC end: one stream per agent, from hello to break. Decodes, numbers, acknowledges; decides nothing."""

import asyncio
import contextlib
import dataclasses
import math
import time
import urllib.parse
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc

from holdfast.base import log
from holdfast.base.address import claim_port, format_address
from holdfast.base.bounds import MAX_NODES, MAX_PIECE
from holdfast.base.errors import ProtocolError, UsageError
from holdfast.controller.cluster.state import ClusterState
from holdfast.controller.detectors.agents.input import refused_finding
from holdfast.controller.shell.claims import RETRY_S, Claim, judge, taken_finding
from holdfast.controller.shell.sessions import Session
from holdfast.controller.shell.shell import Shell, now
from holdfast.controller.state.events import AgentJoined, AgentLeft, EventSeen, Found, FrameSeen, ResultSeen
from holdfast.controller.state.model import Job
from holdfast.wire import codec as wire
from holdfast.wire import messages as msg
from holdfast.wire import types as t
from holdfast.wire.limits import Refused, admitted, count

HELLO_S = 10.0
_MAX_MESSAGE = 64 << 20  # of messages to agents: an agent trusts its controller
MOST_STREAMS = MAX_NODES + 256
"""Streams, and connections, at the same time: one for each node that there may be, and some that are refused."""
STREAMS_EACH = 2
"""Streams on one connection: an agent opens another connection for another stream."""
MOST_WAITING = 4
"""Streams with the same certificate that may be without a hello at the same time ..."""
MOST_UNNAMED = 256
"""... and of all, where no certificate is required."""
HANDSHAKE_S = 10.0
_IDLE_S = 60.0  # of a connection without any stream
_WINDOW = 256 << 10  # bytes that a stream may send ahead, and that are held in memory; and of its largest piece
_WALL_OF_BOOT = time.time_ns() - time.monotonic_ns()  # the clock of spans: it must not jump as Unix time may
_NO_ROOM = f"{MAX_NODES} nodes are in use, the maximum: no new name is accepted"
_REPORTED_AGAIN = 600.0  # seconds between two findings of what one node is refused for
_MOST_REPORTED = 10_000


class _TakenError(ProtocolError):
    """The node's name is another agent's."""


class Ingest:
    def __init__(self, shell: Shell, verified: bool) -> None:
        """`verified`: peers authenticate by certificate, and an agent must be the node that it claims to be."""
        self.shell = shell
        self.verified = verified
        self.sessions, self._received = shell.sessions, shell.sessions.received
        self._counts: dict[tuple[str, str], int] = {}  # what was left out, by node and reason
        self._reported: dict[tuple[str, str], float] = {}  # findings, by node and what they are about
        self.certificates: dict[str, bytes] = {}  # node -> what it showed last, PEM
        self._waiting: Counter[str] = Counter()  # streams without a hello yet, by certificate

    def handler(self) -> grpc.GenericRpcHandler:
        # Bytes in, bytes out: a malformed message is then handled here, and is no internal error of the library.
        session: Any = grpc.stream_stream_rpc_method_handler(self.session)
        return grpc.method_handlers_generic_handler("holdfast.v1.Controller", {"Session": session})

    async def session(self, _: Any, context: Any) -> None:
        """One stream from beginning to end; ends by itself when either side goes."""
        loop = asyncio.get_running_loop()
        try:
            hello = await self._first(context)
            if why := self._whose(hello, context):
                raise _TakenError(why)
        except (ProtocolError, TimeoutError) as error:
            why, reason = str(error) or "no hello in time", "name" if isinstance(error, _TakenError) else "hello"
            self._received.malformed += reason == "hello"
            self._received.refused[reason] += 1
            log.warning("session.refused", peer=context.peer(), reason=why)
            await context.write(wire.encode_controller(msg.Refused(why, RETRY_S if reason == "name" else 0.0)))
            return
        session = Session(hello, _address(context), loop.time())
        if self.verified:
            self.certificates[session.node] = b"".join(context.auth_context().get("x509_pem_cert", []))
        before = self.sessions.open(session)
        protocol = wire.common_protocol(hello.protocol_min, hello.protocol_max)
        heartbeat_interval = self.shell.brain.c.heartbeat_interval
        session.send(msg.Welcome(protocol, heartbeat_interval, session.durable_frames, session.events))
        if before is not None:
            before.send(msg.Refused(f"another agent uses the name {session.node}"))
            before.out.put_nowait(None)
        log.event("node.joined", node=session.node, incarnation=session.incarnation, workers=len(hello.workers))
        self.shell.handle(AgentJoined(hello))
        reader = asyncio.create_task(self._read(context, session))
        writer = asyncio.create_task(self._write(context, session))
        try:
            await asyncio.wait({reader, writer}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (reader, writer):
                task.cancel()
            self._forget(session)
        for task in (reader, writer):
            if task.done() and not task.cancelled():
                task.result()  # what should not be is the library's to log; the agent comes again

    async def _first(self, context: Any) -> msg.Hello:
        """The hello, of which only so many are waited for at the same time."""
        name = min(_names(context), default="") if self.verified else ""
        if self._waiting[name] >= (MOST_WAITING if self.verified else MOST_UNNAMED):
            raise ProtocolError("too many streams without a hello")
        self._waiting[name] += 1
        try:
            return await self._hello(context)
        finally:
            self._waiting[name] -= 1
            if not self._waiting[name]:
                del self._waiting[name]

    async def _hello(self, context: Any) -> msg.Hello:
        async with asyncio.timeout(HELLO_S):
            data = await context.read()
        if data is grpc.aio.EOF:
            raise ProtocolError("the stream ended before its hello")
        refused: Refused = {}
        hello = admitted(wire.decode_agent(data), refused)
        if not isinstance(hello, msg.Hello):
            raise ProtocolError("the first message must be a hello")
        if refused:
            self._refuse(hello.identity.node, refused)
        wire.common_protocol(hello.protocol_min, hello.protocol_max)
        node = hello.identity.node
        if self.verified and node not in _names(context):
            raise ProtocolError(
                f"the certificate is not for node {node!r}: make one with `holdfast certs --node {node}`"
            )
        return hello

    def _whose(self, hello: msg.Hello, context: Any) -> str:
        """Why this agent must not claim the name, if it belongs to another; an alert is raised."""
        holder = self.sessions.by_node.get(hello.identity.node)
        if holder is None:
            members = self.shell.brain.membership
            return members.waits_for_another(hello, now()) if members.has_room(hello.identity.node) else _NO_ROOM
        loop_now, newcomer = asyncio.get_running_loop().time(), Claim(hello.identity, _address(context))
        why = judge(holder.claim, loop_now - holder.heard_at, self.shell.brain.c.heartbeat_interval, newcomer)
        if why and self._is_news((holder.node, f"{newcomer.identity.hostname} {newcomer.address}"[:200])):
            self.shell.handle(Found(taken_finding(holder.claim, newcomer, now())))
        return why

    async def _read(self, context: Any, session: Session) -> None:
        while True:
            try:
                data = await context.read()
            except (grpc.RpcError, grpc.aio.AioRpcError, asyncio.InvalidStateError):
                return
            if data is grpc.aio.EOF:
                return
            if self.sessions.by_node.get(session.node) is not session:
                return
            session.heard_at = asyncio.get_running_loop().time()
            refused: Refused = {}
            try:
                whole = session.pieces.take(data)
                message = admitted(whole, refused) if whole is not None else None
            except ProtocolError as error:
                refused = {"message": 1}
                log.warning("message.malformed", node=session.node, bytes=len(data), error=str(error))
            else:
                if message is not None:
                    self._take(session, message, len(data), refused)
            if refused:
                self._refuse(session.node, refused)

    def _refuse(self, node: str, refused: Refused) -> None:
        """Count what was dropped; it is reported once in a while."""
        self._received.malformed += "message" in refused
        for reason, many in refused.items():
            self._received.refused[reason] += many
            total = self._counts.pop((node, reason), 0) + many
            self._counts[node, reason] = total
            while len(self._counts) > _MOST_REPORTED:
                self._counts.pop(next(iter(self._counts)))
            # Workers of a job that is over may have much to say when their agent comes back: no sign of a fault.
            if reason != "stale" and self._is_news((node, reason)):
                log.warning("message.refused", node=node, reason=reason, count=total)
                self.shell.handle(Found(refused_finding(node, reason, total, now())))

    def _is_news(self, what: tuple[str, str]) -> bool:
        """Was it not reported for a while?"""
        loop_now = asyncio.get_running_loop().time()
        if loop_now - self._reported.get(what, -math.inf) <= _REPORTED_AGAIN:
            return False
        self._reported.pop(what, None)
        self._reported[what] = loop_now
        while len(self._reported) > _MOST_REPORTED:
            self._reported.pop(next(iter(self._reported)))
        return True

    def _take(self, session: Session, message: msg.AgentMessage, size: int, refused: Refused) -> None:
        shell, received = self.shell, self._received
        match message:
            case t.Frame():
                if message.seq > session.frames:  # a frame sent again after a break may have come already
                    session.frames = message.seq
                    received.frames += 1
                    received.frame_bytes += size
                    shell.handle(FrameSeen(session.node, message))
            case msg.Numbered():
                if message.seq > session.events:
                    session.events = message.seq
                    received.events += 1
                    shell.handle(EventSeen(session.node, message.event))
                session.acknowledge(shell.brain.c.heartbeat_interval)
            case msg.CommandResult():
                received.commands["ok" if message.ok else "error"] += 1
                shell.handle(ResultSeen(session.node, message))
            case msg.LogChunk():
                # For an unknown job there are no listeners.
                known = message.job in shell.brain.c.jobs
                if known and (why := not_of(message, session.node, shell.brain.c)):
                    count(refused, why)
                else:
                    shell.logs.add(message, session.node)
            case msg.Spans():
                shell.spans.add(session.node, held_spans(message, session.node, shell.brain.c, refused))
            case msg.ClockRequest():
                session.send(msg.ClockReply(message.sent_ns, _WALL_OF_BOOT + time.monotonic_ns()))
            case msg.Hello() | msg.Piece():
                count(refused, "message")

    async def _write(self, context: Any, session: Session) -> None:
        while (message := await session.out.get()) is not None:
            try:
                data = wire.encode_controller(message)
            except Exception as error:
                self._unsendable(session, message, error)
                continue
            try:
                await context.write(data)
            except (grpc.RpcError, grpc.aio.AioRpcError, asyncio.InvalidStateError):
                return
        context.cancel()

    def _unsendable(self, session: Session, message: msg.ControllerMessage, error: Exception) -> None:
        """A command that no message can hold was not carried out: that is its answer."""
        log.error("message.unsendable", node=session.node, message=type(message).__name__, error=repr(error))
        if isinstance(message, msg.Command):
            text = f"the command cannot be sent: {type(error).__name__}: {error}"
            self.shell.handle(ResultSeen(session.node, msg.CommandResult(message.id, False, text)))

    def _forget(self, session: Session) -> None:
        if self.sessions.close(session):
            log.event("node.left", node=session.node)
            self.shell.handle(AgentLeft(session.node, session.incarnation))


def held_spans(spans: msg.Spans, node: str, cluster: ClusterState, refused: Refused) -> msg.Spans:
    """Those of ranks that the node holds, or may have held in an earlier generation; each names its job."""
    workers = []
    for part in spans.workers:
        job = _job_of(part, node, cluster)
        if why := not_of(part, node, cluster):
            count(refused, why)
        elif job is not None:
            workers.append(part if part.job else dataclasses.replace(part, job=job.spec.id))
    return msg.Spans(tuple(workers), spans.offset_ns, spans.error_ns, spans.dropped)


def not_of(part: msg.WorkerSpans | msg.LogChunk, node: str, cluster: ClusterState) -> str:
    """Why this is not from a rank of a job that the node holds, or may have held; empty if it is."""
    job = _job_of(part, node, cluster)
    if job is None or part.generation > job.generation:
        return "stale"
    held = job.held_by(node, part.generation)
    return "" if held is None or part.rank in held else "foreign"


def _job_of(part: msg.WorkerSpans | msg.LogChunk, node: str, cluster: ClusterState) -> Job | None:
    """The job that it names; the one that holds the node where an older agent names none."""
    return cluster.jobs.get(part.job) if part.job else cluster.holder(node) or cluster.newest


def _names(context: Any) -> set[str]:
    auth = context.auth_context()
    values = [*auth.get("x509_common_name", []), *auth.get("x509_subject_alternative_name", [])]
    return {v.decode() if isinstance(v, bytes) else str(v) for v in values}


def _address(context: Any) -> str:
    """Where the stream comes from, without the port: `ipv4:10.0.0.1:4711`, `ipv6:%5Bfe80::1%5D:4711`."""
    peer = urllib.parse.unquote(str(context.peer() or ""))
    return peer.partition(":")[2].rpartition(":")[0].strip("[]")[:64]


@contextlib.asynccontextmanager
async def serving_grpc(
    ingest: Ingest, host: str, port: int, ca: Path | None = None, cert: Path | None = None, key: Path | None = None
) -> AsyncIterator[int]:
    """Serve agents while the block runs; gives the port (0 takes a free one). UsageError when it is taken."""
    server = grpc.aio.server(
        maximum_concurrent_rpcs=MOST_STREAMS,
        options=[
            ("grpc.max_allowed_incoming_connections", MOST_STREAMS),
            ("grpc.max_concurrent_streams", STREAMS_EACH),
            ("grpc.server_handshake_timeout_ms", round(HANDSHAKE_S * 1000)),
            ("grpc.max_connection_idle_ms", round(_IDLE_S * 1000)),
            ("grpc.max_receive_message_length", MAX_PIECE),
            ("grpc.max_send_message_length", _MAX_MESSAGE),
            ("grpc.so_reuseport", 0),
            ("grpc.keepalive_time_ms", 20_000),
            ("grpc.keepalive_timeout_ms", 10_000),
            ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
            ("grpc.http2.max_ping_strikes", 0),
            # A frame goes out in one piece and waits for no update of a window; and no connection measures its
            # bandwidth, by pings, to find a window of its own: with a thousand agents that is a fifth of the work.
            ("grpc.http2.bdp_probe", 0),
            ("grpc.http2.lookahead_bytes", _WINDOW),
            ("grpc.http2.max_frame_size", _WINDOW),
        ],
    )
    server.add_generic_rpc_handlers((ingest.handler(),))
    address = format_address(host, port)
    claim_port(host, port)  # gRPC would say why it cannot have it in lines of its own
    try:
        if cert is not None and key is not None and ca is not None:
            credentials = grpc.ssl_server_credentials(
                [(key.read_bytes(), cert.read_bytes())], ca.read_bytes(), require_client_auth=True
            )
            bound = server.add_secure_port(address, credentials)
        else:
            bound = server.add_insecure_port(address)
    except OSError as error:
        raise UsageError(f"cannot read the TLS files: {error}") from None
    except RuntimeError:
        raise UsageError(f"cannot listen on {address}; give another --grpc-port") from None
    await server.start()
    try:
        yield bound
    finally:
        await server.stop(0.5)
