"""The cost model: what a step of a layout takes, holds and sends on a cluster. Pure; the one entry of all planners.

A step is the schedule with these durations, and behind it on each rank what of its reductions no computation hides,
and the optimizer's update; the rank that ends last gives the step (COMET, with the pipeline simulated).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from holdfast.plan.plan import Plan
from holdfast.plan.planned_step import PlannedStep
from holdfast.plan.schedules.table import SCHEDULES, Placement
from holdfast.plan.transformer import Transformer, step_flops
from holdfast.planner.cluster.cluster import Cluster
from holdfast.planner.cost.collectives import Collective, left_in_pieces
from holdfast.planner.cost.compute import Engine
from holdfast.planner.cost.layers import LayerProfile, Parts
from holdfast.planner.cost.layout import Layout, LayoutError
from holdfast.planner.cost.measured import Profile
from holdfast.planner.cost.memory import Fullness, least_memory, least_of_family, memory_of
from holdfast.planner.cost.prediction import Breakdown, Memory, Prediction
from holdfast.planner.cost.schedule import RankTimes, extrapolated, run
from holdfast.planner.cost.stages import Groups, StageCosts, seconds_of
from holdfast.planner.cost.traffic import reductions, wire_of

WORLD_SUM = 64.0
"""Bytes of loss and norm that all ranks add up."""


@dataclass
class CostModel(StageCosts):
    """Costs on one cluster. Keeps what it has worked out of groups and of layers, for the next layout."""

    expands: bool = False
    """Whether what does not fit lies in the host's memory, at its bandwidth (COMET's expanded memory)."""

    def predict(self, model: Transformer, layout: Layout) -> Prediction:
        """LayoutError for a layout that the model or the cluster cannot have; ProfileError if it was not measured."""
        layout.check(model, self.cluster.world)
        if layout.uses_host and self.cluster.host is None:
            raise LayoutError(f"{layout.policy} in host memory: the cluster has no [host] memory_bytes and bytes_per_s")
        ranks, host = self._fullness(model, layout, self._sizes(model, layout))
        memory = tuple(one.memory for one in ranks)
        engine = self._engine(memory)
        found = self._parts(model, layout, engine)
        groups = self._groups_of(layout)
        breakdown = self._breakdown(model, layout, found, groups, engine, ranks)
        flops = step_flops(model, layout.samples).model
        peak = layout.world * self.cluster.gpu.flops
        wire = wire_of(model, layout, found, self._precision(layout), groups.crossing)
        step = breakdown.total
        copied = max(one.moved for one in ranks)
        capacity = self.cluster.gpu.memory_bytes
        return Prediction(step, breakdown, memory, host, wire, flops / step / peak, capacity, copied)

    def planned(self, model: Transformer, layout: Layout) -> PlannedStep:
        """What each kind of action of a step takes, for comparison with a run: seconds on one rank, hidden or not.
        Ranks that share cores are taken to compute all at the same time."""
        step = self.predict(model, layout).step_s
        held, _ = self._fullness(model, layout, self._sizes(model, layout))
        engine = self._engine([one.memory for one in held])
        found, groups = self._parts(model, layout, engine), self._groups_of(layout)
        cores = self._cores(layout)
        crowd = layout.world / cores if cores else 1.0
        stages = self._stages(model, layout, found, groups, engine)
        whole = SCHEDULES[layout.schedule].recomputes or layout.recompute == "cell"
        forward = tuple(crowd * one.forward[0] for one in stages)
        again = [crowd * sum(one.again[:2]) if whole else 0.0 for one in stages]
        backward = tuple(crowd * sum(one.backward[:2]) + more for one, more in zip(stages, again, strict=True))
        tensor = tuple(one.forward[2] + one.backward[2] + one.again[2] * whole for one in stages)
        ends = [
            self._rank(model, layout, found, groups.of_rank(rank), engine, rank, crowd, one.updated_on_host)[2]
            + self._updated_there(one)
            for rank, one in enumerate(held)
        ]
        exchanged = tuple(
            self._exchanged(model, layout, found, groups.of_rank(rank), rank) for rank in range(layout.pp)
        )
        message = self._message(layout, found, groups) if layout.pp > 1 else 0.0
        return PlannedStep(step, forward, backward, tensor, message, exchanged, tuple(ends))

    def floor(self, model: Transformer, layout: Layout, *, with_schedule: bool = False) -> float:
        """Seconds that no layout of these axes, micro-batch and recompute takes less than; with its schedule and
        chunks, if asked. Work spread evenly, or that of the last rank, which begins with the first message."""
        if self.cluster.cores:
            return 0.0
        found, groups = self._parts(model, layout, Engine.of(self.cluster.gpu)), self._groups_of(layout)
        # What tp ranks send may be hidden but for its last part, and parts of a product take no less than the whole.
        forward, backward = self._both(found.layer, layout, groups, sends=layout.sub_batches == 1)
        layer = forward + backward
        ends = sum(seconds_of(one.t_f) + seconds_of(one.t_b) for one in (found.first, found.last))
        local = layout.local_micro_batches
        even = local * (model.layers * layer + ends) / layout.pp
        schedule = SCHEDULES[layout.schedule]
        if not with_schedule or schedule.placement is Placement.BOTH_WAYS:
            return even
        chunk = min(layout.stage_layers, default=model.layers // layout.stages)
        fill = forward
        if schedule.placement is Placement.LOOP and not schedule.halves_backward:
            fill += backward  # and the last backward has its way back
        return max(even, local * chunk * layout.stages_per_rank * layer + (layout.pp - 1) * chunk * fill)

    def layer_seconds(self, model: Transformer, layout: Layout, rank: int) -> tuple[float, float, float]:
        """What a step takes more on a pipeline rank for one more layer, for the embedding, and for the head.

        A layer's reduction counts as far as its own backward does not hide it. For choosing `stage_layers`; the step
        is `predict`'s.
        """
        found, groups = self._parts(model, layout, Engine.of(self.cluster.gpu)), self._groups_of(layout).of_rank(rank)
        local, slowness = layout.local_micro_batches, self._slowness(layout, rank)
        compute = sum(self._both(found.layer, layout, groups, slowness=slowness)) * local
        first, last = (
            local * slowness * (seconds_of(one.t_f) + seconds_of(one.t_b)) for one in (found.first, found.last)
        )
        if layout.replicas == 1:
            return compute, first, last
        again, backward = 1, seconds_of(found.layer.t_b)
        if layout.zero >= 2:  # behind each micro-batch; the one at the step's end is beside other ranks' backwards too
            again, backward = local, slowness * backward
        reduce = max(0.0, self._reduce(layout, float(found.layer.params), groups) - backward * self.overlap) * again
        held = found.layer.params * float(self.precision.weight)
        gather = self.collective(Collective.ALL_GATHER, held, groups.dp, layout.world) if layout.zero in (1, 2) else 0.0
        return compute + reduce + gather, first, last

    def _both(
        self, one: LayerProfile, layout: Layout, groups: Groups, sends: bool = True, slowness: float = 1.0
    ) -> tuple[float, float]:
        """Forward and backward of one micro-batch with collectives, and with what is computed again. Computations, not
        collectives, take `slowness` times as long."""
        forward = slowness * seconds_of(one.t_f) + (self._sum(one.sends_f, groups) if sends else 0.0)
        again = slowness * (one.t_again or 0.0) if layout.recompute == "selective" else 0.0
        again = forward if layout.recompute == "full" else again
        return forward, slowness * seconds_of(one.t_b) + (self._sum(one.sends_b, groups) if sends else 0.0) + again

    def least_bytes(self, model: Transformer, layout: Layout) -> float:
        """Bytes that the fullest rank holds at least, without a plan: never more than `predict` says."""
        return least_memory(model, layout, self._sizes(model, layout), self._precision(layout))

    def least_of_family(self, model: Transformer, base: Layout, policies: Collection[str] = ()) -> float:
        """Bytes that the fullest rank of any layout with these axes, micro-batch and recompute holds at least, with
        this ZeRO stage or a lower one. `policies`: of MEMORY, those that it may have."""
        return least_of_family(model, base, self._sizes(model, base), self.precision, policies)

    def estimate(self, model: Transformer, layout: Layout) -> float:
        """Seconds by rule of thumb, for the order in which layouts are looked at."""
        floor = self.floor(model, layout)
        chunks = max(1, model.layers // layout.pp)
        params = model.layers * self._sizes(model, layout).layer.params / layout.pp
        exposed = self._reduce(layout, params, self._groups_of(layout)) if layout.dp > 1 else 0.0
        return floor * (1 + (layout.pp - 1) / chunks / layout.local_micro_batches) + exposed

    def memory(self, model: Transformer, layout: Layout) -> tuple[Memory, ...]:
        """By pipeline rank, without the rest: enough to see what fits."""
        layout.check(model, self.cluster.world)
        ranks, _ = self._fullness(model, layout, self._sizes(model, layout))
        return tuple(one.memory for one in ranks)

    def _fullness(self, model: Transformer, layout: Layout, found: Parts) -> tuple[tuple[Fullness, ...], float]:
        """By pipeline rank; and the most that is in host memory."""
        Held = tuple[tuple[Fullness, ...], float]

        def of(plan: Plan) -> Held:
            return memory_of(model, layout, found, self._precision(layout), plan)

        def join(short: Held, long: Held, k: float) -> Held:
            def more(a: Fullness, b: Fullness) -> Fullness:
                return replace(
                    b,
                    activations=b.activations + (b.activations - a.activations) * (k - 1),
                    moved=b.moved + (b.moved - a.moved) * (k - 1),
                    host=b.host + (b.host - a.host) * (k - 1),
                )

            ranks = tuple(more(a, b) for a, b in zip(short[0], long[0], strict=True))
            return ranks, max(one.host for one in ranks)

        return extrapolated(layout, of, join)

    def _breakdown(
        self, model: Transformer, layout: Layout, found: Parts, groups: Groups, engine: Engine,
        held: Sequence[Fullness],
    ) -> Breakdown:  # fmt: skip
        stages = self._stages(model, layout, found, groups, engine)
        message, cores = self._message(layout, found, groups), self._cores(layout)
        ranks = run(layout, [one.shared(cores / layout.world) for one in stages] if cores else stages, message, cores)
        crowd = layout.world / cores if cores else 1.0
        ends = [
            self._rank(model, layout, found, groups.of_rank(rank), engine, rank, crowd, one.updated_on_host)
            for rank, one in enumerate(held)
        ]
        copies = [self._copies(layout, *pair) for pair in zip(held, ranks, strict=True)]
        totals = [one.end + sum(rest) + more for one, rest, more in zip(ranks, ends, copies, strict=True)]
        last = max(range(layout.pp), key=lambda rank: totals[rank])
        gather, reduce, update = ends[last]
        compute, again, tensor, sharded = ranks[last].kinds
        bubble = ranks[last].end - sum(ranks[last].kinds)
        return Breakdown(compute, again, tensor, bubble, sharded + gather + reduce, update, copies[last])

    def _copies(self, layout: Layout, held: Fullness, rank: RankTimes) -> float:
        """Seconds of copies between device and host that nothing hides. Activations go beside computation, both ways at
        once; chunks are fetched when they are needed, and those whose states are with the host are updated there."""
        tier = self.cluster.host
        if tier is None or not held.moved + held.updated_on_host:
            return 0.0
        seconds = held.moved / tier.bytes_per_s
        if layout.device_bytes:
            return seconds + self._updated_there(held)
        return max(0.0, seconds - sum(rank.kinds))

    def _updated_there(self, held: Fullness) -> float:
        """Seconds in which the host updates the chunks of states that it has: each is read and written."""
        tier = self.cluster.host
        return 2 * held.updated_on_host / tier.bytes_per_s if tier is not None else 0.0

    def _engine(self, memory: Sequence[Memory]) -> Engine:
        """What computes, with the host's memory behind the device's where that is taken and states do not fit."""
        gpu, tier, fullest = self.cluster.gpu, self.cluster.host, max(one.total for one in memory)
        if self.expands and tier is not None and fullest > gpu.memory_bytes:
            return Engine.of(gpu, 1 - gpu.memory_bytes / fullest, tier.bytes_per_s)
        return Engine.of(gpu)

    def _rank(
        self, model: Transformer, layout: Layout, found: Parts, groups: Groups, engine: Engine, rank: int,
        crowd: float, on_host: float,
    ) -> tuple[float, float, float]:  # fmt: skip
        """Seconds of gathering before the step, of reductions behind it that nothing hides, and of the update."""
        own = _held(layout, rank)
        params = sum(_params(model, layout, found, number) for number in own)
        # What was ready before the first layer's backward, of the last micro-batch.
        backward = self._slowness(layout, rank) * seconds_of(found.layer.t_b)
        hidden = sum((len(layout.layers_of(number, model.layers)) - 1) * backward for number in own)
        gathers, _ = reductions(layout)
        gather = reduce = 0.0
        if layout.replicas > 1 and layout.zero < 3:
            gather = gathers * self.collective(
                Collective.ALL_GATHER, params * self.precision.weight, groups.dp, layout.world
            )
            total = self._reduce(layout, params, groups)
            reduce = max(0.0, total - hidden) if self.overlap else total
        # What the host updates is in `_updated_there`; it has whole chunks, whose ends are no parameters.
        shard = max(0.0, params / (layout.replicas if layout.zero else 1) - on_host / self.precision.optimizer)
        update = self._update(layout, shard, engine) * crowd
        if layout.reduce_pieces and reduce:
            reduce = left_in_pieces(reduce, update, shard / (layout.reduce_pieces * layout.bucket))
        return gather, reduce, update + self.collective(Collective.ALL_REDUCE, WORLD_SUM, groups.world, layout.world)

    def _exchanged(self, model: Transformer, layout: Layout, found: Parts, groups: Groups, rank: int) -> float:
        """Seconds of all gathers and reductions of a step among replicas, whatever hides them."""
        if layout.replicas == 1:
            return 0.0
        total = 0.0
        gathers, sums = reductions(layout)
        for number in _held(layout, rank):
            params = float(_params(model, layout, found, number))
            units = len(layout.layers_of(number, model.layers)) if layout.zero == 3 else 1
            gather = self.collective(
                Collective.ALL_GATHER, params / units * self.precision.weight, groups.dp, layout.world
            )
            total += units * (gathers * gather + sums * self._reduce(layout, params / units, groups))
        return total

    def _update(self, layout: Layout, shard: float, engine: Engine) -> float:
        """Seconds: gradients are read, states and weights read and written; through the host's memory if they are
        there."""
        if self.profile is not None and self.profile.optimizer_s:
            return shard * self.profile.optimizer_s
        precision = self.precision
        states = 2.0 * precision.optimizer * shard
        others = (precision.gradient + 2.0 * precision.weight) * shard
        tier = self.cluster.host
        if layout.is_on_host:
            assert tier is not None, "predict refuses it"
            return states / tier.bytes_per_s + others / engine.bytes_per_s
        return (states + others) / engine.bytes_per_s


def _held(layout: Layout, rank: int) -> list[int]:
    """Stages of a pipeline rank, in all pipes."""
    return [s for s in range(layout.stages) if any(places[s] == rank for places in layout.places)]


def _params(model: Transformer, layout: Layout, found: Parts, number: int) -> int:
    """Of a stage, on one tp rank."""
    ends = found.first.params * (number == 0) + found.last.params * (number == layout.stages - 1)
    return len(layout.layers_of(number, model.layers)) * found.layer.params + ends


def predict(model: Transformer, cluster: Cluster, layout: Layout, profile: Profile | None = None) -> Prediction:
    """What a step of this layout takes, holds and sends. For several layouts keep a CostModel: it is faster."""
    return CostModel(cluster, profile=profile).predict(model, layout)
