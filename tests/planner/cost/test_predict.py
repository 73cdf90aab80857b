"""A whole prediction against sums by hand; what must hold of any; layouts that cannot be."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.plan.schedules.table import SCHEDULES
from holdfast.plan.transformer import Transformer, step_flops
from holdfast.planner.cluster.cluster import Hop, Level
from holdfast.planner.cluster.file import parse
from holdfast.planner.cost.collectives import Collective, Ring, hierarchical
from holdfast.planner.cost.groups import group_cost, lines_of, message_cost, replica_lines
from holdfast.planner.cost.layout import Layout, LayoutError
from holdfast.planner.cost.measured import Line, PartTimes, Profile
from holdfast.planner.cost.predict import CostModel, predict

CLUSTER = parse('gpu = "A100"\nnodes = 4\ngpus_per_node = 8\nnic = "infiniband"\n[links.switch]\ngbit_per_s = 200\n')
MODEL = Transformer(8, 1024, 16, 8192, 512)
NEAR, FAR = Hop(3e-6, 1 / 300e9), Hop(8e-6, 8 / 200e9)


def profile(**parts: tuple[float, float]) -> Profile:
    times = {name: PartTimes(*parts[name]) for name in ("first", "layer", "last")}
    keys = {f"tp={n}{word}": times for n in (1, 2, 4, 8) for word in ("", " sequence")}
    return Profile({}, "bfloat16", 1, "A100", keys)


def test_one_device_by_hand() -> None:
    """8 micro-batches of 8 layers: nothing but computation, and the update of 16 + 12 + 8 bytes... by bandwidth."""
    measured = profile(first=(0.001, 0.002), layer=(0.01, 0.02), last=(0.003, 0.006))
    found = predict(MODEL, CLUSTER, Layout(micro_batches=8), measured)
    assert found.breakdown.compute == pytest.approx(8 * (8 * 0.03 + 0.003 + 0.009))
    update = MODEL.parameters * (2 * 12 + 4 + 2 * 2) / 2.039e12
    assert found.breakdown.optimizer == pytest.approx(update)
    assert found.step_s == pytest.approx(found.breakdown.compute + update)
    assert found.mfu == pytest.approx(step_flops(MODEL, 8).model / found.step_s / 312e12)


def test_pipeline_and_replicas_by_hand() -> None:
    """pp=2 over nodes, dp=16: (m + 1)(f + b) of the slower stage, and the sum over 8 devices in each of two nodes."""
    measured = profile(first=(0.0, 0.0), layer=(0.01, 0.02), last=(0.0, 0.0))
    layout = Layout(pp=2, dp=16, micro_batches=64, zero=0)
    model = CostModel(CLUSTER, profile=measured, overlap=False)
    found = model.predict(MODEL, layout)
    stage = 4 * 0.03
    message = FAR.alpha + 512 * 1024 * 2 * FAR.beta
    # 1F1B with messages: each of the other stage's two turns waits for one more.
    assert found.breakdown.compute == pytest.approx(4 * stage)
    assert found.breakdown.bubble == pytest.approx(stage + 2 * message, rel=0.05)
    params = 4 * MODEL.layer_parameters + MODEL.first_parameters
    levels = (Ring(8, NEAR), Ring(2, FAR))
    summed = hierarchical(Collective.ALL_REDUCE, params * 4.0, levels)
    assert found.breakdown.replicas == pytest.approx(summed)
    # What is hidden: all layers but the first, behind whose backward the last gradients come.
    assert summed > 3 * 0.0005
    quick = profile(first=(0.0, 0.0), layer=(0.0002, 0.0005), last=(0.0, 0.0))
    hidden = CostModel(CLUSTER, profile=quick).predict(MODEL, layout).breakdown.replicas
    assert hidden == pytest.approx(summed - 3 * 0.0005)
    assert CostModel(CLUSTER, profile=measured).predict(MODEL, layout).breakdown.replicas == 0


def test_gathers_longer_than_computation_wait_once_on_each_way() -> None:
    """ZeRO 3 over four nodes, 10 units (first, 8 layers, last): on each way one unit has nothing to hide behind,
    of the others what is longer than the computation."""
    forward, backward = 8 * 0.0002, 8 * 0.0005
    quick = profile(first=(0.0, 0.0), layer=(0.0002, 0.0005), last=(0.0, 0.0))
    found = CostModel(CLUSTER, profile=quick).predict(MODEL, Layout(dp=32, micro_batches=32, zero=3)).breakdown
    each, levels = MODEL.parameters / 10, (Ring(8, NEAR), Ring(4, FAR))
    gather = 10 * hierarchical(Collective.ALL_GATHER, each * 2.0, levels)
    reduce = 10 * hierarchical(Collective.REDUCE_SCATTER, each * 4.0, levels)
    assert gather > forward
    assert gather + reduce > backward
    there = gather / 10 + (gather - forward) * 9 / 10
    back = (gather + reduce) / 10 + (gather + reduce - backward) * 9 / 10
    assert found.replicas == pytest.approx(there + back)


def test_tensor_parallelism_by_hand() -> None:
    """Serial: two pairs of split matrices a layer, each one all-reduce forward and one back."""
    found = predict(MODEL, CLUSTER, Layout(tp=8, micro_batches=2)).breakdown
    each = hierarchical(Collective.ALL_REDUCE, 512 * 1024 * 2.0, (Ring(8, NEAR),))
    assert found.tensor == pytest.approx(2 * 8 * 4 * each)
    halves = predict(MODEL, CLUSTER, Layout(tp=8, micro_batches=2, sequence=True)).breakdown
    ring = 7 * (NEAR.alpha + 512 * 1024 * 2 / 8 * NEAR.beta)
    assert halves.tensor == pytest.approx(2 * 8 * 4 * 2 * ring)


def test_what_each_kind_of_action_takes_by_hand() -> None:
    """By stage for one micro-batch, by pipeline rank for a step: what a run is compared with."""
    measured = profile(first=(0.001, 0.002), layer=(0.01, 0.02), last=(0.003, 0.006))
    layout = Layout(pp=2, dp=16, micro_batches=64, zero=1)
    model = CostModel(CLUSTER, profile=measured)
    found = model.planned(MODEL, layout)
    assert found.step == model.predict(MODEL, layout).step_s
    assert found.forward == pytest.approx((0.041, 0.043))
    assert found.backward == pytest.approx((0.082, 0.086))
    assert found.tensor == (0, 0)
    assert found.message == pytest.approx(FAR.alpha + 512 * 1024 * 2 * FAR.beta)
    params = [4 * MODEL.layer_parameters + more for more in (MODEL.first_parameters, MODEL.last_parameters)]
    levels = (Ring(8, NEAR), Ring(2, FAR))
    exchanged = [
        hierarchical(Collective.ALL_GATHER, one * 2.0, levels)
        + hierarchical(Collective.REDUCE_SCATTER, one * 4.0, levels)
        for one in params
    ]
    assert found.replicas == pytest.approx(tuple(exchanged)), "whole, whatever the last backward hides"
    full = model.planned(MODEL, replace(layout, recompute="full"))
    assert full.backward == pytest.approx((0.082 + 0.04, 0.086 + 0.04))
    cell = model.planned(MODEL, replace(layout, recompute="cell"))
    assert cell.backward == pytest.approx((0.082 + 0.041, 0.086 + 0.043))
    # Stage 2 reduces behind each of a replica's four micro-batches, stage 3 gathers for each forward and backward.
    twice = model.planned(MODEL, replace(layout, zero=2)).replicas[0]
    gather = hierarchical(Collective.ALL_GATHER, params[0] * 2.0, levels)
    assert twice == pytest.approx(gather + 4 * (exchanged[0] - gather))


def test_tensor_parallelism_and_the_update_are_apart() -> None:
    layout = Layout(tp=8, micro_batches=2)
    found = CostModel(CLUSTER).planned(MODEL, layout)
    whole = predict(MODEL, CLUSTER, layout).breakdown
    assert found.tensor == pytest.approx((whole.tensor / 2,))
    assert 2 * (found.forward[0] + found.backward[0]) == pytest.approx(whole.compute)
    assert found.optimizer == pytest.approx((whole.optimizer,))
    assert (found.message, found.replicas) == (0, (0,))


def test_recompute_costs_a_forward() -> None:
    measured = profile(first=(0.0, 0.0), layer=(0.01, 0.02), last=(0.0, 0.0))
    none, full, cell = (
        predict(MODEL, CLUSTER, Layout(micro_batches=4, recompute=kind), measured) for kind in ("none", "full", "cell")
    )
    assert full.breakdown.recompute == cell.breakdown.recompute == pytest.approx(4 * 8 * 0.01)
    assert none.breakdown.recompute == 0
    assert full.fullest.activations < none.fullest.activations
    assert full.mfu < none.mfu


def test_groups_and_their_nodes() -> None:
    """dp of pp=2 dp=16 tp=1 spans two nodes of 8; tp=8 stays in one; the world has four."""
    assert group_cost(CLUSTER, lines_of(2, 16, 1, "dp")).levels == (Ring(8, NEAR), Ring(2, FAR))
    assert group_cost(CLUSTER, lines_of(2, 2, 8, "tp")).levels == (Ring(8, NEAR),)
    assert group_cost(CLUSTER, lines_of(1, 4, 8, "dp")).levels == (Ring(4, FAR),)
    assert group_cost(CLUSTER, lines_of(1, 32, 1, "world")).levels == (Ring(8, NEAR), Ring(4, FAR))
    # 12 of 8-device nodes do not come out even: one ring over the slowest link.
    assert group_cost(CLUSTER, lines_of(1, 12, 1, "dp")).levels == (Ring(12, FAR),)
    crossing = group_cost(CLUSTER, lines_of(2, 16, 1, "dp")).crossing
    assert crossing == {Level.NODE: 14 / 16, Level.SWITCH: 2 / 16}


def test_groups_have_the_slowest_hop() -> None:
    """Of four nodes under two switches; and of one whose NICs are slower than the switch."""
    text = 'gpu = "A100"\nnodes_per_switch = 2\ngpus_per_node = 2\n[links.switch]\ngbit_per_s = 400\n'
    pods = "[links.pod]\nalpha_us = 5\ngbit_per_s = 100\n"
    lines = lines_of(1, 4, 2, "dp")
    (level,) = group_cost(parse(text.replace("gpus", "nodes = 4\ngpus", 1) + pods), lines).levels
    assert (level.size, level.hop.alpha, level.hop.beta) == (4, pytest.approx(13e-6), 8 / 100e9)
    groups = "[[group]]\nnodes = 2\n[[group]]\nnodes = 2\ngbit_per_s = 50\n"
    slow = parse(text + pods + groups)
    assert group_cost(slow, lines).levels[0].hop.beta == 8 / 50e9
    # Half of the messages between stages stay under a switch; the slowest one is charged.
    hop, shares = message_cost(slow, lines_of(4, 1, 2, "pp"))
    assert hop.beta == 8 / 50e9
    assert shares == {Level.SWITCH: pytest.approx(2 / 3), Level.POD: pytest.approx(1 / 3)}


def test_memory_that_does_not_fit_expands() -> None:
    text = 'gpu = "A100"\nnodes = 1\ngpus_per_node = 8\n[host]\nmemory_bytes = 1e12\nbytes_per_s = 20e9\n'
    big = Transformer(48, 8192, 64, 51200, 2048)
    layout = Layout(tp=8, micro_batches=8)
    plain = CostModel(parse(text)).predict(big, layout)
    expanded = CostModel(parse(text), expands=True).predict(big, layout)
    assert not plain.fits
    assert expanded.step_s > plain.step_s


@pytest.mark.parametrize("parts", [1, 2])
def test_expanded_memory_slows_all_that_is_computed(parts: int) -> None:
    """Where all is bound by memory, times are as 1 / bandwidth, of memory whose share e lies with the host."""
    big = Transformer(48, 8192, 64, 51200, 2048)
    layout = Layout(tp=8, micro_batches=8, micro_batch_size=2, sub_batches=parts)
    found, per_byte = [], []
    for rate in (1e8, 2e8):
        text = f'gpu = "A100"\nnodes = 1\ngpus_per_node = 8\n[host]\nmemory_bytes = 1e12\nbytes_per_s = {rate}\n'
        model = CostModel(parse(text), expands=True)
        prediction, planned = model.predict(big, layout), model.planned(big, layout)
        away = 1 - prediction.capacity / prediction.fullest.total
        assert away > 0.1
        found.append(prediction.breakdown.compute)
        per_byte.append((1 - away) / 2.039e12 + away / rate)
        assert 8 * (planned.forward[0] + planned.backward[0]) == pytest.approx(prediction.breakdown.compute)
        assert planned.optimizer == pytest.approx((prediction.breakdown.optimizer,))
    assert found[0] / found[1] == pytest.approx(per_byte[0] / per_byte[1])


def test_measured_links_replace_those_of_the_cluster() -> None:
    measured = profile(first=(0.0, 0.0), layer=(0.01, 0.02), last=(0.0, 0.0))
    lines = Profile(measured.shape, "bfloat16", 1, "A100", measured.parts, 0.0, {"all_reduce": {8: Line(1e-3, 0.0)}})
    found = predict(MODEL, CLUSTER, Layout(tp=8, micro_batches=1), lines)
    assert found.breakdown.tensor == pytest.approx(8 * 4 * 1e-3)


layouts = st.builds(
    Layout,
    pp=st.sampled_from([1, 2, 4]), dp=st.sampled_from([1, 2, 4]), tp=st.sampled_from([1, 2]),
    schedule=st.sampled_from(["1f1b", "gpipe", "interleaved", "zbv"]), micro_batches=st.sampled_from([16, 32]),
    zero=st.sampled_from([0, 1, 2]), recompute=st.sampled_from(["none", "selective", "full", "cell"]),
    sequence=st.booleans(),
)  # fmt: skip


@settings(deadline=None, max_examples=25)
@given(layouts)
def test_what_must_hold(layout: Layout) -> None:
    try:
        found = predict(MODEL, CLUSTER, layout)
    except LayoutError:
        return
    parts = found.breakdown.document()
    assert all(value >= -1e-12 for value in parts.values()), parts
    assert sum(parts.values()) == pytest.approx(found.step_s)
    assert 0 < found.mfu < 0.8  # what the GPU's products reach
    assert all(value >= 0 for one in found.memory for value in one.document().values())
    assert sum(found.wire.by_link.values()) == pytest.approx(found.wire.total)


@pytest.mark.parametrize(
    ("layout", "said"),
    [
        (Layout(dp=64, micro_batches=64), "needs 64 devices, the cluster has 32"),
        (Layout(tp=3), "tp=3 does not divide 16 heads with 16 of keys; tp can be 1, 2, 4, 8, 16"),
        (Layout(dp=3), "dp=3 does not divide 8 micro-batches"),
        (Layout(pp=16), "16 stages for 8 layers"),
        (Layout(schedule="fifo"), "schedule 'fifo' is not known"),
        (Layout(zero=4), "zero is 4"),
        (Layout(recompute="some"), "recompute is 'some'"),
        (Layout(pp=0), "pp is 0"),
        (Layout(schedule="zbv", pp=2, zero=3), "cannot gather parameters by layer"),
        (Layout(schedule="interleaved"), "needs pp of 2 or more"),
        (Layout(pp=2, chunks=2), "1f1b has 1 stages a rank, not 2"),
    ],
)
def test_layouts_that_cannot_be(layout: Layout, said: str) -> None:
    with pytest.raises(LayoutError, match=said):
        predict(MODEL, CLUSTER, layout)


def test_a_layout_of_12288_devices_takes_under_a_second_of_processor_time() -> None:
    text = 'gpu = "A100"\nnodes = 1536\ngpus_per_node = 8\nnodes_per_switch = 32\n'
    cluster = parse(text + "[links.switch]\ngbit_per_s = 200\n[links.pod]\ngbit_per_s = 200\n")
    model, big = CostModel(cluster), Transformer(96, 12288, 96, 64000, 2048)
    layout = Layout(pp=8, dp=192, tp=8, micro_batches=6144, schedule="interleaved", chunks=6, sequence=True)
    model.predict(big, layout)
    began = time.process_time()
    found = model.predict(big, layout)
    assert time.process_time() - began < 2
    assert 0.3 < found.mfu < 0.8


@pytest.mark.parametrize("schedule", ["bfs", "gpipe", "1f1b", "interleaved", "zbv", "chimera"])
def test_a_long_plan_holds_what_its_whole_list_holds(schedule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With few tokens, buffers behind the last backward are larger than activations of few micro-batches."""
    model = Transformer(32, 1024, 16, 8192, 64)
    layout = Layout(4, 2, 1, schedule, 4 if schedule in ("bfs", "interleaved") else 0, 512)
    short = CostModel(CLUSTER).predict(model, layout)
    monkeypatch.setattr("holdfast.planner.cost.schedule.MOST_ACTIONS", 10**9)
    whole = CostModel(CLUSTER).predict(model, layout)
    for one, other in zip(short.memory, whole.memory, strict=True):
        assert one.document() == pytest.approx(other.document())
        assert min(one.document().values()) >= 0


@pytest.mark.parametrize("schedule", ["interleaved", "interleaved-zero-bubble", "bfs"])
@pytest.mark.parametrize("local", [9, 25, 26, 36, 100, 101])
def test_batches_of_every_size_are_predicted(schedule: str, local: int) -> None:
    layout = Layout(8, 1, 1, schedule, 4, local)
    if SCHEDULES[schedule].obstacle(8, local) is None:
        assert predict(Transformer(32, 1024, 16, 8192, 64), CLUSTER, layout).step_s > 0


def test_replicas_in_two_pipes_send_as_replicas_do() -> None:
    """Chimera with dp 1 has two replicas of each stage, on pipeline ranks r and pp - 1 - r."""
    found = CostModel(CLUSTER, overlap=False).predict(MODEL, Layout(4, 1, 8, "chimera", 0, 4, zero=0))
    group = group_cost(CLUSTER, replica_lines(4, 1, 8, [(0, 1, 2, 3), (3, 2, 1, 0)]))
    assert group.size == 2
    params = 2 * MODEL.layers // 4 * MODEL.layer_parameters / 8
    assert found.breakdown.replicas >= group.seconds(Collective.ALL_REDUCE, params * 4)
    assert sum(found.wire.by_link.values()) == pytest.approx(found.wire.total)
    lines = replica_lines(2, 2, 2, [(0, 1), (1, 0)])
    assert lines.tolist() == [[0, 2, 4, 6], [1, 3, 5, 7]] * 2


def test_a_profile_says_nothing_of_links_between_nodes() -> None:
    links = {op.value: {8: Line(1.0, 0.0)} for op in Collective}
    costs = CostModel(CLUSTER, profile=replace(profile(first=(1, 1), layer=(1, 1), last=(1, 1)), links=links))
    across = group_cost(CLUSTER, lines_of(1, 4, 8, "dp"))
    assert costs.collective(Collective.ALL_REDUCE, 1e6, across) == across.seconds(Collective.ALL_REDUCE, 1e6)
    assert costs.collective(Collective.ALL_REDUCE, 1e6, group_cost(CLUSTER, lines_of(4, 1, 8, "tp"))) == 1.0


def test_nodes_of_a_group_meet_on_the_rails_of_their_devices() -> None:
    text = 'gpu = "A100"\nnodes = 2\ngpus_per_node = 8\nrails = true\n[links.switch]\ngbit_per_s = 200\n'
    rails = parse(text + "[links.pod]\ngbit_per_s = 20\n")
    near, over = group_cost(rails, lines_of(1, 16, 1, "dp")).levels
    assert (near.size, over.size) == (8, 2)
    assert over.hop.beta == 8 / 200e9


def test_optimizer_states_on_a_host_that_has_no_memory() -> None:
    with pytest.raises(LayoutError, match=r"the cluster has no \[host\]"):
        predict(MODEL, CLUSTER, Layout(is_on_host=True))
