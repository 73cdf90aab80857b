"""Plans survive the wire, small; what is no plan is refused in one line."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.base.errors import ProtocolError
from holdfast.plan.plan import OPS, SECOND_ORDER, WHOLE_STAGE, Action, Layers, Mesh, Op, Plan, numbered
from holdfast.plan.planned_step import PlannedStep
from holdfast.plan.planned_traffic import PlannedTraffic
from holdfast.proto import plan_pb2
from holdfast.wire.plans import decode_plan, decode_planned, decode_traffic, encode_plan


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Any plan at all: whether it makes sense is not the wire's to judge."""
    orders = []
    pipes = draw(st.integers(1, 3))
    for _ in range(draw(st.integers(0, 4))):
        order = []
        for op in draw(st.lists(st.sampled_from(OPS), max_size=8)):
            stage, pipe = draw(st.integers(0, 500)), draw(st.integers(0, pipes - 1))
            if op in SECOND_ORDER:
                order.append(Action(op, stage, turn=draw(st.integers(0, 9999)), pipe=pipe, late=draw(st.booleans())))
                continue
            if op in WHOLE_STAGE:
                order.append(Action(op, stage, pipe=pipe))
                continue
            also = tuple(draw(st.lists(st.integers(0, 5000), max_size=2)))
            parts = draw(st.sampled_from([1, 1, 2, 3]))
            part = draw(st.integers(0, parts - 1))
            late = op is Op.RECOMPUTE and draw(st.booleans())
            order.append(Action(op, stage, draw(st.integers(0, 5000)), part, pipe, also, parts, late))
        orders.append(numbered(order, pipes))
    stages = draw(st.lists(st.builds(Layers, *[st.integers(0, 2**31)] * 3), max_size=4))
    mesh = Mesh.of(pp=draw(st.integers(1, 64)), dp=draw(st.integers(1, 999)), cp=draw(st.integers(1, 4)))
    if draw(st.booleans()):
        tps = tuple(draw(st.lists(st.integers(1, 8), min_size=2, max_size=8)))
        mesh = Mesh.of(pp=len(tps), dp=mesh.size("dp"), tp=max(tps), tps=tps)
    ranks = draw(st.lists(st.integers(0, 63), min_size=1, max_size=4))
    replicas = (tuple(ranks),) * (pipes - 1)
    return Plan(draw(st.text(max_size=20)), mesh, tuple(stages), draw(st.integers(0, 9999)), tuple(orders), replicas)


@given(plans())
def test_a_plan_survives_the_wire(plan: Plan) -> None:
    assert decode_plan(encode_plan(plan)) == plan


SECONDS = st.floats(0, 1e9)


@st.composite
def planned_steps(draw: st.DrawFn) -> PlannedStep:
    stages, ranks = draw(st.integers(0, 5)), draw(st.integers(0, 5))
    by = [tuple(draw(st.lists(SECONDS, min_size=n, max_size=n))) for n in (stages, stages, stages, ranks, ranks)]
    step = draw(st.floats(1e-9, 1e9))
    return PlannedStep(step, by[0], by[1], by[2], draw(SECONDS), by[3], by[4])


@given(plans(), planned_steps())
def test_what_a_step_is_planned_to_take_travels_beside_the_plan(plan: Plan, planned: PlannedStep) -> None:
    data = encode_plan(plan, planned)
    assert decode_planned(data) == planned
    assert decode_plan(data) == plan, "which is the same as without"
    assert decode_planned(encode_plan(plan)) is None
    older = plan_pb2.Plan.FromString(data)
    older.ClearField("planned")
    assert older.SerializeToString() == encode_plan(plan), "an older reader passes over the one field that is new"


BYTES = st.floats(0, 1e18)
_PARTS = st.lists(BYTES, max_size=5).map(tuple)
TRAFFIC = st.builds(PlannedTraffic, _PARTS, _PARTS, BYTES, BYTES, BYTES, _PARTS, st.booleans())


@given(plans(), TRAFFIC)
def test_what_its_links_carry_travels_beside_the_plan(plan: Plan, traffic: PlannedTraffic) -> None:
    data = encode_plan(plan, PlannedStep(1.0), traffic)
    assert decode_traffic(data) == traffic
    assert (decode_plan(data), decode_planned(data)) == (plan, PlannedStep(1.0))
    assert decode_traffic(encode_plan(plan, PlannedStep(1.0))) is None
    older = plan_pb2.Plan.FromString(data)
    older.ClearField("traffic")
    assert older.SerializeToString() == encode_plan(plan, PlannedStep(1.0))


@pytest.mark.parametrize("wrong", [{"tensor": [-1.0]}, {"message": float("nan")}, {"replicas": [1.0, 2e18]}])
def test_traffic_that_cannot_be_is_none_and_the_plan_is_as_good(wrong: dict[str, object]) -> None:
    message = plan_pb2.Plan(schedule="1f1b", traffic=plan_pb2.PlannedTraffic(**wrong))  # type: ignore[arg-type]
    assert decode_traffic(message.SerializeToString()) is None
    assert decode_plan(message.SerializeToString()).schedule == "1f1b"
    assert decode_traffic(b"\xff\xff") is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"step": 0.0},
        {"step": float("nan")},
        {"step": -1.0},
        {"step": 1.0, "forward": [1.0]},
        {"step": 1.0, "forward": [float("inf")], "backward": [1.0], "tensor": [0.0]},
        {"step": 1.0, "message": -1e-9},
        {"step": 1.0, "replicas": [1.0, 2.0], "optimizer": [1.0]},
    ],
)
def test_a_step_that_cannot_be_is_none_and_the_plan_is_as_good(wrong: dict[str, object]) -> None:
    message = plan_pb2.Plan(schedule="1f1b", planned=plan_pb2.PlannedStep(**wrong))  # type: ignore[arg-type]
    assert decode_planned(message.SerializeToString()) is None
    assert decode_plan(message.SerializeToString()).schedule == "1f1b"


def test_numbers_of_ops_on_the_wire_never_change() -> None:
    assert [op.value for op in OPS] == [
        *("F", "B", "I", "W", "SEND_F", "RECV_F", "SEND_B", "RECV_B"),
        *("UNSHARD", "RESHARD", "REDUCE_GRAD", "LOAD", "R", "STEP"),
        *("FACTOR", "INVERT", "PRECOND", "FETCH", "EVICT", "SNAP"),
    ]


OLD = """\
0LOAD,0UNSHARD,0F0,0SEND_F0,0RECV_B0,0B0,0REDUCE_GRAD,0RESHARD,0STEP
1RECV_F0,1F0,1I0,1SEND_B0,1W0,1STEP
"""
OLD_BYTES = (
    "0a0762792068616e6412060a027070100212060a026470100212060a02747010011a0210021a0608021004180120012a210a090b08000407010a09"
    "0d12090000000000000000001a090101000000000101012a180a0605000206030d12060101010101011a06000000000001"
)
"""As version 0.1 wrote it: recorded plans are in spans' files and journals."""


def test_a_plan_of_one_pipe_has_the_bytes_it_always_had() -> None:
    orders = tuple(numbered(map(Action.parse, line.split(","))) for line in OLD.splitlines())
    plan = Plan("by hand", Mesh.of(pp=2, dp=2), (Layers(0, 2, 0), Layers(2, 4, 1)), 1, orders)
    assert encode_plan(plan).hex() == OLD_BYTES
    assert decode_plan(bytes.fromhex(OLD_BYTES)) == plan


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"\xff\xff", "a malformed plan of 2 bytes"),
        (plan_pb2.Plan(axes=[plan_pb2.Axis(name="pp", size=0)]).SerializeToString(), "every axis once"),
        (plan_pb2.Plan(orders=[plan_pb2.PlanOrder(op=[1])]).SerializeToString(), "columns differ in length"),
        (
            plan_pb2.Plan(
                orders=[plan_pb2.PlanOrder(op=[0], stage=[0], micro_batch=[0], more=[2], also=[1])]
            ).SerializeToString(),
            "columns differ in length",
        ),
        (
            plan_pb2.Plan(
                orders=[plan_pb2.PlanOrder(op=[0, 1], stage=[0, 0], micro_batch=[0, 0], pipe=[1])]
            ).SerializeToString(),
            "columns differ in length",
        ),
        (
            plan_pb2.Plan(orders=[plan_pb2.PlanOrder(op=[99], stage=[0], micro_batch=[0])]).SerializeToString(),
            "an unknown op 99: its sender is newer",
        ),
    ],
)
def test_what_is_no_plan_is_refused(data: bytes, says: str) -> None:
    with pytest.raises(ProtocolError, match=says):
        decode_plan(data)
