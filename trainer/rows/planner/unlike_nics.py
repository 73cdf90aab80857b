"""Holmes: groups within one type of NIC, what crosses, layers by speed, and a transport for each group. Pure."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from math import gcd
from typing import TYPE_CHECKING

from holdfast.trainer.rows.row import Row

if TYPE_CHECKING:
    from holdfast.planner.cluster.cluster import Cluster

CASES = 100
SIZES = ((8, 8), (16, 8), (24, 16), (12, 20), (8, 8, 16))
"""Devices with InfiniBand, with RoCE, and with Ethernet alone."""
NICS = ("infiniband", "roce", "ethernet")


def holmes() -> Iterator[Row]:
    """All meshes of all divisors; messages of real plans; 26 and 22 of 48 layers at speeds of 197 and 160."""
    yield from _groups()
    yield from _bytes()
    yield from _layers()
    yield from _transports()


def _groups() -> Iterator[Row]:
    """With nodes by type, no group spans types exactly where dp x tp divides what each type has."""
    from holdfast.planner.unlike.blocks import by_type, keeps, spanning

    expected = allowed = wrong = alternating = 0
    for sizes in SIZES:
        cluster, mixed = by_type(_cluster(sizes)), _cluster(sizes)
        world = sum(sizes)
        # A pipeline rank of g = dp x tp ranks: as many (dp, tp) as g has divisors.
        expected += sum(_divisors(g) for g in range(1, world + 1) if gcd(*sizes) % g == 0)
        for pp, dp in itertools.product(range(1, world + 1), repeat=2):
            if world % (pp * dp):
                continue
            mesh = pp, dp, world // (pp * dp)
            is_kept = keeps(cluster, *mesh[1:])
            allowed += is_kept
            wrong += is_kept != (next(spanning(cluster, *mesh), None) is None)
            alternating += is_kept and next(spanning(mixed, *mesh), None) is not None
    # Nodes of one device that alternate: only dp = tp = 1 spans nothing, once for each of the clusters.
    naive = expected - len(SIZES)
    yield Row(f"meshes of {len(SIZES)} clusters, all divisors, whose groups can stay in one type", expected, allowed)
    yield Row("meshes of which that is not so, by going through their groups", 0, wrong)
    yield Row("of those meshes, with nodes in turn instead: a group spans types", naive, alternating)


def _bytes() -> Iterator[Row]:
    """2 N b s h x 4 bytes for each boundary between types: of the trainer's own plan, all its messages."""
    from holdfast.plan.plan import Op
    from holdfast.plan.schedules.table import SCHEDULES
    from holdfast.plan.transformer import Transformer
    from holdfast.planner.cost.layers import Precision
    from holdfast.planner.cost.layout import Layout
    from holdfast.planner.unlike.blocks import by_type, types_by_stage
    from holdfast.planner.unlike.crossing import crossing
    from holdfast.trainer.pipeline.job_plan import job_plan
    from holdfast.trainer.settings.layout import TrainerLayout

    model = Transformer(layers=16, width=64, heads=4, vocab=256, length=32)
    batch, item = 2, 4
    cluster = by_type(_cluster((8, 8)))
    # Between ranks 1 and 2 of 4; with two stages a rank dealt out in turn also from rank 3 to 0; in a V and back.
    for name, boundaries in (("1f1b", 1), ("gpipe", 1), ("interleaved", 3), ("bfs", 3), ("zbv", 2)):
        pp, dp, tp, local = 4, 2, 2, 8
        layout = Layout(pp, dp, tp, name, micro_batches=local * dp, micro_batch_size=batch)
        schedule = SCHEDULES[name]
        own = TrainerLayout(pp, dp, tp, schedule.chunks, local, schedule.placement)
        plan = job_plan(own, name, model.layers, schedule.build(pp, schedule.chunks, local))
        types, place = types_by_stage(cluster, pp, dp, tp), own.places[0]
        each = batch * model.length * model.width * item
        sent = 0
        for _, action in plan.actions():
            if action.op in (Op.SEND_FORWARD, Op.SEND_BACKWARD):
                step = 1 if action.op is Op.SEND_FORWARD else -1
                sent += (
                    each * len(action.micro_batches) * (types[place[action.stage]] != types[place[action.stage + step]])
                )
        expected = 2 * (local * dp) * batch * model.length * model.width * item * boundaries * tp
        counted = crossing(model, layout, cluster, Precision(item, item, item)).total
        yield Row(f"bytes of a step from type to type, messages of the plan, {name}", expected, sent * dp * tp)
        yield Row(f"the same by formula, {name}", expected, counted)


def _layers() -> Iterator[Row]:
    from holdfast.planner.unlike.shares import by_speed, evenly, minimax

    speeds, layers = (197.0, 160.0), 48
    # floor(197 / 357 x 48) = floor(26.49); at alpha 1.05 floor(27.81).
    for alpha, first in ((1.0, 26), (1.05, 27)):
        found = by_speed(layers, speeds, alpha=alpha)
        yield Row(f"layers of 48 at speed 197, the other stage at 160, alpha {alpha:g}", first, found[0])
        yield Row(f"and of the other stage, alpha {alpha:g}", layers - first, found[1])
    factors = [max(speeds) / speed for speed in speeds]

    def slowest(cut: tuple[int, ...]) -> float:
        return max(n * factor for n, factor in zip(cut, factors, strict=True))

    tried = min(slowest((n, layers - n)) for n in range(1, layers))
    exact = slowest(minimax([1.0] * layers, factors))
    yield Row("the slowest stage with the exact cut, in layers at speed 197", tried, exact)
    yield Row("no longer than by the rule, and that no longer than evenly (1: yes)", 1,
              exact <= slowest(by_speed(layers, speeds)) <= slowest(evenly(layers, 2)))  # fmt: skip
    yield Row(
        f"cuts of {CASES} unlike layers and stages that equal the best of all", CASES, sum(map(_is_best, range(CASES)))
    )


def _is_best(seed: int) -> bool:
    """Up to 8 layers in up to 4 stages: least slowest stage, then least sum."""
    from holdfast.planner.unlike.shares import minimax

    rng = random.Random(seed)
    count = rng.randint(1, 8)
    stages = rng.randint(1, min(4, count))
    layers = [float(rng.randint(1, 9)) for _ in range(count)]
    factors = [float(rng.randint(1, 4)) for _ in range(stages)]
    ends = [float(rng.randint(0, 9)) for _ in range(stages)]

    def worth(cut: tuple[int, ...]) -> tuple[float, float]:
        starts = [0, *itertools.accumulate(cut)]
        seconds = [
            f * sum(layers[a:b]) + e for (a, b), f, e in zip(itertools.pairwise(starts), factors, ends, strict=True)
        ]
        return max(seconds), sum(seconds)

    cuts = (
        tuple(b - a for a, b in itertools.pairwise((0, *inner, count)))
        for inner in itertools.combinations(range(1, count), stages - 1)
    )
    return worth(minimax(layers, factors, ends)) == min(map(worth, cuts))


def _transports() -> Iterator[Row]:
    """RDMA within InfiniBand and within RoCE, TCP where types meet and on Ethernet."""
    from holdfast.planner.cost.layout import Layout
    from holdfast.planner.unlike.blocks import by_type
    from holdfast.planner.unlike.transports import transport, transports

    for nics, is_rdma in (("infiniband",), True), (("roce",), True), (("ethernet",), False), (NICS[:2], False):
        yield Row(f"RDMA (1) or TCP (0): {' with '.join(nics)}", is_rdma, transport(frozenset(nics)).is_rdma)
    cluster = by_type(_cluster((8, 8)))
    found = list(transports(cluster, Layout(4, 2, 2)))
    tcp = [one for one in found if not one.transport.is_rdma]
    # 8 groups of tp, 8 of dp, and 4 pipelines with 3 links, of which the middle one crosses.
    yield Row("groups and links of pp 4, dp 2, tp 2 on both types", 8 + 8 + 4 * 3, len(found))
    yield Row("of them by TCP: the middle link of each pipeline", 4, sum(one.axis == "pp" for one in tcp))
    yield Row("groups of tp or dp by TCP", 0, sum(one.axis != "pp" for one in tcp))


def _divisors(number: int) -> int:
    return sum(number % n == 0 for n in range(1, number + 1))


def _cluster(sizes: tuple[int, ...]) -> Cluster:
    """So many nodes of each type with a device each, the types in turn until one has no more."""
    from holdfast.planner.cluster.cluster import Cluster, Hop, Level, Node
    from holdfast.planner.cluster.gpus import need

    turns = [(i / size, kind) for kind, size in enumerate(sizes) for i in range(size)]
    nodes = tuple(
        Node(f"n{i}", 1, nic=NICS[kind], beta=1e-10, ethernet_beta=1e-9) for i, (_, kind) in enumerate(sorted(turns))
    )
    return Cluster(need("A100"), nodes, {Level.SWITCH: Hop(1e-5, 1e-10)})
