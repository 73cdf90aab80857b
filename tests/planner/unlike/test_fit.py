"""Layouts over unlike NICs: the search against all of them, layers by seconds, and what predictions charge."""

from dataclasses import replace
from itertools import combinations, pairwise
from typing import Any

import pytest

from holdfast.plan.transformer import Transformer
from holdfast.planner.cluster.cluster import Cluster, Hop, Level
from holdfast.planner.cluster.errors import ClusterError
from holdfast.planner.cluster.file import parse
from holdfast.planner.cost.layers import Precision
from holdfast.planner.cost.layout import Layout, LayoutError
from holdfast.planner.cost.measured import PartTimes, Profile
from holdfast.planner.cost.predict import CostModel
from holdfast.planner.search.ranked import Ranked
from holdfast.planner.search.reasons import NothingFits
from holdfast.planner.search.search import Search
from holdfast.planner.search.space import Space
from holdfast.planner.unlike.blocks import by_type, keeps
from holdfast.planner.unlike.explained import explained
from holdfast.planner.unlike.fit import by_seconds, fitted

MODEL = Transformer(layers=12, width=512, heads=4, vocab=1024, length=128)
LARGE = Transformer(layers=48, width=4096, heads=32, vocab=1024, length=1024)
TOP = 'gpu = "A100"\ngpus_per_node = 4\n[links.switch]\ngbit_per_s = 200\n[links.pod]\ngbit_per_s = 200\n'


def cluster(*groups: str, ethernet: float = 25.0) -> Cluster:
    """Each group: "NIC nodes [speed]"."""
    text = TOP
    for group in groups:
        nic, nodes, *speed = group.split()
        text += f'[[group]]\nnic = "{nic}"\nnodes = {nodes}\nethernet_gbit_per_s = {ethernet}\n'
        text += f"speed = {speed[0]}\n" if speed else ""
    return by_type(parse(text))


def test_the_search_finds_what_looking_at_all_finds() -> None:
    """In all layouts that keep their groups, by 12 layers cut at every place."""
    own = cluster("infiniband 1 197", "roce 1 120")
    space = Space(schedules=("1f1b", "interleaved", "chimera"), micro_batch_sizes=(1,), recompute=("none",), zero=(1,))
    best = Search(MODEL, CostModel(own), 16, space=space).run().best
    costs, tried = CostModel(own), []
    for pp, dp, tp in ((2, 4, 1), (2, 2, 2), (2, 1, 4), (4, 2, 1), (4, 1, 2), (8, 1, 1)):
        base = Layout(pp, dp, tp, micro_batches=16, zero=1 if dp > 1 else 0, sequence=tp > 1, shard_vocabulary=tp > 1)
        for cut in combinations(range(1, 12), pp - 1) if pp < 8 else ():
            layers = tuple(b - a for a, b in pairwise((0, *cut, 12)))
            layout = replace(base, stage_layers=layers)
            if dp == 1 or keeps(own, dp, tp):
                tried.append(Ranked(layout, costs.predict(MODEL, layout)))
    least = min(one.prediction.step_s for one in tried)
    assert best[0].prediction.step_s <= least * 1.001
    for one in best:
        assert keeps(own, one.layout.dp, one.layout.tp)
        assert one.layout.schedule != "chimera"
        assert sum(one.layout.stage_layers) == 12
        assert one.prediction.step_s == pytest.approx(costs.predict(MODEL, one.layout).step_s)


def test_layers_by_measured_speed() -> None:
    """Of 48 layers at 197 and 160, with hardly a head: 27 / 197 is less than 22 / 160."""
    costs = CostModel(cluster("infiniband 1 197", "roce 1 160"))
    layout = Layout(2, 4, 1, micro_batches=64, zero=0)
    layer, slow = (costs.layer_seconds(LARGE, layout, rank)[0] for rank in range(2))
    head = costs.layer_seconds(LARGE, layout, 1)[2]
    # What is not in proportion: the sums of gradients that their own backward does not hide.
    assert slow / layer == pytest.approx(197 / 160, rel=0.01)
    assert head < 0.1 * slow
    expected = min(range(1, 48), key=lambda n: max(n * layer, (48 - n) * slow + head))
    assert by_seconds(costs, LARGE, layout) == (expected, 48 - expected) == (27, 21)


def test_ranks_of_several_stages_have_their_share_in_equal_stages() -> None:
    costs = CostModel(cluster("infiniband 1 2", "roce 1 1"))
    found = by_seconds(costs, LARGE, Layout(4, 2, 1, "interleaved", 3, micro_batches=64, zero=0))
    assert len(found) == 12
    of_rank = [[found[stage] for stage in range(12) if stage % 4 == rank] for rank in range(4)]
    # Twice the layers on the first type: 16, 16, 8, 8 of 48, but for the head's share.
    assert [sum(one) for one in of_rank] == [16, 16, 8, 8]
    assert all(max(one) - min(one) <= 1 for one in of_rank)


def test_slow_sums_of_one_type_count_on_its_stages_alone() -> None:
    """Replicas on 1 Gbit/s Ethernet cannot hide their sums: those stages get fewer layers, the others pay nothing."""
    slow = by_type(parse(
        TOP + '[[group]]\nnic = "infiniband"\nnodes = 2\nethernet_gbit_per_s = 1\n'
        '[[group]]\nnic = "ethernet"\nnodes = 2\ngbit_per_s = 1\n'
    ))  # fmt: skip
    costs = CostModel(slow, Precision(2, 4, 12))
    layout = Layout(2, 8, 1, micro_batches=64, zero=0)
    own = [costs.layer_seconds(LARGE, layout, rank)[0] for rank in range(2)]
    # A layer's gradients over 2 nodes of 4: each device's quarter goes over the link twice, at 1/8 of a byte per ns.
    layer = 12 * 4096**2 + 4096
    wire = 2 * 1 / 2 * layer * 4 / 4 / (1e9 / 8)
    assert own[1] > own[0] + 0.9 * wire
    found = by_seconds(costs, LARGE, layout)
    assert found[0] > found[1]
    times = {split: costs.predict(LARGE, replace(layout, stage_layers=split)).step_s for split in (found, (24, 24))}
    assert times[found] < times[24, 24]
    alike = CostModel(cluster("infiniband 4"), Precision(2, 4, 12))
    assert own[0] == pytest.approx(alike.layer_seconds(LARGE, layout, 0)[0])


def test_every_layout_has_its_layers_and_pipes_are_left_out() -> None:
    costs = CostModel(cluster("infiniband 1 2", "roce 1 1"))
    given = [Layout(2, 4, micro_batches=16), Layout(2, 4, schedule="chimera", micro_batches=16)]
    found = [one.stage_layers for one in fitted(costs, MODEL, given)]
    assert found == [(8, 4), (6, 6)]
    alike = CostModel(cluster("infiniband 1", "roce 1"))
    large = replace(MODEL, vocab=64)
    assert [one.stage_layers for one in fitted(alike, large, given)] == [(6, 6)]


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_speeds_make_computation_longer_in_proportion(recompute: str) -> None:
    """Of the slow rank, all of it; sums of its tp ranks take as long as on fast ones."""
    layout = Layout(2, 1, 4, micro_batches=1, zero=0, recompute=recompute, stage_layers=(1, 47))
    costs = [CostModel(cluster("infiniband 1 3", f"roce 1 {speed}")) for speed in (3, 1)]
    fast, slow = (one.predict(LARGE, layout).breakdown for one in costs)
    assert slow.compute == pytest.approx(3 * fast.compute)
    assert slow.recompute == pytest.approx(3 * fast.recompute)
    assert slow.tensor == pytest.approx(fast.tensor)
    assert min(fast.compute, fast.tensor) > 0
    alike, unlike = (one.planned(LARGE, layout) for one in costs)
    assert unlike.tensor == pytest.approx(alike.tensor)
    assert unlike.forward == pytest.approx((alike.forward[0], 3 * alike.forward[1]))
    assert unlike.backward == pytest.approx((alike.backward[0], 3 * alike.backward[1]))


def measured(tp: int) -> Profile:
    """10 ms forward and 20 back of a layer, nothing of the rest, and 5 again with selective recompute."""
    layer = PartTimes(0.01, 0.02, 0.005)
    times = {"first": PartTimes(0.0, 0.0), "layer": layer, "last": PartTimes(0.0, 0.0)}
    return Profile({}, "bfloat16", 1, "A100", {f"tp={tp}": times})


@pytest.mark.parametrize(("recompute", "again"), [("none", 0.0), ("selective", 0.005), ("full", 0.01)])
def test_a_layer_on_slow_devices_takes_more_by_its_computation_alone(recompute: str, again: float) -> None:
    costs = CostModel(cluster("infiniband 1 3", "roce 1 1"), profile=measured(4))
    layout = Layout(2, 1, 4, micro_batches=8, zero=0, recompute=recompute)
    fast, slow = (costs.layer_seconds(LARGE, layout, rank)[0] for rank in range(2))
    assert slow - fast == pytest.approx((3 - 1) * 8 * (0.01 + 0.02 + again))
    assert fast > 8 * (0.01 + 0.02 + again), "its sums"


def on_slow_links(slowness: float, rate: float = 1e9, **more: Any) -> CostModel:
    """So many bytes per second within nodes, without latency; the first node's devices are so many times as slow."""
    own = cluster("infiniband 1 1", f"roce 1 {slowness}")
    return CostModel(replace(own, hops={**own.hops, Level.NODE: Hop(0.0, 1 / rate)}), **more)


@pytest.mark.parametrize(("zero", "overlap"), [(2, False), (3, False), (2, True), (3, True)])
def test_slow_devices_exchange_as_fast_and_hide_more(zero: int, overlap: bool) -> None:
    """A backward hides as much as it is long: on slow devices a quarter more."""
    layout = Layout(2, 4, 1, micro_batches=8, zero=zero, stage_layers=(47, 1))
    # With stage 3, forwards hide all their gathers, and backwards not all of theirs.
    rate = 1e9 if zero == 2 else 32e9
    fast, slow = (
        on_slow_links(n, rate, profile=measured(1), overlap=overlap).predict(LARGE, layout).breakdown for n in (1, 1.25)
    )
    assert fast.compute == pytest.approx(2 * 47 * 0.03)
    assert slow.compute == pytest.approx(1.25 * fast.compute)
    # Two micro-batches. Stage 2: one reduction behind the whole backward, the last one behind all layers but one.
    hidden = 47 * 0.02 + 46 * 0.02
    if zero == 3:  # of 48 units, the embedding among them, one has nothing to hide behind
        hidden = 2 * 47 * 0.02 * 47 / 48
    assert fast.replicas - slow.replicas == pytest.approx(0.25 * hidden if overlap else 0.0, abs=1e-9)
    assert slow.replicas > 0


def test_slow_devices_hide_more_of_a_layers_reduction() -> None:
    """Of one layer: its own backward, behind each micro-batch with stage 2."""
    costs = on_slow_links(2, profile=measured(1))
    slow, fast = (costs.layer_seconds(LARGE, Layout(2, 4, 1, micro_batches=8, zero=2), rank)[0] for rank in range(2))
    assert slow - fast == pytest.approx(2 * (0.03 - 0.02))


def test_parts_on_slow_devices_hide_more_of_their_sums() -> None:
    """Of n sums all but one are hidden as far as one part's computation is long, which is n of them in all."""
    few_words = replace(LARGE, vocab=64)
    layout = Layout(2, 1, 4, micro_batches=1, micro_batch_size=2, zero=0, sub_batches=2, stage_layers=(47, 1))
    fast, slow = (on_slow_links(n).predict(few_words, layout).breakdown for n in (1, 3))
    assert slow.compute == pytest.approx(3 * fast.compute)
    rounds = 2 * 47 * 2
    assert fast.tensor - slow.tensor == pytest.approx(2 * fast.compute * (1 - 1 / rounds), rel=1e-3)


def test_a_cluster_on_which_no_groups_can_stay_in_one_type_says_why() -> None:
    own = cluster("infiniband 1", "roce 1")
    odd = replace(own, nodes=tuple(replace(node, devices=n) for node, n in zip(own.nodes, (4, 3), strict=True)))
    # 7 devices: pp 7 alone keeps groups, and the model has 4 layers.
    with pytest.raises(NothingFits, match="dp x tp must divide 4 devices with infiniband and 3 devices with roce: 1"):
        Search(replace(MODEL, layers=4), CostModel(odd), 14).run()


@pytest.mark.parametrize("layers", [(6, 7), (12,), (12, 0), (6, 5)])
def test_layers_that_do_not_fit_the_stages(layers: tuple[int, ...]) -> None:
    with pytest.raises(LayoutError, match="2 stages need 1 or more each, 12 in all"):
        Layout(2, micro_batches=4, stage_layers=layers).check(MODEL)


def test_speeds_for_some_groups_only() -> None:
    with pytest.raises(ClusterError, match=r"node1 has no speed, and others have"):
        cluster("infiniband 1 197", "roce 1")
    with pytest.raises(ClusterError, match="speed is 0: must be above 0"):
        cluster("infiniband 1 0", "roce 1 0")


def test_in_words() -> None:
    costs = CostModel(cluster("roce 1 160", "infiniband 1 197", "roce 1 160"), Precision(2, 4, 12))
    layout = next(fitted(costs, MODEL, [Layout(3, 4, 1, micro_batches=16)]))
    found = explained(costs, MODEL, layout)
    order, crossing, layers = found.lines()
    assert order == "ranks by type of NIC: ranks 0 to 7 on node0, node2 (roce), ranks 8 to 11 on node1 (infiniband)"
    # 2 x 16 x 128 x 512 x 2 bytes over one boundary; 4 of the 8 links between 3 stages cross it.
    assert f"4 of 8 links between stages do, by TCP: {2 * 16 * 128 * 512 * 2 / 1e6:,.4g} MB a step" in crossing
    assert f"layers of stages {list(layout.stage_layers)}" in layers
    assert found.document()["networks"] == {"tp": {}, "dp": {"IB": 3}, "pp": {"IB": 4, "Socket": 4}}
