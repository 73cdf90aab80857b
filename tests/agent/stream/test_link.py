"""The stream to the controller, against one that is scripted: what a link does when the other side misbehaves."""

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest

from holdfast.agent.stream import link as link_module
from holdfast.agent.stream.link import Link, read_credentials
from holdfast.agent.stream.outbox import Outbox
from holdfast.base.errors import UsageError
from holdfast.wire import codec as wire
from holdfast.wire import messages as msg
from holdfast.wire import types as t

Script = Callable[[Any], Awaitable[None]]
IDENTITY = t.Identity("node0", "host", "i1")


@asynccontextmanager
async def controller(script: Script) -> AsyncIterator[int]:
    """Each stream is handed to `script`, as raw messages."""

    async def session(_: Any, context: Any) -> None:
        await script(context)

    server = grpc.aio.server()
    handler: Any = grpc.stream_stream_rpc_method_handler(session)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("holdfast.v1.Controller", {"Session": handler}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield port
    finally:
        await server.stop(0)


class Agent:
    def __init__(self, port: int) -> None:
        self.outbox = Outbox(100)
        self.commands: list[msg.Command] = []
        self.durable: list[t.Event] = []
        self.link = Link(
            ("127.0.0.1", port), self.outbox, lambda: msg.Hello(IDENTITY), self.commands.append, self.durable.extend
        )


@asynccontextmanager
async def linked(port: int) -> AsyncIterator[Agent]:
    one = Agent(port)
    task = asyncio.create_task(one.link.run())
    try:
        yield one
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def eventually(what: Callable[[], object], deadline_s: float = 30.0) -> None:
    async with asyncio.timeout(deadline_s):
        while not what():
            await asyncio.sleep(0.005)


async def send(context: Any, message: msg.ControllerMessage) -> None:
    await context.write(wire.encode_controller(message))


async def stay(context: Any) -> None:
    while await context.read() is not grpc.aio.EOF:
        pass


def reasons(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [str(r.fields["reason"]) for r in caplog.records if r.message == "controller.away"]  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def heard(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "holdfast")


def test_what_is_unacknowledged_is_said_first_and_in_order() -> None:
    async def story() -> None:
        said: list[msg.AgentMessage] = []

        async def script(context: Any) -> None:
            said.append(wire.decode_agent(await context.read()))
            await send(context, msg.Welcome(1, 0.25, frames_acked=1, events_acked=1))
            while (data := await context.read()) is not grpc.aio.EOF:
                said.append(wire.decode_agent(data))

        async with controller(script) as port:
            one = Agent(port)
            events = [t.AgentNotice(n, "x", t.Severity.INFO, str(n)) for n in range(3)]
            for event in events:
                one.outbox.event(event)
                one.outbox.frame(t.Frame(0, 1, 1), connected=False)
            task = asyncio.create_task(one.link.run())
            await eventually(lambda: len(said) == 5)
            assert said[0] == msg.Hello(IDENTITY)
            assert said[1::2] == [msg.Numbered(2, events[1]), msg.Numbered(3, events[2])]
            assert [message.seq for message in said[2::2] if isinstance(message, t.Frame)] == [2, 3]
            assert one.durable == events[:1]
            assert one.link.heartbeat_interval == 0.25
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(story())


def test_acknowledgements_and_commands() -> None:
    async def story() -> None:
        command = msg.Command("c1", "j", 1, msg.Inject("kill", 3))

        async def script(context: Any) -> None:
            await context.read()
            await send(context, msg.Welcome(1, 0.1))
            await context.read()
            await send(context, msg.Ack(0, 1, 0.5))
            await send(context, command)
            await stay(context)

        async with controller(script) as port, linked(port) as one:
            await eventually(lambda: one.link.connected)
            event = t.AgentNotice(1, "x", t.Severity.INFO, "x")
            one.link.send(one.outbox.event(event))
            await eventually(lambda: one.commands == [command])
            assert one.durable == [event]
            assert one.link.heartbeat_interval == 0.5

    asyncio.run(story())


def test_a_malformed_message_is_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        async def script(context: Any) -> None:
            await context.read()
            await send(context, msg.Welcome(1, 0.1))
            await context.write(b"\xff\xff\xff")
            await context.write(b"")
            await send(context, msg.Command("c1", "j", 1, msg.StopWorkers()))
            await stay(context)

        async with controller(script) as port, linked(port) as one:
            await eventually(lambda: one.commands)
            assert one.link.connected

    asyncio.run(story())
    assert len([r for r in caplog.records if r.message == "message.malformed"]) == 2
    assert reasons(caplog) == []


@pytest.mark.parametrize(
    ("first", "reason"),
    [
        (msg.Refused("no room"), "the controller refuses: no room"),
        (msg.Ack(1, 1, 0.1), "the controller did not send a welcome"),
        (None, "the stream ended: ok"),
    ],
    ids=["refused", "no welcome", "hung up"],
)
def test_a_refused_agent_retries_and_says_so_once(
    first: msg.ControllerMessage | None, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    tries: list[int] = []

    async def story() -> None:
        async def script(context: Any) -> None:
            await context.read()
            tries.append(1)
            if first is not None:
                await send(context, first)

        async with controller(script) as port, linked(port) as one:
            await eventually(lambda: len(tries) >= 3)
            assert not one.link.connected

    asyncio.run(story())
    assert reasons(caplog) == [reason]


def test_a_silent_controller_is_given_up_in_time(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(link_module, "_WELCOME_TIMEOUT", 0.1)
    tries: list[int] = []

    async def story() -> None:
        async def script(context: Any) -> None:
            tries.append(1)
            await stay(context)

        async with controller(script) as port, linked(port):
            await eventually(lambda: len(tries) >= 2)

    asyncio.run(story())
    assert reasons(caplog) == ["TimeoutError"]


def test_refused_later_on(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        async def script(context: Any) -> None:
            await context.read()
            await send(context, msg.Welcome(1, 0.1))
            await send(context, msg.Refused("another agent uses the name node0"))
            await stay(context)

        async with controller(script) as port, linked(port):
            await eventually(lambda: reasons(caplog))

    asyncio.run(story())
    assert set(reasons(caplog)) == {"the controller refuses: another agent uses the name node0"}


def test_no_controller_there(free_port: int, caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        async with linked(free_port) as one:
            await eventually(lambda: reasons(caplog))
            one.link.send(msg.CommandResult("c", True))  # worth nothing to a controller that comes later
            await asyncio.sleep(0.3)
            assert not one.link.connected

    asyncio.run(story())
    assert len(reasons(caplog)) == 1
    assert "refused" in reasons(caplog)[0]


def test_it_stops_at_once_whatever_it_is_doing() -> None:
    """Also in the moment in which its stream breaks."""

    async def story() -> None:
        async def script(context: Any) -> None:
            await context.read()
            await send(context, msg.Welcome(1, 0.1))
            await asyncio.sleep(0.02)

        async with controller(script) as port:
            for wait in range(40):
                one = Agent(port)
                task = asyncio.create_task(one.link.run())
                await asyncio.sleep(wait / 500)
                task.cancel()
                done, _ = await asyncio.wait({task}, timeout=5)
                assert done
                assert task.cancelled()

    asyncio.run(story())


def test_the_address_that_the_controllers_side_sees() -> None:
    assert Agent(7070).link.own_address() == "127.0.0.1"


def test_credentials(tmp_path: Path) -> None:
    assert read_credentials(None, None, None) is None
    with pytest.raises(UsageError, match=r"cannot read the TLS files: .*gone\.pem"):
        read_credentials(tmp_path / "gone.pem", tmp_path / "gone.pem", tmp_path / "gone.pem")


@pytest.mark.parametrize(
    ("details", "words"),
    [
        ("x: CERTIFICATE_VERIFY_FAILED: unable to get local issuer certificate: OK", "unable to get local issuer"),
        ("ipv4:1: Hostname Verification Check failed.", "for another host"),
        ("last error: UNAVAILABLE: ipv4:127.0.0.1:1: Socket closed", "the agent's certificate"),
        ("Connection reset by peer", "the agent's certificate"),
        ("Connection refused", ""),
    ],
)
def test_a_failed_handshake_in_words(details: str, words: str) -> None:
    said = link_module._handshake(details)
    assert words in said
    assert bool(words) == bool(said)


def welcoming(said: list[msg.AgentMessage]) -> Script:
    async def script(context: Any) -> None:
        await context.read()
        await send(context, msg.Welcome(1, 0.1))
        while (data := await context.read()) is not grpc.aio.EOF:
            said.append(wire.decode_agent(data))

    return script


def test_what_cannot_be_sent_is_left_out_and_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    """It ended the writing side of the stream, unnoticed."""
    said: list[msg.AgentMessage] = []

    async def story() -> None:
        async with controller(welcoming(said)) as port, linked(port) as one:
            await eventually(lambda: one.link.connected)
            good = msg.LogChunk("j", 1, 0, "out", "good")
            for bad in (
                t.Frame(-1, 1, 1),
                t.Frame(1, 1, 1, workers=(t.WorkerSample(0, 1, -7),)),
                msg.LogChunk("j", 1, 0, "out", "\ud800"),
                msg.LogChunk("j", 1, 0, "out", "x" * (link_module.MAX_MESSAGE + 1)),
            ):
                one.link.send(bad)
                one.link.send(good)
            await eventually(lambda: said.count(good) == 4)
            assert one.link.unsendable == 4
            assert one.link.connected

    asyncio.run(story())
    assert len([r for r in caplog.records if r.message == "message.unsendable"]) == 1
    assert reasons(caplog) == []


def test_a_writer_that_ends_is_noticed_and_the_stream_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[msg.AgentMessage] = []

    async def story() -> None:
        async with controller(welcoming(said)) as port, linked(port) as one:
            await eventually(lambda: one.link.connected)
            write, broken = Link._write, asyncio.Event()

            async def ends(self: Link, call: Any, queue: Any) -> None:
                if not broken.is_set():
                    broken.set()
                    raise RuntimeError("a bug in the writer")
                await write(self, call, queue)

            monkeypatch.setattr(Link, "_write", ends)
            first = one.link._queue
            one.link._stalled.set()  # the next stream has the writer that ends
            event = t.AgentNotice(1, "x", t.Severity.INFO, "x")
            await eventually(lambda: one.link._queue is not first and one.link.connected)
            one.link.send(one.outbox.event(event))
            await eventually(lambda: msg.Numbered(1, event) in said)

    asyncio.run(story())


def test_a_controller_that_takes_nothing_loses_its_stream_not_our_news(monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits beyond the bound is kept by the outbox; log lines go first."""
    monkeypatch.setattr(link_module, "_QUEUE", 20)
    said: list[msg.AgentMessage] = []
    streams = 0

    async def story() -> None:
        async def script(context: Any) -> None:
            nonlocal streams
            streams += 1
            await context.read()
            await send(context, msg.Welcome(1, 0.1))
            if streams == 1:
                await asyncio.sleep(60)
            while (data := await context.read()) is not grpc.aio.EOF:
                said.append(wire.decode_agent(data))

        async with controller(script) as port, linked(port) as one:
            await eventually(lambda: one.link.connected)
            for n in range(60):  # all at once: the writer has no turn in between
                one.link.send(msg.LogChunk("j", 1, 0, "out", "x"))
                one.link.send(one.outbox.event(t.AgentNotice(n, "x", t.Severity.INFO, str(n))))
            assert one.link.backlog == 20
            await eventually(lambda: [m.seq for m in said if isinstance(m, msg.Numbered)] == list(range(1, 61)))

    asyncio.run(story())
    assert streams == 2


def test_a_refused_agent_asks_again_as_late_as_requested() -> None:
    asked: list[float] = []

    async def story() -> None:
        async def script(context: Any) -> None:
            asked.append(asyncio.get_running_loop().time())
            await context.read()
            await send(context, msg.Refused("the name is taken", retry_after=1.0))

        async with controller(script) as port, linked(port):
            await eventually(lambda: len(asked) == 3)

    asyncio.run(story())
    assert min(b - a for a, b in itertools.pairwise(asked)) >= 0.9
