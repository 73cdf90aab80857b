"""DP-KFAC's work in bubbles gives the numbers of the same work at the step's end, one step later where it is late."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from forked import Zygote
from kfac import Alone, PlainKfac
from torch import Tensor, nn

from holdfast.plan.fill import fill, second_order
from holdfast.plan.plan import COMPUTE, Op, Order
from holdfast.plan.schedules.table import SCHEDULES
from holdfast.plan.simulate import durations
from holdfast.trainer.optim.dp_kfac import DpKfac
from holdfast.trainer.optim.factors import LateStatistics
from holdfast.trainer.optim.matrices import rounds
from holdfast.trainer.optim.update_rules import InBubbles, Peers, Target
from holdfast.trainer.settings.config import OptimConfig
from tests.trainer.optim.test_dp_kfac import chosen
from tests.trainer.run.test_restart import losses, strike

SHAPES = [(3, 4), (4, 2)]
NAMES = ["layers.0.weight", "layers.1.weight"]
COUNT, TOKENS, STEPS = 4, 6, 7
"""Micro-batches of so many tokens in a step."""
EVERY = pytest.mark.parametrize("every", [(1, 1), (2, 3), (3, 2), (1, 4)], ids=str)
FORMS = pytest.mark.parametrize("form", ["inverse", "eigen"])


def order_of(factor: float, invert: float, rank: int = 0) -> Order:
    """A rank's list of 1F1B, a stage whose statistics and two inversions take so many forwards. Rank 0 computes to the
    step's end, the other rank has two units behind its last backward."""
    plan, base = SCHEDULES["1f1b"].plan(2, 1, COUNT), durations(1, 2)
    found = fill(
        plan, second_order(plan, {0: 2, 1: 2}), lambda a: {"FACTOR": factor, "INVERT": invert}.get(a.op, base(a))
    )
    return found.plan.orders[rank]


LATE, IN_TIME = order_of(0.01, 0.2), order_of(0.01, 0.2, rank=1)


class Run:
    """A rule with two matrices on one stage, and what goes through them."""

    def __init__(self, config: OptimConfig, order: Order | None) -> None:
        torch.manual_seed(1)
        self.order, self.stage = order, order[0].stage if order else 0
        self.tensors = [nn.Parameter(torch.randn(shape, dtype=torch.float64)) for shape in SHAPES]
        targets = [Target(t, True, 1, name=n, stage=self.stage) for t, n in zip(self.tensors, NAMES, strict=True)]
        group: Any = Alone()
        self.rule = DpKfac(config, targets, Peers(group))
        self.bubbles: InBubbles | None = self.rule.in_bubbles(order) if order else None

    def step(self, number: int, applied: int, spoilt: bool = False) -> dict[str, Any]:
        """Forwards and backwards, and what lies between them; the update too, unless spoilt. Rows by matrix."""
        seen, rows = seen_in(number), {name: [] for name in NAMES}
        watchers = self.rule.watchers(applied)
        inputs = self.bubbles.inputs() if self.bubbles else {}
        for tensor in self.tensors:
            tensor.grad = torch.zeros_like(tensor)
        for action in self.order or order_of(0, 0):
            if action.op in COMPUTE:
                for tensor, name, (x, g) in zip(self.tensors, NAMES, seen[action.micro_batch], strict=True):
                    x = x * torch.nan if spoilt else x
                    if action.op is Op.FORWARD and id(tensor) in inputs:
                        inputs[id(tensor)](x)
                    if action.op is Op.BACKWARD:
                        assert tensor.grad is not None
                        tensor.grad += g.t() @ x
                        rows[name] += list(zip(x.numpy(), g.numpy(), strict=True))
                        if id(tensor) in watchers:
                            watchers[id(tensor)](x, g)
            elif self.bubbles:
                self.bubbles.do(action)
        grads = {n: t.grad.numpy().copy() for n, t in zip(NAMES, self.tensors, strict=True)}  # type: ignore[union-attr]
        if not spoilt:
            self.rule.update(0.1, applied)
        return {"rows": rows, "grads": grads}

    def weights(self) -> list[Tensor]:
        return [tensor.detach().clone() for tensor in self.tensors]


def seen_in(step: int) -> list[list[tuple[Tensor, Tensor]]]:
    """By micro-batch and matrix: inputs and gradients of outputs."""
    drawn = torch.Generator().manual_seed(step)

    def made(size: int) -> Tensor:
        return torch.randn(TOKENS, size, generator=drawn, dtype=torch.float64)

    return [[(made(shape[1]), made(shape[0]) / 30) for shape in SHAPES] for _ in range(COUNT)]


def config_of(form: Any, every: tuple[int, int]) -> OptimConfig:
    return OptimConfig(
        name="dp-kfac", kfac_form=form, factor_every=every[0], invert_every=every[1], damping=0.1, kfac_fill=True
    )


def test_of_the_two_lists_one_has_late_work() -> None:
    assert {a.op for a in LATE if a.late} == {Op.FACTOR, Op.INVERT}
    assert not any(a.late for a in IN_TIME)
    assert sum(a.op is Op.INVERT for a in IN_TIME) == 2
    # What is put in lies between computations, and not behind them all.
    assert LATE[-1].op is Op.BACKWARD


@FORMS
@EVERY
def test_what_is_in_time_changes_no_bit(form: str, every: tuple[int, int]) -> None:
    plain, filled = Run(config_of(form, every), None), Run(config_of(form, every), IN_TIME)
    for step in range(STEPS):
        plain.step(step, step)
        filled.step(step, step)
        assert all(map(torch.equal, plain.weights(), filled.weights()))
        for name, tensor in plain.rule.owned().items():
            assert torch.equal(filled.rule.owned()[name], tensor), name


@FORMS
@EVERY
def test_late_inverses_are_used_one_step_later(form: str, every: tuple[int, int]) -> None:
    config = config_of(form, every)
    run = Run(config, LATE)
    plain = PlainKfac(config, dict(zip(NAMES, SHAPES, strict=True)), late=NAMES)
    weights = {name: t.numpy() for name, t in zip(NAMES, run.weights(), strict=True)}
    for step in range(STEPS):
        done = run.step(step, step)
        plain.step(step, 0.1, done["rows"], weights, done["grads"])
        for name, tensor in zip(NAMES, run.weights(), strict=True):
            assert tensor.numpy() == pytest.approx(weights[name], rel=1e-10, abs=1e-12), (step, name)


@FORMS
@EVERY
@pytest.mark.parametrize("at", range(1, 5))
def test_a_checkpoint_has_all_there_is(form: str, every: tuple[int, int], at: int) -> None:
    """Taking one changes no bit of what follows, and a run goes on from it as if it had not stopped; factors and
    inverses in it are those that there would be without bubbles, of the same products."""
    config = config_of(form, every)
    whole, saving, plain = Run(config, LATE), Run(config, LATE), Run(config, None)
    for step in range(at):
        for run in (whole, saving, plain):
            run.step(step, step)
    assert saving.bubbles is not None
    saving.bubbles.settle()
    saved = {name: tensor.clone() for name, tensor in saving.rule.owned().items()}
    assert all(torch.equal(saved[name], tensor) for name, tensor in plain.rule.owned().items())
    restored = Run(config, LATE)
    for name, tensor in restored.rule.owned().items():
        tensor.copy_(saved[name])
    with torch.no_grad():
        for n, (tensor, value) in enumerate(zip(restored.tensors, saving.weights(), strict=True)):
            tensor.copy_(value)
            restored.rule.restore(n, saving.rule.averages(n), at)
    for step in range(at, STEPS):
        for run in (whole, saving, restored):
            run.step(step, step)
        assert all(map(torch.equal, whole.weights(), saving.weights()))
        assert all(map(torch.equal, whole.weights(), restored.weights()))


@pytest.mark.parametrize("order", [LATE, IN_TIME], ids=["late", "in time"])
@EVERY
def test_a_step_that_was_not_finite_leaves_no_trace(order: Order, every: tuple[int, int]) -> None:
    whole, struck = Run(config_of("inverse", every), order), Run(config_of("inverse", every), order)
    for step in range(STEPS):
        if step in (0, 3, 4):
            struck.step(100 + step, step, spoilt=True)
        for run in (whole, struck):
            run.step(step, step)
        assert all(map(torch.equal, whole.weights(), struck.weights()))


@pytest.mark.parametrize("order", [LATE, IN_TIME], ids=["late", "in time"])
def test_the_lists_actions_do_all_of_the_work(order: Order, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of it is left to the step's end, but in the first step of what is late."""
    run, left = Run(config_of("inverse", (1, 1)), order), []
    original = LateStatistics.factors

    def watched(self: LateStatistics) -> dict[str, Tensor]:
        left.append({side: len(kept) for side, kept in self._kept.items()})
        return original(self)

    monkeypatch.setattr(LateStatistics, "factors", watched)
    for step in range(3):
        run.step(step, step)
    first = [{"in": 0, "out": 1}] * 2 if order is LATE else [{"in": 0, "out": 0}] * 2
    assert left == first + [{"in": 0, "out": 0}] * (2 if order is LATE else 4)


def test_what_is_kept_keeps_no_graph() -> None:
    statistics = LateStatistics(torch.float64)
    statistics.keep("in", torch.ones(2, 3, requires_grad=True) * 2)
    assert not statistics._kept["in"][0].requires_grad


def test_nothing_is_kept_of_what_was_added_up() -> None:
    run = Run(config_of("inverse", (1, 1)), IN_TIME)
    run.step(0, 0)
    assert not any(vars(run.bubbles)[name] for name in ("_of_step", "_left", "_to_invert", "_ready"))


def test_each_owner_inverts_one_matrix_of_a_stage_at_a_time() -> None:
    assert rounds([0, 0, 0, 1, 1, 1], [0, 1, 0, 0, 1, 0]) == [0, 0, 1, 0, 0, 1]


SMALL = [
    *("optim.kfac_fill=true", "model.block=serial", "optim.kfac_largest=8", "model.layers=4", "train.micro_batches=4"),
    *("train.micro_batch_size=2", "model.dropout=0.1"),
]
"""Little work beside what a stage computes: it fits."""


@pytest.mark.slow
@pytest.mark.aside
@pytest.mark.parametrize(
    "settings",
    [
        ["parallel.schedule=1f1b", "train.recompute=full"],
        ["parallel.schedule=gpipe", "optim.kfac_form=eigen", "optim.factor_every=2"],
        ["parallel.schedule=interleaved", "train.recompute=selective"],
        ["parallel.schedule=zbv"],
        ["parallel.schedule=1f1b", "train.recompute=cell", "train.dtype=float32"],
    ],
    ids=" ".join,
)
def test_ranks_have_the_factors_of_work_that_is_not_moved(
    zygote: Zygote, tiny: list[str], tmp_path: Path, settings: list[str]
) -> None:
    argv = [*tiny, *chosen(*SMALL, "optim.invert_every=2", *settings), "--pp", "2", "--dp", "2", "--steps", "5"]
    done = zygote.run("kfac:filled", 4, tmp_path, args={"argv": argv})
    assert done["exits"] == [0] * 4
    assert [result["wrong"] for result in done["results"]] == [[[]] * 6] * 4
    assert any(result["late"] for result in done["results"])
    assert all(result["matrices"] for result in done["results"])


@pytest.mark.slow
@pytest.mark.aside
def test_a_kill_and_a_restart_change_no_bit(zygote: Zygote, tiny: list[str], tmp_path: Path) -> None:
    argv = [*tiny, *chosen(*SMALL, "optim.invert_every=2", "train.dtype=float32"), "--pp", "2", "--dp", "2"]
    strike(zygote, argv, tmp_path, victim=3, world=4)


@pytest.mark.slow
@pytest.mark.aside
def test_work_that_is_not_late_gives_the_losses_of_the_steps_end(
    zygote: Zygote, tiny: list[str], tmp_path: Path
) -> None:
    runs = {}
    for fill_ in ("true", "false"):
        settings = [*SMALL, f"optim.kfac_fill={fill_}", "optim.invert_every=2"]
        argv = [*tiny, *chosen(*settings), "--pp", "2", "--schedule", "zbv", "--steps", "5"]
        runs[fill_] = losses(zygote.run("train", 2, tmp_path / fill_, args={"argv": argv}))
    assert runs["true"] == runs["false"]
