"""The transformer, cut into pipeline stages.

Layers keep their global number in every stage, so parameter names are the same in all layouts. What a
layer computes depends on seed, step and micro-batch, never on which ranks compute it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from holdfast.trainer.config import Config, ModelConfig
from holdfast.trainer.tensor_parallel import Parameters, fan_out, hash_of, local, sum_up


@dataclass(slots=True)
class Moment:
    """Where training is; the stages of a rank share one. Only dropout reads it."""

    seed: int
    step: int = 0
    first_micro_batch: int = 0
    """Global number of this replica's first micro-batch."""


class Dropout(nn.Module):
    """Drops activations by a mask that any rank of any layout draws alike."""

    def __init__(self, rate: float, site: str, moment: Moment) -> None:
        super().__init__()
        self.rate, self.site, self.moment = rate, site, moment

    def forward(self, x: Tensor, micro_batch: int) -> Tensor:
        if not self.rate:
            return x
        moment = self.moment
        seed = hash_of(moment.seed, "dropout", moment.step, moment.first_micro_batch + micro_batch, self.site)
        generator = torch.Generator(x.device).manual_seed(seed)
        kept = torch.rand(x.shape, generator=generator, device=x.device) >= self.rate
        return x * kept.to(x.dtype) / (1 - self.rate)


class Norm(nn.Module):
    """Root-mean-square normalisation over the last dimension."""

    def __init__(self, width: int, make: Parameters) -> None:
        super().__init__()
        self.weight = make.ones((width,))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), local(self.weight), eps=1e-5)


class Linear(nn.Module):
    """A matrix without bias. `shard` 0 splits its outputs over tp, 1 its inputs, None nothing."""

    def __init__(self, name: str, inputs: int, outputs: int, std: float, shard: int | None, make: Parameters):
        super().__init__()
        self.weight = make.normal(f"{name}.weight", (outputs, inputs), std, shard)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, local(self.weight))


class Attention(nn.Module):
    """Causal self-attention with rotary positions, on this rank's heads. Returns a partial result."""

    def __init__(self, name: str, model: ModelConfig, make: Parameters) -> None:
        super().__init__()
        width, std = model.d_model, model.init_std
        self.head_width = width // model.heads
        # Rows go head by head, and q, k, v within a head: a split by rows is then a split by heads.
        self.qkv = Linear(f"{name}.qkv", width, 3 * width, std, 0, make)
        self.out = Linear(f"{name}.out", width, width, std / (2 * model.layers) ** 0.5, 1, make)

    def forward(self, x: Tensor, rotation: Tensor) -> Tensor:
        batch, length, _ = x.shape
        mixed = self.qkv(x).view(batch, length, -1, 3, self.head_width).transpose(1, 2)
        q, k, v = mixed.unbind(3)
        seen = F.scaled_dot_product_attention(rotate(q, rotation), rotate(k, rotation), v, is_causal=True)
        return self.out(seen.transpose(1, 2).reshape(batch, length, -1))  # type: ignore[no-any-return]


class FeedForward(nn.Module):
    """Two matrices with a GELU between, on this rank's share of the width. Returns a partial result."""

    def __init__(self, name: str, model: ModelConfig, make: Parameters) -> None:
        super().__init__()
        width, inner, std = model.d_model, model.d_model * model.ffn_mult, model.init_std
        self.up = Linear(f"{name}.up", width, inner, std, 0, make)
        self.down = Linear(f"{name}.down", inner, width, std / (2 * model.layers) ** 0.5, 1, make)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x), approximate="tanh"))  # type: ignore[no-any-return]


class Block(nn.Module):
    """One layer. Parallel: x + attention(n(x)) + ffn(n(x)). Serial: one after the other."""

    def __init__(self, name: str, model: ModelConfig, make: Parameters, moment: Moment) -> None:
        super().__init__()
        self.group = make.mesh.get_group()
        self.norm = Norm(model.d_model, make)
        self.attention = Attention(f"{name}.attention", model, make)
        self.ffn = FeedForward(f"{name}.ffn", model, make)
        self.ffn_norm = Norm(model.d_model, make) if model.block == "serial" else None
        self.dropout = Dropout(model.dropout, f"{name}.attention", moment)
        self.ffn_dropout = Dropout(model.dropout, f"{name}.ffn", moment)

    def forward(self, x: Tensor, rotation: Tensor, micro_batch: int) -> Tensor:
        shared = fan_out(self.norm(x), self.group)
        partial = self.attention(shared, rotation)
        if self.ffn_norm is None:
            # Both partial results need the same sum: one collective for the two.
            return x + self.dropout(sum_up(partial + self.ffn(shared), self.group), micro_batch)  # type: ignore[no-any-return]
        x = x + self.dropout(sum_up(partial, self.group), micro_batch)
        shared = fan_out(self.ffn_norm(x), self.group)
        return x + self.ffn_dropout(sum_up(self.ffn(shared), self.group), micro_batch)  # type: ignore[no-any-return]


class Embedding(nn.Module):
    """Tokens to vectors; with `shard`, each tp rank holds its share of the vocabulary."""

    def __init__(self, vocab: int, model: ModelConfig, make: Parameters, moment: Moment, shard: bool) -> None:
        super().__init__()
        self.group: dist.ProcessGroup | None = make.mesh.get_group() if shard else None
        rows = vocab // make.mesh.size()
        self.first = make.mesh.get_local_rank() * rows if shard else 0
        self.weight = make.normal("embed.weight", (vocab, model.d_model), model.init_std, 0 if shard else None)
        self.dropout = Dropout(model.dropout, "embed", moment)

    def forward(self, tokens: Tensor, micro_batch: int) -> Tensor:
        weight = local(self.weight)
        if self.group is None:
            found = F.embedding(tokens, weight)
        else:
            row = tokens - self.first
            ours = (row >= 0) & (row < weight.shape[0])
            found = F.embedding(row.clamp(0, weight.shape[0] - 1), weight) * ours.unsqueeze(-1)
            found = sum_up(found, self.group)
        return self.dropout(found, micro_batch)  # type: ignore[no-any-return]


class Head(nn.Module):
    """Vectors to logits; with `shard`, of this rank's share of the vocabulary."""

    def __init__(self, vocab: int, model: ModelConfig, make: Parameters, shard: bool) -> None:
        super().__init__()
        self.group: dist.ProcessGroup | None = make.mesh.get_group() if shard else None
        self.norm = Norm(model.d_model, make)
        self.out = Linear("head.out", model.d_model, vocab, model.init_std, 0 if shard else None, make)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x)
        return self.out(x if self.group is None else fan_out(x, self.group))  # type: ignore[no-any-return]


class Stage(nn.Module):
    """Consecutive layers, with the embedding before the first and the head after the last one."""

    def __init__(self, config: Config, layers: range, vocab: int, make: Parameters, moment: Moment) -> None:
        super().__init__()
        model, shard_vocabulary = config.model, config.parallel.shard_vocabulary
        self.is_first, self.is_last = layers.start == 0, layers.stop == model.layers
        self.embed = Embedding(vocab, model, make, moment, shard_vocabulary) if self.is_first else None
        self.layers = nn.ModuleDict({str(i): Block(f"layers.{i}", model, make, moment) for i in layers})
        self.head = Head(vocab, model, make, shard_vocabulary) if self.is_last else None
        self.rotation: Tensor
        rotation = rotations(config.data.seq_len, model.d_model // model.heads).to(make.device)
        self.register_buffer("rotation", rotation, persistent=False)

    def forward(self, x: Tensor, micro_batch: Tensor) -> Tensor:
        """One micro-batch through this stage.

        `x` is (batch, seq) tokens in the first stage, (batch, seq, width) in others; `micro_batch` is one
        number, counted within the replica. Returns (batch, seq, width), or logits from the last stage.
        """
        number = int(micro_batch)
        if self.embed is not None:
            x = self.embed(x, number)
        for layer in self.layers.values():
            x = layer(x, self.rotation, number)
        return x if self.head is None else self.head(x)


def boundary(config: Config, tp: int, device: torch.device) -> Tensor:
    """What goes from one stage to the next for a micro-batch: shape (batch, seq, width), values unset."""
    shape = (config.train.micro_batch_size, config.data.seq_len, config.model.d_model)
    return torch.empty(shape, device=device, requires_grad=True)


def rotations(length: int, width: int) -> Tensor:
    """Cosine and sine of each position's angles, shape (2, length, width // 2)."""
    rates = 10000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    angles = torch.outer(torch.arange(length, dtype=torch.float64), rates)
    return torch.stack([angles.cos(), angles.sin()]).float()


def rotate(x: Tensor, rotation: Tensor) -> Tensor:
    """Turn pairs (i, i + half) of the last dimension of x, (..., length, width), by position."""
    cos, sin = rotation[:, : x.shape[-2]]
    left, right = x.chunk(2, dim=-1)
    return torch.cat([left * cos - right * sin, left * sin + right * cos], dim=-1)
