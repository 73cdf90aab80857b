"""Modules as a user would write them, and wrong ones, each made by a function that `module.build` names."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.trainer.rows.models import kinds


class Net(nn.Module):
    """Tokens to logits: residual layers, a learned scale that two of them share, a table that the head reads too."""

    def __init__(self, layers: int = 8, rate: float = 0.0, is_tied: bool = True, width: int = 16) -> None:
        super().__init__()
        self.table = nn.Embedding(256, width)
        self.moment = nn.Linear(width, width)  # a name that stages of the trainer have for something else
        self.layers = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
            for _ in range(layers)
        )
        self.dropout = nn.Dropout(rate)
        self.head = nn.Linear(width, 256, bias=False)
        self.frozen = nn.Parameter(torch.randn(width), requires_grad=False)
        if is_tied:
            self.head.weight = self.table.weight

    def forward(self, tokens: Tensor) -> Tensor:
        is_text = (tokens > 8).unsqueeze(-1)
        x = first = self.moment(self.table(tokens)) + self.frozen
        for layer in self.layers:
            x = x + self.dropout(layer(x))
        return self.head((x + first) * is_text)  # type: ignore[no-any-return]


def net() -> nn.Module:
    return Net()


def wide() -> nn.Module:
    return Net(width=64)


def dropping() -> nn.Module:
    return Net(rate=0.2, is_tied=False)


def llama() -> nn.Module:
    import transformers

    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=256, use_cache=False, **shape))


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Embedding(256, 256)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.layer(tokens)
        return x * 2 if x.sum() > 0 else x  # type: ignore[no-any-return]


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Embedding(256, 256), nn.BatchNorm1d(256)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.norm(self.layer(tokens).transpose(1, 2)).transpose(1, 2)  # type: ignore[no-any-return]


class Alike(nn.Module):
    """Its layers are one."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.layer, self.head = nn.Embedding(256, 8), nn.Linear(8, 8), nn.Linear(8, 256)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for _ in range(4):
            x = torch.relu(self.layer(x))
        return self.head(x)  # type: ignore[no-any-return]


class Returning(nn.Module):
    def __init__(self, what: str) -> None:
        super().__init__()
        self.what, self.table = what, nn.Embedding(256, 100)

    def forward(self, tokens: Tensor) -> Any:
        x = self.table(tokens)
        return {"pair": (x, x), "narrow": x, "sum": x.sum(), "words": {"scores": x}}[self.what]


class Placed(nn.Module):
    """Makes tensors on the device of its inputs: of their shape, or, with `numbers`, of numbers."""

    def __init__(self, numbers: bool) -> None:
        super().__init__()
        self.numbers, self.table, self.head = numbers, nn.Embedding(256, 16), nn.Linear(16, 256)
        self.head.weight = self.table.weight
        self.register_buffer("scale", torch.full((16,), 0.5))

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device, dtype=self.table.weight.dtype)
        x = self.table(tokens) * self.scale + places[:, None] / 8
        if self.numbers:
            x = x + torch.tensor([[1.0], [2.0]] * 4, device=tokens.device, dtype=x.dtype)
        return self.head(x)  # type: ignore[no-any-return]


def placed() -> nn.Module:
    return Placed(numbers=False)


def numbers() -> nn.Module:
    return Placed(numbers=True)


class Blocks(nn.Module):
    """Makes tensors of its inputs' device in blocks without gradients, with `numbers` of numbers too, and branches."""

    def __init__(self, numbers: bool) -> None:
        super().__init__()
        self.numbers = numbers
        self.table, self.places, self.head = nn.Embedding(256, 16), nn.Embedding(8, 16), nn.Linear(16, 256)

    def forward(self, tokens: Tensor) -> Tensor:
        with torch.no_grad():
            places = torch.arange(tokens.shape[1], device=tokens.device) + 0
        x = self.table(tokens) + self.places(places)
        if self.numbers:
            with torch.no_grad():
                shift = torch.tensor([1.0, 2.0], device=tokens.device).to(x.dtype).repeat(8) + 1
            x = x + shift
        x = torch.sin(x) if tokens.device.type == "cpu" else torch.cos(x)
        return self.head(x)  # type: ignore[no-any-return]


def blocks() -> nn.Module:
    return Blocks(numbers=False)


def block_numbers() -> nn.Module:
    return Blocks(numbers=True)


def branching() -> nn.Module:
    return Branching()


def normed() -> nn.Module:
    return Normed()


def alike() -> nn.Module:
    return Alike()


def pair() -> nn.Module:
    return Returning("pair")


def narrow() -> nn.Module:
    return Returning("narrow")


def scalar() -> nn.Module:
    return Returning("sum")


def words() -> nn.Module:
    return Returning("words")


def raising() -> nn.Module:
    raise RuntimeError("no weights\nhere")


def leaving() -> nn.Module:
    sys.exit(3)


def number() -> int:
    return 5


def untrained() -> nn.Module:
    return nn.Identity()


def gpt() -> nn.Module:
    return kinds.Gpt()


no_function = 5
