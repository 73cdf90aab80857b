"""Schedules in virtual time, a forward of 1 and a backward of 2 for a rank's layers, against their papers' formulas.

Makespans are counted from the formulas of the papers, with D pipeline ranks, N micro-batches, V stages a rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from statistics import mean

from holdfast.plan.dynamic import jittered, simulate_ready
from holdfast.plan.memory import in_flight, replicas
from holdfast.plan.plan import Op
from holdfast.plan.schedules.table import SCHEDULES
from holdfast.plan.simulate import Duration, Latency, Timeline, durations, simulate
from holdfast.trainer.pipeline.job_plan import job_plan
from holdfast.trainer.rows.row import Row
from holdfast.trainer.settings.layout import TrainerLayout
from holdfast.trainer.settings.layout import plan as layout_of
from holdfast.trainer.settings.load import load

F, B = 1, 2
"""A forward and a backward."""
SEEDS = 30
HIDDEN = 0.25
"""Of a forward: collectives within layers, which a backward beside it would hide. Holdfast does a pair one by one."""


def gpipe() -> Iterator[Row]:
    for d, n in ((4, 8), (8, 32)):
        plan = SCHEDULES["gpipe"].plan(d, 1, n)
        yield Row(f"makespan, D {d}, N {n}", (n + d - 1) * (F + B), _takes("gpipe", d, n))
        yield Row(f"micro-batches held, D {d}, N {n}", n, max(in_flight(plan)))


def one_f_one_b() -> Iterator[Row]:
    for d, n in ((4, 8), (8, 32)):
        yield Row(f"makespan, D {d}, N {n}", (n + d - 1) * (F + B), _takes("1f1b", d, n))
        yield Row(f"micro-batches held, D {d}, N {n}", min(n, d), max(in_flight(SCHEDULES["1f1b"].plan(d, 1, n))))


def interleaved() -> Iterator[Row]:
    for d, n, v in ((4, 8, 2), (8, 32, 2), (4, 16, 4)):
        yield Row(f"makespan, D {d}, N {n}, V {v}", (n + (d - 1) / v) * (F + B), _takes("interleaved", d, n, v))


def breadth_first() -> Iterator[Row]:
    d, v = 4, 2
    for n in (8, 16):
        yield Row(f"makespan, D {d}, N {n}, V {v}", (n + (d - 1) / v) * (F + B), _takes("bfs", d, n, v))
        yield Row(f"stages held, D {d}, N {n}, V {v}", n * v, max(in_flight(SCHEDULES["bfs"].plan(d, v, n))))
        layout = TrainerLayout(d, 2, 1, v, n, SCHEDULES["bfs"].placement)
        plan = job_plan(layout, "bfs", layout.stages, SCHEDULES["bfs"].build(d, v, n), zero=3)
        gathers = {sum(action.op is Op.UNSHARD for action in order) for order in plan.orders}
        yield Row(f"gatherings of a step, ZeRO 3, N {n}, V {v}", 2 * v - 1, max(gathers))


def zero_bubble() -> Iterator[Row]:
    """Halves of a backward, each as long as a forward, fill what whole ones leave idle (Qi et al., ICLR 2024).

    ZBV: none is idle between its first and last computation. One way, ZB-H1: (D-1)(F + B - 2W), over V if interleaved.
    """
    weight = B / 2
    for d, n in ((4, 8), (8, 32)):
        line = _line("zbv", d, n, 2)
        orders = [[action.id for action in order] for order in SCHEDULES["zbv"].plan(d, 2, n).orders]
        spans = [max(line.end[id] for id in ids) - min(line.start[id] for id in ids) for ids in orders]
        yield Row(f"zbv, from a rank's first computation to its last, D {d}, N {n}", n * (F + B), max(spans))
        # The last rank's first forward comes behind D-1 others: the least that is possible on two stages a rank.
        least = n * (F + B) + (d - 1) * F / 2
        yield Row(f"zbv, makespan, D {d}, N {n}", least, line.makespan)
        yield Row(f"dualpipev, makespan, D {d}, N {n}", least, _takes("dualpipev", d, n, 2))
        # The last rank is never idle, and 2(N-D) of its forwards of a chunk are in pairs.
        yield Row(f"dualpipev, saved where a pair hides {HIDDEN} of a forward, D {d}, N {n}", (n - d) * HIDDEN,
                  _takes("dualpipev", d, n, 2) - _with_pairs(d, n))  # fmt: skip
        for v in (1, 2):
            makespan = n * (F + B) + (d - 1) * (F + B - 2 * weight) / v
            found = _takes("interleaved-zero-bubble", d, n, v)
            yield Row(f"interleaved-zero-bubble, makespan, D {d}, N {n}, V {v}", makespan, found)


def messages() -> Iterator[Row]:
    """What messages add that take c beside the computation (Zhuang et al., MLSys 2023)."""
    c = 0.6
    for d, n in ((4, 16), (8, 32)):
        free = (n + d - 1) * (F + B)
        plain = 2 * n * (d - 1) / d + 2 * (d - 2)
        yield Row(f"1f1b, D {d}, N {n}, c {c}", free + plain * c, _takes("1f1b", d, n, latency=c))
        yield Row(f"eager-1f1b, D {d}, N {n}, c {c}", free + 2 * (d - 1) * c, _takes("eager-1f1b", d, n, latency=c))
        yield Row(f"eager-1f1b, D {d}, N {n}, c 0", free, _takes("eager-1f1b", d, n))
        held = in_flight(SCHEDULES["eager-1f1b"].plan(d, 1, n))
        yield Row(f"micro-batches held by rank 0, D {d}", min(n, 2 * d - 1), held[0])


def chimera() -> Iterator[Row]:
    for d, f in ((4, 1), (8, 1), (8, 2)):
        for k in (1, 2):
            n, slots = k * d, d / f - 2
            direct = n * (F + B) + (k - 1) * slots * (B - F) + slots * B
            sizes = f"D {d}, f {f}"
            yield Row(f"makespan, {sizes}, N {n}", direct, _takes("chimera", d, n, 2 * f))
            doubled = 2 * n * (F + B) + slots * 2 * F
            yield Row(f"doubling, {sizes}, N {2 * n}", doubled, _takes("chimera-doubling", d, 2 * n, 2 * f))
            yield Row(f"halving, {sizes}, N {n}", n * (F + B) + slots * F, _takes("chimera-halving", d, n, 2 * f))
        plan = SCHEDULES["chimera"].plan(d, 2 * f, 2 * d)
        yield Row(f"stages held, {sizes}", 2 * f, max(replicas(plan)))
        yield Row(f"activations, the least of a rank, {sizes}", d - d // (2 * f) + 1, min(in_flight(plan)))
        yield Row(f"activations, the most, {sizes}", d, max(in_flight(plan)))
    yield from _shared_by_pipes()
    yield from _exposed_by_pipes()


def _shared_by_pipes() -> Iterator[Row]:
    """Every stage has 2f replicas in each of w pipelines: r ranks, over which its gradients are summed and its
    optimizer state is cut. A sum over r ranks takes 2(r-1)/r of what it sums from each, to gather or to scatter half of
    that."""
    from holdfast.trainer.optim.traffic import traffic  # late: with torch

    d, layers, width, vocab = 4, 8, 64, 256
    parameters = 12 * layers * width**2 + 2 * vocab * width + (2 * layers + 1) * width
    for f, w in ((1, 1), (1, 2), (2, 2)):
        r, n = 2 * f * w, 2 * d
        # As often as gradients are reduced, and parameters gathered, over all replicas of a stage.
        moved = {0: 2, 1: 2, 2: 1 + n // (2 * f)}
        for zero, times in moved.items():
            config = load(
                overrides=[
                    *(("parallel.schedule", "chimera"), ("parallel.pp", d), ("parallel.dp", w)),
                    *(("parallel.chunks", 2 * f), ("parallel.zero", zero), ("train.micro_batches", n * w)),
                    *(("model.layers", layers), ("model.d_model", width), ("model.heads", 4)),
                    *(("model.block", "serial"), ("model.norm", "rms"), ("model.positions", "rope")),
                ]
            )
            layout = layout_of(config, d * w, vocab)
            orders = SCHEDULES["chimera"].build(d, 2 * f, n)
            plan = job_plan(layout, "chimera", layers, orders, zero=zero)
            sizes = f"D {d}, f {f}, dp {w}, ZeRO {zero}"
            if zero == 0:
                peers = {len(layout.peers_of(rank)) * w for rank in range(d)}
                yield Row(f"ranks that sum a stage, D {d}, f {f}, dp {w}", r, max(peers))
            sent = traffic(config, layout, plan, vocab).replicas
            yield Row(f"bytes of a step for replicas, {sizes}", times * (r - 1) * 4 * parameters, sent)


def _exposed_by_pipes() -> Iterator[Row]:
    """How much longer a step is for sums of c each, two on each rank: `end` exposes both, the others the one of the
    stage that ends last. Middle ranks end earlier, so `eager-opt` may sum theirs at the end."""
    d, c = 4, 1.0
    for w, zero in ((1, 0), (2, 1)):
        layout = TrainerLayout(d, w, 1, 2, d, SCHEDULES["chimera"].placement)
        for sync, exposed in (("end", 2 * c), ("eager", c), ("eager-opt", c)):
            orders = SCHEDULES["chimera"].build(d, 2, d)
            plan = job_plan(layout, "chimera", d, orders, zero=zero, sync=sync)
            took = [simulate(plan, _with_sums(x), by_resource=True).makespan for x in (c, 0.0)]
            yield Row(
                f"exposed of sums of {c:g}, {sync}, D {d}, N {d}, dp {w}, ZeRO {zero}", exposed, took[0] - took[1]
            )


def _with_sums(seconds: float) -> Duration:
    work = durations(F, B)
    return lambda action: seconds if action.op is Op.REDUCE_GRAD else work(action)


def axonn() -> Iterator[Row]:
    work = durations(F, B)
    for d, n in ((4, 8), (4, 16), (8, 16), (8, 32)):
        plan = SCHEDULES["1f1b"].plan(d, 1, n)
        found = simulate_ready(plan, work, limit=d).timeline.makespan
        yield Row(f"makespan, D {d}, N {n}", (n + d - 1) * (F + B), found)
    # Means of 30 seeds, simulated before this code was written; another generator draws other numbers.
    for d, n, fixed, starved, free in ((4, 16, 64.7, 67.4, 58.4), (8, 32, 136.7, 146.0, 120.4)):
        plan = SCHEDULES["1f1b"].plan(d, 1, n)
        late = [jittered(0, 0.5, seed) for seed in range(SEEDS)]
        case = f"messages of 0 to 0.5, D {d}, N {n}"
        yield Row(f"{case}, 1F1B", fixed, mean(simulate(plan, work, one).makespan for one in late), 0.01 * fixed)
        for limit, expected in ((d, starved), (2 * d, free)):
            found = mean(simulate_ready(plan, work, limit, one).timeline.makespan for one in late)
            yield Row(f"{case}, limit {limit}", expected, found, 0.01 * expected)


def merak() -> Iterator[Row]:
    for d, n in ((4, 8), (4, 16), (8, 16)):
        path = (n + d - 1) * (2 * F + B)
        early = path - (d - 1) * F
        expected = {"merak-baseline": path, "merak-early": early, "merak-last-kept": early - 2, "merak": early - 3}
        for name, makespan in expected.items():
            yield Row(f"{name}, D {d}, N {n}", makespan, _takes(name, d, n))


def _takes(name: str, d: int, n: int, v: int = 1, latency: Latency = 0.0) -> float:
    return _line(name, d, n, v, latency).makespan


def _line(name: str, d: int, n: int, v: int, latency: Latency = 0.0) -> Timeline:
    schedule = SCHEDULES[name]
    stages = schedule.placement.stages(d, v)
    return simulate(schedule.plan(d, v, n), durations(F, B, stages // d), latency)


def _with_pairs(d: int, n: int) -> float:
    """The makespan of DualPipeV where a forward before a whole backward of the other stage takes that much less."""
    plan, took = SCHEDULES["dualpipev"].plan(d, 2, n), durations(F, B, 2)
    pairs = (pair for order in plan.orders for pair in pairwise(order))
    shorter = {a.id for a, b in pairs if (a.op, b.op) == (Op.FORWARD, Op.BACKWARD) and a.stage != b.stage}
    return simulate(plan, lambda action: took(action) * (1 - HIDDEN / F * (action.id in shorter))).makespan
