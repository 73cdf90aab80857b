"""What rank 0 sends of a job's plan: what a step is planned to take goes with it where it is of these settings."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import pytest
import torch

from holdfast.agent import probe
from holdfast.plan.planned_step import PlannedStep
from holdfast.plan.schedules.table import SCHEDULES
from holdfast.planner.cost.layout import Layout
from holdfast.planner.placement.expected import node_bytes
from holdfast.trainer.optim.traffic import StepBytes, traffic
from holdfast.trainer.pipeline.pipeline import build_plan
from holdfast.trainer.run.published_plan import publish_plan
from holdfast.trainer.settings.config import Config, ModuleConfig
from holdfast.trainer.settings.layout import plan as layout_of
from holdfast.trainer.settings.layout import vocab_of
from holdfast.trainer.settings.own_module import ModuleSizes
from holdfast.trainer.settings.planned import settings_of, with_planned
from holdfast.wire.plans import decode_plan, decode_planned, decode_traffic

STEP = PlannedStep(1.5, (0.1, 0.2), (0.2, 0.4), (0.0, 0.0), 1e-05, (0.02, 0.03), (0.1, 0.1))
CONFIG = with_planned(settings_of(Config(), Layout(pp=2, dp=2)), STEP, "gpu", 4)
PLAN = SCHEDULES["1f1b"].plan(2, 1, 4)
CPU = torch.device("cpu")


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    found: list[bytes] = []
    monkeypatch.setattr(probe, "publish_plan", found.append)
    return found


def test_a_planned_step_goes_with_the_plan(sent: list[bytes], capsys: pytest.CaptureFixture[str]) -> None:
    publish_plan(PLAN, CONFIG, 4, CPU)
    (one,) = sent
    assert decode_plan(one).orders == PLAN.orders
    assert decode_planned(one) == STEP
    assert capsys.readouterr().out == ""


def test_what_was_planned_for_another_number_of_ranks_stays_and_a_line_says_so(
    sent: list[bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    anywhere = replace(CONFIG, parallel=replace(CONFIG.parallel, dp=0))  # as many replicas as there are ranks for
    publish_plan(PLAN, anywhere, 8, CPU)
    (one,) = sent
    assert decode_plan(one).orders == PLAN.orders
    assert decode_planned(one) is None
    assert capsys.readouterr().out == (
        "not compared with a plan: [planned] is of other settings or another number of ranks than 8\n"
    )


def counted(config: Config, sent: list[bytes], own: ModuleSizes | None = None) -> tuple[StepBytes, float]:
    """Of four ranks, what the trainer counts by its own plan, and what the nodes send by what was published of it."""
    vocab = vocab_of(config.data.tokenizer)
    laid = layout_of(config, 4, vocab)
    plan = build_plan(config, laid, CPU)
    publish_plan(plan, config, 4, CPU, own)
    (one,) = sent
    found = decode_traffic(one)
    assert found is not None
    return traffic(config, laid, plan, vocab, own), float(node_bytes(decode_plan(one), found, 1).sent.sum())


@pytest.mark.parametrize(("layout", "cuts"), [(Layout(pp=2, dp=2, zero=2), "each"), (Layout(dp=4, zero=3), "last")])
def test_what_its_links_carry_goes_with_the_plan(
    sent: list[bytes], layout: Layout, cuts: Literal["each", "last"]
) -> None:
    """With a rank on each node, what all of them send is what the trainer counts, by its own plan."""
    config = settings_of(Config(), layout)
    config = replace(config, parallel=replace(config.parallel, zero_reduce=cuts))
    expected, of_nodes = counted(config, sent)
    assert of_nodes == pytest.approx(expected.total - expected.optimizer)


@pytest.mark.parametrize("roles", [2, 4])
def test_replicas_with_roles_send_what_the_trainer_counts(sent: list[bytes], roles: int) -> None:
    config = settings_of(Config(), Layout(dp=4, zero=0))
    config = replace(config, parallel=replace(config.parallel, partial_backward=roles))
    expected, of_nodes = counted(config, sent)
    assert of_nodes == pytest.approx(expected.total)


def test_owners_of_matrices_send_what_the_trainer_counts(sent: list[bytes]) -> None:
    config = settings_of(Config(), Layout(pp=2, dp=2, zero=0))
    for largest in (4096, 300):
        other = replace(config, optim=replace(config.optim, name="dp-kfac", kfac_largest=largest))
        expected, of_nodes = counted(other, sent)
        assert expected.optimizer > 0
        assert of_nodes == pytest.approx(expected.total)
        sent.clear()


def test_pipeline_ranks_that_differ_in_tp_send_what_the_trainer_counts(sent: list[bytes]) -> None:
    config = settings_of(Config(), Layout(pp=3))
    for sequence in (False, True):
        parallel = replace(config.parallel, stage_tp=(1, 2, 1), sequence=sequence)
        expected, of_nodes = counted(replace(config, parallel=parallel), sent)
        assert of_nodes == pytest.approx(expected.total)
        sent.clear()


def test_a_module_of_the_users_is_known_by_its_sizes(sent: list[bytes]) -> None:
    config = settings_of(Config(), Layout(pp=2, dp=2, zero=1))
    config = replace(config, module=ModuleConfig(build="mine:build"))
    table = {"table": (256, 8)}
    own = ModuleSizes(({**table, "a": (64, 8)}, {**table, "b": (), "c": (4,)}), (1000,), "table")
    expected, of_nodes = counted(config, sent, own)
    micro_batches, two = config.train.micro_batches, 2
    # Both replicas gather and reduce four bytes of each parameter once; messages and tables go both ways.
    assert expected.replicas == (2048 + 512 + 2048 + 1 + 4) * (4 + 4)
    assert expected.pipeline == two * (1000 * micro_batches + 4 * 2048)
    assert of_nodes == pytest.approx(expected.total)


def test_bytes_of_a_module_that_nobody_looked_at_are_left_out(sent: list[bytes]) -> None:
    config = settings_of(Config(), Layout(dp=4, zero=0))
    other = replace(config, module=ModuleConfig(build="mine:build"))
    publish_plan(SCHEDULES["1f1b"].plan(1, 1, 8), config, 4, CPU)
    publish_plan(SCHEDULES["1f1b"].plan(1, 1, 8), other, 4, CPU)
    known, unknown = sent
    assert decode_traffic(known) is not None
    assert decode_traffic(unknown) is None
    assert decode_plan(unknown) == decode_plan(known)
