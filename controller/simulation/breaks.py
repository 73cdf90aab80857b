"""What breaks in a simulated cluster, and how it looks to the controller."""

import math
import random
from typing import Any

from holdfast.controller.simulation.fabric.faults import WEIGHTS, LinkFaults
from holdfast.controller.simulation.fabric.links import Links
from holdfast.controller.simulation.faults import How, SimulatedFault
from holdfast.controller.simulation.hosts import SimulatedGeneration, SimulatedHost
from holdfast.controller.simulation.pauses import PauseKind, SimulatedPause, draw, draw_kind, wrong_ends
from holdfast.controller.simulation.world import World
from holdfast.controller.state.events import CordonRequested, EvictRequested
from holdfast.wire import types as t

_RESET = "RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.0.0.1]:4711"
_XID = "NVRM: Xid (PCI:0000:3b:00): {}, pid=1234, GPU has fallen off the bus."
_GROWS = 60.0  # seconds to watch after a node came back: a job that had shrunk may grow
_STAYS_BAD = 0.6  # share of the crashes that come again


class Breaks:
    def __init__(self, world: World) -> None:
        self.w = world
        world.again, world.mend, world.began_life = self._again, self._mend, self._first_steps
        self._strikes: list[float] = []  # when something stopped training that was no decision of the controller
        self._links: LinkFaults | None = None
        self._at_start: random.Random | None = None  # the rng of a pause that comes with the next attempt

    def strike(self, fault: SimulatedFault) -> None:
        """Let it happen, at a node of the job if there is one; False luck of a node that is down already passes."""
        w, rng = self.w, random.Random(fault.rng)
        hosts = [h for h in w.job_hosts() if h.reachable]
        if not hosts:
            return
        host = hosts[int(fault.where * len(hosts))]
        match fault.how:
            case How.GPU:
                host.faulty = True
                host.broken = fault.cause if rng.random() < _STAYS_BAD else ""
                self._crash(host, xid=_XID.format(79))
            case How.CRASH:
                host.faulty = True
                host.broken = fault.cause if rng.random() < _STAYS_BAD else ""
                self._crash(host)
            case How.BUG:
                error = (
                    f'Traceback (most recent call last):\n  File "train.py", line {rng.randrange(500)}\nValueError: x'
                )
                self._crash(host, code=1, error=error)
            case How.HANG:
                host.faulty = True
                self._hang(host)
            case How.DEAD | How.SILENT:
                host.faulty = True
                self._die(host, silently=fault.how is How.SILENT)
            case How.SWITCH:
                self._cut(host.switch, rng.uniform(60, 1800))
            case How.NAN:
                self._nan(host)
            case How.PLANNED:
                self._plan_out(host)
            case How.AGENT:
                self._restart_agent(host)
            case How.LOG:
                w.watch()
                wall = int((w.epoch + w.now) * 1e9)
                line = t.LogMatched("", 0, -1, wall, "hardware-error", "host", t.Severity.CRITICAL, "mce: corrected")
                w.report(host, line)
            case How.CONTROLLER:
                if rng.random() < 0.5:
                    w.crash_armed = True
                else:
                    w.kill_controller()
            case How.SLOW:
                host.slow = rng.uniform(1.05, 1.4)
                self._pace()
                w.later(rng.expovariate(1 / 7200), self._fast_again, host)
            case How.PAUSE:
                self.pause(host, draw_kind(rng), rng)
            case How.LINK:
                self.links.strike(host, rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0], rng)

    @property
    def links(self) -> LinkFaults:
        """The network between the hosts: made when something first happens to it."""
        if self._links is None:
            links = self.w.links if isinstance(self.w.links, Links) else Links(self.w)
            self.w.links = links
            self._links = LinkFaults(self.w, links, self._crash)
        return self._links

    # --- workers ------------------------------------------------------------------------------------------------

    def _trains(self, host: SimulatedHost) -> bool:
        life = self.w.life
        return life is not None and host.generation == life.generation and host in self.w.job_hosts()

    def _crash(self, host: SimulatedHost, xid: str = "", **how: Any) -> None:
        """A worker ends, and its peers lose the connection; whose report comes first is random."""
        w = self.w
        if not self._trains(host):
            return
        self._stop()
        w.watch()
        if xid:
            line = t.LogMatched(
                "", 0, -1, int((w.epoch + w.now) * 1e9), "xid-79", "gpu", t.Severity.CRITICAL, xid, "0000:3b:00"
            )
            w.later(w.rng.uniform(0, 0.3), w.report, host, line)
        exit = how or {"signal": 6}
        w.later(w.rng.uniform(0, 0.2), self._exit, host, host.generation, self._rank(host), exit)
        self._victims(host)

    def _again(self, host: SimulatedHost) -> None:
        if host.broken and host.alive:
            self._crash(host)

    def _rank(self, host: SimulatedHost) -> int:
        job = self.w.job
        return self.w.rng.choice(list(job.ranks_on(host.name))) if job is not None else -1

    def _exit(self, host: SimulatedHost, generation: int, rank: int, how: dict[str, Any]) -> None:
        if not host.alive or host.generation != generation or rank in host.ended:
            return
        host.ended.add(rank)
        wall = int((self.w.epoch + self.w.now) * 1e9)
        self.w.report(host, t.WorkerExited("sim", generation, rank, 1000 + rank, wall, **{"code": -1, **how}))

    def _victims(self, culprit: SimulatedHost) -> None:
        """A few of those whose connection broke."""
        others = [h for h in self.w.job_hosts() if h is not culprit and h.alive and h.generation]
        for host in self.w.rng.sample(others, min(3, len(others))):
            how = {"code": 1, "error": _RESET}
            self.w.later(self.w.rng.uniform(0.01, 0.25), self._exit, host, host.generation, self._rank(host), how)

    def _hang(self, host: SimulatedHost) -> None:
        w = self.w
        if not self._trains(host):
            return
        self._stop()
        w.hung = (host.name, self._rank(host), w.now)
        w.watch(4 * w.shape.step + 60)

    def _stop(self) -> None:
        self._strikes.append(self.w.now)
        self.w.training_stops()

    def pause(self, host: SimulatedHost, kind: PauseKind, rng: random.Random) -> None:
        """Steps come later, and nothing else happens. One before the first step waits for the next attempt."""
        if kind is PauseKind.START:
            self._at_start = rng
        else:
            self._begin(host, kind, rng)

    def _first_steps(self) -> None:
        """An attempt of the job has begun."""
        if self._links is not None:
            self._links.began_life()
        rng, self._at_start = self._at_start, None
        if rng is not None:
            self._begin(self.w.rng.choice(self.w.job_hosts()), PauseKind.START, rng)

    def _begin(self, host: SimulatedHost, kind: PauseKind, rng: random.Random) -> None:
        w, job = self.w, self.w.job
        if not self._trains(host) or w.life is None or job is None or w.paused is not None or w.hung is not None:
            return
        w.report_steps()
        pause = draw(kind, host.name, self._rank(host), w.now, job.generation, len(job.nodes), w.options, rng)
        life, number = w.life, max(w.life.number, w.newest() + 1)
        w.life = SimulatedGeneration(life.generation, number, pause.until + life.step, life.step)
        w.paused = pause
        w.pauses[kind.value] += 1
        w.watch(pause.until - w.now + 5.0)
        w.later(pause.until - w.now, self._goes_on, pause)
        w.later(pause.honest_until - w.now, self._look_back, pause)

    def _goes_on(self, pause: SimulatedPause) -> None:
        if self.w.paused is pause:
            self.w.paused = None

    def _look_back(self, pause: SimulatedPause) -> None:
        """What was done about it up to here was wrong."""
        c = self.w.brain.c
        job = self.w.job
        generation, nodes = (job.generation, len(job.nodes)) if job is not None else (-1, 0)
        struck = next((at for at in self._strikes if at >= pause.since), math.inf)
        self.w.wronged += wrong_ends(pause, c.book.incidents.values(), generation, nodes, self.w.epoch, struck)

    def _nan(self, host: SimulatedHost) -> None:
        w = self.w
        if not self._trains(host) or w.life is None or w.delivered < 0 or not host.reachable:
            return
        wall = int((w.epoch + w.now) * 1e9)
        generation = w.life.generation
        self._stop()
        w.watch()
        record = t.StepRecord(self._rank(host), generation, w.delivered, wall, w.shape.step, math.inf, 1 << 20)
        self._report_nan(host, record)

    def _report_nan(self, host: SimulatedHost, record: t.StepRecord) -> None:
        """The losses of all later steps are NaN, too: a controller that is absent just now sees them later."""
        if host.generation == record.generation and host.alive:
            self.w.frame(host, (record,))
            self.w.later(self.w.shape.step, self._report_nan, host, record._replace(step=record.step + 1))

    def _fast_again(self, host: SimulatedHost) -> None:
        host.slow = 1.0
        self._pace()

    def _pace(self) -> None:
        """A node became slower, or as fast as the others again."""
        w = self.w
        if w.life is not None:
            w.report_steps()
            w.life = w.life.at_pace(w.now, w.step_seconds())

    # --- nodes --------------------------------------------------------------------------------------------------

    def _die(self, host: SimulatedHost, silently: bool) -> None:
        """The host is lost with all its memory; operators repair it some hours later."""
        w = self.w
        host.alive = False
        if self._trains(host):
            self._stop()
            w.later(w.rng.uniform(0.5, 3.0), self._victims, host)
        if host in w.job_hosts():
            w.memory_lost.add(host.name)
        host.generation, host.unheard = 0, []
        host.ended.clear()
        w.watch(40.0)
        w.later(w.rng.uniform(10, 30) if silently else 0.02, self._stream_breaks, host, host.incarnation)
        w.later(3600 * w.rng.uniform(1, 12), self._mend, host)

    def _stream_breaks(self, host: SimulatedHost, incarnation: int) -> None:
        if not host.reachable and host.incarnation == incarnation:
            self.w.leave(host)

    def _cut(self, switch: str, seconds: float) -> None:
        """All nodes of a switch lose connectivity for a while; what runs there cannot reach its peers."""
        w = self.w
        cut = [h for h in w.hosts.values() if h.switch == switch and h.linked and h.alive]
        for host in cut:
            host.linked, host.faulty = False, True
            w.later(w.rng.uniform(5, 30), self._stream_breaks, host, host.incarnation)
        if any(host in w.job_hosts() for host in cut):
            self._stop()
        w.watch(40.0)
        w.later(seconds, self._relink, cut)

    def _relink(self, hosts: list[SimulatedHost]) -> None:
        self._watch_growth()
        for host in hosts:
            host.linked, host.faulty = True, bool(host.broken)
            if host.alive:
                host.incarnation += 1
                self.w.join(host)

    def _mend(self, host: SimulatedHost) -> None:
        """It was repaired, or nothing was found: it comes back, and is let in again."""
        w = self.w
        was_down = not host.alive
        host.broken, host.faulty, host.alive = "", False, True
        if was_down:
            host.incarnation += 1
            w.join(host)
        if w.brain.c.history(host.name).evicted and host.name in w.brain.c.nodes:
            w.feed(CordonRequested(host.name, False))
        self._watch_growth()

    def _watch_growth(self) -> None:
        self.w.watch(_GROWS + self.w.options.grow_after if self.w.shape.shrinks else 0.0)

    def _plan_out(self, host: SimulatedHost) -> None:
        """Maintenance: operators evict it and bring it back later."""
        w = self.w
        if w.away or host.name not in w.brain.c.nodes:
            return
        if self._trains(host):
            self._stop()
        host.faulty = True
        w.feed(EvictRequested(host.name))
        w.watch()
        w.later(7200.0, self._mend, host)

    def _restart_agent(self, host: SimulatedHost) -> None:
        w = self.w
        host.agent = False
        w.leave(host)
        w.watch()
        w.later(w.rng.uniform(1.0, 2.5), self._agent_back, host)

    def _agent_back(self, host: SimulatedHost) -> None:
        host.agent = True
        host.incarnation += 1
        self.w.join(host)
