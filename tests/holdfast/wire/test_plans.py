"""Plans survive the wire, small; what is no plan is refused in one line."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.base.errors import ProtocolError
from holdfast.plan.plan import OPS, WHOLE_STAGE, Action, Layers, Mesh, Plan, numbered
from holdfast.proto import plan_pb2
from holdfast.wire.plans import decode_plan, encode_plan


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Any plan at all: whether it makes sense is not the wire's to judge."""
    orders = []
    for _ in range(draw(st.integers(0, 4))):
        order = []
        for op in draw(st.lists(st.sampled_from(OPS), max_size=8)):
            micro_batch = -1 if op in WHOLE_STAGE else draw(st.integers(0, 5000))
            order.append(Action(op, draw(st.integers(0, 500)), micro_batch))
        orders.append(numbered(order))
    stages = draw(st.lists(st.builds(Layers, *[st.integers(0, 2**31)] * 3), max_size=4))
    mesh = Mesh.of(pp=draw(st.integers(1, 64)), dp=draw(st.integers(1, 999)), cp=draw(st.integers(1, 4)))
    return Plan(draw(st.text(max_size=20)), mesh, tuple(stages), draw(st.integers(0, 9999)), tuple(orders))


@given(plans())
def test_a_plan_survives_the_wire(plan: Plan) -> None:
    assert decode_plan(encode_plan(plan)) == plan


def test_numbers_of_ops_on_the_wire_never_change() -> None:
    assert [op.value for op in OPS] == [
        *("F", "B", "I", "W", "SEND_F", "RECV_F", "SEND_B", "RECV_B"),
        *("UNSHARD", "RESHARD", "REDUCE_GRAD", "LOAD", "R", "STEP"),
    ]


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"\xff\xff", "a malformed plan of 2 bytes"),
        (plan_pb2.Plan(axes=[plan_pb2.Axis(name="pp", size=0)]).SerializeToString(), "every axis once"),
        (plan_pb2.Plan(orders=[plan_pb2.PlanOrder(op=[1])]).SerializeToString(), "columns differ in length"),
        (
            plan_pb2.Plan(orders=[plan_pb2.PlanOrder(op=[99], stage=[0], micro_batch=[0])]).SerializeToString(),
            "an unknown op 99: its sender is newer",
        ),
    ],
)
def test_what_is_no_plan_is_refused(data: bytes, says: str) -> None:
    with pytest.raises(ProtocolError, match=says):
        decode_plan(data)
