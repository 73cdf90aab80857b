"""The space of layouts against loops over all numbers that there could be."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from holdfast.plan.transformer import Transformer
from holdfast.planner.cluster.cluster import Cluster
from holdfast.planner.cluster.file import parse
from holdfast.planner.search.space import Space, families

MODEL = Transformer(layers=6, width=512, heads=12, vocab=1024, length=128, kv_heads=6)
Axes = tuple[int, int, int, int, int]
"""pp, dp, tp, samples of a micro-batch, micro-batches."""


def cluster(nodes: int, gpus: int) -> Cluster:
    return parse(f'gpu = "A100"\nnodes = {nodes}\ngpus_per_node = {gpus}\n[links.switch]\ngbit_per_s = 200\n')


def tried(worlds: list[int], per_node: int, samples: int, sizes: tuple[int, ...] = (1, 2, 4, 8)) -> list[Axes]:
    """All for which the products are right: devices = pp dp tp, samples = dp n size for a whole n."""
    found = []
    for pp, tp, dp in itertools.product(range(1, 7), range(1, 7), range(1, max(worlds) + 1)):
        is_whole = per_node % tp == 0 and 6 % tp == 0
        for size in sizes:
            if pp * dp * tp in worlds and is_whole and samples % (dp * size) == 0:
                found.append((pp, dp, tp, size, samples // size))
    return sorted(found)


def axes(model: Transformer, on: Cluster, samples: int, space: Space) -> list[Axes]:
    layouts = [one.base for one in families(model, on, samples, space)]
    return sorted((one.pp, one.dp, one.tp, one.micro_batch_size, one.micro_batches) for one in layouts)


@pytest.mark.parametrize(("nodes", "gpus", "samples"), [(2, 4, 8), (1, 6, 12), (3, 2, 24), (5, 6, 30), (1, 1, 32)])
def test_families_are_all_axes_whose_products_are_right(nodes: int, gpus: int, samples: int) -> None:
    space, on = Space(recompute=("none",), sub_batches=(1,)), cluster(nodes, gpus)
    expected = tried([nodes * gpus], gpus, samples)
    assert expected
    assert axes(MODEL, on, samples, space) == expected
    assert axes(MODEL, on, samples, replace(space, micro_batch_sizes=(3,))) == tried(
        [nodes * gpus], gpus, samples, (3,)
    )
    for pp, dp, tp in {one[:3] for one in expected}:
        asked = replace(space, pp=(pp,), dp=(dp,), tp=(tp,))
        assert axes(MODEL, on, samples, asked) == [one for one in expected if one[:3] == (pp, dp, tp)]


def test_axes_that_the_cluster_has_not_are_no_family() -> None:
    on = cluster(2, 4)
    for asked in (Space(pp=(7,)), Space(pp=(3,)), Space(tp=(3,)), Space(tp=(8,)), Space(dp=(3,)), Space(tp=(4,))):
        assert axes(MODEL, on, 24, asked) == []  # 4 tp ranks would split 6 heads of keys


def test_tp_divides_every_node() -> None:
    node = cluster(1, 4).nodes[0]
    uneven = replace(cluster(2, 4), nodes=(node, replace(node, name="small", devices=2)))
    assert {one[2] for one in axes(MODEL, uneven, 6, Space())} == {1, 2}
    assert {one[2] for one in axes(MODEL, cluster(1, 6), 6, Space())} == {1, 2, 3, 6}


def test_nodes_that_may_be_idle() -> None:
    space, on = Space(recompute=("none",), sub_batches=(1,)), cluster(3, 2)
    for idle, worlds in ((0, [6]), (1, [6, 4]), (2, [6, 4, 2]), (9, [6, 4, 2])):
        assert axes(MODEL, on, 24, replace(space, idle_nodes=idle)) == tried(worlds, 2, 24)


def test_each_family_comes_with_each_kind_of_recompute() -> None:
    on = cluster(1, 2)
    found = [
        (one.base.pp, one.base.tp, one.base.recompute)
        for one in families(MODEL, on, 2, Space(dp=(1,), sub_batches=(1,)))
    ]
    # pp x tp = 2, and micro-batches of 1 and 2 samples.
    assert sorted(found) == sorted(
        [(2, 1, kind) for kind in Space().recompute] * 2 + [(1, 2, kind) for kind in Space().recompute] * 2
    )


@pytest.mark.parametrize(
    ("change", "space", "sequence", "vocabulary"),
    [
        ({}, {}, True, True),
        ({"length": 127}, {}, False, True),
        ({"vocab": 1023}, {}, True, False),
        ({}, {"sequence": False}, False, True),
        ({}, {"shard_vocabulary": False}, True, False),
    ],
)
def test_sequence_and_vocabulary_are_shared_where_tp_divides_them(
    change: dict[str, int], space: dict[str, bool], sequence: bool, vocabulary: bool
) -> None:
    for family in families(replace(MODEL, **change), cluster(1, 2), 2, Space(sub_batches=(1,), **space)):  # type: ignore[arg-type]
        expected = (sequence, vocabulary) if family.base.tp == 2 else (False, False)
        assert (family.base.sequence, family.base.shard_vocabulary) == expected


def members(pp: int, layers: int, **space: object) -> list[tuple[str, int, int]]:
    """schedule, chunks and ZeRO of the members on `pp` ranks in two replicas, in their order."""
    model = replace(MODEL, layers=layers)
    asked = Space(pp=(pp,), tp=(1,), recompute=("none",), micro_batch_sizes=(1,), **space)  # type: ignore[arg-type]
    (family,) = families(model, cluster(1, 2 * pp), 16, asked)
    return [(one.schedule, one.chunks, one.zero) for one in family.members(model, asked)]


def test_chunks_are_powers_of_two_and_one_layer_a_stage() -> None:
    """So many that pp x chunks <= layers, from 2 on; the most first, as its bubble is the smallest."""
    once = {"schedules": ("interleaved",), "zero": (0,)}
    assert [chunks for _, chunks, _ in members(2, 12, **once)] == [6, 4, 2]
    assert [chunks for _, chunks, _ in members(2, 8, **once)] == [4, 2]
    assert [chunks for _, chunks, _ in members(4, 15, **once)] == [3, 2]
    assert members(2, 3, **once) == []  # one layer a stage is 1F1B
    assert [chunks for _, chunks, _ in members(2, 12, chunks=(3, 2), **once)] == [3, 2]


def test_members_are_the_likeliest_first_and_none_twice() -> None:
    assert members(2, 4, schedules=("interleaved", "1f1b")) == [
        ("interleaved", 2, 1), ("interleaved", 2, 0), ("interleaved", 2, 2), ("interleaved", 2, 3),
        ("1f1b", 0, 1), ("1f1b", 0, 0), ("1f1b", 0, 2), ("1f1b", 0, 3),
    ]  # fmt: skip
    # One pipeline rank does the same by every schedule, and one replica by every ZeRO stage.
    assert {schedule for schedule, _, _ in members(1, 4)} == {"1f1b"}
    alone = Space(pp=(2,), dp=(1,), tp=(1,), schedules=("1f1b", "chimera"), recompute=("none",), micro_batch_sizes=(1,))
    (family,) = families(MODEL, cluster(1, 2), 16, alone)
    # Chimera's two pipes are two replicas of each stage, whose gradients it cannot gather by layer (no stage 3).
    assert [(one.schedule, one.zero) for one in family.members(MODEL, alone)] == [
        ("1f1b", 0), ("chimera", 1), ("chimera", 0), ("chimera", 2),
    ]  # fmt: skip
