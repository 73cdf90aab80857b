"""A simulated cluster that goes on in real time behind a real shell, and is served as a real one.

Its past is simulated first, as fast as the processor can, so that there is a history to look at.
"""

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from holdfast.controller.shell.sessions import Sessions
from holdfast.controller.shell.shell import Shell
from holdfast.controller.simulation import frames, made_frames
from holdfast.controller.simulation.hosts import ClusterShape, SimulatedHost
from holdfast.controller.simulation.step_spans import Culprit, Timing, spans_of
from holdfast.controller.simulation.world import World
from holdfast.controller.state.events import BrainEvent, FrameSeen, Record, Send
from holdfast.controller.state.model import Options
from holdfast.diagnostics.steps import span_table
from holdfast.plan.plan import Plan
from holdfast.wire import messages as msg
from holdfast.wire import types as t
from holdfast.wire.plans import encode_plan

_PERIOD_S = 0.05
_SPAN_STEPS = 10
"""Steps that are made up at a time; blame looks at eight or more."""
_SPANS_EVERY_S = 20.0
"""At most so often; with short steps as soon as there are as many new ones."""


class SimulatedSessions(Sessions):
    """Commands go to simulated agents."""

    def __init__(self, deliver: Callable[[str, msg.Command], None]) -> None:
        super().__init__()
        self._deliver_to = deliver

    def send(self, node: str, message: msg.ControllerMessage) -> bool:
        if isinstance(message, msg.Command):
            self._deliver_to(node, message)
        return True


@dataclass(frozen=True, slots=True)
class PretendedJob:
    """The job that is pretended to train."""

    plan: Plan
    micro_batches: int
    max_steps: int | None = None

    @property
    def mesh(self) -> tuple[int, int, int]:
        return self.plan.mesh.size("pp"), self.plan.mesh.size("dp"), self.plan.mesh.size("tp")


class RealTimeWorld(World):
    def __init__(
        self, shape: ClusterShape, job: PretendedJob, seed: int, history: float, options: Options | None = None
    ) -> None:
        """`history`: seconds that lie in the past; `run(time.monotonic())` simulates them."""
        mono = time.monotonic()
        self.shell: Shell | None = None
        self.pretended = job
        self.numbers: dict[str, int] = {}
        super().__init__(shape, seed, options, mono - history, time.time() - mono, job.max_steps)
        self.numbers = {name: i for i, name in enumerate(self.hosts)}
        self._timing = _timing(shape, job)
        self._spans_of = (0, -1)  # generation and newest step of the spans that were reported

    def sessions(self) -> Sessions:
        return SimulatedSessions(lambda node, command: self.later(0.02, self.deliver, Send(node, command)))

    def go_live(self, shell: Shell) -> None:
        """From now on time is real, and events go through the shell, whose brain is this world's."""
        assert shell.brain is self.brain
        shell.keep([Record(kind, id, doc) for (kind, id), doc in self.saved.items()])
        for brain in self.brain.jobs.active():
            shell.listen(brain.c.job.spec.id)
        self.shell = shell
        self.next_tick = math.inf  # the shell ticks by itself
        for host in self.hosts.values():
            self.join(host)  # again: now with all that is known of it
        self._publish()

    # --- what differs from a simulation -------------------------------------------------------------------------

    def feed(self, event: BrainEvent) -> None:
        if self.shell is None:
            super().feed(event)
        else:
            self.shell.handle(event)

    def is_quiet(self) -> bool:
        return self.shell is None and super().is_quiet()

    def go_by(self) -> None:
        if self.shell is None:
            super().go_by()
        elif self.now >= self.next_beat:
            self.heartbeat_interval = self.brain.c.heartbeat_interval
            self.next_beat = self.now + self.heartbeat_interval
            self.beat()

    def identity(self, host: SimulatedHost) -> t.Identity:
        if self.shell is None:
            return super().identity(host)
        return made_frames.identity(host, self.numbers[host.name], self.shape.gpus)

    def beat(self) -> None:
        if self.shell is None:
            super().beat()
            return
        self.report_steps()
        stands = self.hung is not None or self.paused is not None
        offsets, nics = made_frames.traffic(self, self.heartbeat_interval)
        begun = self.now - self.heartbeat_interval
        for host in self.hosts.values():
            if not host.reachable:
                continue
            workers = frames.samples(self, host) if stands else made_frames.training(self, host, self.pretended.mesh)
            gauges, gpus = made_frames.gauges(self, self.numbers[host.name])
            if host.generation and self.delivered >= 0:
                gauges |= self._state_gauges()
            frame = t.Frame(
                1, int((self.epoch + begun) * 1e9), int(begun * 1e9), offsets, nics, gauges, gpus, tuple(workers),
                heartbeat_interval=self.heartbeat_interval,
            )  # fmt: skip
            self.feed(FrameSeen(host.name, frame))

    def _state_gauges(self) -> dict[str, float]:
        """Snapshots of the newest step in memory and at a peer, and the newest checkpoint."""
        newest = self.delivered + 1.0
        age = max(0.0, self.now - self.life.first) % self.life.step if self.life is not None else 0.0
        found = {"snapshot_step": newest, "snapshot_peer_step": newest, "snapshot_age_seconds": age}
        if self.stored >= 0:
            found |= {"checkpoint_step": self.stored + 1.0, "checkpoint_age_seconds": self.now - self.stored_at}
        return found

    def report(self, host: SimulatedHost, event: t.Event) -> None:
        if self.shell is not None and isinstance(event, t.WorkerExited) and event.error:
            lines = msg.LogChunk(event.job, event.generation, event.rank, "err", event.error + "\n")
            self.shell.logs.add(lines)
        super().report(host, event)

    # --- spans --------------------------------------------------------------------------------------------------

    def _publish(self) -> None:
        job = self.job
        if job is not None and job.nodes:
            published = t.PlanPublished(job.spec.id, job.generation, encode_plan(self.pretended.plan))
            self.report(self.job_hosts()[0], published)

    def culprits(self) -> list[Culprit]:
        """Of each host that is slow one rank."""
        job = self.job
        if job is None:
            return []
        return [
            Culprit(job.ranks_on(host.name).start, "compute", host.slow - 1.0)
            for host in self.job_hosts()
            if host.slow > 1.0
        ]

    def made_spans(self, first: int, generation: int, begin: float) -> list[msg.WorkerSpans]:
        """Of `_SPAN_STEPS` steps from `first` on, which began at `begin` on the world's clock. May run in a thread."""
        table = spans_of(self._timing, self.pretended.plan, self.culprits(), _SPAN_STEPS, seed=first)
        moved = round((self.epoch + begin) * 1e9)
        table.start[:] += moved
        table.end[:] += moved
        table.step[:] += first
        job = self.job
        return span_table.encode(table, job.spec.id if job is not None else "", generation)

    async def report_spans(self) -> None:
        """The newest whole steps, if they were not reported yet."""
        life, shell, job = self.life, self.shell, self.job
        if life is None or shell is None or job is None or self.hung is not None or self.paused is not None:
            return
        first = max(life.number, self.newest() + 1 - _SPAN_STEPS)
        if self.newest() + 1 - first < _SPAN_STEPS or (life.generation, first) <= self._spans_of:
            return
        self._spans_of = life.generation, first + _SPAN_STEPS - 1
        begin = life.first + (first - life.number - 1) * life.step
        made = await asyncio.to_thread(self.made_spans, first, life.generation, begin)
        for spans in made:
            node = job.nodes[spans.rank // self.shape.gpus] if job.nodes else ""
            shell.spans.add(node, msg.Spans((spans,), 0, 1000))

    async def go_on(self) -> None:
        """Goes on until cancelled; never faster than the clock."""
        due = 0.0
        while True:
            self.run(time.monotonic())
            if time.monotonic() >= due:
                await self.report_spans()
                due = time.monotonic() + min(_SPANS_EVERY_S, _SPAN_STEPS * self.shape.step)
            await asyncio.sleep(_PERIOD_S)


def _timing(shape: ClusterShape, job: PretendedJob) -> Timing:
    """Durations with which a step takes as long as the shape says."""
    pp, dp, tp = job.mesh
    table = spans_of(Timing(pp, min(dp, 2), tp, job.micro_batches), job.plan, [])
    factor = shape.step * 1e9 / float(table.end.max() - table.start.min())
    whole = Timing(pp, dp, tp, job.micro_batches)
    for name in ("forward", "message", "all_reduce", "load", "optimizer"):
        setattr(whole, name, getattr(whole, name) * factor)
    return whole
