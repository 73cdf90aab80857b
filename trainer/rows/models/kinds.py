"""Small modules of the kinds that a partitioner must cope with, written as any user would, and inputs for each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH, LENGTH, VOCABULARY = 16, 8, 32


class Mlp(nn.Module):
    """Skips over one and over three layers."""

    def __init__(self, layers: int = 6) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        seen = [x]
        for number, layer in enumerate(self.layers):
            x = x + torch.tanh(layer(x))
            if number % 3 == 2:
                x = x + seen[-3]
            seen.append(x)
        return x


class Attention(nn.Module):
    """Multi-head, of one sequence to itself or to another."""

    def __init__(self, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def forward(self, x: Tensor, other: Tensor, is_causal: bool) -> Tensor:
        q, k, v = (
            matrix(of).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for matrix, of in ((self.q, x), (self.k, other), (self.v, other))
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=is_causal)
        return self.out(mixed.transpose(1, 2).flatten(-2))  # type: ignore[no-any-return]


class Layer(nn.Module):
    """Of a transformer; with `is_crossed` it also reads another sequence."""

    def __init__(self, is_causal: bool, is_crossed: bool = False) -> None:
        super().__init__()
        self.is_causal = is_causal
        self.norm, self.attention = nn.LayerNorm(WIDTH), Attention()
        self.crossed = Attention() if is_crossed else None
        self.feed = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor, other: Tensor | None = None) -> Tensor:
        seen = self.norm(x)
        x = x + self.attention(seen, seen, self.is_causal)
        if self.crossed is not None and other is not None:
            x = x + self.crossed(x, other, False)
        return x + self.feed(x)  # type: ignore[no-any-return]


class Gpt(nn.Module):
    """Tokens to logits; `is_tied`: the head reads the embedding's table."""

    def __init__(self, layers: int = 3, is_tied: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Parameter(torch.randn(LENGTH, WIDTH) / 8)
        self.layers = nn.ModuleList(Layer(True) for _ in range(layers))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        if is_tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens) + self.positions
        for layer in self.layers:
            x = layer(x)
        return self.head(x)  # type: ignore[no-any-return]


class EncoderDecoder(nn.Module):
    """As T5: two inputs, and a dictionary of two results, one of which the encoder has made. The decoder's layers all
    read what the encoder made, and one table embeds both inputs."""

    def __init__(self, layers: int = 2) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.encoder = nn.ModuleList(Layer(False) for _ in range(layers))
        self.decoder = nn.ModuleList(Layer(True, is_crossed=True) for _ in range(layers))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, source: Tensor, target: Tensor) -> dict[str, Tensor]:
        x, y = self.embed(source), self.embed(target)
        for layer in self.encoder:
            x = layer(x)
        is_text = (target > 0).unsqueeze(-1)  # crosses as what it is, without a gradient
        for layer in self.decoder:
            y = layer(y, x)
        return {"logits": self.head(y * is_text), "encoded": x}


class ResNet(nn.Module):
    """Convolutions that change in place what they have made."""

    def __init__(self, blocks: int = 3) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, WIDTH, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.GroupNorm(4, WIDTH),
                nn.ReLU(),
                nn.Conv2d(WIDTH, WIDTH, 3, padding=1),
                nn.GroupNorm(4, WIDTH),
                nn.ReLU(inplace=True),
                nn.Conv2d(WIDTH, WIDTH, 3, padding=1),
            )
            for _ in range(blocks)
        )
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            made = block(x)
            made += x
            x = F.relu_(made)
        return self.head(x.mean((2, 3)))  # type: ignore[no-any-return]


class UNet(nn.Module):
    """Skips from each level of the way down to that of the way up."""

    def __init__(self, levels: int = 3) -> None:
        super().__init__()
        wide = [8 << level for level in range(levels)]
        self.down = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1) for a, b in zip([3, *wide[:-1]], wide, strict=True))
        self.up = nn.ModuleList(
            nn.Conv2d(a + b, b, 3, padding=1) for a, b in zip(reversed(wide), [*reversed(wide[:-1]), 8], strict=True)
        )
        self.out = nn.Conv2d(8, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept = []
        for conv in self.down:
            x = F.silu(conv(x))
            kept.append(x)
            x = F.avg_pool2d(x, 2)
        for conv, skip in zip(self.up, reversed(kept), strict=True):
            wide = F.interpolate(x, scale_factor=2)[:, : conv.out_channels]
            x = F.silu(conv(torch.cat([wide, skip], dim=1)))
        return self.out(x)  # type: ignore[no-any-return]


class Experts(nn.Module):
    """A mixture of experts that computes all of them and weighs the two best, so nothing branches on data."""

    def __init__(self, layers: int = 2, experts: int = 3) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.gates = nn.ModuleList(nn.Linear(WIDTH, experts, bias=False) for _ in range(layers))
        self.experts = nn.ModuleList(
            nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(experts)) for _ in range(layers)
        )
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for gate, experts in zip(self.gates, self.experts, strict=True):
            scores = gate(x)
            best = scores >= scores.topk(2, dim=-1).values[..., -1:]
            weights = scores.masked_fill(~best, float("-inf")).softmax(-1)
            assert isinstance(experts, nn.ModuleList)
            each = torch.stack([F.gelu(expert(x)) for expert in experts], dim=-1)
            x = x + (each * weights.unsqueeze(-2)).sum(-1)
        return self.head(x)  # type: ignore[no-any-return]


def _tokens() -> Tensor:
    return torch.randint(0, VOCABULARY, (2, LENGTH))


KINDS: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[Any, ...]]]] = {
    "MLP with skips": (Mlp, lambda: (torch.randn(4, WIDTH),)),
    "GPT": (Gpt, lambda: (_tokens(),)),
    "T5-like": (EncoderDecoder, lambda: (_tokens(), _tokens())),
    "ResNet": (ResNet, lambda: (torch.randn(2, 3, 8, 8),)),
    "tied embeddings": (lambda: Gpt(is_tied=True), lambda: (_tokens(),)),
    "U-net": (UNet, lambda: (torch.randn(2, 3, 8, 8),)),
}
