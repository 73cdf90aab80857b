"""Modules of many kinds, cut and put together again, compute the same bits, forward and back."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from holdfast.trainer.modules.recompose import Recomposed
from holdfast.trainer.modules.split import Partition, partition
from holdfast.trainer.modules.trace import trace
from holdfast.trainer.rows.models.kinds import KINDS, VOCABULARY, Experts, Gpt

Kind = tuple[Callable[[], nn.Module], Callable[[], tuple[Any, ...]]]


def llama() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4}
    config = transformers.LlamaConfig(vocab_size=VOCABULARY, num_key_value_heads=2, use_cache=False, **shape)
    return transformers.LlamaForCausalLM(config)


def gpt2() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    rates = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY, n_embd=16, n_layer=2, n_head=2, n_positions=16, use_cache=False, **rates
    )
    return transformers.GPT2LMHeadModel(config)


def tokens() -> tuple[Tensor]:
    return (torch.randint(0, VOCABULARY, (2, 8)),)


ALL: dict[str, Kind] = {
    **KINDS,
    "experts": (Experts, tokens),
    "Hugging Face's Llama": (llama, tokens),
    "Hugging Face's GPT-2, tied": (gpt2, tokens),
}


EXPORTED: dict[str, dict[str, Any]] = {
    "Hugging Face's Llama": {"attention_mask": torch.ones(8, 8, dtype=torch.bool).tril().expand(2, 1, 8, 8)}
}
"""What to call a module with for the operations that it asks for while it is exported.

transformers then gives attention a mask and repeats keys and values. Else it leaves both to the kernel, whose sums of
the gradients of shared keys and values have another order, and on CPUs with AVX-512 other bits."""


def cut_in(kind: str, stages: int) -> tuple[nn.Module, tuple[Any, ...], Partition]:
    torch.manual_seed(1)
    build, inputs = ALL[kind]
    plain = build().train()
    args = inputs()
    return plain, args, partition(trace(copy.deepcopy(plain), args), stages, torch.float32)


@pytest.mark.parametrize("kind", ALL)
def test_stages_compute_what_the_module_does(kind: str) -> None:
    plain, args, whole = cut_in(kind, 3)
    stages = Recomposed(whole)
    tree, results = stages.forward(*args)
    expected_tree = plain(*args, **EXPORTED.get(kind, {}))
    expected = tree_leaves(expected_tree)
    assert type(tree) is type(expected_tree)
    assert all(torch.equal(a, b) for a, b in zip(tree_leaves(tree), expected, strict=True))
    grads = [torch.randn_like(result) for result in expected]
    stages.backward(results, grads)
    torch.autograd.backward(expected, grads)
    found = stages.gradients()
    wanted = {name: parameter.grad for name, parameter in plain.named_parameters()}
    assert found.keys() == wanted.keys()
    held = [{name for name, _ in piece.named_parameters()} for piece in stages.pieces]
    assert held == [whole.parameters_of(stage) for stage in range(3)]
    assert [name for name, grad in wanted.items() if grad is None or not torch.equal(found[name], grad)] == []


@pytest.mark.parametrize("kind", EXPORTED)
def test_a_module_that_computes_otherwise_when_exported_has_the_same_gradients_but_for_rounding(kind: str) -> None:
    plain, args, _ = cut_in(kind, 3)
    exported = copy.deepcopy(plain)
    (own,), (other,) = tree_leaves(plain(*args)), tree_leaves(exported(*args, **EXPORTED[kind]))
    assert torch.equal(own, other)
    grad = torch.randn_like(own)
    torch.autograd.backward([own, other], [grad, grad])
    for (name, one), two in zip(plain.named_parameters(), exported.parameters(), strict=True):
        assert one.grad is not None, name
        torch.testing.assert_close(one.grad, two.grad, rtol=0.0, atol=2e-6 * float(one.grad.abs().max()))


@pytest.mark.parametrize("kind", ["tied embeddings", "Hugging Face's GPT-2, tied"])
def test_a_shared_table_is_in_both_end_stages_and_every_other_parameter_in_one(kind: str) -> None:
    plain, _, whole = cut_in(kind, 3)
    held = [whole.parameters_of(stage) for stage in range(3)]
    assert whole.cuts.tied in {"embed.weight", "transformer.wte.weight"}
    assert held[0] & held[2] == {whole.cuts.tied}
    assert not held[1] & (held[0] | held[2])
    assert set().union(*held) == {name for name, _ in plain.named_parameters()}


class Stopped(nn.Module):
    """No gradient goes back through some of its values."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.still = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        with torch.no_grad():
            scale = torch.sigmoid(self.still(x))
        return self.second(x * scale) + x.detach()  # type: ignore[no-any-return]


def test_what_has_no_gradient_in_the_module_has_none_in_its_stages() -> None:
    torch.manual_seed(0)
    plain, args = Stopped(), (torch.randn(2, 4),)
    whole = partition(trace(copy.deepcopy(plain), args), 2, torch.float32)
    stages = Recomposed(whole)
    _, (result,) = stages.forward(*args)
    stages.backward([result], [torch.ones_like(result)])
    torch.autograd.backward([plain(*args)], [torch.ones_like(result)])
    found = stages.gradients()
    assert found.keys() == {name for name, p in plain.named_parameters() if p.grad is not None}
    assert all(torch.equal(grad, plain.get_parameter(name).grad) for name, grad in found.items())


def test_a_value_that_a_later_stage_reads_goes_through_those_between() -> None:
    _, _, whole = cut_in("U-net", 3)
    through = set(whole.crossing(0)) & set(whole.crossing(1))
    assert through, "the outermost skip is read in the last stage"


def test_memory_is_laid_out_behind_a_cut_as_before_it() -> None:
    torch.manual_seed(0)
    plain, args = Gpt(), tokens()
    found = trace(copy.deepcopy(plain), args)
    for place, node in enumerate(found.operations):
        value = node.meta["val"]
        if place and not value.is_contiguous() and value.is_floating_point():
            break
    whole = partition(found, 1, torch.float32)
    from holdfast.trainer.modules.message import Field, Message

    field = Field.of(value, True)
    real = torch.randn(field.in_memory).permute(field.back)
    (back,) = Message((field,), torch.float32).unpack(Message((field,), torch.float32).pack([real]))
    assert whole.stages == 1
    assert torch.equal(back, real)
    assert back.stride() == real.stride() == value.stride()
