"""The strategies of an operator on a mesh, with their costs, and what it costs to hand a tensor on. Pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from holdfast.planner.partition.axes import Collective, MeshAxis
from holdfast.planner.partition.operators import Kind, Operator, OperatorGraph
from holdfast.planner.partition.rules import OUTPUT, STATES, Made, rules
from holdfast.planner.partition.specs import Spec, fits, pieces, place_of, reshard, spec_of


@dataclass(frozen=True, slots=True)
class Devices:
    """The mesh of a stage, and what its devices do. Unit of cost: that of the axes' alpha and beta."""

    mesh: tuple[MeshAxis, ...]
    flops: float = math.inf
    """In a unit of cost, of one device."""
    traffic: float = math.inf
    """Bytes of its memory that it reads and writes in a unit of cost."""
    is_training: bool = True
    """Whether there is a way back, with gradients and optimizer states."""
    micro_batches: int = 1
    """In a step of one replica: what is done once a step counts as 1 / micro_batches."""
    gradient_bytes: float = 1.0
    """Of a parameter's gradient, as a multiple of the parameter."""
    state_bytes: float = 2.0
    """Of the optimizer's states, as a multiple of the parameter: 2 for Adam with all in one precision."""


@dataclass(frozen=True, slots=True)
class Strategy:
    """One way to lay an operator on a mesh."""

    rules: tuple[str, ...]
    """By axis, the name of what it does."""
    output: Spec
    inputs: tuple[Spec, ...]
    compute: float = 0.0
    """c: time of the operator itself, forward and back."""
    communication: float = 0.0
    """d: its collectives."""
    memory: float = 0.0
    """Bytes on each device: of a parameter with gradient and states, of another what it gives."""
    work: frozenset[int] = frozenset()
    """Axes whose devices share the work."""
    states: frozenset[int] = frozenset()
    """Of a parameter: axes that share its optimizer's states only."""


Obstacle = Callable[[Operator, Strategy], str | None]
"""Why a strategy cannot be executed, None if it can."""


def strategies(graph: OperatorGraph, one: Operator, devices: Devices) -> list[Strategy]:
    """All that divide evenly, of an operator that does not follow another.

    Compute is 0 for a device of no stated speed; it is shared by the axes that share the work. The way back takes as
    long as forward for each of the input's and the parameter's gradient.
    """
    mesh = devices.mesh
    shapes = [graph.operators[graph.index[name]].shape for name in one.inputs]
    if one.fixed is not None:
        inputs: tuple[Spec, ...] = (one.fixed,) if one.kind is Kind.OUTPUT else ()
        return [Strategy(("fixed",) * len(mesh), one.fixed, inputs, memory=_held(graph, one, one.fixed, devices))]
    found = []
    own = rules(one, len(shapes))
    # An axis of one device cuts nothing: one name for that is enough.
    for combined in itertools.product(*(own if axis.size > 1 else own[:1] for axis in mesh)):
        output = spec_of(len(one.shape), [rule.output for rule in combined])
        inputs = tuple(spec_of(len(shape), [rule.inputs[i] for rule in combined]) for i, shape in enumerate(shapes))
        if not fits(one.shape, output, mesh) or not all(map(fits, shapes, inputs, itertools.repeat(mesh))):
            continue
        work = frozenset(axis for axis, rule in enumerate(combined) if rule.is_shared)
        states = frozenset(axis for axis, rule in enumerate(combined) if rule.name == STATES)
        strategy = Strategy(tuple(rule.name for rule in combined), output, inputs, work=work, states=states)
        communication = 0.0
        for axis, rule in enumerate(combined):
            made = [*rule.forward, *(_wanted(graph, one, rule.backward) if devices.is_training else ())]
            for collective, which in made:
                spec, tensor = (output, one) if which == OUTPUT else (inputs[which], _input(graph, one, which))
                share = tensor.num_bytes / pieces(spec, mesh, but=axis)
                communication += mesh[axis].cost(collective, share)
            if one.kind is Kind.OUTPUT and rule.name == "vocabulary":
                rows = one.num_bytes / one.shape[-1] / pieces(output[:-1], mesh)
                communication += 3 * mesh[axis].cost(Collective.ALL_REDUCE, rows)
        held = _held(graph, one, output, devices, states)
        found.append(_with(strategy, _compute(graph, one, work, devices), communication, held))
    return found


def followers(graph: OperatorGraph, one: Operator, leader: Sequence[Strategy], devices: Devices) -> list[Strategy]:
    """One strategy for each of the leader's, in their order: laid out as what comes from the leader.

    An axis that cuts the leader's result where this operator needs it whole is gathered on the way in.
    """
    at = one.inputs.index(graph.leader(one))
    found = []
    for lead in leader:
        places = []
        for axis in range(len(devices.mesh)):
            cut = place_of(lead.output, axis)
            here = next((d for d, source in enumerate(one.dims[at]) if source is not None and source == cut), None)
            places.append(here if here is not None and _divides(graph, one, here, axis, devices.mesh) else None)
        output = spec_of(len(one.shape), places)
        inputs = []
        for name, dims in zip(one.inputs, one.dims, strict=True):
            shape = graph.operators[graph.index[name]].shape
            inputs.append(spec_of(len(shape), [None if place is None else dims[place] for place in places]))
        work = frozenset(axis for axis, place in enumerate(places) if place is not None)
        strategy = Strategy(lead.rules, output, tuple(inputs), work=work)
        held = _held(graph, one, output, devices)
        found.append(_with(strategy, _compute(graph, one, work, devices), 0.0, held))
    return found


def handing(
    graph: OperatorGraph, source: Operator, devices: Devices, have: Strategy, want: Spec, user: Strategy
) -> float:
    """What it costs to hand on a tensor, from the layout that a strategy gives it to the wanted one, both ways."""
    if source.kind is Kind.PARAMETER:
        return _parameter(source, devices, have, want, user)
    cost = reshard(source.num_bytes, have.output, want, devices.mesh)
    if devices.is_training and graph.gradients[source.name]:
        cost += reshard(source.num_bytes, want, have.output, devices.mesh)
    return cost


def _parameter(source: Operator, devices: Devices, have: Strategy, want: Spec, user: Strategy) -> float:
    """Of a parameter: gathered for use where it is cut elsewhere, and its gradient summed over devices that share work.

    An all-reduce of the gradient becomes a reduce-scatter, and an all-gather of what was updated, where the states
    are shared out: Alpa's rewrite, which gives ZeRO stages 1 and 2. A parameter that is cut and used whole is gathered
    each way for each micro-batch, and its gradient reduce-scattered: stage 3.
    """
    total, mesh = 0.0, devices.mesh
    for axis, one in enumerate(mesh):
        has, needs = place_of(have.output, axis), place_of(want, axis)
        num_bytes = source.num_bytes / pieces(want, mesh, but=axis)
        if has is not None and needs is None:
            total += one.cost(Collective.ALL_GATHER, num_bytes) * (2 if devices.is_training else 1)
            if devices.is_training and axis in user.work:
                total += one.cost(Collective.REDUCE_SCATTER, num_bytes * devices.gradient_bytes)
        elif has is not None and has != needs:
            total += one.cost(Collective.ALL_TO_ALL, num_bytes) * (2 if devices.is_training else 1)
        elif has is None and devices.is_training:
            is_partial = needs is None and axis in user.work
            if axis in have.states:
                once = one.cost(Collective.ALL_GATHER, num_bytes)
                once += one.cost(Collective.REDUCE_SCATTER, num_bytes * devices.gradient_bytes) if is_partial else 0.0
            elif needs is not None:
                once = one.cost(Collective.ALL_GATHER, num_bytes * devices.gradient_bytes)
            else:
                once = one.cost(Collective.ALL_REDUCE, num_bytes * devices.gradient_bytes) if is_partial else 0.0
            total += once / devices.micro_batches
    return total


def _with(strategy: Strategy, compute: float, communication: float, memory: float) -> Strategy:
    s = strategy
    return Strategy(s.rules, s.output, s.inputs, compute, communication, memory, s.work, s.states)


def _input(graph: OperatorGraph, one: Operator, which: int) -> Operator:
    return graph.operators[graph.index[one.inputs[which]]]


def _wanted(graph: OperatorGraph, one: Operator, made: Sequence[Made]) -> list[Made]:
    """The collectives of the way back that there is."""
    return [(op, i) for op, i in made if graph.gradients[one.name if i == OUTPUT else one.inputs[i]]]


def _compute(graph: OperatorGraph, one: Operator, work: frozenset[int], devices: Devices) -> float:
    if one.kind in (Kind.INPUT, Kind.PARAMETER, Kind.OUTPUT):
        return 0.0
    shares = math.prod(devices.mesh[axis].size for axis in work)
    passes = 1 + (sum(graph.gradients[name] for name in one.inputs) if devices.is_training else 0)
    if one.kind is Kind.ATTENTION:
        passes = min(passes, 3)  # two products forward, four back
    taken = max(one.flops / devices.flops, graph.traffic(one) / devices.traffic)
    return passes * taken / shares


def _held(
    graph: OperatorGraph, one: Operator, spec: Spec, devices: Devices, states: frozenset[int] = frozenset()
) -> float:
    if one.kind is Kind.PARAMETER:
        whole = one.num_bytes / pieces(spec, devices.mesh)
        if not devices.is_training:
            return whole
        shares = math.prod(devices.mesh[axis].size for axis in states)
        return whole * (1 + devices.gradient_bytes + devices.state_bytes / shares)
    if one.kind is Kind.OUTPUT or one.is_view:
        return 0.0
    return one.num_bytes / pieces(spec, devices.mesh)


def _divides(graph: OperatorGraph, one: Operator, dim: int, axis: int, mesh: Sequence[MeshAxis]) -> bool:
    """Whether a dimension, and those of the inputs that it comes from, can be cut by an axis."""
    sizes = [one.shape[dim]]
    for name, dims in zip(one.inputs, one.dims, strict=True):
        if (source := dims[dim]) is not None:
            sizes.append(graph.operators[graph.index[name]].shape[source])
    return all(size % mesh[axis].size == 0 for size in sizes)
