"""A plan to a message and back, by round trip. A few bytes an action: columns of small numbers."""

from google.protobuf.message import DecodeError

from holdfast.base.errors import ProtocolError
from holdfast.plan.plan import OPS, Action, Layers, Mesh, Order, Plan, numbered
from holdfast.proto import plan_pb2 as p

_NUMBERS = {op: number for number, op in enumerate(OPS)}


def encode_plan(plan: Plan) -> bytes:
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
            )
            for order in plan.orders
        ],
    ).SerializeToString()


def decode_plan(data: bytes) -> Plan:
    """ProtocolError for what is no plan of ours, or has an op that this version does not know.

    Whether a plan can be executed is `plan_check.verify`'s to say.
    """
    message = p.Plan()
    try:
        message.ParseFromString(data)
        mesh = Mesh(tuple((axis.name, axis.size) for axis in message.axes))
    except (DecodeError, ValueError) as error:
        raise ProtocolError(f"a malformed plan of {len(data)} bytes: {error}") from None
    return Plan(
        message.schedule,
        mesh,
        tuple(Layers(s.first, s.stop, s.rank) for s in message.stages),
        message.micro_batches,
        tuple(_order(order) for order in message.orders),
    )


def _order(order: p.PlanOrder) -> Order:
    if not len(order.op) == len(order.stage) == len(order.micro_batch):
        raise ProtocolError("plan: columns differ in length")
    if any(number >= len(OPS) for number in order.op):
        raise ProtocolError(f"plan: an unknown op {max(order.op)}: its sender is newer than this side")
    columns = zip(order.op, order.stage, order.micro_batch, strict=True)
    return numbered(Action(OPS[op], stage, micro_batch) for op, stage, micro_batch in columns)
