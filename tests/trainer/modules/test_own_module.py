"""A module of the user's own, trained by real ranks, computes what one plain process does."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from forked import REPOSITORY, Zygote
from reference import AdamW

from holdfast.agent.probe_file.layout import PLAN_SUFFIX
from holdfast.checkpoint.format.manifest import Manifest
from holdfast.checkpoint.stores.folder import committed
from holdfast.checkpoint.stores.opening import open_store
from holdfast.cli.main import main
from holdfast.trainer.__main__ import parse
from holdfast.trainer.data.batches import Batches
from holdfast.trainer.data.corpus import open_corpus
from holdfast.trainer.modules.loading import find
from holdfast.trainer.settings.config import Config, ParallelConfig
from holdfast.trainer.settings.learning_rate import learning_rate
from holdfast.wire.plans import decode_traffic
from tests.trainer.run.test_equality import assembled
from tests.trainer.run.test_restart import losses, strike

MODELS = REPOSITORY / "tests" / "trainer" / "support" / "own_models.py"


@pytest.fixture(scope="session")
def small(text: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    settings = {
        "data.seq_len": 8,
        "data.cache_dir": tmp_path_factory.mktemp("own-cache"),
        "train.dtype": "float64",
        "train.log_every": 0,
        "train.micro_batches": 4,
        "train.micro_batch_size": 2,
        "optim.warmup_steps": 2,
        "parallel.timeout_s": 200,
    }
    return ["--data", str(text), *(word for k, v in settings.items() for word in ("--set", f"{k}={v}"))]


@pytest.fixture(autouse=True, scope="module")
def traced_once(zygote: Zygote) -> None:
    """In the fork server, for all ranks."""
    zygote.imported("traced_once")


@functools.cache  # of many tests that differ in how the job is laid out only
def alone(config: Config) -> tuple[dict[str, torch.Tensor], list[float]]:
    """The module in a loop of ten lines: gradients of the first step, and losses of all."""
    torch.manual_seed(config.train.seed)
    dtype = {"float32": torch.float32, "float64": torch.float64}[config.train.dtype]
    module = find(config.module.build)().to(dtype).train()
    trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
    t = config.train
    tokens = open_corpus(config.data).tokens
    batches = Batches(tokens, config.data.seq_len, t.seed, t.micro_batches, t.micro_batch_size)
    update, first, found = AdamW(config.optim, trained), {}, []
    for step in range(t.steps):
        module.zero_grad()
        total = 0.0
        for number in range(t.micro_batches):
            x, y = (torch.from_numpy(one) for one in batches.read(step, range(number, number + 1)))
            output = module(x)
            logits = output if isinstance(output, torch.Tensor) else output.logits
            loss = F.cross_entropy(logits.flatten(0, 1), y.flatten()) / t.micro_batches
            torch.autograd.backward(loss)
            total += float(loss.detach())
        first = first or {name: p.grad.clone() for name, p in trained.items() if p.grad is not None}
        norm = torch.cat([p.grad.flatten() for p in trained.values() if p.grad is not None]).norm()
        for p in trained.values():  # torch's own adds 1e-6 to the norm
            if p.grad is not None:
                p.grad *= min(1.0, float(config.optim.clip_norm / norm))
        with torch.no_grad():
            update(learning_rate(config.optim, step), step)
        found.append(total)
    return first, found


def compare(zygote: Zygote, argv: list[str], folder: Path, world: int, within: float) -> list[Any]:
    argv = [*argv, "--steps", "3"]
    expected, plain = alone(replace(parse(argv), parallel=ParallelConfig()))
    done = zygote.run("gradients", world, folder, args={"argv": argv})
    assert done["exits"] == [0] * world
    grads = assembled(folder, world)
    assert grads.keys() == expected.keys()
    errors = {name: float((grads[name] - grad).norm() / grad.norm()) for name, grad in expected.items()}
    apart = max(abs(a - b) for result in done["results"] for a, b in zip(result["losses"], plain, strict=True))
    print(f"gradients within {max(errors.values()):.1e}, losses within {apart:.1e}, {done['seconds']:.1f} s")
    assert max(errors.values()) < within
    assert apart < 10 * within
    results: list[Any] = done["results"]
    return results


def test_two_stages_equal_one_process(zygote: Zygote, small: list[str], tmp_path: Path) -> None:
    compare(zygote, [*small, "--model", f"{MODELS}:net", "--pp", "2"], tmp_path, 2, 1e-12)


@pytest.mark.slow
@pytest.mark.aside
@pytest.mark.parametrize(
    ("layout", "schedule", "zero"),
    [
        ((2, 2), "1f1b", 1),
        ((2, 2), "interleaved", 2),
        ((2, 1), "zbv", 0),
        ((2, 1), "chimera", 1),
        ((3, 1), "axonn", 0),
        ((2, 1), "merak-early", 0),
    ],
)
def test_schedules_equal_one_process(
    zygote: Zygote, small: list[str], tmp_path: Path, layout: tuple[int, int], schedule: str, zero: int
) -> None:
    pp, dp = layout
    mesh = ["--pp", str(pp), "--dp", str(dp), "--schedule", schedule, "--zero", str(zero)]
    compare(zygote, [*small, "--model", f"{MODELS}:net", *mesh], tmp_path, pp * dp, 1e-12)


@pytest.mark.slow
@pytest.mark.aside
def test_recomputed_stages_draw_the_same_numbers(zygote: Zygote, small: list[str], tmp_path: Path) -> None:
    """And rank 0 reports what their links carry."""
    argv = [*small, "--model", f"{MODELS}:dropping", "--steps", "3"]
    found = []
    for number, more in enumerate((["--pp", "1"], ["--pp", "2"], ["--pp", "3", "--set", "train.recompute=cell"])):
        done = zygote.run("watching:train", int(more[1]), tmp_path / str(number), args={"argv": [*argv, *more]})
        assert done["exits"] == [0] * int(more[1])
        found.append(losses(done))
    sent = decode_traffic((tmp_path / "2" / f"probe-0{PLAN_SUFFIX}").read_bytes())
    assert sent is not None
    # Of 4 micro-batches: between layers the residual stream and what it began with, (2, 8, 16) of 8 bytes each, and for
    # each token a byte, whether it is text; before the head what is made of them.
    stream = 2 * 8 * 16 * 8
    assert sent.messages == (4 * (2 * stream + 2 * 8), 4 * stream)
    for other in found[1:]:
        assert other == pytest.approx(found[0], rel=0, abs=1e-12)


@pytest.mark.slow
@pytest.mark.aside
def test_a_model_of_hugging_face_equals_one_process(zygote: Zygote, small: list[str], tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    zygote.imported("transformers.models.llama.modeling_llama")
    argv = [*small, "--model", f"{MODELS}:llama", "--pp", "2", "--set", "train.dtype=float32"]
    compare(zygote, argv, tmp_path, 2, 1e-6)


@pytest.mark.slow
@pytest.mark.aside
def test_a_killed_job_goes_on_bit_by_bit(zygote: Zygote, small: list[str], tmp_path: Path) -> None:
    argv = [*small, "--model", f"{MODELS}:dropping", "--pp", "2"]
    strike(zygote, argv, tmp_path, victim=1, world=2)


@pytest.mark.slow
@pytest.mark.aside
def test_a_checkpoint_goes_on_in_other_stages(zygote: Zygote, small: list[str], tmp_path: Path) -> None:
    store = (tmp_path / "store").as_uri()
    argv = [*small, "--model", f"{MODELS}:net"]
    whole = zygote.run("train", 1, tmp_path / "whole", args={"argv": [*argv, "--steps", "4"]})
    first = zygote.run(
        "train", 2, tmp_path / "a", args={"argv": [*argv, "--pp", "2", "--store", store, "--steps", "2"]}
    )
    assert first["exits"] == [0, 0]
    (_, manifest), *_ = committed(open_store(store), lambda line: None)
    assert isinstance(manifest, Manifest)
    module = find(f"{MODELS}:net")()
    trained = {name: tuple(p.shape) for name, p in module.named_parameters() if p.requires_grad}
    assert {n: tuple(t.shape) for n, t in manifest.tensors.items() if "@" not in n} == trained
    then = zygote.run("train", 3, tmp_path / "b", args={"argv": [*argv, "--pp", "3", "--store", store, "--steps", "4"]})
    assert [then["results"][0]["first"], *then["exits"]] == [2, 0, 0, 0]
    assert [*losses(first), *losses(then)] == pytest.approx(losses(whole), rel=0, abs=1e-12)


@pytest.mark.slow
@pytest.mark.aside
def test_a_cut_that_the_planner_writes_is_trained(zygote: Zygote, small: list[str], tmp_path: Path) -> None:
    """Over a link on which sums of gradients take longer than a bubble: `holdfast plan` makes two stages."""
    (tmp_path / "two.toml").write_text(
        "nodes = 1\ngpus_per_node = 2\n[gpu]\nflops = 1e9\nmemory_bytes = 1e9\nmemory_bytes_per_s = 1e11\n"
        "[links.node]\nalpha_us = 5\ngb_per_s = 0.001\n"
    )
    best = tmp_path / "best.toml"
    words = ["--stages", "alpa", "--cluster", str(tmp_path / "two.toml"), "-o", str(best)]
    assert main(["plan", *words, *small, "--model", f"{MODELS}:net"]) == 0
    assert parse(["--config", str(best)]).parallel.pp == 2
    compare(zygote, ["--config", str(best)], tmp_path, 2, 1e-12)
