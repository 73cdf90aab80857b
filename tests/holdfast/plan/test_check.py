"""Plans with replicas, several micro-batches at once and parts: what they wait for, and the faults that are found."""

from __future__ import annotations

import dataclasses

import pytest

from holdfast.plan.check import dependencies, in_flight, verify
from holdfast.plan.memory import live, replicas
from holdfast.plan.plan import RECEIVES, Layers, Mesh, Plan, from_csv

BOTH_WAYS = """\
0F0+1,1RECV_F2@1,1F2@1,1B2/0:2@1,1SEND_B2/0:2@1,1B2/1:2@1,1SEND_B2/1:2@1,0B0,0B1,0REDUCE_GRAD,1REDUCE_GRAD@1,0STEP,1STEP@1
0F2@1,0SEND_F2@1,1F0+1,1B0,1B1,0RECV_B2/0:2@1,0RECV_B2/1:2@1,0B2/0:2@1,0B2/1:2@1,0REDUCE_GRAD@1,1REDUCE_GRAD,1STEP,0STEP@1
"""
"""Two stages in two pipes: 0 and 1 forward together in pipe 0, 2 back in halves in pipe 1, which goes the other way."""
MESSAGES = (("0F0+1,", "0F0+1,0SEND_F0+1,"), ("1F0+1,", "1RECV_F0+1,1F0+1,"),
            ("1B0,1B1,", "1B0,1SEND_B0,1B1,1SEND_B1,"), ("0B0,0B1,", "0RECV_B0,0RECV_B1,0B0,0B1,"))  # fmt: skip


def plan_of(text: str, micro_batches: int = 3) -> Plan:
    for old, new in MESSAGES:
        text = text.replace(old, new)
    stages = (Layers(0, 2, 0), Layers(2, 4, 1))
    return Plan("by hand", Mesh.of(pp=2), stages, micro_batches, from_csv(text), ((1, 0),))


def test_what_replicas_parts_and_pairs_wait_for() -> None:
    plan = plan_of(BOTH_WAYS)
    assert verify(plan) == []
    needs = dependencies(plan)
    assert needs["1F0"] == ("1RECV_F0", "0SEND_F0"), "one message for both"
    assert needs["1B1"] == ("1F0",), "the forward of both"
    assert needs["0B1"] == ("0F0", "0RECV_B1", "1SEND_B1")
    assert needs["0B2~1"] == ("0F2", "0RECV_B2~1", "1SEND_B2~1"), "only its own half"
    assert needs["1SEND_B2"] == ("1B2",)
    assert needs["0REDUCE_GRAD"] == ("0B0", "0B1")
    assert needs["0REDUCE_GRAD~1"] == ("0B2", "0B2~1")
    assert needs["0STEP"] == ("0REDUCE_GRAD", "0REDUCE_GRAD~1"), "the sum over both replicas"
    assert (plan.ranks_of(0), plan.ranks_of(1)) == ((0, 1), (1, 0))
    assert replicas(plan) == (2, 2)
    assert in_flight(plan) == (3, 3)
    assert live(plan) == (3.0, 3.0)


def test_a_part_may_be_made_of_smaller_ones() -> None:
    text = "0F0/0:2,0F0/1:2,0B0\n1F0/0:4,1F0/1:4,1F0/2:4,1F0/3:4,1B0\n"
    plan = dataclasses.replace(plan_of(text, 1), replicas=())
    assert verify(plan) == []
    needs = dependencies(plan)
    assert [needs[f"1F0{turn}"] for turn in ("", "~1", "~2", "~3")] == [("0F0",), ("0F0",), ("0F0~1",), ("0F0~1",)]
    assert needs["1B0"] == ("1F0", "1F0~1", "1F0~2", "1F0~3")


def test_a_recompute_that_is_late_waits_for_the_gradient() -> None:
    for text, wanted in (("0F0,0R0!,0B0\n1F0,1B0\n", ("0F0", "1B0")), ("0F0,0R0,0B0\n1F0,1B0\n", ("0F0",))):
        plan = dataclasses.replace(plan_of(text, 1), replicas=())
        assert verify(plan) == []
        assert dependencies(plan)["0R0"] == wanted
        assert dependencies(plan)["0B0"] == ("0R0", "1B0")


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("0B1,0REDUCE", "0REDUCE", "stage 0 needs one backward of micro-batch 1"),
        ("1B2/0:2@1", "1B2/0:2", "rank 0: 1B2/0:2 belongs on rank 1"),
        ("1B2/1:2@1,", "1B2/0:2@1,", "micro-batch 2 is in 2 actions like 1B2/0:2@1"),
        ("1B2/1:2@1,", "1B2/1:4@1,", "1B2/0:2@1, 1B2/1:4@1 are 3/4 of micro-batch 2, not all of it"),
        ("1F0+1", "1F0+1,1F1", "micro-batch 1 is in 2 actions like 1F0+1"),
        ("0F0+1", "0F0+1+7", "0F0+1+7 is of no micro-batch of 3"),
        ("0F0+1", "0F0+1@4", "0F0+1@4 is of no pipe of 2"),
        ("1F0+1", "0F0@1,1F0+1", "0F0@1 is of pipe 1, micro-batch 0 of pipe 0"),
        (
            "0B1,0REDUCE_GRAD,1REDUCE_GRAD@1",
            "0B1,1REDUCE_GRAD@1,0REDUCE_GRAD",
            "ranks 0 and 1 gather or reduce shared stages",
        ),
        ("0STEP,1STEP@1", "0STEP,0STEP", "rank 0: 0STEP is there again"),
        ("1SEND_B2/1:2@1,", "", "rank 0 to 1: sends are not what the stages need"),
        ("0B1,0REDUCE_GRAD,1REDUCE_GRAD@1", "0B1,0REDUCE_GRAD", "ranks 0 and 1 gather or reduce shared stages"),
        ("0REDUCE_GRAD@1,1REDUCE_GRAD", "1REDUCE_GRAD,0REDUCE_GRAD@1", "ranks 0 and 1 gather or reduce shared stages"),
        ("0RECV_B2/0:2@1,0RECV_B2/1:2@1", "0RECV_B2/1:2@1,0RECV_B2/0:2@1", "not in the order of the sends"),
    ],
)
def test_faults_are_named(old: str, new: str, says: str) -> None:
    assert old in BOTH_WAYS
    assert says in "; ".join(verify(plan_of(BOTH_WAYS.replace(old, new, 1))))


def test_replicas_gather_in_one_order() -> None:
    gather = {"0F0+1,1RECV": "0UNSHARD,1UNSHARD@1,0F0+1,1RECV", "0F2@1,0SEND": "0UNSHARD@1,1UNSHARD,0F2@1,0SEND"}
    assert all(old in BOTH_WAYS for old in gather)
    good = BOTH_WAYS
    for old, new in gather.items():
        good = good.replace(old, new)
    assert verify(plan_of(good)) == []
    wrong = good.replace("0UNSHARD@1,1UNSHARD,", "1UNSHARD,0UNSHARD@1,")
    assert verify(plan_of(wrong)) == ["ranks 0 and 1 gather or reduce shared stages in different orders"]


def test_pipes_need_a_place_for_every_stage() -> None:
    plan = plan_of(BOTH_WAYS)
    for wrong in ((1,), (1, 2), (0, 0, 0)):
        faults = verify(dataclasses.replace(plan, replicas=(wrong,)))
        assert faults == ["pipe 1 has no place for each of 2 stages on 2 pipeline ranks"]


def test_recomputed_activations_are_there_from_the_recompute_on() -> None:
    plan = dataclasses.replace(plan_of("0F0,0F1,0F2,0R0,0B0,0R1,0B1,0B2\n1F0,1B0,1F1,1B1,1F2,1B2\n"), replicas=())
    # The third is kept from its forward on: with a recomputed one there are two, and inputs of the others.
    assert live(plan) == (2.0, 1.0)
    assert live(plan, activations=lambda a: 10, inputs=lambda a: 1) == (22.0, 10.0)


def test_what_two_halves_of_a_backward_use_is_there_until_the_second() -> None:
    plan = dataclasses.replace(plan_of("0F0,0B0/0:2,0F1,0B0/1:2,0B1\n1F0,1B0,1F1,1B1\n", 2), replicas=())
    assert verify(plan) == []
    assert live(plan) == (2.0, 1.0)


def test_sends_without_receives_are_found() -> None:
    orders = [[a for a in order if a.op not in RECEIVES] for order in plan_of(BOTH_WAYS).orders]
    faults = verify(dataclasses.replace(plan_of(BOTH_WAYS), orders=tuple(map(tuple, orders))))
    assert "rank 0 to 1: receives are not in the order of the sends" in faults


def test_half_of_a_backward_is_neither_all_of_it_nor_none() -> None:
    def alone(text: str, micro_batches: int) -> Plan:
        return Plan("by hand", Mesh.of(pp=1), (Layers(0, 1, 0),), micro_batches, from_csv(text))

    [says] = verify(alone("0F0,0B0/1:2\n", 1))
    assert says == "0B0/1:2 are 1/2 of micro-batch 0, not all of it"
    # After half of the first two and a half are held; the other half may be under way: three.
    plan = alone("0F0,0F1,0B0/0:2,0F2,0B0/1:2,0B1,0B2\n", 3)
    assert verify(plan) == []
    assert in_flight(plan) == (3,)
