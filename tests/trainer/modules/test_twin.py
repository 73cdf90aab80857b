"""A module that is traced by its twin on the device does what the module does there."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from forked import REPOSITORY
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

from holdfast.trainer.__main__ import parse
from holdfast.trainer.model.dropout import Moment
from holdfast.trainer.modules import stage
from holdfast.trainer.modules.loading import make
from holdfast.trainer.modules.recompose import Recomposed
from holdfast.trainer.modules.split import partition
from holdfast.trainer.modules.stage import ModuleStage, open_module
from holdfast.trainer.modules.trace import Trace, trace
from holdfast.trainer.modules.twin import land, twin

MODELS = REPOSITORY / "tests" / "trainer" / "support" / "own_models.py"
SMALL = ["--set", "data.seq_len=8", "--set", "train.micro_batch_size=2", "--set", "train.dtype=float64"]
SHAPE = (2, 8)
TOKENS = torch.arange(16).view(SHAPE) * 9


def built(name: str) -> nn.Module:
    return make(f"{MODELS}:{name}", 3, torch.float64)


def landed(module: nn.Module, device: str) -> Trace:
    other, tokens = twin(module, SHAPE, torch.device(device))
    found = land(trace(other, (tokens,)), module)
    assert found is not None
    return found


def operations(found: Trace) -> list[fx.Node]:
    """In graphs of blocks too."""
    graphs = [one.graph for one in found.root.modules() if isinstance(one, fx.GraphModule)]
    return [node for graph in graphs for node in graph.nodes]


def devices(found: Trace) -> set[torch.device]:
    """That operations are given."""
    leaves = pytree.tree_leaves([(node.args, node.kwargs) for node in operations(found)])
    return {leaf for leaf in leaves if isinstance(leaf, torch.device)}


def called(found: Trace) -> set[str]:
    return {str(node.target) for node in found.root.graph.nodes}


@pytest.mark.parametrize("name", ["net", "placed", "numbers", "blocks", "block_numbers"])
def test_stages_traced_by_a_twin_compute_what_the_module_does(name: str) -> None:
    module = built(name)
    stages = Recomposed(partition(landed(module, "cpu"), 2, torch.float64))
    _, (logits,) = stages.forward(TOKENS)
    expected = module(TOKENS)
    assert torch.equal(logits, expected)
    sent = torch.linspace(-1, 1, expected.numel(), dtype=torch.float64).view_as(expected)
    stages.backward([logits], [sent])
    got = {key: value.clone() for key, value in stages.gradients().items()}
    module.zero_grad()
    expected.backward(sent)
    for key, value in got.items():
        torch.testing.assert_close(value, module.get_parameter(key).grad, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", ["placed", "numbers", "blocks", "block_numbers"])
def test_on_the_cpu_a_module_is_traced_as_it_is(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = watched(monkeypatch)
    whole = open_module(parse(["--model", f"{MODELS}:{name}", *SMALL]), 2, torch.device("cpu"))
    assert seen == [("cpu", False)]
    x = TOKENS
    with torch.no_grad():
        for index in range(2):
            x = ModuleStage(whole, index, Moment(0))(x, 0)
        assert torch.equal(x, whole.trace.module(TOKENS))


def test_a_branch_on_the_device_goes_the_way_of_the_device() -> None:
    """Without gradients: their nodes need a torch that was built with CUDA."""
    module = built("blocks").requires_grad_(False)
    there, here = landed(module, "cuda:0"), landed(module, "cpu")
    assert devices(there) == {torch.device("cuda", 0)}
    assert {"aten.cos.default"} == called(there) - called(here)
    assert {"aten.sin.default"} == called(here) - called(there)


def test_no_operation_asks_where_a_tensor_is() -> None:
    """Stages move what they hold to their device."""
    found = operations(landed(built("block_numbers"), "cpu"))
    assert "aten.repeat.default" in {str(node.target) for node in found}
    assert not [node for node in found if "_assert" in str(node.target)]


class Numbers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(256, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.table(tokens) + torch.tensor([1.0, 2.0], device=tokens.device)  # type: ignore[no-any-return]


def test_numbers_that_forward_makes_keep_their_values() -> None:
    found = landed(Numbers().requires_grad_(False), "cuda:0")
    (made,) = (node.target for node in found.root.graph.nodes if node.op == "get_attr" and "." not in str(node.target))
    assert getattr(found.root, str(made)).tolist() == [1.0, 2.0]


@pytest.mark.parametrize("name", ["net", "blocks", "block_numbers"])
def test_what_a_twin_traces_leaves_the_module_in_the_host(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Meta stands for a device: what is there has left the host. Stages compute there, whatever they are made of."""
    seen = watched(monkeypatch)
    device = torch.device("meta")
    whole = open_module(parse(["--model", f"{MODELS}:{name}", *SMALL]), 2, device)
    assert seen == [("meta", True)]
    assert {one.device.type for one in whole.trace.module.parameters()} == {"cpu"}
    x = torch.zeros(SHAPE, dtype=torch.int64, device=device)
    for index in range(2):
        x = ModuleStage(whole, index, Moment(0))(x, 0)
    assert (x.shape, x.device) == ((*SHAPE, 256), device)


class Single(nn.Module):
    """Cannot be copied."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(256, 256)

    def __deepcopy__(self, known: dict[int, Any]) -> Single:
        raise TypeError("there is one only")

    def forward(self, tokens: Tensor) -> Tensor:
        return self.table(tokens)  # type: ignore[no-any-return]


class Growing(Single):
    """Its copy has a tensor more, in a block without gradients or outside."""

    def __init__(self, is_block: bool) -> None:
        super().__init__()
        self.is_block = is_block

    def __deepcopy__(self, known: dict[int, Any]) -> Growing:
        new = Growing(self.is_block)
        new.table = copy.deepcopy(self.table, known)
        new.register_buffer("more", new.table.weight.detach()[0])
        return new

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens)
        more = self._buffers.get("more")
        if more is not None:
            with torch.set_grad_enabled(not self.is_block):
                x = x + more * 2
        return x  # type: ignore[no-any-return]


@pytest.mark.parametrize("module", [Single(), Growing(False), Growing(True)], ids=["single", "growing", "block"])
def test_a_module_without_a_true_twin_is_traced_on_the_device(
    module: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = watched(monkeypatch)
    monkeypatch.setattr(stage, "make", lambda *_: module.to_empty(device="cpu"))
    whole = open_module(parse(["--model", f"{MODELS}:net", *SMALL]), 1, torch.device("meta"))
    assert seen[-1] == ("meta", False)
    assert whole.trace.module is module
    assert not any(isinstance(one, FakeTensor) for one in ModuleStage(whole, 0, Moment(0)).parameters())
    assert "aten.add.Tensor" not in called(whole.trace)


def test_ranks_agree_on_a_module_whichever_gpu_each_has() -> None:
    found = trace(built("net"), (TOKENS,))
    wholes = {}
    for name in ("cuda:0", "cuda:1", "cpu"):
        own = copy.copy(found)
        first = own.operations[1]
        kept, first.kwargs = first.kwargs, {"device": torch.device(name)}
        wholes[name] = partition(replace(own), 2, torch.float64).digest
        first.kwargs = kept
    assert wholes["cuda:0"] == wholes["cuda:1"] != wholes["cpu"]


def watched(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bool]]:
    """Of each trace to come: the device that the module is on, and whether it is without values."""
    seen: list[tuple[str, bool]] = []

    def recorded(module: nn.Module, args: tuple[Tensor], **more: Any) -> Trace:
        tensors = (*args, *module.parameters(), *module.buffers())
        ((where, is_fake),) = {(one.device.type, isinstance(one, FakeTensor)) for one in tensors}
        seen.append((where, is_fake))
        return trace(module, args, **more)

    monkeypatch.setattr(stage, "trace", recorded)
    return seen
