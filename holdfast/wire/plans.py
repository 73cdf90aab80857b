"""A plan to a message and back, by round trip. A few bytes an action: columns of small numbers."""

from dataclasses import fields
from itertools import islice, repeat

from google.protobuf.message import DecodeError

from holdfast.base.errors import ProtocolError
from holdfast.plan.plan import OPS, SECOND_ORDER, Action, Layers, Mesh, Order, Plan, numbered
from holdfast.plan.planned_step import PlannedStep
from holdfast.plan.planned_traffic import PlannedTraffic
from holdfast.proto import plan_pb2 as p

_PLANNED, _TRAFFIC = fields(PlannedStep), fields(PlannedTraffic)
_NUMBERS = {op: number for number, op in enumerate(OPS)}


def encode_plan(plan: Plan, planned: PlannedStep | None = None, traffic: PlannedTraffic | None = None) -> bytes:
    """`planned`, `traffic`: what a planner says that a step of it takes, and sends. Older readers pass over both."""
    return p.Plan(
        schedule=plan.schedule,
        axes=[p.Axis(name=name, size=size) for name, size in plan.mesh.axes],
        stages=[p.PlanStage(first=s.first, stop=s.stop, rank=s.rank) for s in plan.stages],
        micro_batches=plan.micro_batches,
        orders=[
            p.PlanOrder(
                op=[_NUMBERS[action.op] for action in order],
                stage=[action.stage for action in order],
                micro_batch=[action.micro_batch for action in order],
                pipe=_column([action.pipe for action in order], 0),
                more=_column([len(action.also) for action in order], 0),
                also=[m for action in order for m in action.also],
                part=_column([a.turn if a.op in SECOND_ORDER else a.part[0] for a in order], 0),
                parts=_column([action.parts for action in order], 1),
                late=[action.late for action in order] if any(action.late for action in order) else (),
            )
            for order in plan.orders
        ],
        replicas=[p.PlanPipe(rank=ranks) for ranks in plan.replicas],
        tps=plan.mesh.tps,
        planned=None if planned is None else p.PlannedStep(**{f.name: getattr(planned, f.name) for f in _PLANNED}),
        traffic=None if traffic is None else p.PlannedTraffic(**{f.name: getattr(traffic, f.name) for f in _TRAFFIC}),
    ).SerializeToString()


def decode_plan(data: bytes) -> Plan:
    """ProtocolError for what is no plan of ours, or has an op that this version does not know.

    Whether a plan can be executed is `plan_check.verify`'s to say.
    """
    message = p.Plan()
    try:
        message.ParseFromString(data)
        mesh = Mesh(tuple((axis.name, axis.size) for axis in message.axes), tuple(message.tps))
    except (DecodeError, ValueError) as error:
        raise ProtocolError(f"a malformed plan of {len(data)} bytes: {error}") from None
    return Plan(
        message.schedule,
        mesh,
        tuple(Layers(s.first, s.stop, s.rank) for s in message.stages),
        message.micro_batches,
        tuple(_order(order, 1 + len(message.replicas)) for order in message.orders),
        tuple(tuple(pipe.rank) for pipe in message.replicas),
    )


def decode_planned(data: bytes) -> PlannedStep | None:
    """What a message of `encode_plan` says that a step takes. None where it says nothing, or what no step can take: a
    comparison is for information, and a plan is no worse without."""
    message = p.Plan()
    try:
        message.ParseFromString(data)
        if not message.HasField("planned"):
            return None
        found = message.planned
        return PlannedStep(
            found.step,
            tuple(found.forward),
            tuple(found.backward),
            tuple(found.tensor),
            found.message,
            tuple(found.replicas),
            tuple(found.optimizer),
        )
    except (DecodeError, ValueError):
        return None


def decode_traffic(data: bytes) -> PlannedTraffic | None:
    """What a message of `encode_plan` says that a step sends. None as `decode_planned` has it."""
    message = p.Plan()
    try:
        message.ParseFromString(data)
        if not message.HasField("traffic"):
            return None
        found = message.traffic
        return PlannedTraffic(
            tuple(found.tensor),
            tuple(found.replicas),
            found.message,
            found.tied,
            found.world,
            tuple(found.messages),
            found.split,
        )
    except (DecodeError, ValueError):
        return None


def _column(values: list[int], usual: int) -> list[int]:
    """The values, or nothing where all are the usual one."""
    return [] if all(value == usual for value in values) else values


def _order(order: p.PlanOrder, pipes: int) -> Order:
    count = len(order.op)
    optional = (order.pipe, order.more, order.part, order.parts, order.late)
    is_even = len(order.stage) == len(order.micro_batch) == count and all(len(c) in (0, count) for c in optional)
    if not is_even or sum(order.more) != len(order.also):
        raise ProtocolError("plan: columns differ in length")
    if any(number >= len(OPS) for number in order.op):
        raise ProtocolError(f"plan: an unknown op {max(order.op)}: its sender is newer than this side")
    also = iter(order.also)
    columns = zip(
        *(order.op, order.stage, order.micro_batch),
        order.part or repeat(0, count),
        order.pipe or repeat(0, count),
        order.more or repeat(0, count),
        order.parts or repeat(1, count),
        order.late or repeat(False, count),
        strict=True,
    )
    return numbered(
        (
            Action(OPS[op], stage, m, part, pipe, tuple(islice(also, more)), parts or 1, late)
            for op, stage, m, part, pipe, more, parts, late in columns
        ),
        pipes,
    )
