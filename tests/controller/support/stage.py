"""A controller's gRPC end in this process: real server, brain and journal, and a wire that a test can cut."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from holdfast.agent.stream.link import Link
from holdfast.agent.stream.outbox import Outbox
from holdfast.controller.brain.cluster_brain import ClusterBrain
from holdfast.controller.brain.job_brain import JobBrain
from holdfast.controller.job.lifecycle import fresh_table
from holdfast.controller.journal.journal import Journal
from holdfast.controller.shell.ingest import Ingest, serving_grpc
from holdfast.controller.shell.log_hub import LogHub
from holdfast.controller.shell.sessions import Session
from holdfast.controller.shell.shell import Shell
from holdfast.controller.spans.samples import Samples
from holdfast.controller.state.events import Action, BrainEvent
from holdfast.controller.state.model import Instant, Job, Options
from holdfast.wire import messages as msg
from holdfast.wire import types as t

E = TypeVar("E")


class Recording(ClusterBrain):
    """The real brain, and all of its input."""

    def __init__(self, boot: str = "b1", options: Options | None = None) -> None:
        super().__init__(boot, options)
        self.reported: list[BrainEvent] = []

    def handle(self, event: BrainEvent, now: Instant) -> list[Action]:
        self.reported.append(event)
        return super().handle(event, now)

    def of(self, kind: type[E]) -> list[E]:
        return [event for event in self.reported if isinstance(event, kind)]


def make_shell(folder: Path, brain: ClusterBrain | None = None, **more: Any) -> Shell:
    """`more`: other parts of a shell."""
    journal = Journal(folder / "controller.sqlite")
    return Shell(brain or Recording(), journal, Samples(1 << 20), LogHub(), **more)


class Sent(Session):
    """A stream without an agent: notes what is sent there, and how often it was acknowledged."""

    def __init__(self, node: str = "node0") -> None:
        super().__init__(msg.Hello(t.Identity(node, node, "i1")), "", 0.0)
        self.messages: list[msg.ControllerMessage] = []

    def send(self, message: msg.ControllerMessage) -> None:
        self.messages.append(message)


@dataclass
class Stage:
    shell: Shell
    ingest: Ingest
    port: int

    @property
    def brain(self) -> Recording:
        assert isinstance(self.shell.brain, Recording)
        return self.shell.brain


@asynccontextmanager
async def stage(folder: Path, port: int = 0) -> AsyncIterator[Stage]:
    shell = make_shell(folder)
    ingest = Ingest(shell, verified=False)
    async with serving_grpc(ingest, "127.0.0.1", port) as bound:
        yield Stage(shell, ingest, bound)
    shell.journal.close()


class Wire:
    """A TCP proxy: `cut` breaks all connections at once, whatever was on its way is lost."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.port = 0
        self.cuts = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.close()
            return
        self._writers |= {writer, back}
        for source, sink in ((reader, back), (there, writer)):
            task = asyncio.ensure_future(self._pump(source, sink))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await source.read(4096):
                sink.write(data)
                await sink.drain()
        sink.close()

    def cut(self) -> None:
        self.cuts += 1
        for task in list(self._tasks):
            task.cancel()
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()


@asynccontextmanager
async def wire_to(target: int) -> AsyncIterator[Wire]:
    wire = Wire(target)
    server = await asyncio.start_server(wire._serve, "127.0.0.1", 0)
    wire.port = server.sockets[0].getsockname()[1]
    try:
        yield wire
    finally:
        wire.cut()
        server.close()
        await server.wait_closed()


@dataclass
class FakeAgent:
    """A real link and outbox with nothing behind them; notes what it is given."""

    link: Link
    outbox: Outbox
    commands: list[msg.Command] = field(default_factory=list)
    durable: list[t.Event] = field(default_factory=list)

    def report(self, event: t.Event) -> None:
        self.link.send(self.outbox.event(event))

    def beat(self, *steps: int, rank: int = 0) -> None:
        records = tuple(t.StepRecord(rank, 1, step, 0, 0.1) for step in steps)
        self.link.send(self.outbox.frame(t.Frame(0, 1, 1, steps=records), self.link.connected))


@asynccontextmanager
async def agent(
    port: int,
    node: str = "node0",
    hostname: str = "host",
    incarnation: str = "i1",
    predecessors: tuple[str, ...] = (),
    **hello: Any,
) -> AsyncIterator[FakeAgent]:
    boot = f"boot of {hostname}"
    identity = t.Identity(node, hostname, incarnation, boot_id=boot, slots=4, predecessors=predecessors)
    outbox = Outbox(1000)
    one: FakeAgent
    link = Link(
        ("127.0.0.1", port),
        outbox,
        lambda: msg.Hello(identity, **hello),
        lambda command: one.commands.append(command),
        lambda events: one.durable.extend(events),
    )
    one = FakeAgent(link, outbox)
    task = asyncio.create_task(link.run())
    try:
        yield one
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def eventually(
    what: Callable[[], object], says: Callable[[], object] = lambda: "", deadline_s: float = 90.0
) -> None:
    loop = asyncio.get_running_loop()
    end = loop.time() + deadline_s
    while not what():
        assert loop.time() < end, f"not so within {deadline_s:g} s: {says()}"
        await asyncio.sleep(0.005)


def with_job(brain: ClusterBrain, job: Job) -> JobBrain:
    """The brain knows the job and its nodes, as if it had placed it."""
    found = brain.jobs.add(job)
    found.c.ranks = fresh_table(job)
    brain.c.hold(job)
    return found
