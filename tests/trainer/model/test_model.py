"""What single parts of the model promise: windows, recomputation, collectives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from forked import Zygote
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

from holdfast.plan.transformer import score_pairs
from holdfast.trainer.__main__ import parse
from holdfast.trainer.mesh.pretended import rank_of
from holdfast.trainer.model.attention import allowed, attend, rotations
from holdfast.trainer.model.model import ModelStage, Moment
from holdfast.trainer.model.tensor_parallel import Parameters
from holdfast.trainer.pipeline.pipeline import build_stages, layers_at_once
from holdfast.trainer.settings.layout import plan


@pytest.fixture
def alone() -> Iterator[Any]:
    """The tp dimension of a mesh of this one process."""
    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,), mesh_dim_names=("tp",))
    dist.destroy_process_group()


def stage(alone: Any, *settings: str) -> ModelStage:
    config = parse([word for setting in settings for word in ("--set", setting)])
    make = Parameters(0, alone, torch.device("cpu"), torch.float64)
    return ModelStage(config, 0, range(config.model.layers), 256, make, Moment(0))


@pytest.mark.parametrize("block", ["serial", "parallel"])
def test_layers_that_are_drawn_at_the_same_time_have_the_same_values_in_the_same_order(alone: Any, block: str) -> None:
    config = parse(["--set", "model.layers=7", "--set", f"model.block={block}"])
    stages = [
        ModelStage(config, 1, range(2, 7), 256, Parameters(3, alone, torch.device("cpu"), at_once=count), Moment(0))
        for count in (1, 3)
    ]
    one, other = (list(stage.named_parameters()) for stage in stages)
    assert [name for name, _ in one] == [name for name, _ in other]
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(one, other, strict=True))


def test_as_many_layers_are_drawn_at_once_as_cores_and_memory_allow() -> None:
    large = parse(["--set", "model.d_model=4096", "--set", "model.heads=32", "--set", "model.layers=10"])
    gpu = torch.device("cuda", 0)
    assert layers_at_once(large, gpu, 4, 32000) == 4
    most = layers_at_once(large, gpu, 1000, 32000)
    assert 4 < most < 20, "8 GiB hold so many of 12 * 4096 ** 2 values"
    huge = parse(["--set", "model.d_model=20480", "--set", "model.heads=128", "--set", "model.layers=105"])
    assert layers_at_once(huge, gpu, 1000, 32000) == 1
    assert layers_at_once(large, torch.device("cpu"), 1000, 32000) == 1


def test_stages_are_built_with_as_many(monkeypatch: pytest.MonkeyPatch) -> None:
    config = parse(["--set", "model.layers=5"])
    pools: list[int] = []

    def counted(threads: int, name: str) -> ThreadPoolExecutor:
        pools.append(threads)
        return ThreadPoolExecutor(threads, name)

    monkeypatch.setattr("holdfast.trainer.model.model.ThreadPoolExecutor", counted)
    monkeypatch.setattr("holdfast.trainer.pipeline.pipeline.layers_at_once", lambda *given: 3)
    with rank_of(plan(config, 1, 256)) as mesh:
        build_stages(config, mesh, 256, Moment(0), lambda logits, targets: logits.sum())
    assert pools == [3]


@pytest.mark.parametrize("mlp", ["gelu", "swiglu"])
@pytest.mark.parametrize("block", ["serial", "parallel"])
def test_a_layer_compiles_as_one_graph(alone: Any, block: str, mlp: str) -> None:
    whole = stage(
        alone, "model.layers=1", f"model.block={block}", f"model.mlp={mlp}", "model.d_model=64", "data.seq_len=8"
    )
    layer, x = whole.layers["0"], torch.randn(1, 8, 64, dtype=torch.float64, requires_grad=True)
    plain = layer(x, whole.rotation, 0)
    compiled = torch.compile(layer, backend="eager", fullgraph=True)(x, whole.rotation, 0)
    torch.testing.assert_close(compiled, plain, rtol=1e-12, atol=1e-12)
    slope = torch.randn_like(plain)
    of_plain, of_compiled = (torch.autograd.grad(y, x, slope)[0] for y in (plain, compiled))
    torch.testing.assert_close(of_compiled, of_plain, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("length", "window"), [(8, 1), (8, 3), (8, 8), (8, 20), (9, 0), (64, 17)])
def test_pairs_are_those_that_the_mask_allows(length: int, window: int) -> None:
    mask = allowed(length, window or length, torch.device("cpu"))
    assert score_pairs(length, window) == int(mask.sum())
    for i in range(length):
        for j in range(length):
            assert bool(mask[i, j]) == (0 <= i - j < (window or length))


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("window", [0, 1, 4, 12])
def test_attention_equals_a_dense_mask(window: int, heads: int) -> None:
    torch.manual_seed(0)
    mixed = torch.randn(2, 12, 3, (heads + 2) * 4, dtype=torch.float64)
    seen = attend(mixed, heads, 4, rotations(12, 4, dtype=torch.float64), window).view(2, 12, 3, heads, 4)
    angles = torch.outer(torch.arange(12.0, dtype=torch.float64), torch.tensor([1, 0.01], dtype=torch.float64))
    cos, sin = angles.cos(), angles.sin()

    def turned(x: Tensor) -> Tensor:
        left, right = x.chunk(2, dim=-1)
        return torch.cat([left * cos - right * sin, left * sin + right * cos], dim=-1)

    distance = torch.arange(12).unsqueeze(1) - torch.arange(12)
    hidden = (distance < 0) | (distance >= (window or 12))
    for group in range(3):
        *queries, k, v = mixed[:, :, group].split(4, dim=-1)
        for head, q in enumerate(queries):
            scores = turned(q) @ turned(k).transpose(-1, -2) / 2
            expected = scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v
            assert torch.allclose(seen[:, :, group, head], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("block", ["parallel", "serial"])
def test_nothing_beyond_the_windows_of_all_layers_is_seen(alone: Any, block: str) -> None:
    layers, window = 3, 4
    model = stage(alone, f"model.layers={layers}", f"model.window={window}", f"model.block={block}")
    seen = torch.randn(1, 24, 128, dtype=torch.float64, requires_grad=True)
    model.is_first = False  # begin behind the embedding
    logits = model(seen, torch.tensor(0))
    (grad,) = torch.autograd.grad(logits[0, -1].square().sum(), seen)
    reach = layers * (window - 1)
    felt = grad[0].flip(0).abs().sum(dim=-1)
    assert felt[reach] > 0
    assert felt[: reach + 1].min() > 0
    assert torch.equal(felt[reach + 1 :], torch.zeros_like(felt[reach + 1 :]))


@pytest.mark.parametrize("recompute", ["selective", "full"])
@pytest.mark.parametrize("block", ["parallel", "serial"])
def test_recomputing_gives_the_same_bits(alone: Any, block: str, recompute: str) -> None:
    outcomes = []
    for kind in ("none", recompute):
        model = stage(alone, "model.layers=2", "model.dropout=0.2", f"model.block={block}", f"train.recompute={kind}")
        logits = model(torch.arange(64).view(1, 64), torch.tensor(3))
        torch.autograd.backward(logits.square().mean())
        outcomes.append([logits, *(p.grad for p in model.parameters())])
    assert all(torch.equal(a, b) for a, b in zip(*outcomes, strict=True))


def test_recomputing_keeps_less(alone: Any) -> None:
    kept = {}
    for kind in ("none", "selective", "full"):
        model = stage(alone, "model.layers=2", f"train.recompute={kind}")
        held: dict[int, int] = {}

        def note(tensor: Tensor, held: dict[int, int] = held) -> Tensor:
            held[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
            logits = model(torch.arange(64).view(1, 64), torch.tensor(0))
        kept[kind] = sum(held.values()) - sum(p.nbytes for p in model.parameters())
        del logits
    assert kept["full"] < kept["selective"] < kept["none"]


# Of one layer and micro-batch, forward and backward; and of what is no layer's: a gradient sum of all
# that is not split, once a step.
PAIR = {"parallel": 1, "serial": 2}


@pytest.mark.parametrize("block", ["parallel", "serial"])
@pytest.mark.parametrize("sequence", ["false", "true"])
def test_collectives_of_a_layer(zygote: Zygote, tiny: list[str], tmp_path: Path, block: str, sequence: str) -> None:
    counts = []
    for layers in (1, 3):
        argv = [*tiny, "--tp", "2", "--steps", "1", "--set", f"model.layers={layers}", "--set", "train.micro_batches=1"]
        argv += ["--set", f"model.block={block}", "--set", f"parallel.sequence={sequence}"]
        done = zygote.run("collectives", 2, tmp_path / str(layers), args={"argv": argv})
        assert done["exits"] == [0, 0]
        counts.append(Counter(done["results"][0]["counts"]))
    each = Counter({name: (counts[1][name] - counts[0][name]) / 2 for name in counts[1]})
    pair = PAIR[block]
    if sequence == "false":
        assert each == Counter({"tp:all_reduce forward": pair, "tp:all_reduce backward": pair})
        return
    ways = ("forward", "backward")
    kinds = ("tp:all_gather", "tp:reduce_scatter")
    assert each == Counter({f"{kind} {way}": pair for kind in kinds for way in ways})
    bytes_each = done["results"][0]["wire_bytes"]
    # Each moves (ranks - 1) / ranks of (batch, sequence, width) in float32.
    assert bytes_each == {kind: [1 * 16 * 32 * 4 // 2] for kind in kinds}
