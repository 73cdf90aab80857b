"""A cluster in virtual time: the real brain, agents that answer as real ones do, and no wall clock at all."""

import math
from collections.abc import Callable
from typing import Any

from holdfast.controller.brain.cluster_brain import ClusterBrain
from holdfast.controller.state.events import (
    Action,
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
from holdfast.controller.state.incidents import Incident
from holdfast.controller.state.ledger import StepRow
from holdfast.controller.state.model import Instant, Job, JobSpec, JobStatus, Options
from holdfast.wire import messages as msg
from holdfast.wire import turns
from holdfast.wire import types as t
from holdfast.wire.rollback import Rollback, from_environment
from holdfast.wire.standing import StallFacts, ThreadSight, ThreadState
from tests.controller.support.virtual_agents import FakeAgent, Worker
from tests.controller.support.virtual_checks import check

STEP = 0.3
TICK = 0.05  # as of a real controller
LATER = ((3.0, 0.15), (30.0, 0.3))
"""Once so many seconds have gone by without anything done to it, ticks are longer: what is decided then is not a matter
of a twentieth of a second. A step lasts a whole number of them, and frames come in less than `silence_floor`."""


class Virtual:
    """`run(seconds)` moves time; faults are methods. Steps go on only while every worker of the world can."""

    def __init__(
        self, nodes: int = 2, slots: int = 4, options: Options | None = None, switches: dict[str, str] | None = None,
        memory_bytes: int = 0,
    ) -> None:  # fmt: skip
        self.now = 100.0
        self.busy = 0.0  # seconds by which the controller is late in each tick, for its own work
        self.switches = switches or {}
        self.options = options or Options()
        self.boots = 0
        self.saved: dict[tuple[str, str], dict[str, Any]] = {}
        self.steps: dict[str, list[StepRow]] = {}
        self.sent: list[Send] = []
        self.underway: list[Send] = []
        self.delivering = False
        self.losing = False  # what the controller sends does not leave its host
        self.agents = {f"node{i}": FakeAgent(f"node{i}", slots, memory_bytes) for i in range(nodes)}
        self.specs: dict[str, JobSpec] = {}
        self.on_check: Callable[[dict[str, list[JobSpec]]], None] | None = None
        """Called after each tick with the jobs that each node belongs to."""
        self.last_step = 10**9  # workers exit 0 after it
        self.last_steps: dict[str, int] = {}  # the same of single jobs
        self.start_error = ""
        self.reports = False  # an instrumented program, as the embedded trainer: nothing sleeps between operations
        self.rollbacks: tuple[Rollback, ...] = ()  # as given to the newest workers
        self.behind: dict[str, str] = {}  # node -> the result of its peers' probes of it
        self.cut_off: set[str] = set()  # nodes that reach none of their peers, nor are reached by them
        self.counts_from_zero = False
        self.step_seconds = STEP
        self.checkpoint_every = 5
        self.pids = 1000
        self.brain = self._boot()
        for agent in self.agents.values():
            self.join(agent.name)

    # --- the controller ------------------------------------------------------------------------------------------

    def _boot(self) -> ClusterBrain:
        self.boots += 1
        return ClusterBrain(f"b{self.boots}", self.options)

    @property
    def instant(self) -> Instant:
        return Instant(self.now, 1_000_000 + self.now)

    @property
    def job(self) -> Job:
        """The newest one."""
        return self.brain.jobs.newest.c.job

    @property
    def incidents(self) -> list[Incident]:
        return list(self.brain.c.book.incidents.values())

    def feed(self, event: BrainEvent) -> list[Action]:
        actions = self.brain.handle(event, self.instant)
        for action in actions:
            if isinstance(action, Record):
                self.saved[action.kind, action.id] = action.doc
        self.underway += [action for action in actions if isinstance(action, Send) and not self.losing]
        self._deliver_all()
        return actions

    def _deliver_all(self) -> None:
        while self.underway and not self.delivering:
            self.delivering = True
            send = self.underway.pop(0)
            self.sent.append(send)
            answer = self._deliver(send)
            self.delivering = False
            if answer is not None:
                self.feed(answer)

    def restart_controller(self, away: float = 1.0) -> None:
        """SIGKILL the controller: it forgets all but its journal; agents come back one after the other."""
        self.steps = {id: list(brain.c.ledger.rows.values()) for id, brain in self.brain.jobs.brains.items()}
        self._advance_workers(away)
        self.now += away
        self.brain = self._boot()
        entities = [(kind, key, doc) for (kind, key), doc in self.saved.items()]
        self.brain.restore(entities, self.steps, self.instant)
        for agent in self.agents.values():
            if agent.alive:
                self.join(agent.name)

    def submit(self, nnodes: int | None = None, nproc: int = 4, id: str = "j1", **more: Any) -> None:
        spec = JobSpec(id, "job", msg.Program("train.py"), nnodes or len(self.agents), nproc, **more)
        self.specs[id] = spec
        self.feed(JobSubmitted(spec))

    # --- agents --------------------------------------------------------------------------------------------------

    def join(self, name: str) -> None:
        agent = self.agents[name]
        agent.alive, agent.frozen = True, False
        agent.incarnation += 1
        kept = tuple(msg.KeptWorker(w.job, w.generation, w.rank, 0, w.pid, w.running) for w in agent.workers.values())
        switch = self.switches.get(name, "")
        incarnation = f"{name}-{agent.incarnation}"
        identity = t.Identity(
            name, name, incarnation, slots=agent.slots, switch=switch, address=name, ping_port=9,
            memory_bytes=agent.memory_bytes,
        )  # fmt: skip
        before, self.delivering = self.delivering, True  # its old news are on their way before it hears any order
        self.feed(AgentJoined(msg.Hello(identity, kept)))
        if any(w.read < w.step and not w.running for w in agent.workers.values()):
            self._frame(agent)  # ahead of the news of their ends
        unheard, agent.unheard = agent.unheard, []
        for event in unheard:
            self.feed(EventSeen(name, event))
        self.delivering = before
        self._deliver_all()

    def kill_agent(self, name: str) -> None:
        agent = self.agents[name]
        agent.alive = False
        self.feed(AgentLeft(name, f"{name}-{agent.incarnation}"))

    def lose_node(self, name: str) -> None:
        """The whole host is gone, workers and all."""
        for worker in self.agents[name].workers.values():
            worker.running = False
        self.agents[name].workers.clear()
        self.kill_agent(name)

    def _deliver(self, send: Send) -> ResultSeen | None:
        agent = self.agents[send.node]
        if not agent.alive:
            return None
        command = send.command
        error, data = "", {}
        match command.order:
            case msg.StartStore():
                data = {"host": "127.0.0.1", "port": "29500"}
            case msg.DumpStacks():
                return None  # the test that wants stacks reports them
            case msg.ProbePeer() as probe_peer:
                is_cut = {send.node, probe_peer.host} & self.cut_off
                data = {"behind": "unreachable" if is_cut else self.behind.get(probe_peer.host, "unreachable")}
            case msg.StopWorkers():
                for worker in list(agent.workers.values()):
                    if worker.job == command.job and worker.generation <= command.generation:
                        if worker.running:
                            worker.running = False
                            self.feed(EventSeen(send.node, self._exit(worker, signal=9, ordered=True)))
                        del agent.workers[worker.job, worker.generation, worker.rank]
            case msg.StartWorkers() as order:
                error = self.start_error
                self.rollbacks = from_environment(order.program.env)
                assert command.generation >= agent.newest.get(command.job, 0), "an older generation was started"
                agent.newest[command.job] = command.generation
                for rank in order.ranks if not error else ():
                    self.pids += 1
                    key = (command.job, command.generation, rank.rank)
                    agent.workers[key] = Worker(*key, self.pids, progress_at=self.now)
        return ResultSeen(send.node, msg.CommandResult(command.id, not error, error, data))

    # --- workers -------------------------------------------------------------------------------------------------

    def worker(self, rank: int, job: str = "") -> Worker:
        return next(w for w in self.all_workers() if w.rank == rank and w.running and job in ("", w.job))

    def all_workers(self) -> list[Worker]:
        return [w for a in self.agents.values() for w in a.workers.values()]

    def _holder(self, worker: Worker) -> FakeAgent:
        key = (worker.job, worker.generation, worker.rank)
        return next(a for a in self.agents.values() if key in a.workers)

    def exit(
        self,
        rank: int,
        code: int = -1,
        signal: int = 0,
        error: str = "",
        oom: bool = False,
        tail: str = "",
        job: str = "",
    ) -> None:
        worker = self.worker(rank, job)
        agent = self._holder(worker)
        if agent.alive:
            self._frame(agent)  # its last steps travel ahead of the news of its end
        worker.running = False
        event = self._exit(worker, code, signal, oom_killed=oom, error=error, tail=tail)
        if agent.alive:
            self.feed(EventSeen(agent.name, event))
        else:
            agent.unheard.append(event)

    def _exit(self, worker: Worker, code: int = -1, signal: int = 0, **more: Any) -> t.WorkerExited:
        at = int(self.instant.wall * 1e9)
        return t.WorkerExited(worker.job, worker.generation, worker.rank, worker.pid, at, code, signal, **more)

    def stop_worker(self, rank: int) -> None:
        worker = self.worker(rank)
        worker.stopped_at, worker.state_t = self.now, True

    def hold_gil(self, rank: int) -> None:
        self.worker(rank).stopped_at = self.now

    def sleep_worker(self, rank: int) -> None:
        self.worker(rank).sleeping_at = self.now

    # --- time ----------------------------------------------------------------------------------------------------

    def run(self, seconds: float, quiet: bool = False) -> None:
        """`quiet`: nothing was done to it before, either."""
        began, end = self.now - quiet * LATER[0][0], self.now + seconds
        while (left := end - self.now) > 1e-9:
            self._go_by(began, left)

    def _go_by(self, began: float, most: float) -> None:
        """One tick of a run that began then."""
        tick = max([TICK, *(tick for after, tick in LATER if self.now - began > after - 1e-9)])
        is_later, tick = tick > TICK, min(tick, max(TICK, most))
        self._advance_workers(tick)
        self.now += tick
        if is_later or round(self.now / TICK) % 2 == 0:
            for agent in self.agents.values():
                if agent.alive and not agent.frozen:
                    self._frame(agent, max(tick, 2 * TICK))
        self.feed(Tick(self.busy, self.busy))
        check(self)

    def run_until(self, holds: Callable[[], bool], seconds: float = 120.0) -> None:
        """Move time until it holds; it must within so many seconds."""
        began = self.now
        while not holds():
            assert self.now < began + seconds, f"not within {seconds:g} s"
            self._go_by(began, math.inf)

    def _advance_workers(self, seconds: float) -> None:
        for id in {w.job for w in self.all_workers() if w.running}:
            self._advance_job(id, seconds)

    def _advance_job(self, id: str, seconds: float) -> None:
        running = [w for w in self.all_workers() if w.running and w.job == id]
        newest = max(w.generation for w in running)
        world = [w for w in running if w.generation == newest]
        brain = self.brain.jobs.brains.get(id)
        complete = brain is None or len(world) == brain.c.job.world
        able = all(math.isinf(w.stopped_at) and math.isinf(w.sleeping_at) for w in world)
        if not complete or not able:
            return
        if self.now + seconds - max(w.progress_at for w in world) < self.step_seconds - 1e-9:
            return
        for worker in world:
            first = worker.step < 0
            worker.step = self._resume_step(worker) if first else worker.step + 1
            worker.read = worker.step - 1 if first else worker.read
            worker.progress_at = self.now + seconds
        if world[0].step >= self.last_steps.get(id, self.last_step):
            for worker in world:
                self.exit(worker.rank, code=0, job=id)

    def _resume_step(self, worker: Worker) -> int:
        best = max(self.brain.jobs.brains[worker.job].c.ledger.rows, default=-1)
        if best < 0 or self.counts_from_zero:
            return 0
        backs = (back.at_most for back in self.rollbacks if back.generation == worker.generation)
        return min([best + 1, *backs]) // self.checkpoint_every * self.checkpoint_every

    def _frame(self, agent: FakeAgent, interval: float = 2 * TICK) -> None:
        samples, steps = [], []
        held_up = {w.job for w in self.all_workers() if w.running and not math.isinf(min(w.stopped_at, w.sleeping_at))}
        for w in agent.workers.values():
            steps += self._unread(w)
            if not w.running:
                continue
            waiting = w.job in held_up
            stuck = not math.isinf(min(w.stopped_at, w.sleeping_at))
            samples.append(
                t.WorkerSample(
                    rank=w.rank, generation=w.generation, pid=w.pid, step=w.step,
                    phase=t.Phase.TRAIN if w.step >= 0 else t.Phase.SETUP,
                    operation=self._operation(w, waiting and not stuck),
                    progress_age=self.now - w.progress_at,
                    tick_age=max(0.0, self.now - w.stopped_at) if w.stopped_at < self.now else 0.05,
                    stopped=w.state_t, median_step=self.step_seconds, activity=self.activity(w),
                    standing=self.standing(w),
                    coordinate=(0, w.rank, 0) if self.reports else None, sizes=(1, 8, 1) if self.reports else None,
                    job=w.job,
                )
            )  # fmt: skip
        frame = t.Frame(
            1, int(self.instant.wall * 1e9), int(self.now * 1e9), workers=tuple(samples), steps=tuple(steps),
            heartbeat_interval=interval,
        )  # fmt: skip
        self.feed(FrameSeen(agent.name, frame))

    def _unread(self, w: Worker) -> list[t.StepRecord]:
        """Of one that runs the newest step at least."""
        numbers = range(min(w.read + 1, w.step) if w.running else w.read + 1, w.step + 1)
        w.read = w.step
        counts, each, newest = self.counts_from_zero, self.step_seconds, 1_000_000 + w.progress_at
        return [
            t.StepRecord(
                w.rank, w.generation, step, int((newest - (w.step - step) * each) * 1e9), each,
                t.NAN if counts else 3.0 - step * 1e-3, 0 if counts else 128, counts, w.job,
            )
            for step in numbers if step >= 0
        ]  # fmt: skip

    def _operation(self, worker: Worker, waits: bool) -> str:
        if worker.waits_for_turn:
            return turns.WAITING
        return ("dp:" if self.reports else "tp:") + "all_reduce" if waits else ""

    def activity(self, worker: Worker) -> t.Activity | None:
        """What an agent sees of a worker that has not moved: those that wait sleep in the kernel."""
        stuck_at = min(worker.stopped_at, worker.sleeping_at)
        watched = self.now - max(worker.progress_at, stuck_at if stuck_at <= self.now else 0.0)
        if watched < 0.2:
            return None
        quiet = min(watched, max(0.0, self.now - worker.busy_until))
        return t.Activity(watched, quiet, "T" if worker.state_t else "S", cpu=float(not quiet), waits_for="a lock")

    def standing(self, worker: Worker) -> StallFacts | None:
        """A stopped interpreter's thread waits in a lock that no thread lets go; so does one that sleeps in a program
        that `reports`, while one of another script waits for something outside."""
        activity = self.activity(worker)
        if activity is None or activity.quiet < 0.1:
            return None
        is_stuck = worker.stopped_at <= self.now or (self.reports and worker.sleeping_at <= self.now)
        state = ThreadState.HELD if worker.state_t else ThreadState.OWN if is_stuck else ThreadState.OUTSIDE
        words = "a lock" if is_stuck else "a read from a socket"
        return StallFacts((ThreadSight(worker.pid, state, activity.quiet, words=words),), is_complete=is_stuck)


def training(nodes: int = 2, **more: object) -> Virtual:
    v = Virtual(nodes=nodes)
    v.submit(nnodes=2, **more)
    v.run(3.0, quiet=True)
    assert v.job.state is JobStatus.RUNNING
    assert v.job.best_step >= 6
    return v


def trains_again(v: Virtual, generation: int) -> None:
    v.run(3.0)
    assert v.job.state is JobStatus.RUNNING
    assert v.job.generation == generation
    before = v.job.best_step
    v.run(3.0, quiet=True)
    assert v.job.best_step > before
