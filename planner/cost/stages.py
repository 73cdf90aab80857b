"""What the stages of a layout take for one micro-batch, and what its groups' collectives and messages take. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from holdfast.plan.transformer import Transformer
from holdfast.planner.cluster.cluster import Cluster, Hop, Level
from holdfast.planner.cost.collectives import Collective, left_in_parts
from holdfast.planner.cost.compute import Engine
from holdfast.planner.cost.groups import GroupCost, group_cost, lines_of, message_cost, replica_lines
from holdfast.planner.cost.layers import LayerProfile, Parts, Precision, Sends, parts
from holdfast.planner.cost.layout import Layout
from holdfast.planner.cost.measured import Profile
from holdfast.planner.cost.schedule import StageTimes

_IN_NODE = {Level.SELF, Level.NODE}
"""What a profile, which is of one machine, has measured links of."""


@dataclass
class StageCosts:
    """Keeps what it has worked out of groups and of layers, for the next layout."""

    cluster: Cluster
    precision: Precision = field(default_factory=Precision)
    profile: Profile | None = None
    """Measured times of layers and links, which take the place of the roofline and of the cluster's links."""
    overlap: bool = True
    """Whether reductions go on beside the last backward, and gathers beside computations, as COMET assumes."""
    _groups: dict[tuple[int, int, int, tuple[tuple[int, ...], ...]], Groups] = field(default_factory=dict, repr=False)
    _known: dict[tuple[object, ...], Parts] = field(default_factory=dict, repr=False)
    """Parts with seconds, by all that they depend on."""

    def collective(self, op: Collective, num_bytes: float, group: GroupCost, world: int = 0) -> float:
        """Seconds: within a node as measured, else by the cluster's links. `world`: ranks of the job, if not all."""
        if group.size == 1 or num_bytes == 0:
            return 0.0
        if self.profile is not None and group.crossing.keys() <= _IN_NODE:
            measured = self.profile.seconds(op, group.size, num_bytes, world)
            if measured is not None:
                return measured
        return group.seconds(op, num_bytes)

    def _parts(self, model: Transformer, layout: Layout, engine: Engine | None) -> Parts:
        """Timed by the profile or by an engine; without one, sizes alone."""
        key = (model, engine, layout.tp, layout.micro_batch_size, layout.sequence, layout.shard_vocabulary,
               layout.stages == 1)  # fmt: skip
        if key not in self._known:
            found = parts(model, layout, self.precision, engine)
            if self.profile is not None and engine is not None:
                self.profile.check(model, self.precision, self.cluster)
                found = self.profile.applied(found, layout)
            self._known[key] = found
        return self._known[key]

    def _sizes(self, model: Transformer, layout: Layout) -> Parts:
        return self._parts(model, layout, None)

    def _precision(self, layout: Layout) -> Precision:
        """Gradients in chunks take the place of weights, in their precision."""
        return replace(self.precision, gradient=self.precision.weight) if layout.device_bytes else self.precision

    def _groups_of(self, layout: Layout) -> Groups:
        pipes = tuple(layout.places) if len(layout.places) > 1 else ()
        key = layout.pp, layout.dp, layout.tp, pipes
        if key not in self._groups:
            self._groups[key] = Groups.of(self.cluster, *key)
        return self._groups[key]

    def _sum(self, sends: Sends, groups: Groups) -> float:
        return sum(self.collective(op, num_bytes, groups.tp, groups.world.size) for op, num_bytes in sends)

    def _stages(self, model: Transformer, layout: Layout, found: Parts, groups: Groups, engine: Engine) -> list[Stage]:
        """`engine`: the one that timed `found`."""
        stages = []
        for number, rank in enumerate(layout.places[0]):
            slowness = max(self._slowness(layout, places[number]) for places in layout.places)
            stages.append(self._stage(model, layout, found, groups.of_rank(rank), number, engine, slowness))
        return stages

    def _slowness(self, layout: Layout, rank: int) -> float:
        """Of a pipeline rank's devices; they are alike where groups keep to one type of NIC."""
        each = layout.dp * layout.tp
        return float(self.cluster.slowness[rank * each : (rank + 1) * each].max())

    def _message(self, layout: Layout, found: Parts, groups: Groups) -> float:
        """Seconds from stage to stage."""
        if self.profile is not None and layout.pp > 1 and groups.crossing["pp"].keys() <= _IN_NODE:
            measured = self.profile.seconds(Collective.SEND, 2, found.layer.boundary, layout.world)
            if measured is not None:
                return measured
        return groups.message.alpha + found.layer.boundary * groups.message.beta

    def _cores(self, layout: Layout) -> float:
        """That all ranks share; 0: each has its own."""
        cores = float(self.cluster.cores * max(1, layout.world // self.cluster.nodes[0].devices))
        return cores if self.cluster.cores and layout.world > self.cluster.cores else 0.0

    def _stage(
        self, model: Transformer, layout: Layout, found: Parts, groups: Groups, number: int, engine: Engine,
        slowness: float,
    ) -> Stage:  # fmt: skip
        """Of one micro-batch, on devices whose computations take `slowness` times as long; collectives do not."""
        layers = len(layout.layers_of(number, model.layers))
        ends = [found.first] * (number == 0) + [found.last] * (number == layout.stages - 1)
        own = [(layers, found.layer), *((1, one) for one in ends)]
        if layout.sub_batches > 1:
            return self._in_parts(model, layout, groups, own, engine, slowness)
        forward = slowness * sum(times * seconds_of(one.t_f) for times, one in own)
        backward = slowness * sum(times * seconds_of(one.t_b) for times, one in own)
        sends_f = sum(times * self._sum(one.sends_f, groups) for times, one in own)
        sends_b = sum(times * self._sum(one.sends_b, groups) for times, one in own)
        again, sends_again = 0.0, 0.0
        if layout.recompute == "full":
            again = slowness * layers * seconds_of(found.layer.t_f)
            sends_again = layers * self._sum(found.layer.sends_f, groups)
        elif layout.recompute == "selective":
            again = slowness * layers * (found.layer.t_again or 0.0)
        there, back = self._sharded(layout, groups, own, forward, backward + again)
        return Stage(
            (forward, 0.0, sends_f, there),
            (backward, again, sends_b + sends_again, back),
            (0.0, forward, sends_f, 0.0),
        )

    def _in_parts(
        self, model: Transformer, layout: Layout, groups: Groups, own: list[tuple[int, LayerProfile]], engine: Engine,
        slowness: float,
    ) -> Stage:  # fmt: skip
        """Of one micro-batch in parts, of which one is computed while another is summed."""
        parts_of = layout.sub_batches
        smaller = replace(layout, micro_batch_size=layout.micro_batch_size // parts_of)
        part = self._parts(model, smaller, engine).layer
        (layers, _), *ends = own

        def waited(computed: float, sends: Sends) -> float:
            summed = self._sum(sends, groups) / model.norms
            return left_in_parts(computed / model.norms, summed, layers * model.norms, parts_of)

        part_f, part_b = slowness * seconds_of(part.t_f), slowness * seconds_of(part.t_b)
        forward = layers * parts_of * part_f + slowness * sum(seconds_of(one.t_f) for _, one in ends)
        backward = layers * parts_of * part_b + slowness * sum(seconds_of(one.t_b) for _, one in ends)
        again = slowness * layers * parts_of * (part.t_again or 0.0) if layout.recompute == "selective" else 0.0
        sends_f = waited(part_f, part.sends_f) + sum(self._sum(one.sends_f, groups) for _, one in ends)
        sends_b = waited(part_b, part.sends_b) + sum(self._sum(one.sends_b, groups) for _, one in ends)
        there, back = self._sharded(layout, groups, own, forward, backward + again)
        return Stage((forward, 0.0, sends_f, there), (backward, again, sends_b, back),
                      (0.0, forward, sends_f, 0.0))  # fmt: skip

    def _sharded(
        self, layout: Layout, groups: Groups, own: list[tuple[int, LayerProfile]], forward: float, backward: float
    ) -> tuple[float, float]:
        """What gathers and reductions add to a forward and to a backward: with stage 3 unit by unit, with 2 behind each
        micro-batch but the last, whose reduction is counted at the step's end."""
        if layout.replicas == 1 or layout.zero < 2:
            return 0.0, 0.0
        params = float(sum(times * one.params for times, one in own))
        units = sum(times for times, _ in own) if layout.zero == 3 else 1
        reduce = units * self._reduce(layout, params / units, groups)
        if layout.zero == 2:
            hidden = max(0.0, reduce - backward) if self.overlap else reduce
            return 0.0, hidden * (1 - 1 / layout.local_micro_batches)
        gather = units * self.collective(
            Collective.ALL_GATHER, params / units * self.precision.weight, groups.dp, layout.world
        )
        if not self.overlap:
            return gather, gather + reduce
        # The first unit's gather and the last one's reduction have nothing to hide behind.
        both = gather + reduce
        there = gather / units + max(0.0, (gather - forward) * (units - 1) / units)
        return there, both / units + max(0.0, (both - backward) * (units - 1) / units)

    def _reduce(self, layout: Layout, params: float, groups: Groups) -> float:
        op = Collective.ALL_REDUCE if layout.zero == 0 else Collective.REDUCE_SCATTER
        return self.collective(op, params * self._precision(layout).gradient, groups.dp, layout.world)


class Stage(StageTimes):
    """With tensor-parallel collectives that were measured while all ranks sent: as work they are a share of a core."""

    def shared(self, share: float) -> StageTimes:
        def of(one: tuple[float, float, float, float]) -> tuple[float, float, float, float]:
            compute, again, tensor, replicas = one
            return compute, again, tensor * min(1.0, share), replicas * min(1.0, share)

        return StageTimes(of(self.forward), of(self.backward), of(self.again))


@dataclass(frozen=True, slots=True)
class Groups:
    """The links of a layout's groups."""

    tp: GroupCost
    dp: GroupCost
    """Replicas of a stage, in all pipes."""
    world: GroupCost
    message: Hop
    crossing: Mapping[str, Mapping[Level, float]]
    dp_of: tuple[GroupCost, ...] = ()
    """Where NICs are of unlike types, `dp` of each pipeline rank."""

    def of_rank(self, rank: int) -> Groups:
        """As a pipeline rank's own replicas have it."""
        return replace(self, dp=self.dp_of[rank]) if self.dp_of else self

    @classmethod
    def of(cls, cluster: Cluster, pp: int, dp: int, tp: int, pipes: tuple[tuple[int, ...], ...]) -> Groups:
        found = {axis: group_cost(cluster, lines_of(pp, dp, tp, axis)) for axis in ("tp", "world")}
        replicas = replica_lines(pp, dp, tp, pipes) if pipes else lines_of(pp, dp, tp, "dp")
        found["dp"] = group_cost(cluster, replicas)
        lines = lines_of(pp, dp, tp, "pp")
        message, shares = message_cost(cluster, lines)
        ends = message_cost(cluster, np.ascontiguousarray(lines[:, [0, -1]]))[1] if pp > 1 else {}
        crossing = {axis: one.crossing for axis, one in found.items()} | {"pp": shares, "ends": ends}
        own: tuple[GroupCost, ...] = ()
        if not pipes and dp > 1 and len({node.nic for node in cluster.nodes}) > 1:
            own = tuple(group_cost(cluster, rows) for rows in replicas.reshape(pp, tp, dp))
        return cls(found["tp"], found["dp"], found["world"], message, crossing, own)


def seconds_of(seconds: float | None) -> float:
    assert seconds is not None, "parts are timed by an engine or a profile"
    return seconds
