"""The network of a simulated cluster as its controller sees it: NICs' samples and counters in frames, longer steps.

While it is looked at, some of the job's hosts send whole frames. A network is solved once for each change of it, and
for each new placement of the job.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from holdfast.controller.simulation import frames, made_frames
from holdfast.controller.simulation.fabric.conditions import Conditions
from holdfast.controller.simulation.fabric.layout import Layout, clos_for, layout_of, mesh_for
from holdfast.controller.simulation.fabric.meter import Clock, Meter
from holdfast.controller.simulation.fabric.solved import Solved, solve
from holdfast.controller.simulation.hosts import SimulatedHost
from holdfast.controller.simulation.world import World
from holdfast.planner.network.flows import Ints
from holdfast.wire import types as t

_TALK = 8
"""Hosts of a job whose frames are whole: of a larger one those of the fault, and others from all of it."""
_GAUGES_S = 5.0
_BEATS, _BEAT_S = 2, 2.0
"""Frames of a step at most, and seconds between two: more say nothing new."""


class Links:
    def __init__(self, world: World) -> None:
        self.w = world
        self.conditions = Conditions()
        self.clos = clos_for(world.shape)
        self.numbers = {name: i for i, name in enumerate(world.hosts)}
        self.until = -math.inf
        """Up to when frames are whole."""
        self.down: set[int] = set()
        """NICs whose port is down."""
        self.focus: list[str] = []
        """Hosts that send whole frames whatever the others do."""
        self.stands_since = math.nan
        """When transfers stopped that all ranks wait for; NaN while they go on."""
        self.meter = Meter(self.clos.nics, world.now, world.epoch, world.shape.nodes)
        self._solutions: dict[tuple[Layout, Conditions], Solved] = {}
        self._gauges_at = -math.inf
        self._talkers: tuple[str, ...] = ()
        self._reported: dict[str, tuple[int, int]] = {}  # by host, generation and newest step of its records

    # --- the network --------------------------------------------------------------------------------------------

    @property
    def layout(self) -> Layout | None:
        job = self.w.job
        if job is None or len(job.nodes) < 2:
            return None
        return layout_of(self.w.shape, [self.numbers[name] for name in job.nodes])

    def solved(self, conditions: Conditions) -> Solved | None:
        layout = self.layout
        if layout is None:
            return None
        key = layout, conditions
        if key not in self._solutions:
            self._solutions[key] = self.solve(layout, conditions)
        return self._solutions[key]

    def solve(self, layout: Layout, conditions: Conditions) -> Solved:
        return solve(layout, conditions)

    @property
    def more_s(self) -> float:
        """Seconds that a step takes longer than on the network as it should be."""
        now, calm = self.solved(self.conditions), self.solved(Conditions())
        if now is None or calm is None:
            return 0.0
        return max(0.0, now.exposed_s(self.w.shape.step) - calm.exposed_s(self.w.shape.step))

    @property
    def is_cut(self) -> bool:
        """Has a transfer of the job no way?"""
        now = self.solved(self.conditions)
        return now is not None and bool(now.cut_off.any())

    def change(self, conditions: Conditions) -> None:
        """From now on; the step that runs goes on at the new pace."""
        self.w.report_steps()  # the counters up to here are of the network as it was
        self.conditions = conditions
        self.repace()

    def repace(self) -> None:
        life = self.w.life
        if life is not None and math.isnan(self.stands_since):
            self.w.life = life.at_pace(self.w.now, self.w.step_seconds())

    def stand(self, seconds: float) -> None:
        """Transfers stop for so long; `go_on` is the caller's to call."""
        self.w.report_steps()
        if self.w.life is not None and math.isnan(self.stands_since):
            self.w.life = self.w.life.held_up(self.w.now, seconds)
            self.stands_since = self.w.now

    def go_on(self) -> None:
        self.w.report_steps()
        self.stands_since = math.nan

    # --- what is seen of it -------------------------------------------------------------------------------------

    def look(self, seconds: float, focus: tuple[str, ...] = ()) -> None:
        """Frames are whole from now on for so long."""
        self.focus = [*focus, *(name for name in self.focus if name not in focus)][:_TALK]
        if self.w.now > self.until:
            self.meter.skip(self.w.now, *self._moving())
            self._talkers = ()
        self.until = max(self.until, self.w.now + seconds)
        self.w.alert_until = max(self.w.alert_until, self.until)

    @property
    def is_looked_at(self) -> bool:
        return self.w.now <= self.until

    def interval(self, asked: float) -> float:
        """Seconds between two beats, of which the controller asks for `asked`."""
        return max(asked, min(_BEAT_S, self.w.shape.step / _BEATS)) if self.is_looked_at else asked

    def _moving(self) -> tuple[Solved | None, Clock | None]:
        """None while nothing of the job moves."""
        w = self.w
        life = w.life
        if life is None or w.paused is not None or not math.isnan(self.stands_since):
            return None, None
        return self.solved(self.conditions), Clock(life.first - life.step, life.step, life.number)

    def advance(self) -> None:
        """Count up to now."""
        if self.is_looked_at:
            self.meter.advance(self.w.now, *self._moving(), self._sampled())

    def _sampled(self) -> Ints:
        hosts = [self.numbers[name] for name in self._talking()]
        rails = np.arange(self.clos.rails)
        return (np.array(hosts, dtype=np.int64)[:, None] * self.clos.rails + rails).ravel()

    def _talking(self) -> tuple[str, ...]:
        """Kept until samples were taken."""
        if not self._talkers:
            job = self.w.job
            names = job.nodes if job is not None else ()
            first = [name for name in self.focus if name in names]
            rest = [name for name in names if name not in first]
            few = max(0, _TALK - len(first))
            spread = [rest[i * len(rest) // few] for i in range(min(few, len(rest)))] if few < len(rest) else rest
            self._talkers = (*first, *spread)
        return self._talkers

    def frames(self) -> Mapping[str, t.Frame]:
        """By host; empty while nobody looks."""
        if not self.is_looked_at or self.w.job is None:
            return {}
        self.advance()
        names = self._talking()
        wall, offsets, moved = self.meter.take()
        self._talkers = ()
        with_gauges = self.w.now >= self._gauges_at + _GAUGES_S
        self._gauges_at = self.w.now if with_gauges else self._gauges_at
        found = {}
        for i, name in enumerate(names):
            own = slice(i * self.clos.rails, (i + 1) * self.clos.rails)
            nics = self._nics(self.numbers[name], moved[:, own])
            gauges = self._gauges(self.numbers[name]) if with_gauges else {}
            host = self.w.hosts[name]
            found[name] = t.Frame(
                1, round(wall * 1e9), int(self.w.now * 1e9), offsets.astype("<u4").tobytes(), nics, gauges,
                workers=tuple(self._workers(host)), steps=tuple(self._records(host)),
                heartbeat_interval=self.w.heartbeat_interval,
            )  # fmt: skip
        return found

    def _nics(self, host: int, moved: np.ndarray) -> tuple[t.NicSamples, ...]:
        if not moved.size:
            return ()
        packed = np.round(moved).astype("<u4")
        own = slice(host * self.clos.rails, (host + 1) * self.clos.rails)
        self.meter.totals[:, own] += packed.sum(axis=2)
        sent, received = self.meter.totals[:, own].astype(int).tolist()
        return tuple(
            t.NicSamples(
                f"mlx5_{rail}", sent[rail], received[rail], packed[0, rail].tobytes(), packed[1, rail].tobytes()
            )
            for rail in range(self.clos.rails)
        )

    def _gauges(self, host: int) -> dict[str, float]:
        found = {}
        for rail in range(self.clos.rails):
            nic, port = host * self.clos.rails + rail, f"rdma/mlx5_{rail}/1"
            found[f"{port}/state"] = 1.0 if nic in self.down else 4.0
            for name, count in self.meter.counts.items():
                found[f"{port}/{name}"] = math.floor(count[nic])
        return found

    def _workers(self, host: SimulatedHost) -> list[t.WorkerSample]:
        w = self.w
        if not math.isnan(self.stands_since) and w.life is not None:
            return frames.waiting(w, host, self.stands_since)
        if w.paused is not None or w.hung is not None:
            return frames.samples(w, host)
        return made_frames.training(w, host, mesh_for(len(w.job_hosts()), w.shape.gpus))

    def _records(self, host: SimulatedHost) -> list[t.StepRecord]:
        """Of its first rank, the steps that ended since its last frame, one before the first included."""
        w, life, job = self.w, self.w.life, self.w.job
        if life is None or job is None or host.generation != life.generation:
            return []
        rank, newest = job.ranks_on(host.name).start, w.newest()
        generation, last = self._reported.get(host.name, (-1, -1))
        first = max(life.number, last + 1 if generation == life.generation else newest)
        self._reported[host.name] = life.generation, max(newest, last if generation == life.generation else -1)
        return [
            t.StepRecord(
                rank, life.generation, number,
                round((w.epoch + life.first + (number - life.number) * life.step) * 1e9), life.step,
                frames.loss(number), 1 << 20,
            )
            for number in range(first, newest + 1)
        ]  # fmt: skip
