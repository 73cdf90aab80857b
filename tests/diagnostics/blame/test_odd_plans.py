"""Blame on steps whose plans have replicas of stages, several micro-batches at once, parts of one, and recomputes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from holdfast.controller.simulation.step_spans import Culprit, Timing, spans_of
from holdfast.diagnostics.blame.blame import Blame, analyse
from holdfast.diagnostics.steps.graph import Graph, graphs
from holdfast.diagnostics.steps.job_shape import JobShape
from holdfast.diagnostics.steps.replay import Variant, measured, replay
from holdfast.diagnostics.steps.shape import Meeting
from holdfast.diagnostics.steps.span_table import SpanTable
from holdfast.plan.plan import Mesh, Plan
from holdfast.plan.schedules.table import SCHEDULES
from holdfast.trainer.pipeline.job_plan import job_plan
from holdfast.trainer.settings.layout import TrainerLayout
from holdfast.wire.plans import decode_plan, encode_plan

NAMES = ("chimera", "chimera-doubling", "chimera-halving", "merak-baseline", "merak")
PP, DP, COUNT = 4, 2, 8


def steps_of(name: str, culprits: list[Culprit], tp: int = 1) -> tuple[SpanTable, Plan]:
    schedule = SCHEDULES[name]
    layout = TrainerLayout(PP, DP, tp, schedule.chunks, COUNT, schedule.placement)
    plan = job_plan(layout, name, PP, schedule.build(PP, schedule.chunks, COUNT), zero=0)
    return spans_of(Timing(PP, DP, tp, COUNT), plan, culprits, 5), plan


def graphs_of(table: SpanTable, plan: Plan) -> list[Graph]:
    # As a controller has it: from its bytes.
    return list(graphs(table, decode_plan(encode_plan(plan)), plan.mesh.world))


def test_pipeline_ranks_that_differ_in_tp_are_not_compared() -> None:
    table, plan = steps_of("merak", [])
    unlike = replace(plan, mesh=Mesh.of(pp=PP, dp=DP, tp=2, tps=(2, *[1] * (PP - 1))))
    assert len(graphs_of(table, plan)) == 5
    assert graphs_of(table, unlike) == []


def blame_of(name: str, culprits: list[Culprit]) -> Blame:
    blame = analyse(iter(graphs_of(*steps_of(name, culprits))), JobShape("j1", "train", ("n0",), PP * DP))
    assert blame is not None
    return blame


@pytest.mark.parametrize("name", NAMES)
def test_spans_name_all_actions_of_the_plan(name: str) -> None:
    table, plan = steps_of(name, [])
    assert set(table.actions()[1]) - {""} == set(plan.places)


@pytest.mark.parametrize("name", NAMES)
def test_a_step_played_again_unchanged_is_the_step(name: str) -> None:
    for graph in graphs_of(*steps_of(name, [Culprit(3, "forward", 0.5)], tp=2)):
        assert not graph.incomplete
        seen = measured(graph)
        played = replay(graph, seen, [Variant({}, {}, {})])
        for c, column in enumerate(graph.columns):
            np.testing.assert_allclose(played.ends[c][0], column.at[-1], atol=1e-9)
            np.testing.assert_allclose(played.waits[c][0], seen.waits[c].sum(axis=0), atol=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_every_message_is_found_by_its_receiver(name: str) -> None:
    (graph, *_) = graphs_of(*steps_of(name, []))
    receives = [node for node in graph.nodes if node.how is Meeting.RECEIVE]
    assert receives
    for node in receives:
        assert node.source is not None
        (c, k), (d, j) = node.members[0], node.source
        assert graph.columns[c].shape.syncs[k].key == graph.columns[d].shape.syncs[j].key
    assert len({node.source for node in receives}) == len(receives)


@pytest.mark.parametrize("name", NAMES)
def test_the_slow_rank_is_named(name: str) -> None:
    assert blame_of(name, []).culprits == []
    (culprit,) = blame_of(name, [Culprit(2, "compute", 0.2)]).culprits
    assert culprit.rank == 2
    assert 1.15 < culprit.ratio < 1.25


def test_replicas_of_a_stage_wait_for_each_other() -> None:
    table, plan = steps_of("chimera", [], tp=2)
    (graph, *_) = graphs_of(table, plan)
    sums = [
        sorted(c for c, _ in node.members)
        for node in graph.nodes
        if node.how is Meeting.COLLECTIVE and len(node.members) == 2
    ]
    # Stages 0 and 3 are on the first and last ranks, 1 and 2 on those between.
    assert sorted(sums) == [[0, 3], [0, 3], [1, 2], [1, 2]]
