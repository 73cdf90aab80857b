"""The stream to the controller: hello, frames and events up, commands down; reconnects until it is asked to stop."""

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc

from holdfast.agent.stream.outbox import Outbox
from holdfast.base import bounds, log
from holdfast.base.address import format_address
from holdfast.base.errors import ProtocolError, UsageError
from holdfast.base.retry import Backoff
from holdfast.wire import codec as wire
from holdfast.wire import messages as msg
from holdfast.wire import pieces
from holdfast.wire import types as t

_METHOD = "/holdfast.v1.Controller/Session"
_WELCOME_TIMEOUT = 10.0
_QUEUE = 20_000  # messages that wait for a stream; half of it may be what is worth nothing later
_MOST_PAUSE = 60.0
_REASON_TIMEOUT = 1.0  # seconds for the reader to say why the writer cannot go on
MAX_MESSAGE = bounds.MAX_MESSAGE
_STEADY = 5.0  # seconds of a good stream after which the back-off is reset


class RefusedError(ProtocolError):
    """The controller refused this node, and said when to ask again: `retry_after`, seconds."""

    def __init__(self, refused: msg.Refused) -> None:
        super().__init__(f"the controller refuses: {refused.reason}")
        self.retry_after = min(bounds.amount(refused.retry_after), _MOST_PAUSE) if refused.retry_after > 0 else 0.0


class Link:
    def __init__(
        self,
        address: tuple[str, int],
        outbox: Outbox,
        hello: Callable[[], msg.Hello],
        on_command: Callable[[msg.Command], None],
        on_durable: Callable[[list[t.Event]], None],
        credentials: grpc.ChannelCredentials | None = None,
        on_clock: Callable[[msg.ClockReply], None] = lambda reported: None,
    ) -> None:
        self.address, self.outbox = address, outbox
        self._hello, self._on_command, self._on_durable = hello, on_command, on_durable
        self._credentials = credentials
        self._on_clock = on_clock
        self._queue: asyncio.Queue[msg.AgentMessage] | None = None
        self.heartbeat_interval = 0.25
        self._refused = ""
        self._stalled = asyncio.Event()
        self.unsendable = 0
        """Messages that could not be encoded: a bug of ours, reported once and left out."""

    @property
    def connected(self) -> bool:
        return self._queue is not None

    @property
    def backlog(self) -> int:
        """Messages that wait for the running stream."""
        return self._queue.qsize() if self._queue is not None else 0

    def send(self, message: msg.AgentMessage) -> None:
        """Queue a message for the running stream; without one only what the outbox keeps will arrive.

        Of a controller that takes nothing for so long, the stream is ended: what the outbox keeps goes into the next.
        """
        if self._queue is None:
            return
        is_kept = isinstance(message, t.Frame | msg.Numbered)
        if self._queue.qsize() < (_QUEUE if is_kept else _QUEUE // 2):
            self._queue.put_nowait(message)
        elif is_kept:
            self._stalled.set()

    async def run(self) -> None:
        """Connect, serve, reconnect; ends only by cancellation."""
        loop = asyncio.get_running_loop()
        policy = Backoff(initial=0.05, cap=1.0)  # while we are away, faults here are not detected
        delays = policy.delays()
        while True:
            began, pause = loop.time(), 0.0
            try:
                await self._serve()
            except RefusedError as error:
                self._report(error)
                pause = error.retry_after
            except (grpc.RpcError, ProtocolError, TimeoutError, OSError) as error:
                self._report(error)
            except Exception as error:
                # A bug of ours in one stream must not end the agent: the next stream starts again.
                log.exception("link.bug", error=repr(error))
            finally:
                self._queue = None
            if loop.time() - began > _STEADY:
                delays = policy.delays()
            await asyncio.sleep(max(next(delays), pause))

    def _report(self, error: Exception) -> None:
        """Log the reason, once for every new one."""
        reason = str(error) or type(error).__name__
        if isinstance(error, grpc.aio.AioRpcError):
            reason = f"{error.code().name.lower()}: {error.details()}"
            if self._credentials is not None and not self.connected:
                reason = _handshake(error.details() or "") or reason
        if reason != self._refused:
            self._refused = reason
            log.warning("controller.away", address=format_address(*self.address), reason=reason)

    async def _serve(self) -> None:
        async with self._channel() as channel:
            call: Any = channel.stream_stream(_METHOD)(wait_for_ready=False)
            try:
                await call.write(wire.encode_agent(self._hello()))
                async with asyncio.timeout(_WELCOME_TIMEOUT):
                    data = await call.read()
                await self._talk(call, data)
            finally:
                call.cancel()

    async def _talk(self, call: Any, first: Any) -> None:
        if first is grpc.aio.EOF:
            raise await _failure(call)
        welcome = wire.decode_controller(first)
        if isinstance(welcome, msg.Refused):
            raise RefusedError(welcome)
        if not isinstance(welcome, msg.Welcome):
            raise ProtocolError("the controller did not send a welcome")
        self._refused = ""
        self.heartbeat_interval = welcome.heartbeat_interval
        self._on_durable(self.outbox.acknowledged(welcome.frames_acked, welcome.events_acked))
        queue: asyncio.Queue[msg.AgentMessage] = asyncio.Queue()
        for message in self.outbox.unacknowledged():
            queue.put_nowait(message)
        self._queue = queue
        log.event("controller.joined", address=format_address(*self.address), resent=queue.qsize())
        self._stalled.clear()
        reader = asyncio.create_task(self._read(call))
        writer = asyncio.create_task(self._write(call, queue))
        stalled = asyncio.create_task(self._stalled.wait())
        try:
            done, _ = await asyncio.wait({reader, writer, stalled}, return_when=asyncio.FIRST_COMPLETED)
            if reader not in done:  # it knows better why a stream ended, if that is what happened
                await asyncio.wait({reader}, timeout=_REASON_TIMEOUT)
            for task in (reader, writer):
                if task.done():
                    task.result()
            raise ProtocolError(f"the controller has not received {_QUEUE} messages: restarting the stream")
        finally:
            reader.cancel()
            writer.cancel()
            stalled.cancel()
            # Not `await` under a suppress: that would swallow a cancellation of ourselves.
            await asyncio.wait({reader, writer, stalled})
            for task in (reader, writer):
                if not task.cancelled():
                    task.exception()

    async def _write(self, call: Any, queue: "asyncio.Queue[msg.AgentMessage]") -> None:
        """Ends with an error, never by itself."""
        while True:
            message = await queue.get()
            try:
                data = wire.encode_agent(message)
            except Exception as error:
                self._left_out(message, error)
                continue
            if len(data) > MAX_MESSAGE:
                self._left_out(message, ProtocolError(f"{len(data)} bytes; {MAX_MESSAGE} are the most"))
                continue
            try:
                for piece in pieces.cut(data):
                    await call.write(piece)
            except asyncio.InvalidStateError as error:
                raise ProtocolError(f"the stream ended: {error}") from None

    def _left_out(self, message: msg.AgentMessage, error: Exception) -> None:
        """It would break every stream that it is sent into: better without it."""
        self.unsendable += 1
        if self.unsendable == 1:
            log.error("message.unsendable", message=type(message).__name__, error=f"{type(error).__name__}: {error}")

    async def _read(self, call: Any) -> None:
        while (data := await call.read()) is not grpc.aio.EOF:
            try:
                message = wire.decode_controller(data)
            except ProtocolError as error:
                log.warning("message.malformed", error=str(error))
                continue
            match message:
                case msg.Ack():
                    self.heartbeat_interval = message.heartbeat_interval
                    self._on_durable(self.outbox.acknowledged(message.frames, message.events))
                case msg.Command():
                    self._on_command(message)
                case msg.ClockReply():
                    self._on_clock(message)
                case msg.Refused():
                    raise RefusedError(message)
        raise await _failure(call)

    def _channel(self) -> grpc.aio.Channel:
        host, port = self.address
        target = format_address(host, port)
        options = [
            ("grpc.max_receive_message_length", MAX_MESSAGE),
            ("grpc.max_send_message_length", MAX_MESSAGE),
            ("grpc.keepalive_time_ms", 20_000),
            ("grpc.keepalive_timeout_ms", 10_000),
            ("grpc.http2.max_pings_without_data", 0),
            ("grpc.http2.bdp_probe", 0),  # what comes down is small: no pings to find a window for it
            ("grpc.enable_retries", 0),
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 1000),
        ]
        if self._credentials is None:
            return grpc.aio.insecure_channel(target, options)
        return grpc.aio.secure_channel(target, self._credentials, options)

    def own_address(self) -> str:
        """The address of this node that the controller's side of the network sees."""
        host, port = self.address
        family, kind, proto, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, proto) as probe:
            probe.connect(where)  # no packet leaves: it only asks for the route
            return str(probe.getsockname()[0])


def _handshake(details: str) -> str:
    """Why a TLS connection failed, in words; empty when something else was wrong."""
    _, failed, why = details.partition("CERTIFICATE_VERIFY_FAILED: ")
    if failed:
        return f"the controller's certificate is not signed by --tls-ca: {why.partition(':')[0]}"
    if "Hostname Verification Check failed" in details:
        return "the controller's certificate is for another host: make one with `holdfast certs --host`"
    if any(sign in details for sign in ("ocket closed", "reset by peer", "Broken pipe")):
        return "the controller closed the connection: the agent's certificate must be valid and from its authority"
    return ""


async def _failure(call: Any) -> Exception:
    """Why a stream ended: the status as an error."""
    code = await call.code()
    return ProtocolError(f"the stream ended: {code.name.lower()} {await call.details() or ''}".strip())


def read_credentials(ca: Path | None, cert: Path | None, key: Path | None) -> grpc.ChannelCredentials | None:
    """Mutual TLS, or None without files. UsageError when one cannot be read."""
    if ca is None or cert is None or key is None:
        return None
    try:
        return grpc.ssl_channel_credentials(ca.read_bytes(), key.read_bytes(), cert.read_bytes())
    except OSError as error:
        raise UsageError(f"cannot read the TLS files: {error}") from None
