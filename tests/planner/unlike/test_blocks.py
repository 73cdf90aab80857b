"""Blocks of like NICs: what keeps to them, for all meshes of all divisors; and what crosses."""

from dataclasses import replace
from math import gcd

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.plan.transformer import Transformer
from holdfast.planner.cluster.cluster import Cluster, Hop, Level, Node
from holdfast.planner.cluster.gpus import need
from holdfast.planner.cost.layers import Precision
from holdfast.planner.cost.layout import Layout
from holdfast.planner.unlike.blocks import blocks, by_type, is_unlike, keeps, obstacle, spanning, types_by_stage
from holdfast.planner.unlike.crossing import crossing, ring_bytes
from holdfast.planner.unlike.transports import Transport, transport, transports

MODEL = Transformer(layers=16, width=64, heads=4, vocab=256, length=32)
FOUR = Precision(4, 4, 8)
NICS = ("infiniband", "roce", "ethernet")


def cluster(*nodes: tuple[str, int]) -> Cluster:
    """Nodes as (type of NIC, devices)."""
    own = tuple(
        Node(f"n{i}", devices, nic=nic, beta=1e-10, ethernet_beta=1e-9) for i, (nic, devices) in enumerate(nodes)
    )
    return Cluster(need("A100"), own, {Level.NODE: Hop(1e-6, 1e-11), Level.SWITCH: Hop(1e-5, 1e-10)})


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.sampled_from(NICS), st.integers(1, 4)), min_size=1, max_size=5))
def test_groups_stay_in_one_type_exactly_where_it_says(nodes: list[tuple[str, int]]) -> None:
    """By going through all pairs of each group, for all meshes."""
    found = by_type(cluster(*nodes))
    nic = [found.nodes[node].nic for node in found.node_of.tolist()]
    assert sorted(node.name for node in found.nodes) == sorted(f"n{i}" for i in range(len(nodes)))
    world = found.world
    for pp in range(1, world + 1):
        for dp in range(1, world // pp + 1):
            if world % (pp * dp):
                continue
            tp = world // (pp * dp)
            groups = [{(p * dp + d) * tp + t for t in range(tp)} for p in range(pp) for d in range(dp)]
            groups += [{(p * dp + d) * tp + t for d in range(dp)} for p in range(pp) for t in range(tp)]
            apart = {tuple(sorted(group)) for group in groups if len({nic[rank] for rank in group}) > 1}
            assert {ranks for _, ranks in spanning(found, pp, dp, tp)} == apart
            assert keeps(found, dp, tp) == (not apart)
            if not apart:
                stages = types_by_stage(found, pp, dp, tp)
                assert [stages[rank // (dp * tp)] for rank in range(world)] == nic


def test_blocks_in_the_order_of_ranks() -> None:
    mixed = cluster(("roce", 2), ("infiniband", 4), ("roce", 2))
    assert [(one.nic, one.first, one.devices) for one in blocks(mixed)] == [
        ("roce", 0, 2), ("infiniband", 2, 4), ("roce", 6, 2)
    ]  # fmt: skip
    first, second = blocks(by_type(mixed))
    assert (first.text, second.text) == ("ranks 0 to 3 on n0, n2 (roce)", "ranks 4 to 7 on n1 (infiniband)")
    assert [one.devices for one in blocks(by_type(mixed), world=5)] == [4, 1]
    assert "on n0, n1, n2, n3 and 3 more to n6 (roce)" in blocks(cluster(*[("roce", 1)] * 7))[0].text
    assert is_unlike(mixed)
    assert not is_unlike(cluster(("roce", 2), ("roce", 2)))


def test_a_mesh_that_can_not_keep_its_groups_is_refused_with_what_can() -> None:
    found = cluster(("infiniband", 24), ("roce", 16))
    assert gcd(24, 16) == 8
    with pytest.raises(ValueError, match="dp x tp must divide 24 devices with infiniband and 16 devices with roce: 8"):
        types_by_stage(found, 2, 5, 4)
    assert "8 and what divides it" in obstacle(found)
    # 4 of RoCE's stay idle.
    assert not keeps(found, 4, 2, world=36)
    assert keeps(found, 4, 1, world=36)


@pytest.mark.parametrize(
    ("more", "boundaries", "copies"),
    [
        ({"schedule": "1f1b"}, 1, 2),
        ({"schedule": "1f1b", "sequence": True}, 1, 1),
        ({"schedule": "interleaved", "chunks": 4}, 7, 2),  # forth in each of 4 rounds, back 3 times
        ({"schedule": "zbv"}, 2, 2),
    ],
)
def test_bytes_that_cross(more: dict[str, object], boundaries: int, copies: int) -> None:
    layout = replace(Layout(4, 2, 2, micro_batches=16, micro_batch_size=3), **more)  # type: ignore[arg-type]
    found = crossing(MODEL, layout, cluster(("infiniband", 8), ("roce", 8)), FOUR)
    assert found.boundaries == boundaries
    assert found.total == 2 * 16 * 3 * 32 * 64 * 4 * boundaries * copies
    alike = crossing(MODEL, layout, cluster(("roce", 8), ("roce", 8)), FOUR)
    assert (alike.boundaries, alike.total) == (0, 0)


def test_a_tied_table_crosses_where_its_ends_are_unlike() -> None:
    """2 x 256 x 64 x 4 bytes, over both ways, for each tp rank that has the whole table; without ZeRO each replica."""
    both = cluster(("infiniband", 8), ("roce", 8))
    model = replace(MODEL, tied=True)
    table = 2 * 256 * 64 * 4
    one = Layout(4, 2, 2, micro_batches=16)
    assert crossing(model, one, both, FOUR).tied == table * 2
    assert crossing(model, replace(one, zero=0), both, FOUR).tied == table * 2 * 2
    assert crossing(model, replace(one, shard_vocabulary=True), both, FOUR).tied == table
    assert crossing(model, replace(one, schedule="zbv"), both, FOUR).tied == 0  # both ends on rank 0


def test_sums_cross_in_a_naive_order_and_not_by_type() -> None:
    """dp 4 over two types in turn: all 4 edges of each ring cross, 2 x 3/4 of the bytes each."""
    mixed = cluster(*[("infiniband", 1), ("roce", 1)] * 4)
    assert ring_bytes(mixed, 2, 4, 1, 1000.0) == 2 * 4 * 1500.0
    assert ring_bytes(by_type(mixed), 2, 4, 1, 1000.0) == 0.0
    assert ring_bytes(mixed, 8, 1, 1, 1000.0) == 0.0


def test_a_transport_for_each_group() -> None:
    assert transport(frozenset({"infiniband"})) == Transport("IB")
    assert transport(frozenset({"rdma"})) == Transport("IB")
    assert transport(frozenset({"roce"})) == Transport("IB", {"NCCL_IB_GID_INDEX": "3"})
    for nics in ({"ethernet"}, {"infiniband", "roce"}, {"infiniband", "ethernet"}, {"rdma", "roce"}):
        assert transport(frozenset(nics)) == Transport("Socket")
    with pytest.raises(ValueError, match="without members"):
        transport(frozenset())


def test_messages_of_neighbours_in_the_pipeline_alone_go_by_tcp() -> None:
    both = cluster(("infiniband", 4), ("roce", 4))
    found = list(transports(both, Layout(4, 2, 1, "interleaved", 2, micro_batches=8)))
    links = {one.ranks: one.transport for one in found if one.axis == "pp"}
    # Ranks 0 and 1 are stage 0; with two stages a rank the last one sends to the first again.
    assert set(links) == {(0, 2), (2, 4), (4, 6), (0, 6), (1, 3), (3, 5), (5, 7), (1, 7)}
    assert {ranks for ranks, one in links.items() if one.net == "Socket"} == {(2, 4), (3, 5), (0, 6), (1, 7)}
    assert [one.ranks for one in found if one.axis == "dp"] == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert all(one.transport.is_rdma for one in found if one.axis == "dp")
