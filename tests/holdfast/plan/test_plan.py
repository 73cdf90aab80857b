"""A plan: names of actions, the mesh, what an action waits for, and every fault that verification must find."""

import dataclasses
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.plan.check import dependencies, in_flight, verify
from holdfast.plan.plan import (
    COMPUTE,
    OPS,
    RESOURCES,
    WHOLE_STAGE,
    Action,
    Layers,
    Mesh,
    Op,
    Plan,
    Resource,
    from_csv,
    numbered,
    to_csv,
)
from holdfast.plan.simulate import durations, simulate

TWO_RANKS = """\
0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0RECV_B1,0B0,0B1
1RECV_F0,1RECV_F1,1F0,1B0,1SEND_B0,1F1,1B1,1SEND_B1
"""


def plan_of(text: str, micro_batches: int = 2) -> Plan:
    return Plan("by hand", Mesh.of(pp=2), (Layers(0, 2, 0), Layers(2, 4, 1)), micro_batches, from_csv(text))


@st.composite
def actions(draw: st.DrawFn) -> Action:
    op = draw(st.sampled_from(list(Op)))
    micro_batch = -1 if op in WHOLE_STAGE else draw(st.integers(0, 999))
    return Action(op, draw(st.integers(0, 99)), micro_batch, draw(st.integers(0, 3)))


@st.composite
def odd_actions(draw: st.DrawFn) -> Action:
    """Of any pipe, of several micro-batches or of a part."""
    action = draw(actions())
    pipe = draw(st.integers(0, 5))
    if action.op in WHOLE_STAGE:
        return dataclasses.replace(action, turn=0, pipe=pipe)
    parts = draw(st.integers(1, 4))
    return dataclasses.replace(
        action,
        turn=draw(st.integers(0, parts - 1)),
        pipe=pipe,
        also=tuple(draw(st.lists(st.integers(0, 99), max_size=2))),
        parts=parts,
        late=action.op is Op.RECOMPUTE and draw(st.booleans()),
    )


@given(actions())
def test_an_action_is_its_id(action: Action) -> None:
    assert Action.parse(action.id) == action


@given(odd_actions())
def test_an_odd_action_is_its_text(action: Action) -> None:
    assert Action.parse(action.text) == action
    # A span says no more than its id does.
    said = Action(action.op, action.stage, action.micro_batch, action.turn)
    assert said.id == action.id


def test_text_of_what_torch_lacks() -> None:
    forward = Action(Op.FORWARD, 0, 2, also=(3,))
    assert (forward.text, forward.id, forward.micro_batches, forward.share) == ("0F2+3", "0F2", (2, 3), 2)
    half = Action(Op.BACKWARD, 1, 2, 1, pipe=3, parts=2)
    assert (half.text, half.id, half.part, half.share) == ("1B2/1:2@3", "1B2~1", (1, 2), Fraction(1, 2))
    assert Action(Op.RECOMPUTE, 0, 5, late=True).text == "0R5!"
    late = Action(Op.FACTOR, 1, turn=5, pipe=1, late=True)
    assert (late.text, late.id, Action.parse(late.text)) == ("1FACTOR!@1~5", "1FACTOR~5", late)
    assert numbered([late, Action(Op.FACTOR, 1)]) == (late, Action(Op.FACTOR, 1))  # turns say what they are about
    both_ways = "0F0+1,3F2@1,3B2/0:2@1,3B2/1:2@1,0B0,0REDUCE_GRAD,3REDUCE_GRAD@1\n"
    (order,) = from_csv(both_ways)
    assert to_csv([order]) == both_ways
    # Turns go round the pipes, so that replicas of a stage have ids of their own.
    assert [action.id for action in order[-2:]] == ["0REDUCE_GRAD", "3REDUCE_GRAD~1"]


def test_every_op_keeps_one_resource_busy() -> None:
    assert set(RESOURCES) == set(OPS)
    assert {op for op in OPS if Action(op, 0).resource is Resource.COMPUTE} == {
        *COMPUTE, Op.STEP, Op.FACTOR, Op.INVERT, Op.PRECOND,
    }  # fmt: skip
    assert Action(Op.SEND_FORWARD, 0, 0).resource is Resource.P2P
    assert Action(Op.REDUCE_GRAD, 0).resource is Resource.DP
    assert Action(Op.SNAP, 0).resource is Resource.HOST


def test_text_is_that_of_torch() -> None:
    assert [Action(Op.FORWARD, 0, 3).text, Action(Op.SEND_FORWARD, 1, 2).text] == ["0F3", "1SEND_F2"]
    assert Action(Op.UNSHARD, 2).text == "2UNSHARD"
    assert to_csv(from_csv(TWO_RANKS)) == TWO_RANKS
    assert from_csv("0F0,,0B0,\n")[0] == (Action(Op.FORWARD, 0, 0), Action(Op.BACKWARD, 0, 0))


def test_ranks_and_places_are_inverse_where_sizes_are_no_powers_of_two() -> None:
    mesh = Mesh.of(pp=3, dp=5, tp=3)
    assert [mesh.rank(**mesh.coordinate(rank)) for rank in range(45)] == list(range(45))
    assert mesh.rank(pp=2, dp=4, tp=2) == 44


@pytest.mark.parametrize("chunks", [1, 2])
def test_halves_of_a_backward_take_half_of_it(chunks: int) -> None:
    takes = durations(3.0, 8.0, chunks)
    expected = {Op.FORWARD: 3.0, Op.RECOMPUTE: 3.0, Op.BACKWARD: 8.0, Op.BACKWARD_INPUT: 4.0, Op.BACKWARD_WEIGHT: 4.0}
    for op in Op:
        assert takes(Action(op, 0, -1 if op in WHOLE_STAGE else 0)) == expected.get(op, 0.0) / chunks


@pytest.mark.parametrize(
    "text",
    [
        *("", "F0", "0X1", "0F", "0UNSHARD1", "0F-1", "(0F0;1B0)OVERLAP_F_B"),
        *("0B1/2:2", "0B1/0:1", "0B1/0:2~1", "0STEP/0:2", "0STEP+1", "0F1!", "0F1+", "0F1@"),
    ],
)
def test_what_is_no_action_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no action"):
        Action.parse(text)


def test_repetitions_get_ids_of_their_own() -> None:
    gather = Action(Op.UNSHARD, 0)
    assert [action.id for action in numbered([gather, gather])] == ["0UNSHARD", "0UNSHARD~1"]


def test_mesh_counts_through_its_last_axis_first() -> None:
    mesh = Mesh.of(pp=2, dp=2, tp=2)
    assert mesh.axes == (("pp", 2), ("dp", 2), ("tp", 2))
    assert mesh.coordinate(5) == {"pp": 1, "dp": 0, "tp": 1}
    assert [mesh.rank(**mesh.coordinate(rank)) for rank in range(8)] == list(range(8))
    assert mesh.groups("tp") == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert mesh.groups("dp") == [(0, 2), (1, 3), (4, 6), (5, 7)]
    assert mesh.groups("pp") == [(0, 4), (1, 5), (2, 6), (3, 7)]
    assert mesh.groups("cp") == [(rank,) for rank in range(8)]
    assert Mesh.of(pp=2, cp=2).axes == (("pp", 2), ("dp", 1), ("cp", 2), ("tp", 1))


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_groups_of_an_axis_partition_the_ranks(sizes: list[int]) -> None:
    mesh = Mesh(tuple((name, size) for name, size in zip("abcd", sizes, strict=False)))
    for name, size in mesh.axes:
        groups = mesh.groups(name)
        assert sorted(rank for group in groups for rank in group) == list(range(mesh.world))
        for group in groups:
            assert [mesh.coordinate(rank)[name] for rank in group] == list(range(size))
            others = [{k: v for k, v in mesh.coordinate(rank).items() if k != name} for rank in group]
            assert all(other == others[0] for other in others)


def test_pipeline_ranks_may_differ_in_tp() -> None:
    mesh = Mesh.of(pp=3, dp=2, tp=4, tps=(1, 4, 2))
    assert mesh.world == 2 * (1 + 4 + 2)
    assert [mesh.rank(**mesh.coordinate(rank)) for rank in range(mesh.world)] == list(range(mesh.world))
    assert [mesh.coordinate(rank)["pp"] for rank in range(mesh.world)] == [0] * 2 + [1] * 8 + [2] * 4
    assert mesh.coordinate(7) == {"pp": 1, "dp": 1, "tp": 1}
    assert mesh.coordinate(13) == {"pp": 2, "dp": 1, "tp": 1}
    with pytest.raises(ValueError, match="stand in lines"):
        mesh.groups("pp")
    for wrong in ((1, 2), (1, 0, 4), (1, 2, 2)):
        with pytest.raises(ValueError, match="with one for each"):
            Mesh.of(pp=3, tp=4, tps=wrong)


@pytest.mark.parametrize("bad", [(("pp", 0),), (("pp", 2), ("pp", 2))])
def test_senseless_meshes_are_refused(bad: tuple[tuple[str, int], ...]) -> None:
    with pytest.raises(ValueError, match="every axis once"):
        Mesh(bad)


def test_places_outside_the_mesh_are_refused() -> None:
    mesh = Mesh.of(pp=2)
    for wrong in (lambda: mesh.coordinate(2), lambda: mesh.rank(pp=2), lambda: mesh.rank(ep=0)):
        with pytest.raises(ValueError, match=r"mesh|axis"):
            wrong()


def test_what_each_action_waits_for() -> None:
    needs = dependencies(plan_of(TWO_RANKS))
    assert needs["1F0"] == ("1RECV_F0", "0SEND_F0")
    assert needs["0SEND_F1"] == ("0F1",)
    assert needs["1RECV_F0"] == ()
    assert needs["0B1"] == ("0F1", "0RECV_B1", "1SEND_B1")
    bare = plan_of("0F0,0B0\n1F0,1I0,1W0", micro_batches=1)
    assert dependencies(bare) == {
        "0F0": (),
        "0B0": ("0F0", "1I0"),
        "1F0": ("0F0",),
        "1I0": ("1F0",),
        "1W0": ("1I0",),
    }
    whole = plan_of("0LOAD,0UNSHARD,0F0,0R0,0B0,0REDUCE_GRAD,0RESHARD,0STEP\n1F0,1B0,1STEP", micro_batches=1)
    needs = dependencies(whole)
    assert verify(whole) == []
    assert needs["0F0"] == ("0UNSHARD", "0LOAD")
    assert needs["0B0"] == ("0R0", "1B0", "0UNSHARD")
    assert (needs["0REDUCE_GRAD"], needs["0STEP"], needs["1STEP"]) == (("0B0",), ("0REDUCE_GRAD",), ("1B0",))


def test_a_whole_plan_has_no_faults() -> None:
    plan = plan_of(TWO_RANKS)
    assert verify(plan) == []
    assert in_flight(plan) == (2, 1)
    assert plan.find("1B1") == Action(Op.BACKWARD, 1, 1)
    assert plan.find("1B2") is None
    line = simulate(plan, durations(1, 2), latency=0.5)
    assert line.start["1F0"] == 1.5
    assert line.makespan == 9 + 2 * 0.5


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("0F1,", "", "0F1 is missing"),
        ("0B1", "0I1", "stage 0 needs one backward of micro-batch 1"),
        ("0B1", "0B1,0B1", "0B1 is there again"),
        ("0F1,", "1F1,", "rank 0: 1F1 belongs on rank 1"),
        ("0B1", "0B1,0B2", "rank 0: 0B2 is of no micro-batch of 2"),
        ("0B1", "0B1,7B0", "rank 0: 7B0 is of no stage"),
        ("0SEND_F1,", "", "rank 0 to 1: sends are not what the stages need"),
        ("1RECV_F0,1RECV_F1", "1RECV_F1,1RECV_F0", "rank 0 to 1: receives are not in the order of the sends"),
        ("0F0,", "0UNSHARD,0F0,0RESHARD,", "computes on shards"),
        ("0F0,", "0UNSHARD,0UNSHARD,0F0,", "0UNSHARD~1 gathers what is whole already"),
        ("0F0,", "0RESHARD,0F0,", "0RESHARD frees what is not there"),
        ("0B1", "0REDUCE_GRAD,0B1", "0B1 comes after the gradients of its stage were reduced"),
        ("1F0,1B0", "1B0,1F0", "the lists wait for each other for ever: "),
    ],
)
def test_faults_are_named(old: str, new: str, says: str) -> None:
    assert says in "; ".join(verify(plan_of(TWO_RANKS.replace(old, new))))


def test_lists_that_wait_for_each_other_are_named_and_never_simulated_for_ever() -> None:
    text = TWO_RANKS.replace("0F1,0SEND_F1,0RECV_B0,0RECV_B1,0B0", "0RECV_B0,0RECV_B1,0B0,0F1,0SEND_F1")
    plan = plan_of(text.replace("1F0,1B0,1SEND_B0,1F1,1B1", "1F0,1F1,1B0,1SEND_B0,1B1"))
    (fault,) = verify(plan)
    assert fault.startswith("the lists wait for each other for ever: ")
    with pytest.raises(ValueError, match="never ends"):
        simulate(plan, durations(1, 1))


@pytest.mark.parametrize(("last", "faults"), [(1, 0), (2, 1), (3, 1)])
def test_micro_batches_are_those_of_the_plan(last: int, faults: int) -> None:
    plan = plan_of(TWO_RANKS.replace("0F1", f"0F{last}"))
    assert sum("0F" in fault and "is of no micro-batch of 2" in fault for fault in verify(plan)) == faults


def test_stages_must_cover_the_layers_on_ranks_that_are_there() -> None:
    plan = plan_of(TWO_RANKS)
    gap = dataclasses.replace(plan, stages=(Layers(0, 2, 0), Layers(3, 4, 1)))
    assert verify(gap) == ["stage 1 holds layers 3 to 4, after layer 2"]
    lost = dataclasses.replace(plan, stages=(Layers(0, 2, 0), Layers(2, 4, 5)))
    assert "stage 1 is on pipeline rank 5 of 2" in verify(lost)
    assert "2 lists for 4 pipeline ranks" in verify(dataclasses.replace(plan, mesh=Mesh.of(pp=4)))
