"""Virtual nodes around the real brain: hosts that die, workers that hang, messages that get lost. No wall clock.

Time is a heap of things to happen. Around a fault every agent sends its frames and the brain its ticks; while all is
quiet the world jumps to the next thing, which to the brain is a controller that stood still for so long.
"""

import heapq
import math
from collections.abc import Callable, Sequence
from typing import Any

from holdfast.controller.brain.cluster_brain import ClusterBrain
from holdfast.controller.job.stages import Stage
from holdfast.controller.simulation import checks, frames
from holdfast.controller.simulation.hosts import WALL, ClusterShape, SimulatedGeneration, SimulatedHost
from holdfast.controller.simulation.state import SimulationState
from holdfast.controller.state.events import (
    AgentJoined,
    AgentLeft,
    BrainEvent,
    EventSeen,
    FrameSeen,
    JobSubmitted,
    Record,
    ResultSeen,
    Send,
    Tick,
)
from holdfast.controller.state.model import JobSpec, Options
from holdfast.wire import messages as msg
from holdfast.wire import types as t

_TICK = 0.25
_ALERT = 8.0
"""Seconds for which the cluster is watched closely after anything happened."""
_KEPT = 2000  # newest steps in the journal


class World(SimulationState):
    def __init__(
        self,
        shape: ClusterShape,
        seed: int,
        options: Options | None = None,
        now: float = 1000.0,
        epoch: float = WALL,
        max_steps: int | None = None,
    ) -> None:
        super().__init__(shape, seed, options, now, epoch)
        self.progress: Callable[[float], None] | None = None
        """Is given the time at every turn."""
        self.brain = self._boot()
        for host in self.hosts.values():
            self.join(host)
        counts = tuple(range(max(1, shape.nodes // 2), shape.nodes)) if shape.shrinks else ()
        program = msg.Program("train.py")
        spec = JobSpec("sim", "simulated", program, shape.nodes, shape.gpus, node_counts=counts, max_steps=max_steps)
        self.feed(JobSubmitted(spec))
        self.watch()

    # --- time ---------------------------------------------------------------------------------------------------

    def later(self, seconds: float, what: Callable[..., None], *args: Any) -> None:
        self.counter += 1  # of two at the same time the first that was asked for
        heapq.heappush(self.heap, (self.now + seconds, self.counter, what, args))

    def watch(self, seconds: float = _ALERT) -> None:
        """Something happened: no jumping for a while."""
        self.alert_until = max(self.alert_until, self.now + seconds)

    def run(self, until: float) -> None:
        """Let time go by; ends early when the job does."""
        while self.now < until and not self.over:
            due = min(self.heap[0][0] if self.heap else math.inf, until)
            if self.is_quiet():
                self._jump(due)
            else:
                due = min(due, self.next_tick, self.next_beat)
                self.now = max(self.now, due)
                self.go_by()
            while self.heap and self.heap[0][0] <= self.now and not self.over:
                _, _, what, args = heapq.heappop(self.heap)
                what(*args)
            if self.progress is not None:
                self.progress(self.now)

    @property
    def over(self) -> bool:
        job = self.job
        return job is not None and job.state.ended

    def is_quiet(self) -> bool:
        """May time jump to the next thing that happens?"""
        brain = self.job_brain
        if brain is None or self.away or self.now < self.alert_until:
            return False
        if brain.recovery.settling or brain.recovery.logs:
            return False
        live = brain.c.book.live()
        if brain.c.life.stage is Stage.UP:
            goes_on = self.life is not None or self._is_loading()
            return goes_on and (live is None or live.phase in ("restoring", "resuming"))
        waits = brain.c.life.waiting_since is not None and not brain.c.life.waiting
        reported = live is not None and any(f.kind is t.FindingKind.CAPACITY for f in live.findings)
        return waits and reported and self.life is None

    def _is_loading(self) -> bool:
        """Do all workers read their state, and is nothing wrong with any?"""
        job = self.job
        if job is None or self.loads != job.generation or self.hung is not None:
            return False
        hosts = self.job_hosts()
        return all(h.generation == self.loads and h.reachable and not h.ended for h in hosts)

    def _jump(self, due: float) -> None:
        """To the next thing, or the next checkpoint; the controller slept meanwhile."""
        if self.life is not None:
            due = min(due, max(self.now + self.life.step, self.stored_at + self.shape.checkpoint))
        lag = due - self.now
        self.now = due
        self.next_tick = self.next_beat = due
        if lag >= 0.2:
            self.feed(Tick(lag))
        self.report_steps()

    def go_by(self) -> None:
        """Beats and ticks that are due."""
        if self.now >= self.next_beat:
            self.heartbeat_interval = self.brain.c.heartbeat_interval
            if self.links is not None:
                self.heartbeat_interval = self.links.interval(self.heartbeat_interval)
            self.next_beat = self.now + self.heartbeat_interval
            self.beat()
        if self.now >= self.next_tick:
            self.next_tick = self.now + _TICK
            if not self.away:
                self.feed(Tick())
                checks.not_in_silence(self)

    # --- the controller -----------------------------------------------------------------------------------------

    def _boot(self) -> ClusterBrain:
        self.boots += 1
        return ClusterBrain(f"b{self.boots}", self.options)

    def feed(self, event: BrainEvent) -> None:
        """One event; its records are durable before anything is sent, and a crash may come between the two."""
        if self.away:
            return
        self.events += 1
        actions = self.brain.handle(event, self.instant)
        sends: list[Send] = []
        for action in actions:
            if isinstance(action, Record):
                self.saved[action.kind, action.id] = action.doc
                if action.kind == "node":
                    self._note_eviction(action)
            elif isinstance(action, Send):
                sends.append(action)
        checks.after(self, actions)
        if sends and self.crash_armed:
            self.crash_armed = False
            self.kill_controller()
            return
        for send in sends:
            self.later(0.005 + 0.05 * self.rng.random(), self.deliver, send)

    def _note_eviction(self, record: Record) -> None:
        if record.doc["evicted"] and record.doc["evicted_at"] == self.instant.wall:
            self.evicted.append((record.id, self.hosts[record.id].faulty))
            self.later(3600 * self.rng.uniform(2, 12), self.mend, self.hosts[record.id])

    def kill_controller(self) -> None:
        """It forgets all but its journal and is started again a moment later; agents come back one by one."""
        self.away = True
        self.watch(30.0)
        self.later(self.rng.uniform(0.5, 5.0), self._restart_controller)

    def _restart_controller(self) -> None:
        steps = {id: list(brain.c.ledger.rows.values())[-_KEPT:] for id, brain in self.brain.jobs.brains.items()}
        self.away = False
        self.brain = self._boot()
        entities = [(kind, key, doc) for (kind, key), doc in self.saved.items()]
        self.brain.restore(entities, steps, self.instant)
        for host in self.hosts.values():
            self.later(self.rng.uniform(0.0, 2.0), self.join, host)

    # --- agents -------------------------------------------------------------------------------------------------

    def join(self, host: SimulatedHost) -> None:
        if not host.reachable or self.away:
            return
        job = self.job
        ranks = job.ranks_on(host.name) if job is not None and host.generation == job.generation else range(1)
        # The end of a worker is forgotten once it was heard.
        reported = host.ended - {event.rank for event in host.unheard if isinstance(event, t.WorkerExited)}
        kept = tuple(
            msg.KeptWorker("sim", host.generation, rank, i, 1000 + rank, rank not in host.ended)
            for i, rank in enumerate(ranks if host.generation else ())
            if rank not in reported
        )
        self.feed(AgentJoined(msg.Hello(self.identity(host), kept)))
        unheard, host.unheard = host.unheard, []
        for event in unheard:
            self.report(host, event)

    def identity(self, host: SimulatedHost) -> t.Identity:
        return t.Identity(
            host.name, host.name, f"{host.name}-{host.incarnation}", slots=self.shape.gpus, switch=host.switch
        )

    def report(self, host: SimulatedHost, event: t.Event) -> None:
        """An event: kept and sent again until it is heard, now and then twice."""
        if self.away or not host.reachable:
            if host.alive:
                host.unheard.append(event)
            return
        self.feed(EventSeen(host.name, event))
        if self.rng.random() < 0.05:
            self.later(0.1, self._report_again, host, event)

    def _report_again(self, host: SimulatedHost, event: t.Event) -> None:
        if host.reachable:
            self.feed(EventSeen(host.name, event))

    def leave(self, host: SimulatedHost) -> None:
        """Its stream breaks."""
        self.feed(AgentLeft(host.name, f"{host.name}-{host.incarnation}"))

    def deliver(self, send: Send) -> None:
        host, command = self.hosts[send.node], send.command
        if not host.reachable:
            return
        error, data, slow = "", {}, 0.02
        match command.order:
            case msg.StartStore():
                data = {"host": "10.0.0.1", "port": "29500"}
            case msg.StopWorkers():
                if host.generation <= command.generation:
                    if self.life is not None and host.generation == self.life.generation:
                        self.training_stops()
                    host.generation, slow = 0, 0.3
                    self.hung = None if self.hung is not None and self.hung[0] == host.name else self.hung
            case msg.StartWorkers():
                if command.generation < host.generation:
                    error = "an older generation"
                else:
                    if command.generation not in self.checked:
                        self.up.clear()
                    checks.may_start(self, host, command.generation)
                    host.generation, slow = command.generation, 0.5
                    host.ended.clear()
                    self._started(host)
            case msg.RequestCheckpoint():
                self.stored, self.stored_at = max(self.stored, self.delivered), self.now
            case msg.RunCheck():
                data = {"results": frames.check_results(host, command.order.checks)}
        answer = msg.CommandResult(command.id, not error, error, data)
        self.later(slow * self.rng.uniform(0.2, 1.5), self._answer, host, answer)

    def _answer(self, host: SimulatedHost, answer: msg.CommandResult) -> None:
        if host.reachable and not self.away:
            self.feed(ResultSeen(host.name, answer))

    # --- training -----------------------------------------------------------------------------------------------

    def job_hosts(self) -> list[SimulatedHost]:
        job = self.job
        return [self.hosts[name] for name in job.nodes] if job is not None else []

    def _started(self, host: SimulatedHost) -> None:
        """When the last node of a generation has its workers, they begin to train some time later."""
        job = self.job
        generation = host.generation
        self.up.add(host.name)
        if job is None or job.generation != generation or len(self.up) < len(job.nodes):
            return
        self.loads = generation
        ready = self.shape.start + self.shape.restore
        self.later(ready, self._train, generation)
        gone = self._memory_gone()
        source = "store" if gone > 1 else "peer" if gone else "memory"
        reported = t.StateRestored("sim", generation, self.done, source, self.shape.restore, 1 << 40)
        self.later(ready - 0.1, self.report, self.job_hosts()[0], reported)

    def _memory_gone(self) -> int:
        """Nodes whose snapshots are lost: dead, or not there any more. The copy of one lies on another node: of two
        lost at once each may have held the other's."""
        return len(self.memory_lost | (self.held - {host.name for host in self.job_hosts()}))

    def _train(self, generation: int) -> None:
        hosts = self.job_hosts()
        job = self.job
        if job is None or job.generation != generation or self.life is not None:
            return
        if any(h.generation != generation or h.ended or not h.alive or not h.linked for h in hosts):
            return  # a host is missing: they wait for each other
        begin = (self.stored if self._memory_gone() > 1 else self.done) + 1
        self.memory_lost.clear()
        self.held = {host.name for host in hosts}
        self.hung = None
        self.delivered = self.done = begin - 1
        self.report_steps()
        step = self.step_seconds()
        self.life = SimulatedGeneration(generation, begin, self.now + step, step)
        if not math.isnan(self.stopped_at):
            live = self.live()
            kind = live.cause.kind.value if live is not None else ""
            seen = live.opened - self.epoch if live is not None else self.now
            self.stops.append((self.stopped_at, seen, self.now, kind))
            self.stopped_at = math.nan
        for host in hosts:
            if host.broken:
                self.later(self.rng.uniform(20, 900), self.again, host)
        if not self.shape.shrinks:
            self.alert_until = self.now  # whatever was looked for, this is what came of it
        self.watch(2.0)
        self.began_life()

    def step_seconds(self) -> float:
        """Of a step as hosts and their network are now."""
        more = self.links.more_s if self.links is not None else 0.0
        return self.shape.step * max(h.slow for h in self.job_hosts()) + more

    def training_stops(self) -> None:
        """No more steps from now on; those that were finished count."""
        if self.life is None:
            return
        self.report_steps()
        self.done = max(self.done, self.newest())
        self.life = self.paused = None
        if math.isnan(self.stopped_at):
            self.stopped_at = self.now

    def newest(self) -> int:
        return -1 if self.life is None else self.life.newest(self.now)

    def report_steps(self) -> None:
        """Steps since the last time, and what is stored: in the frame of the first connected node."""
        if self.links is not None:
            self.links.advance()  # before anything changes
        life = self.life
        if life is None or self.newest() <= self.delivered:
            return
        speaker = next((h for h in self.job_hosts() if h.reachable), None)
        if speaker is None or self.away or self.job is None:
            return
        rank = self.job.ranks_on(speaker.name).start
        records = []
        for number in range(self.delivered + 1, self.newest() + 1):
            end = life.first + (number - life.number) * life.step
            wall = int((self.epoch + end) * 1e9)
            records.append(t.StepRecord(rank, life.generation, number, wall, life.step, frames.loss(number), 1 << 20))
        self.delivered = self.done = self.newest()
        if self.now - self.stored_at >= self.shape.checkpoint:
            self.stored, self.stored_at = self.delivered, self.now
        gauges = {"snapshot_step": self.delivered + 1.0, "checkpoint_step": self.stored + 1.0}
        self.frame(speaker, records, gauges)

    # --- frames -------------------------------------------------------------------------------------------------

    def beat(self) -> None:
        """Every agent that can be heard sends a frame; now and then one is lost, or comes late."""
        if self.away:
            return
        self.report_steps()
        talkers = frames.talkers(self)
        bare = frames.frame(self)
        full = self.links.frames() if self.links is not None else {}
        for host in self.hosts.values():
            if not host.reachable:
                continue
            luck = self.rng.random()
            if host.name in full:
                self.feed(FrameSeen(host.name, full[host.name]))
                continue
            if luck < self.shape.lost:
                continue
            if luck < 2 * self.shape.lost:
                self.later(self.rng.uniform(0, 2.0), self._late_frame, host)
            elif host.name in talkers:
                self.feed(FrameSeen(host.name, frames.frame(self, workers=frames.samples(self, host))))
            else:
                self.feed(FrameSeen(host.name, bare))

    def _late_frame(self, host: SimulatedHost) -> None:
        if host.reachable:
            self.feed(FrameSeen(host.name, frames.frame(self)))

    def frame(self, host: SimulatedHost, steps: Sequence[t.StepRecord], gauges: dict[str, float] | None = None) -> None:
        """Steps, and what is stored of them, as one node reports it."""
        self.feed(FrameSeen(host.name, frames.frame(self, steps=steps, gauges=gauges)))
