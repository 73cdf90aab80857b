"""DP-KFAC is K-FAC by its formulas, whatever the schedule, and with replicas that read the same, as in one process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from forked import Zygote
from kfac import Alone, PlainKfac
from torch import nn

from holdfast.trainer.__main__ import parse
from holdfast.trainer.optim.dp_kfac import DpKfac
from holdfast.trainer.optim.factors import damped_inverse
from holdfast.trainer.optim.matrices import cost, is_preconditioned, owners
from holdfast.trainer.optim.update_rules import Peers, Target
from holdfast.trainer.settings.config import OptimConfig
from holdfast.trainer.settings.errors import ConfigError
from holdfast.trainer.settings.layout import plan
from tests.trainer.run.test_restart import losses, strike

pytestmark = pytest.mark.aside

FORMS = pytest.mark.parametrize("form", ["inverse", "eigen"])


def chosen(*settings: str) -> list[str]:
    tiny = [
        *("optim.name=dp-kfac", "optim.lr=0.05", "optim.clip_norm=0", "parallel.zero=0", "train.dtype=float64"),
        *("model.d_model=8", "model.heads=2", "data.seq_len=8", "optim.warmup_steps=2", "optim.kl_clip=0.01"),
    ]
    return [word for setting in [*tiny, *settings] for word in ("--set", setting)]


def made(config: OptimConfig, *shapes: tuple[int, ...]) -> tuple[DpKfac, list[nn.Parameter]]:
    torch.manual_seed(1)
    tensors = [nn.Parameter(torch.randn(shape, dtype=torch.float64)) for shape in shapes]
    targets = [Target(t, t.dim() > 1, 1, name=f"layers.{n}.weight") for n, t in enumerate(tensors)]
    group: Any = Alone()
    return DpKfac(config, targets, Peers(group)), tensors


@FORMS
@pytest.mark.parametrize("every", [(1, 1), (2, 3)], ids=str)
@pytest.mark.parametrize("kl_clip", [0.0, 1e-3, 1e9])
def test_updates_are_those_of_the_formulas(form: Any, every: tuple[int, int], kl_clip: float) -> None:
    config = OptimConfig(
        name="dp-kfac", kfac_form=form, factor_every=every[0], invert_every=every[1], kl_clip=kl_clip, damping=0.1
    )
    rule, tensors = made(config, (3, 4), (4, 2))
    names = ["layers.0.weight", "layers.1.weight"]
    plain = PlainKfac(config, dict(zip(names, [(3, 4), (4, 2)], strict=True)))
    weights = {name: t.detach().numpy().copy() for name, t in zip(names, tensors, strict=True)}
    for applied in range(5):
        rows: dict[str, Any] = {name: [] for name in names}
        watchers = rule.watchers(applied)
        assert len(watchers) == (2 if applied % every[0] == 0 else 0)
        for tensor, name in zip(tensors, names, strict=True):
            tensor.grad = torch.zeros_like(tensor)
            for _ in range(3):  # micro-batches of two samples of five tokens
                x = torch.randn(2, 5, tensor.shape[1], dtype=torch.float64)
                g = torch.randn(2, 5, tensor.shape[0], dtype=torch.float64) / 30
                tensor.grad += torch.einsum("bto,bti->oi", g, x)
                rows[name] += list(zip(x.flatten(0, 1).numpy(), g.flatten(0, 1).numpy(), strict=True))
                if id(tensor) in watchers:
                    watchers[id(tensor)](x, g)
        grads = {name: t.grad.numpy().copy() for name, t in zip(names, tensors, strict=True) if t.grad is not None}
        rule.update(0.1, applied)
        plain.step(applied, 0.1, rows, weights, grads)
        for tensor, name in zip(tensors, names, strict=True):
            assert tensor.detach().numpy() == pytest.approx(weights[name], rel=1e-10, abs=1e-12)


def test_damping_is_in_no_average() -> None:
    rule, tensors = made(OptimConfig(name="dp-kfac", invert_every=1, factor_every=100, damping=5.0), (3, 2))
    for applied in range(1, 4):
        for tensor in tensors:
            tensor.grad = torch.ones_like(tensor)
        assert rule.watchers(applied) == {}
        rule.update(0.1, applied)
    state = rule.owned()
    assert torch.equal(state["layers.0.weight@factor_in"], torch.eye(2, dtype=torch.float64))
    assert state["layers.0.weight@inverse_out"] == pytest.approx(np.eye(3) / 6, abs=1e-12)


def test_a_step_that_was_not_finite_leaves_no_trace() -> None:
    rule, (tensor,) = made(OptimConfig(name="dp-kfac"), (3, 2))
    (watcher,) = rule.watchers(0).values()
    watcher(torch.full((2, 2), torch.nan), torch.ones(2, 3))  # and no update follows
    (watcher,) = rule.watchers(0).values()
    watcher(torch.ones(2, 2), torch.ones(2, 3))
    tensor.grad = torch.ones_like(tensor)
    rule.update(0.1, 0)
    factor = rule.owned()["layers.0.weight@factor_in"]
    assert factor == pytest.approx(0.95 * np.eye(2) + 0.05, abs=1e-12)


def test_what_cannot_be_factored_is_inverted_without_its_negative_eigenvalues() -> None:
    vectors, _ = torch.linalg.qr(torch.tensor([[3.0, 1, 2], [0, 4, 1], [1, 1, 5]], dtype=torch.float64))
    factor = vectors @ torch.diag(torch.tensor([4.0, 1.0, -1.0], dtype=torch.float64)) @ vectors.t()
    expected = vectors @ torch.diag(torch.tensor([1 / 4.5, 1 / 1.5, 1 / 0.5], dtype=torch.float64)) @ vectors.t()
    assert damped_inverse(factor, 0.5) == pytest.approx(expected, abs=1e-12)


def test_owners_have_as_much_work_as_the_rule_says() -> None:
    shapes = [(96, 32), (32, 32), (128, 32), (32, 128)] * 6
    costs = [cost(shape, 64) for shape in shapes]
    assert costs[0] == 96**3 + 32**3 + 64 * (96**2 + 32**2)
    for ranks in (1, 2, 3, 4, 8):
        loads = [0.0] * ranks
        for number, owner in enumerate(owners(costs, ranks, "cost")):
            loads[owner] += costs[number]
        assert max(loads) <= sum(costs) / ranks + max(costs)
        assert min(loads) >= sum(costs) / ranks - max(costs)
        assert owners(costs, ranks, "round-robin") == [number % ranks for number in range(24)]


def test_tables_vectors_and_what_is_too_large_have_no_factors() -> None:
    config = OptimConfig(name="dp-kfac", kfac_largest=64)
    shapes = {"embed.weight": (8, 8), "positions.weight": (8, 8), "head.norm.weight": (8,), "head.weight": (65, 8)}
    assert not any(is_preconditioned(config, name, shape) for name, shape in shapes.items())
    assert is_preconditioned(config, "head.weight", (64, 8))
    assert not is_preconditioned(OptimConfig(), "head.weight", (64, 8))


@pytest.mark.parametrize(
    ("argv", "world", "says"),
    [
        (["--tp", "2"], 2, "optim.name = dp-kfac needs whole matrices, and tp ranks split them"),
        (["--dp", "2", "--set", "parallel.zero=1"], 2, "parallel.zero = 1 shards them .set parallel.zero = 0"),
        (["--pp", "2", "--schedule", "chimera", "--set", "parallel.zero=0"], 2, "needs one pipe, and the schedule has"),
    ],
)
def test_layouts_that_split_matrices_are_refused(argv: list[str], world: int, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        plan(parse(["--optimizer", "dp-kfac", *argv]), world, 256)


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("damping=0", "optim.damping is 0.0: must be above 0"),
        ("invert_every=0", "must be 1 or more"),
        ("factor_decay=1", "from 0 to below 1"),
        ("kl_clip=-1", "must be 0 or more"),
        ("kfac_form=qr", "choose one of inverse, eigen"),
    ],
)
def test_settings_that_cannot_work_are_refused(setting: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse(["--set", f"optim.{setting}"])


@pytest.mark.parametrize(
    "settings",
    [
        ["optim.kfac_form=inverse", "model.layers=2", "optim.invert_every=2"],
        ["optim.kfac_form=eigen", "model.layers=1", "model.block=serial", "model.mlp=swiglu", "optim.kfac_largest=64"],
        ["model.layers=1", "train.recompute=full", "optim.factor_every=2", "optim.kfac_others=adamw"],
        ["model.layers=1", "train.recompute=selective", "model.norm=layer", "model.positions=learned"],
    ],
    ids=" ".join,
)
def test_one_process_is_the_formulas(zygote: Zygote, tiny: list[str], tmp_path: Path, settings: list[str]) -> None:
    argv = [*tiny, *chosen("train.micro_batches=3", *settings), "--steps", "4"]
    done = zygote.run("kfac:alone", 1, tmp_path, args={"argv": argv})
    assert done["exits"] == [0]
    assert max(done["results"][0]["worst"]) < 1e-10
    assert len(done["results"][0]["matrices"]) >= 2


@FORMS
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_replicas_that_read_the_same_are_one_process(
    zygote: Zygote, tiny: list[str], tmp_path: Path, form: str, dtype: str
) -> None:
    common = [f"optim.kfac_form={form}", "model.layers=2", "optim.invert_every=2", f"train.dtype={dtype}"]
    ranks, count = 3, 2
    runs = {}
    for dp in (1, ranks):
        argv = [*tiny, *chosen(f"train.micro_batches={dp * count}", *common), "--steps", "5", "--dp", str(dp)]
        done = zygote.run("kfac:alike", dp, tmp_path / str(dp), args={"argv": argv})
        assert done["exits"] == [0] * dp
        runs[dp] = done["results"]
    (alone,) = runs[1]
    within = 1e-10 if dtype == "float64" else 1e-6
    for result in runs[ranks]:
        assert result["losses"] == pytest.approx(alone["losses"], abs=10 * within)
        for name, values in result["weights"].items():
            assert values == pytest.approx(alone["weights"][name], abs=within), name
    # Each matrix's factors lie on one rank; all of them are what one process has.
    names = [name for result in runs[ranks] for name in result["owned"]]
    assert sorted(names) == sorted(alone["owned"])
    assert all(result["owned"] for result in runs[ranks])
    # What goes over the wire are preconditioned gradients, once each; no collective is as large as a factor needs.
    matrices = {name.partition("@")[0] for name in alone["owned"]}
    elements = sum(shape[0] * shape[1] for name, shape in alone["shapes"].items() if name in matrices)
    gradients = sum(int(np.prod(shape)) for shape in alone["shapes"].values())
    for result in runs[ranks]:
        assert sum(result["sent"]["broadcast"]) == 5 * elements
        assert sum(result["sent"]["all_reduce"]) - 5 * gradients <= 5 * 16  # losses and votes ride along


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "interleaved", "zbv", "bfs", "axonn"])
def test_stages_are_one_process(zygote: Zygote, tiny: list[str], tmp_path: Path, schedule: str) -> None:
    common = ["model.layers=4", "train.micro_batches=4", "optim.kfac_form=eigen", "model.dropout=0.1"]
    alone = zygote.run("train", 1, tmp_path / "one", args={"argv": [*tiny, *chosen(*common), "--steps", "5"]})
    argv = [*tiny, *chosen(*common), "--steps", "5", "--pp", "2", "--schedule", schedule]
    done = zygote.run("train", 2, tmp_path / "two", args={"argv": argv})
    assert done["exits"] == [0, 0]
    assert losses(done) == pytest.approx(losses(alone), abs=1e-9)


@pytest.mark.slow
@FORMS
def test_a_kill_and_a_restart_change_no_bit(zygote: Zygote, tiny: list[str], tmp_path: Path, form: str) -> None:
    settings = [f"optim.kfac_form={form}", "model.layers=2", "train.micro_batches=4", "train.dtype=float32"]
    argv = [*tiny, *chosen("optim.invert_every=4", *settings), "--pp", "2", "--dp", "2"]
    strike(zygote, argv, tmp_path, victim=3, world=4)


@pytest.mark.slow
def test_another_number_of_replicas_goes_on_with_the_same_factors(
    zygote: Zygote, tiny: list[str], tmp_path: Path
) -> None:
    store = ["--store", (tmp_path / "store").as_uri(), "--checkpoint-every", "3"]
    argv = [*tiny, *chosen("model.layers=2", "train.micro_batches=4", "optim.factor_every=50"), *store]
    first = zygote.run("train", 2, tmp_path / "run", args={"argv": [*argv, "--dp", "2", "--steps", "3"]})
    assert first["exits"] == [0, 0]
    found = {}
    for generation, dp in enumerate((2, 1, 4), 1):
        # Factors are as saved until step 50, so that it makes no difference who would have built them.
        plain = [*argv, "--dp", str(dp), "--steps", "6", "--checkpoint-every", "50"]
        done = zygote.run("train", dp, tmp_path / "run", args={"argv": plain}, generation=generation)
        assert done["exits"] == [0] * dp
        assert done["results"][0]["first"] == 3
        found[dp] = losses(done)
        for folder in (tmp_path / "store").glob("step-00000006-*"):
            (folder / "manifest.json").unlink(missing_ok=True)
    assert found[1] == pytest.approx(found[2], abs=1e-12)
    assert found[4] == pytest.approx(found[2], abs=1e-12)


def test_manifests_have_the_form_of_the_state(zygote: Zygote, tiny: list[str], tmp_path: Path) -> None:
    store = tmp_path / "store"
    argv = [*tiny, *chosen("model.layers=1", "train.micro_batches=1"), "--store", store.as_uri(), "--steps", "1"]
    assert zygote.run("train", 1, tmp_path / "run", args={"argv": argv})["exits"] == [0]
    (manifest,) = store.glob("step-00000001-*/manifest.json")
    text = manifest.read_text()
    assert json.loads(text)
    assert "layers.0.inward.weight@factor_out" in text
    assert "optim.kfac_form" in text
