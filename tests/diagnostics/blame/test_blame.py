"""Blame on made-up steps: slow ranks are named, waiting ranks are not, and the figures match the scenario."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.simulated_spans import Culprit, Job, simulate
from holdfast.diagnostics.blame import report as blame_report
from holdfast.diagnostics.blame.blame import Blame, Slowness, analyse
from holdfast.diagnostics.blame.path import longest_first
from holdfast.diagnostics.steps import graph as step_graph
from holdfast.diagnostics.steps.job_shape import JobShape
from holdfast.diagnostics.steps.replay import Variant, measured, replay
from holdfast.diagnostics.steps.span_table import COLUMNS, concatenated, from_columns
from holdfast.wire.plans import encode_plan

SHAPE = JobShape("j1", "train", ("n0", "n1"), 4)


def blame_of(job: Job, culprits: list[Culprit], steps: int = 10, seed: int = 1) -> Blame:
    table, plan = simulate(job, culprits, steps, seed)
    blame = analyse(step_graph.graphs(table, plan, plan.mesh.world), SHAPE)
    assert blame is not None
    return blame


MESHES = st.sampled_from([(1, 4, 1), (2, 2, 2), (4, 2, 1), (1, 2, 4), (2, 4, 2), (1, 1, 1)])


@settings(max_examples=30, deadline=None)
@given(MESHES, st.integers(1, 6), st.integers(0, 99))
def test_a_step_played_again_unchanged_is_the_step(mesh: tuple[int, int, int], count: int, seed: int) -> None:
    job = Job(*mesh, micro_batches=count)
    table, plan = simulate(job, [Culprit(0, "forward", 0.5)], 2, seed)
    graphs = list(step_graph.graphs(table, plan, plan.mesh.world))
    assert [graph.step for graph in graphs] == [0, 1]
    for graph in graphs:
        seen = measured(graph)
        played = replay(graph, seen, [Variant({}, {}, {})])
        for c, column in enumerate(graph.columns):
            np.testing.assert_allclose(played.ends[c][0], column.at[-1], atol=1e-9)
            np.testing.assert_allclose(played.waits[c][0], seen.waits[c].sum(axis=0), atol=1e-9)
            # Own work, waiting and transfer are all there is.
            parts = column.own.sum(axis=0) + seen.waits[c].sum(axis=0) + seen.transfers[c].sum(axis=0)
            np.testing.assert_allclose(parts, column.at[-1] - column.begin, atol=1e-9)


def test_the_slow_one_is_named_with_what_it_costs_and_who_waits() -> None:
    blame = blame_of(Job(), [Culprit(5, "forward", 0.2)])
    saved = blame.step_s - blame_of(Job(), []).step_s
    (culprit,) = blame.culprits
    assert (culprit.kind, culprit.rank, culprit.what) == (Slowness.COMPUTE, 5, "forward of stage 1")
    assert 1.17 < culprit.ratio < 1.23
    assert 0.013 < culprit.self_s < 0.019, "8 forwards of 10 ms each, a fifth longer"
    assert culprit.cost_s == pytest.approx(saved, rel=0.1), "what the same job takes without it"
    assert culprit.victims == 7
    assert culprit.text == (
        f"rank 5 (node n1, GPU 1): forward of stage 1 {(culprit.ratio - 1) * 100:.0f}% slower than its 3 peers; "
        f"cost the job {round(culprit.cost_s * 1e3)} ms of {blame.step_s * 1e3:.3g} ms per step, 7 other ranks waited"
    )
    assert blame.self_s[5] > 0
    assert blame.induced_s[5] > 2 * culprit.cost_s
    assert blame.victim_s[5] < blame.victim_s.max() / 2, "the rank waited for waits least"
    assert blame.self_ratio.argmax() == 5


def test_no_rank_is_named_where_only_noise_differs() -> None:
    for seed in range(10):
        assert blame_of(Job(), [], seed=seed).culprits == []


@pytest.mark.slow
@pytest.mark.aside
@pytest.mark.parametrize(
    "job", [Job(1, 8, 1, micro_batches=4, noise=0.03, measures_cpu=True), Job(1, 4, 1, noise=0.03)]
)
def test_in_a_hundred_quiet_windows_no_rank_is_named(job: Job) -> None:
    """One in a thousand is the aim: `benchmarks/blame_quiet.py` has as many."""
    assert [seed for seed in range(100) if blame_of(job, [], steps=20, seed=500 + seed).culprits] == []


def test_a_few_slices_of_the_scheduler_are_no_interference() -> None:
    """Steps of milliseconds: a tenth of each off the processor is one slice, spread by the median over the window."""
    for scale, named in ((0.01, []), (1.0, [3])):
        job = Job(1, 4, 1, forward=0.010 * scale, load=0.004 * scale, optimizer=0.005 * scale, measures_cpu=True)
        job.all_reduce, job.message = 0.001 * scale, 0.001 * scale
        table, plan = simulate(job, [Culprit(3, "compute", 0.25)], 20, 1)
        mine = table.rank == 3
        table.cpu[mine] = (table.cpu[mine] / 1.25).astype(np.int64)
        blame = analyse(step_graph.graphs(table, plan, 4), SHAPE)
        assert blame is not None
        assert [c.rank for c in blame.culprits if c.kind is Slowness.HOST] == named


@pytest.mark.parametrize(("steps", "named"), [(40, []), (400, [3])])
def test_work_that_takes_a_few_slices_longer_in_all_is_nobodys_fault(steps: int, named: list[int]) -> None:
    """Eight forwards and backwards of 40 and 80 us take twice as long: 1 ms a step, 38 ms in 40 steps."""
    job = Job(1, 4, 1, forward=4e-5, load=1e-5, optimizer=1e-5, all_reduce=1e-5, message=1e-5, measures_cpu=True)
    assert [c.rank for c in blame_of(job, [Culprit(3, "compute", 1.0)], steps).culprits] == named


@pytest.mark.parametrize(
    ("what", "share", "kind"),
    [
        ("backward", 0.1, Slowness.COMPUTE),
        ("compute", 0.1, Slowness.COMPUTE),
        ("optimizer", 0.5, Slowness.COMPUTE),
        ("load", 0.5, Slowness.DATA),
        ("link", 1.0, Slowness.LINK),
    ],
)
def test_kinds_are_distinguished(what: str, share: float, kind: Slowness) -> None:
    (culprit,) = blame_of(Job(), [Culprit(6, what, share)], steps=40).culprits
    assert (culprit.kind, culprit.rank) == (kind, 6)
    assert 1 + share / 2 < culprit.ratio < 1 + share * 1.5


@pytest.mark.parametrize("mesh", [(2, 2, 2), (4, 2, 1)])
def test_a_slow_link_shows_where_ranks_wait_for_their_processor(mesh: tuple[int, int, int]) -> None:
    """More ranks than cores: what is there is seen late, mostly by far more than the link takes longer."""
    job = Job(*mesh, wakeup=0.003, measures_cpu=True)
    (culprit,) = blame_of(job, [Culprit(5, "link", 1.0)], steps=40).culprits
    assert (culprit.kind, culprit.rank) == (Slowness.LINK, 5)
    assert blame_of(job, [], steps=40).culprits == []


def test_a_link_that_costs_next_to_nothing_is_left_alone() -> None:
    assert blame_of(Job(message=20e-6), [Culprit(6, "link", 1.0)]).culprits[0].what.startswith("tp:")
    assert blame_of(Job(2, 4, 1, message=20e-6, all_reduce=50e-6), [Culprit(6, "link", 1.0)]).culprits == []


@pytest.mark.parametrize(("wakeup", "share", "is_named"), [(1e-3, 0.25, True), (3e-3, 0.5, False), (3e-3, 1.0, True)])
def test_a_little_of_a_link_is_named_where_it_is_beyond_doubt(wakeup: float, share: float, is_named: bool) -> None:
    """On a busy host, links that nothing is wrong with differ by a hundredth of the step, for minutes."""
    job = Job(wakeup=wakeup, measures_cpu=True)
    culprits = blame_of(job, [Culprit(5, "link", share)], steps=40).culprits
    assert [(c.kind, c.rank) for c in culprits] == ([(Slowness.LINK, 5)] if is_named else [])


@pytest.mark.parametrize(("kept", "named"), [(0.0, [5]), (0.04, [])])
def test_what_keeps_two_ranks_from_running_is_not_their_links(kept: float, named: list[int]) -> None:
    """Both have to share a core, say: their own work shows it, too."""
    job = Job(wakeup=3e-3, measures_cpu=True)
    pair = [4, 5]
    table, plan = simulate(job, [Culprit(5, "link", 0.75), *(Culprit(rank, "compute", kept) for rank in pair)], 40, 1)
    slow = table.cpu.copy()
    slow[np.isin(table.rank, pair)] = slow[np.isin(table.rank, pair)] / (1 + kept)
    table.cpu[:] = slow
    blame = analyse(step_graph.graphs(table, plan, 8), SHAPE)
    assert blame is not None
    assert [c.rank for c in blame.culprits] == named


@pytest.mark.slow
@pytest.mark.aside
def test_a_group_that_is_all_of_its_stage_is_compared_with_those_of_other_stages() -> None:
    """Four stages of two replicas: each reduces its gradients in one group."""
    job = Job(4, 2, 1, wakeup=0.001, measures_cpu=True)
    (culprit,) = blame_of(job, [Culprit(3, "reduce", 2.0)], steps=40).culprits
    assert (culprit.kind, {culprit.rank, culprit.peer}) == (Slowness.LINK, {2, 3})
    assert culprit.text.startswith(
        "link between rank 2 (node n0, GPU 2) and rank 3 (node n0, GPU 3): dp:reduce_scatter"
    )
    assert 2.5 < culprit.ratio < 3.5
    for seed in range(5):
        assert blame_of(job, [], steps=40, seed=seed).culprits == []


@pytest.mark.parametrize("heavy", [1.2, 3.0])
def test_a_slow_pair_with_a_message_of_its_own_size(heavy: float) -> None:
    """The first stage has the embedding's gradients too."""
    job = Job(4, 2, 1, wakeup=0.001, measures_cpu=True, stage_bytes={0: heavy})
    (culprit,) = blame_of(job, [Culprit(0, "reduce", 2.0)], steps=40).culprits
    assert (culprit.kind, {culprit.rank, culprit.peer}) == (Slowness.LINK, {0, 1})
    assert culprit.peers == 3, "the groups of the other stages"


@pytest.mark.slow
@pytest.mark.aside
@pytest.mark.parametrize("heavy", [2.0, 0.3])
def test_what_bytes_explain_is_no_ranks_fault(heavy: float) -> None:
    job = Job(4, 2, 1, wakeup=0.001, measures_cpu=True, stage_bytes={0: heavy})
    for seed in range(5):
        assert blame_of(job, [], steps=40, seed=seed).culprits == []


@pytest.mark.parametrize("culprits", [[], [Culprit(3, "reduce", 2.0)]])
def test_an_operation_of_some_steps_only_is_no_matter(culprits: list[Culprit]) -> None:
    """Every fifth step, and the first, the group has another operation, as for a checkpoint."""
    table, plan = simulate(Job(4, 2, 1, wakeup=0.001, measures_cpu=True), culprits, 40, 1)
    some = np.flatnonzero((table.kind == table.kinds.index("dp:reduce_scatter")) & (table.step % 5 == 0))
    more = replace(table.take(some), kinds=(*table.kinds, "dp:all_gather"))
    more.kind[:] = len(table.kinds)
    more.start[:] = table.end[some] = (table.start[some] + table.end[some]) // 2
    blame = analyse(step_graph.graphs(concatenated([table, more]), plan, plan.mesh.world), SHAPE)
    assert blame is not None
    assert blame.steps == 40
    assert [{c.rank, c.peer} for c in blame.culprits] == [{2, 3} for _ in culprits]


@pytest.mark.parametrize(("rank", "ends"), [(2, {2, 4}), (5, {5, 7})])
def test_the_slow_edge_of_four_is_distinguished_from_its_group(rank: int, ends: set[int]) -> None:
    """Ranks 0, 2, 4, 6 reduce together and 1, 3, 5, 7: the two at the slow link are done later than the others."""
    job = Job(1, 4, 2, wakeup=0.0005, measures_cpu=True)
    (culprit,) = blame_of(job, [Culprit(rank, "edge", 1.0)], steps=40).culprits
    assert (culprit.kind, {culprit.rank, culprit.peer}) == (Slowness.LINK, ends)
    for seed in range(5):
        assert blame_of(job, [], steps=40, seed=seed).culprits == []


def test_a_heavy_stage_is_the_plans_doing() -> None:
    (culprit,) = blame_of(Job(4, 2, 1, stage_work={2: 1.4}), []).culprits
    assert (culprit.kind, culprit.rank) == (Slowness.IMBALANCE, -1)
    assert culprit.text.startswith("the plan: pipeline rank 2 has 27% more work than the mean; no rank's fault")


def test_several_at_once() -> None:
    blame = blame_of(Job(2, 4, 2), [Culprit(1, "forward", 0.2), Culprit(9, "backward", 0.1), Culprit(15, "link", 2.0)])
    assert {culprit.rank for culprit in blame.culprits} == {1, 9, 15}


def test_kept_from_running_is_not_slow_work() -> None:
    """Twice the time at the same work: another process had the core."""
    table, plan = simulate(Job(measures_cpu=True), [Culprit(3, "compute", 1.0)], 10, 1)
    slow = table.cpu.copy()
    slow[table.rank == 3] //= 2  # the actual CPU time
    table.cpu[:] = slow
    blame = analyse(step_graph.graphs(table, plan, 8), SHAPE)
    assert blame is not None
    assert [(c.kind, c.rank) for c in blame.culprits] == [(Slowness.HOST, 3)]
    assert "not scheduled for" in blame.culprits[0].text


@pytest.mark.parametrize(("share", "named"), [(200, []), (500, [3])])
def test_a_little_between_spans_is_no_slow_work(share: float, named: list[int]) -> None:
    """Only the clock is known of it: a percent or two of the step is what a busy host makes of nothing."""
    blame = blame_of(Job(measures_cpu=True), [Culprit(3, "between", share)], steps=40)
    assert [c.rank for c in blame.culprits] == named


def test_garbage_is_reported_where_it_was_timed() -> None:
    table, plan = simulate(Job(), [], 10, 1)
    garbage = np.zeros(8)
    garbage[2] = 0.02
    blame = analyse(step_graph.graphs(table, plan, 8), SHAPE, garbage=garbage)
    assert blame is not None
    assert [(c.kind, c.rank) for c in blame.culprits] == [(Slowness.GARBAGE, 2)]


def test_collections_that_a_rank_recorded_are_its_own() -> None:
    """As spans of their own kind, wherever they came: each step on one rank, and now and then on all."""
    table, plan = simulate(Job(), [], 10, 1)
    rank = np.array([2] * 10 + list(range(8)), np.int32)
    step = np.array([*range(10), *[5] * 8], np.int32)
    start = np.array(
        [table.start[(table.rank == r) & (table.step == s)].min() for r, s in zip(rank, step, strict=True)]
    )
    columns = {name: np.zeros(18, getattr(table, name).dtype) for name in COLUMNS}
    columns |= {"rank": rank, "step": step, "start": start, "end": start + 20_000_000}
    columns |= {name: np.full(18, -1, getattr(table, name).dtype) for name in ("stage", "micro_batch", "seq")}
    columns["generation"] += table.generation[0]
    together = concatenated([table, from_columns(columns, ("gc",), ("",))])
    found = blame_report.report(together, JobShape("j1", "train", ("n0", "n1"), 4, encode_plan(plan)))
    assert [(c["kind"], c["rank"]) for c in found["culprits"]] == [("garbage collection", 2)]
    assert found["culprits"][0]["self_s"] == pytest.approx(0.020, rel=0.01)


def test_a_rank_with_spans_missing_is_left_out_and_said_so() -> None:
    table, plan = simulate(Job(), [Culprit(5, "forward", 0.3)], 10, 1)
    gone = (table.rank == 4) & (table.step == 3)
    gone &= np.cumsum(gone) == 5
    blame = analyse(step_graph.graphs(table.take(~gone), plan, 8), SHAPE)
    assert blame is not None
    assert blame.incomplete == [4]
    assert [c.rank for c in blame.culprits] == [5]


def test_without_a_plan_all_ranks_are_replicas() -> None:
    table, _ = simulate(Job(1, 8, 1, measures_cpu=True), [Culprit(3, "forward", 0.15)], 10, 1)
    blame = analyse(step_graph.graphs(table, None, 8), SHAPE)
    assert blame is not None
    assert [(c.rank, c.peers) for c in blame.culprits] == [(3, 7)]


def test_the_critical_path_is_the_step_and_leads_through_the_slow_one() -> None:
    blame = blame_of(Job(2, 2, 1), [Culprit(2, "compute", 1.0)])
    total = sum(part.seconds for part in blame.path)
    assert math.isclose(total, blame.step_s, rel_tol=0.1)
    of_rank = {rank: sum(p.seconds for p in blame.path if p.rank == rank) for rank in range(4)}
    assert max(of_rank, key=lambda rank: of_rank[rank]) == 2
    longest = longest_first(blame.path)
    assert [part.seconds for part in longest] == sorted((part.seconds for part in longest), reverse=True)
    assert math.isclose(sum(part.seconds for part in longest), total)


def test_the_critical_path_runs_through_the_step_in_the_order_of_time() -> None:
    """It begins with data, ends with the optimizer, and goes forward before it goes backward."""
    path = blame_of(Job(2, 2, 1), [Culprit(2, "compute", 1.0)]).path
    names = [part.what.split()[0] for part in path]
    assert names.index("forward") < names.index("backward")
    assert "optimizer" in names[len(names) - 4 :]
    assert all((a.rank, a.what, a.peer) != (b.rank, b.what, b.peer) for a, b in itertools.pairwise(path))
    for before, after in itertools.pairwise(path):  # it changes the rank only where one waited for the other
        assert before.rank in (after.rank, after.peer) or ":" in after.what, (before, after)


def test_no_spans_no_blame() -> None:
    table, plan = simulate(Job(), [], 1, 1)
    assert analyse(step_graph.graphs(table.of_steps(5, 9), plan, 8), SHAPE) is None
    assert analyse(step_graph.graphs(table.take(table.rank < 4), plan, 8), SHAPE) is None, "a stage is missing"
