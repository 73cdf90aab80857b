"""What a transformer is made of, each piece on this rank's share of its parameters.

Activations between layers are (batch, sequence, width): whole on every tp rank, or with sequence
parallelism this rank's positions. `Site` hides which.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.compiler import is_dynamo_compiling

from holdfast.trainer.model import overlap
from holdfast.trainer.model.accumulate import multiply, multiply_all
from holdfast.trainer.model.functions import applied
from holdfast.trainer.model.sequence_parallel import gather_sequence, own_positions, scatter_sum
from holdfast.trainer.model.tensor_parallel import Packed, Parameters, fan_out, local, sum_up
from holdfast.trainer.settings.config import ModelConfig


@dataclass(frozen=True, slots=True)
class Site:
    """How activations lie on the tp ranks, and how they get into and out of a split layer."""

    group: dist.ProcessGroup
    is_split: bool
    """Whether each rank holds its own positions only (sequence parallelism)."""
    chunks: int = 1
    """Pieces of the sequence of which one is on its way while another is multiplied; 1: one after the other."""
    is_alone: bool = False
    """Whether there is no other rank: activations go nowhere."""
    sub_batches: int = 1
    """Parts of a micro-batch that layers compute one after the other. With 2 or more, matrices give this rank's share
    of what they make, and `sub_batches.pipelined` adds up the shares."""

    @property
    def split(self) -> dist.ProcessGroup | None:
        return self.group if self.is_split else None

    def spread(self, x: Tensor) -> Tensor:
        """Hand an activation to all shards of a layer: whole afterwards."""
        return gather_sequence(x, self.group) if self.is_split else fan_out(x, self.group)

    def join(self, partial: Tensor) -> Tensor:
        """Add up what the shards made of it."""
        return scatter_sum(partial, self.group) if self.is_split else sum_up(partial, self.group)

    def enter(self, x: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
        """An activation, as it lies between layers, through matrices of which each rank has some rows: it goes to
        the ranks once for all of them."""
        if self.sub_batches > 1:
            return multiply_all(x, *weights)
        if self.chunks > 1:
            in_chunks = overlap.gather_multiply if self.is_split else overlap.multiply_fanned
            return in_chunks(x, weights, self.group, self.chunks)
        whole = x if self.is_alone else self.spread(x)
        return multiply_all(whole, *weights)

    def leave(self, x: Tensor, weight: Tensor) -> Tensor:
        """Columns of each rank through a matrix of which it has some columns: an activation between layers."""
        if self.is_alone or self.sub_batches > 1:
            return multiply(x, weight)
        if self.chunks == 1:
            return self.join(multiply(x, weight))
        in_chunks = overlap.multiply_scatter if self.is_split else overlap.multiply_sum
        return in_chunks(x, weight, self.group, self.chunks)

    def own(self, x: Tensor) -> Tensor:
        """The part that lies here of something that every rank has whole."""
        return own_positions(x, self.group) if self.is_split else x


class RmsNorm(nn.Module):
    """Root-mean-square normalisation over the last dimension."""

    def __init__(self, model: ModelConfig, make: Parameters) -> None:
        super().__init__()
        self.eps = model.norm_eps
        self.weight = make.constant((model.d_model,), 1.0)

    def forward(self, x: Tensor) -> Tensor:
        weight = local(self.weight)
        # torch has no kernel of its own for a CPU, and walks through the tensor some fifteen times.
        if x.is_cuda or x.dtype == torch.bfloat16 or is_dynamo_compiling():
            return F.rms_norm(x, (x.shape[-1],), weight, eps=self.eps)
        result: Tensor = _rms_norm(x, weight, self.eps)
        return result


class _RmsNorm(torch.autograd.Function):
    """y = x r w with r = 1 / sqrt(mean(x^2) + eps). Backward of g: r (g w - x r^2 mean(g x w)) and sum(g x r)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        scale = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_()
        scale.div_(x.shape[-1]).add_(eps).rsqrt_()
        ctx.save_for_backward(x, weight, scale)
        result: Tensor = (x * scale).mul_(weight)
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight, scale = ctx.saved_tensors
        both = (grads[0] * x).flatten(0, -2)
        means = torch.mv(both, weight).view(scale.shape).mul_(scale).mul_(scale)
        of_x = torch.mul(grads[0], weight).addcmul_(x, means, value=-1 / x.shape[-1]).mul_(scale)
        return of_x, torch.mv(both.t(), scale.flatten()), None


_rms_norm = applied(_RmsNorm)
fused_rms_norm = _rms_norm
"""The same by a name for others: it saves what a GPU's kernel saves."""


class LayerNorm(nn.Module):
    """Normalisation to mean 0 and variance 1 over the last dimension, with a bias."""

    def __init__(self, model: ModelConfig, make: Parameters) -> None:
        super().__init__()
        self.eps = model.norm_eps
        self.weight = make.constant((model.d_model,), 1.0)
        self.bias = make.constant((model.d_model,), 0.0)

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, (x.shape[-1],), local(self.weight), local(self.bias), eps=self.eps)


def norm(model: ModelConfig, make: Parameters) -> nn.Module:
    """The normalisation that the settings ask for."""
    return RmsNorm(model, make) if model.norm == "rms" else LayerNorm(model, make)


class Linear(nn.Module):
    """A matrix without bias, packed from `pieces`. Split over tp by rows on the way in, by columns on the way out."""

    def __init__(self, pieces: list[Packed], is_inward: bool, groups: int, make: Parameters, site: Site) -> None:
        super().__init__()
        self.is_inward, self.site = is_inward, site
        self.weight = make.packed(pieces, 0 if is_inward else 1, groups)

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight if self.site.is_alone else local(self.weight)
        return self.site.enter(x, weight)[0] if self.is_inward else self.site.leave(x, weight)


class Embedding(nn.Module):
    """Tokens to vectors; with `shard`, each tp rank holds its share of the vocabulary.

    Tied embeddings are this table in the last stage too, where only its weight is used.
    """

    def __init__(self, vocab: int, model: ModelConfig, make: Parameters, shard: bool, site: Site) -> None:
        super().__init__()
        self.shard, self.site = shard, site
        self.first = make.mesh.get_local_rank() * (vocab // make.mesh.size()) if shard else 0
        self.weight = make.normal("embed.weight", (vocab, model.d_model), model.init_std, 0 if shard else None)

    def forward(self, tokens: Tensor) -> Tensor:
        """(batch, sequence) whole to (batch, sequence, width) as activations lie."""
        weight = local(self.weight)
        if not self.shard:
            return F.embedding(self.site.own(tokens), weight)
        row = tokens - self.first
        ours = (row >= 0) & (row < weight.shape[0])
        found = F.embedding(row.clamp(0, weight.shape[0] - 1), weight) * ours.unsqueeze(-1)
        return self.site.join(found)


class Positions(nn.Module):
    """One learned vector for each position."""

    def __init__(self, length: int, model: ModelConfig, make: Parameters, site: Site) -> None:
        super().__init__()
        self.site = site
        self.weight = make.normal("positions.weight", (length, model.d_model), model.init_std)

    def forward(self, x: Tensor) -> Tensor:
        table = local(self.weight).unsqueeze(0)
        if not self.site.is_split and x.shape[1] < table.shape[1]:  # a prompt is shorter than the samples of training
            table = table[:, : x.shape[1]]
        return x + self.site.own(table)


class Head(nn.Module):
    """Vectors to logits.

    With `shard`, of this rank's share of the vocabulary at all positions; without, of all the vocabulary
    at the positions that lie here.
    """

    def __init__(self, vocab: int, model: ModelConfig, make: Parameters, shard: bool, site: Site) -> None:
        super().__init__()
        self.shard, self.site = shard, site
        self.norm = norm(model, make)
        self.weight: nn.Parameter | None = None
        if not model.tied:
            self.weight = make.normal("head.weight", (vocab, model.d_model), model.init_std, 0 if shard else None)

    def forward(self, x: Tensor, tied: Tensor | None) -> Tensor:
        """`tied` is the embedding's table, when the head has none of its own."""
        weight = self.weight if tied is None else tied
        assert weight is not None
        x = self.norm(x)
        return multiply(self.site.spread(x) if self.shard else x, local(weight))


def activation(*inputs: Tensor) -> Tensor:
    """The feed-forward layer's non-linearity: GELU of its one input, SwiGLU of (gate, up)."""
    if len(inputs) == 1:
        return F.gelu(inputs[0], approximate="tanh")
    gate, up = inputs
    return F.silu(gate) * up


def packed_activation(x: Tensor, mlp: str) -> Tensor:
    """`activation` of inputs that lie side by side in the last dimension."""
    if mlp == "gelu":
        return activation(x)
    if is_dynamo_compiling():  # it finds a better way than ours by itself
        return activation(*x.chunk(2, dim=-1))
    result: Tensor = _swiglu(x)
    return result


class _SwiGlu(torch.autograd.Function):
    """silu(gate) * up of (gate, up). Backward writes both gradients where they belong: nothing is put together.

    On a CPU silu of numbers that do not lie side by side takes longer than to put them there first.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        gate, up = x.chunk(2, dim=-1)
        if not x.is_cuda:
            gate = gate.contiguous()
        opened = F.silu(gate)
        ctx.save_for_backward(gate, up, opened)
        return opened * up

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        gate, up, opened = ctx.saved_tensors
        into = torch.empty(*gate.shape[:-1], 2 * gate.shape[-1], dtype=gate.dtype, device=gate.device)
        of_gate, of_up = into.chunk(2, dim=-1)
        torch.mul(grads[0], opened, out=of_up)
        if gate.is_cuda:
            torch.ops.aten.silu_backward.grad_input(grads[0] * up, gate, grad_input=of_gate)
        else:
            torch.mul(torch.ops.aten.silu_backward(grads[0], gate), up, out=of_gate)
        return into


_swiglu = applied(_SwiGlu)
