"""Chimera in virtual time: makespans, activations and weights are those of the paper's formulas (a pair is a pipe each
way, f the number of pairs). Every expected figure is computed here from the formula."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from graphlib import TopologicalSorter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.plan.check import dependencies, in_flight, verify
from holdfast.plan.memory import replicas
from holdfast.plan.plan import Op, Plan
from holdfast.plan.schedules.chimera import pipe_ranks
from holdfast.plan.schedules.table import SCHEDULES, Placement
from holdfast.plan.simulate import durations, simulate
from holdfast.trainer.pipeline.job_plan import SYNC, job_plan
from holdfast.trainer.settings.layout import TrainerLayout

PAIRS = [(2, 1), (4, 1), (6, 1), (8, 1), (4, 2), (8, 2), (6, 3), (12, 3)]
"""D, f: f divides D/2, once, twice and more; halves that are even and odd."""
NAMES = ("chimera", "chimera-doubling", "chimera-halving")


def plan_of(name: str, ranks: int, pairs: int, count: int) -> Plan:
    plan = SCHEDULES[name].plan(ranks, 2 * pairs, count)
    assert verify(plan) == []
    return plan


def makespan(plan: Plan, backward: float = 2) -> float:
    return simulate(plan, durations(1, backward)).makespan


def activations(ranks: int, pairs: int) -> list[int]:
    """On each rank: of a pipe whose stage s it holds, no more than D - s micro-batches, and no more than its D/2f."""
    held = [0] * ranks
    for i in range(pairs):
        for s in range(ranks):
            for rank in ((s + i * ranks // pairs) % ranks, (ranks - 1 - s + i * ranks // pairs) % ranks):
                held[rank] += min(ranks // (2 * pairs), ranks - s)
    return held


def test_the_figures_of_the_table() -> None:
    assert [makespan(plan_of("chimera", d, 1, d)) for d in (4, 8)] == [16, 36]
    assert [makespan(plan_of("chimera-doubling", 4, 1, n)) for n in (8, 16)] == [28, 52]
    # Honest: with b = 2f units put one after the other lose to 1F1B, (N + D - 1) x 3, doubling wins.
    assert makespan(plan_of("chimera", 4, 1, 16)) == 58 > 57
    assert makespan(plan_of("chimera", 8, 1, 32)) == 126 > 117


@pytest.mark.parametrize(("d", "f"), PAIRS)
@pytest.mark.parametrize("k", [1, 2, 3])
def test_units_one_after_the_other(d: int, f: int, k: int) -> None:
    plan = plan_of("chimera", d, f, k * d)
    assert makespan(plan, backward=1) == 2 * k * d + d / f - 2
    assert makespan(plan, backward=2) == 3 * k * d + (k - 1) * (d / f - 2) + 2 * (d / f - 2)
    # (D - 2f)/(2fN + D - 2f) where backward takes as long as forward
    bubble = (d - 2 * f) / (2 * f * k * d + d - 2 * f)
    assert simulate(plan, durations(1, 1)).bubble == pytest.approx([bubble] * d)


@pytest.mark.parametrize(("d", "f"), PAIRS)
@pytest.mark.parametrize("k", [1, 2, 3])
def test_doubling_and_halving_leave_no_gap_at_the_joints(d: int, f: int, k: int) -> None:
    idle = d / f - 2  # slots, of two forwards where they are doubled and of one where backwards are halved
    assert makespan(plan_of("chimera-doubling", d, f, 2 * k * d)) == 3 * (2 * k * d) + 2 * idle
    assert makespan(plan_of("chimera-halving", d, f, k * d)) == 3 * k * d + idle


@pytest.mark.parametrize(("d", "f"), PAIRS)
def test_live_activations_and_weights(d: int, f: int) -> None:
    expected = activations(d, f)
    assert (min(expected), max(expected)) == (d - d // (2 * f) + 1, d)
    for k in (1, 4):
        assert list(in_flight(plan_of("chimera", d, f, k * d))) == expected
        assert list(in_flight(plan_of("chimera-halving", d, f, k * d))) == expected
        assert list(in_flight(plan_of("chimera-doubling", d, f, 2 * k * d))) == [2 * held for held in expected]
    plan = plan_of("chimera", d, f, d)
    assert simulate(plan, durations(1, 2)).live == tuple(expected)
    assert replicas(plan) == (2 * f,) * d


def test_places_of_figure_8() -> None:
    assert pipe_ranks(8, 4) == [
        (0, 1, 2, 3, 4, 5, 6, 7),
        (7, 6, 5, 4, 3, 2, 1, 0),
        (4, 5, 6, 7, 0, 1, 2, 3),
        (3, 2, 1, 0, 7, 6, 5, 4),
    ]
    plan = plan_of("chimera", 4, 1, 4)
    assert [plan.ranks_of(stage) for stage in range(4)] == [(0, 3), (1, 2), (2, 1), (3, 0)]


@pytest.mark.parametrize(("ranks", "pipes"), [(5, 2), (8, 3), (4, 0), (8, 1), (6, 4), (8, 16)])
def test_pipes_that_do_not_fit_are_refused(ranks: int, pipes: int) -> None:
    for name in NAMES:
        with pytest.raises(ValueError, match=f"{pipes} pipes on {ranks} ranks: pipes are 2 or more"):
            SCHEDULES[name].plan(ranks, pipes, 8)


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(NAMES),
    size=st.integers(1, 3),
    pairs=st.integers(1, 3),
    count=st.integers(1, 20),
    sync=st.sampled_from(SYNC),
    zero=st.integers(0, 2),
    ahead=st.integers(0, 3),
)
def test_everything_is_done_exactly_once_and_ends(
    name: str, size: int, pairs: int, count: int, sync: str, zero: int, ahead: int
) -> None:
    ranks = 2 * pairs * size
    schedule = SCHEDULES[name]
    layout = TrainerLayout(ranks, 1, 1, 2 * pairs, count, Placement.BOTH_WAYS)
    orders = schedule.build(ranks, 2 * pairs, count)
    plan = job_plan(layout, name, ranks + 1, orders, sync=sync, ahead=ahead, zero=zero)
    done: Counter[tuple[Op, int, int, Fraction]] = Counter()
    pipe_of: dict[int, int] = {}
    for rank, action in plan.actions():
        for m in action.micro_batches:
            assert pipe_of.setdefault(m, action.pipe) == action.pipe
            assert plan.rank_of(action.stage, action.pipe) == rank
            if action.op in (Op.FORWARD, Op.BACKWARD):
                done[action.op, action.stage, m, Fraction(*action.part)] += 1
    parts = 2 if name == "chimera-halving" else 1
    assert done == Counter(
        (op, stage, m, Fraction(part, n))
        for op, n in ((Op.FORWARD, 1), (Op.BACKWARD, parts))
        for stage in range(ranks)
        for m in range(count)
        for part in range(n)
    )
    line = simulate(plan, durations(1, 2), latency=0.1)
    assert sum(line.busy) == pytest.approx(3 * ranks * count)
    # Each pipe gets its share, one forward more or less; the last of doubled ones may be of one micro-batch.
    shares = [list(pipe_of.values()).count(pipe) for pipe in range(2 * pairs)]
    assert max(shares) - min(shares) <= (3 if name == "chimera-doubling" else 1)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("sync", SYNC)
def test_replicas_reduce_together(name: str, sync: str) -> None:
    d, n = 8, 16
    layout = TrainerLayout(d, 1, 1, 2, n, Placement.BOTH_WAYS)
    plan = job_plan(layout, name, d, SCHEDULES[name].build(d, 2, n), sync=sync)
    for rank, order in enumerate(plan.orders):
        ops = [(action.op, action.stage) for action in order]
        assert {s for op, s in ops if op is Op.REDUCE_GRAD} == {rank, d - 1 - rank}
        last = max(i for i, (op, _) in enumerate(ops) if op is Op.BACKWARD)
        early = [s for i, (op, s) in enumerate(ops) if op is Op.REDUCE_GRAD and i < last]
        if sync == "end":
            assert early == []
        elif sync == "eager":
            assert early == [max(rank, d - 1 - rank)], "later stages end first"
        elif name == "chimera":  # doubled and halved lists end without gaps
            assert early == ([d - 1] if rank in (0, d - 1) else []), (
                "only the end ranks are idle behind a last backward"
            )


def test_a_reduction_is_paid_where_nothing_hides_it() -> None:
    d, n, cost = 4, 4, 1.0
    layout = TrainerLayout(d, 1, 1, 2, n, Placement.BOTH_WAYS)
    work = durations(1, 2)
    took = {}
    for sync in SYNC:
        plan = job_plan(layout, "chimera", d, SCHEDULES["chimera"].build(d, 2, n), sync=sync)
        line = simulate(plan, lambda a: cost if a.op is Op.REDUCE_GRAD else work(a), by_resource=True)
        took[sync] = line.makespan
    # At the end both reductions of a rank are bare; early ones go on beside its computations.
    assert took["end"] == 16 + 2 * cost
    assert took["eager"] == took["eager-opt"] == 16 + cost


@settings(max_examples=40, deadline=None)
@given(name=st.sampled_from(NAMES), size=st.integers(1, 3), pairs=st.integers(1, 3), count=st.integers(1, 12))
def test_gradients_summed_behind_each_micro_batch_never_wait_in_a_circle(
    name: str, size: int, pairs: int, count: int
) -> None:
    """Even if each rank waited for each sum as soon as it begins, which takes all replicas of the stage."""
    ranks = 2 * pairs * size
    layout = TrainerLayout(ranks, 2, 1, 2 * pairs, count, Placement.BOTH_WAYS)
    plan = job_plan(layout, name, ranks, SCHEDULES[name].build(ranks, 2 * pairs, count), zero=2)
    together: dict[tuple[int, int], list[str]] = {}
    for _, action in plan.actions():
        if action.op is Op.REDUCE_GRAD:
            together.setdefault((action.stage, action.turn // plan.pipes), []).append(action.id)
    assert all(len(found) == 2 * pairs for found in together.values()), "all replicas, each time"
    needs = dependencies(plan)
    graph: TopologicalSorter[str] = TopologicalSorter()
    for order in plan.orders:
        before: list[str] = []
        for action in order:
            graph.add(action.id, *needs[action.id], *before)
            before = [action.id]
            if action.op is Op.REDUCE_GRAD:
                before = together[action.stage, action.turn // plan.pipes]
    graph.prepare()  # CycleError


@pytest.mark.parametrize(("d", "f"), [(4, 1), (8, 1), (8, 2)])
@pytest.mark.parametrize("name", NAMES)
def test_a_pipe_s_micro_batches_are_summed_one_by_one(name: str, d: int, f: int) -> None:
    n = 2 * d  # a doubled pair each pipe and rank
    layout = TrainerLayout(d, 1, 1, 2 * f, n, Placement.BOTH_WAYS)
    plan = job_plan(layout, name, d, SCHEDULES[name].build(d, 2 * f, n), zero=2)
    sums = Counter((action.pipe, action.stage) for _, action in plan.actions() if action.op is Op.REDUCE_GRAD)
    assert sums == dict.fromkeys(((pipe, s) for pipe in range(2 * f) for s in range(d)), n // (2 * f))


@pytest.mark.parametrize("w", [1, 2, 3])
@pytest.mark.parametrize(("d", "f"), PAIRS)
def test_the_group_of_a_stage_is_all_its_pipes_in_all_replicas(d: int, f: int, w: int) -> None:
    layout = TrainerLayout(d, w, 1, 2 * f, d, Placement.BOTH_WAYS)
    assert layout.replicas == 2 * f * w
    for rank in range(d):
        peers = layout.peers_of(rank)
        assert len(peers) == 2 * f
        assert all(layout.stages_of(peer) == layout.stages_of(rank) for peer in peers), "one group for all its stages"
        if f == 1:
            assert peers == sorted((rank, d - 1 - rank))


@pytest.mark.parametrize(("ranks", "pipes", "near"), [(6, 5, "4 on 8"), (5, 2, "2 on 6"), (8, 6, "6 on 12")])
def test_a_refusal_names_the_next_number_of_ranks_that_fits(ranks: int, pipes: int, near: str) -> None:
    with pytest.raises(ValueError, match=f"as {near}$"):
        pipe_ranks(ranks, pipes)
