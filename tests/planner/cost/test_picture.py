"""The picture of a layout: who sits where, what leaves each box, and few shapes however large the cluster."""

from __future__ import annotations

from xml.etree import ElementTree

import numpy as np
import pytest

from holdfast.plan.transformer import Transformer
from holdfast.planner.cluster.cluster import Cluster, Level
from holdfast.planner.cluster.file import parse
from holdfast.planner.cost.layout import Layout
from holdfast.planner.cost.picture import MOST_BOXES, boxes, colour, svg
from holdfast.planner.cost.predict import CostModel
from holdfast.planner.cost.prediction import Wire

MODEL = Transformer(48, 1024, 16, 8192, 512)
LINKS = "[links.switch]\ngbit_per_s = 200\n[links.pod]\ngbit_per_s = 100\n[links.cluster]\ngbit_per_s = 50\n"


def cluster(nodes: int, gpus: int = 8, per_switch: int = 4, per_pod: int = 4) -> Cluster:
    sizes = f"nodes = {nodes}\ngpus_per_node = {gpus}\nnodes_per_switch = {per_switch}\nswitches_per_pod = {per_pod}\n"
    return parse(f'gpu = "A100"\nnic = "infiniband"\n{sizes}{LINKS}')


def drawn(known: Cluster, layout: Layout) -> tuple[ElementTree.Element, Wire]:
    wire = CostModel(known).predict(MODEL, layout).wire
    return ElementTree.fromstring(svg(known, layout, wire, "48 layers <a> & b")), wire


def of_class(root: ElementTree.Element, name: str) -> list[ElementTree.Element]:
    return [one for one in root.iter() if one.get("class") == name]


def test_each_device_of_a_small_cluster_by_hand() -> None:
    """Two nodes of 4: pp 2, dp 2, tp 2. tp is within pairs, dp within nodes, and messages go from node to node."""
    known, layout = cluster(2, gpus=4), Layout(pp=2, dp=2, tp=2, micro_batches=8)
    wire = CostModel(known).predict(MODEL, layout).wire
    kind, found = boxes(known, layout, wire)
    assert kind == "device"
    assert [box.ranks for box in found] == [(i, i + 1) for i in range(8)]
    assert [box.stages for box in found] == [((0, 1.0),)] * 4 + [((1, 1.0),)] * 4
    assert len({box.inside for box in found}) == 2
    # All that a rank sends leaves its device: by symmetry an eighth.
    assert [box.sent for box in found] == pytest.approx([wire.total / 8] * 8)


def test_what_leaves_boxes_is_what_crosses_their_links() -> None:
    """Nodes as boxes: all bytes but those within nodes, as the levels have them."""
    known, layout = cluster(32), Layout(pp=4, dp=16, tp=4, micro_batches=64)
    wire = CostModel(known).predict(MODEL, layout).wire
    kind, found = boxes(known, layout, wire)
    assert (kind, len(found)) == ("node", 32)
    outside = sum(value for level, value in wire.by_link.items() if level > Level.NODE)
    assert sum(box.sent for box in found) == pytest.approx(outside)
    assert found[0].ranks == (0, 8)
    assert found[-1].stages == ((3, 1.0),)
    large, apart = cluster(1024, per_switch=16, per_pod=8), Layout(pp=8, dp=256, tp=4, micro_batches=256)
    wire = CostModel(large).predict(MODEL, apart).wire
    kind, switches = boxes(large, apart, wire)
    assert (kind, len(switches)) == ("switch", 64)
    above = sum(value for level, value in wire.by_link.items() if level > Level.SWITCH)
    assert sum(box.sent for box in switches) == pytest.approx(above)


@pytest.mark.parametrize(
    ("known", "layout", "kind", "count"),
    [
        (cluster(1536, per_switch=32, per_pod=8), Layout(pp=8, dp=192, tp=8, micro_batches=1536), "switch", 48),
        (cluster(1536, per_switch=1, per_pod=64), Layout(pp=8, dp=192, tp=8, micro_batches=1536), "pod", 24),
        (cluster(1536, per_switch=1, per_pod=1), Layout(pp=8, dp=192, tp=8, micro_batches=1536), "pods", 128),
        (cluster(16), Layout(pp=48, dp=1, tp=2, micro_batches=48), "device", 128),
    ],
)
def test_12288_gpus_are_a_few_hundred_shapes(known: Cluster, layout: Layout, kind: str, count: int) -> None:
    root, wire = drawn(known, layout)
    named, found = boxes(known, layout, wire)
    assert (named, len(found)) == (kind, count)
    assert len(found) <= MOST_BOXES
    assert len(of_class(root, "box")) == count
    assert len([one for one in root.iter() if one.tag.endswith("rect")]) <= 600
    covered = np.concatenate([np.arange(*box.ranks) for box in found])
    assert covered.tolist() == list(range(layout.world)), "each rank once, in order"
    assert sum(box.devices for box in found) == known.world


def test_several_stages_in_a_box_and_devices_without_a_rank() -> None:
    known, layout = cluster(24), Layout(pp=12, dp=5, tp=3, micro_batches=15)
    model = Transformer(48, 1536, 48, 8192, 512)
    wire = CostModel(known).predict(model, layout).wire
    kind, found = boxes(known, layout, wire)
    assert kind == "node"
    assert found[1].stages == ((0, 7 / 8), (1, 1 / 8)), "ranks 8 to 15: a stage has 15"
    assert found[22].ranks == (176, 180)
    assert found[22].stages == ((11, 0.5),)
    assert (found[23].ranks, found[23].stages, found[23].sent) == ((180, 180), (), 0.0)
    text = svg(known, layout, wire, "x")
    assert "no rank" in text
    assert ">idle<" in text


def test_what_is_written_is_well_formed_and_says_how_much() -> None:
    root, wire = drawn(cluster(32), Layout(pp=4, dp=16, tp=4, micro_batches=64))
    levels = of_class(root, "level")
    assert len(levels) == len(wire.by_link) == 4
    widths = [float(one.get("width", "0")) for one in levels]
    shares = [value / max(wire.by_link.values()) for _, value in sorted(wire.by_link.items())]
    assert widths == pytest.approx([300 * share for share in shares], abs=0.01)
    texts = [one.text or "" for one in root.iter()]
    assert "48 layers <a> & b" in texts
    assert any("through a switch" in text for text in texts)
    assert len({colour(stage) for stage in range(64)}) == 64


def test_the_picture_ends_below_its_bars() -> None:
    """Two nodes of 4: a frame of 46 + 2 * 10 + 14 below the top's 64; then 62, and 22 for each of two levels and one
    more."""
    root, _ = drawn(cluster(2, gpus=4), Layout(pp=2, dp=2, tp=2, micro_batches=8))
    assert len(of_class(root, "level")) == 2
    assert root.get("height") == str(64 + 80 + 62 + 3 * 22)


def test_a_box_of_two_ranks_names_both() -> None:
    """80 nodes of 2 devices are drawn as nodes."""
    text = svg(cluster(80, gpus=2), Layout(dp=80, tp=2, micro_batches=80), Wire({}, {}), "x")
    assert ": ranks 0 to 1, pipeline rank 0;" in text
    assert ": ranks 158 to 159, pipeline rank 0;" in text


@pytest.mark.parametrize(("pp", "has_rest"), [(15, False), (16, False), (17, True)])
def test_the_legend_has_16_colours_and_says_of_how_many(pp: int, has_rest: bool) -> None:
    text = svg(cluster(3), Layout(pp=pp), Wire({}, {}), "x")
    assert text.count('class="key"') == min(pp, 16)
    assert (f"... of {pp} pipeline ranks" in text) is has_rest
