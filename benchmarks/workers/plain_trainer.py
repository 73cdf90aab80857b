"""A plain PyTorch script that trains a Llama-style model: what Holdfast's trainer is measured against.

    torchrun --nproc-per-node 2 benchmarks/workers/plain_trainer.py --system ddp --steps 20

Nothing of Holdfast in here. One rank without --system fsdp2 trains without any wrapper.
"""

import argparse
import os
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

OnStep = Callable[[int], None]
OnMade = Callable[[nn.Module, torch.optim.Optimizer], None]
OnLoss = Callable[[float], None]


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(turned(q, cos, sin), turned(k, cos, sin), v, is_causal=True)
        return self.out(seen.transpose(1, 2).reshape(batch, length, width))  # type: ignore[no-any-return]


class FeedForward(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.up, self.gate = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))  # type: ignore[no-any-return]


class Layer(nn.Module):
    def __init__(self, width: int, heads: int, inner: int) -> None:
        super().__init__()
        self.norm, self.ffn_norm = nn.RMSNorm(width, eps=1e-5), nn.RMSNorm(width, eps=1e-5)
        self.attention, self.ffn = Attention(width, heads), FeedForward(width, inner)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attention(self.norm(x), cos, sin)
        return x + self.ffn(self.ffn_norm(x))  # type: ignore[no-any-return]


class Llama(nn.Module):
    def __init__(self, vocab: int, layers: int, width: int, heads: int, inner: int, length: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.layers = nn.ModuleList(Layer(width, heads, inner) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(width, eps=1e-5), nn.Linear(width, vocab, bias=False)
        half = width // heads // 2
        angles = torch.outer(torch.arange(length), 10000.0 ** (-torch.arange(half) / half))
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        return self.head(self.norm(x))  # type: ignore[no-any-return]


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    left, right = x.chunk(2, dim=-1)
    return torch.cat([left * cos - right * sin, left * sin + right * cos], dim=-1)


def wrapped(model: Llama, system: str, world: int) -> nn.Module:
    if system == "fsdp2":
        from torch.distributed.fsdp import fully_shard

        for layer in model.layers:
            fully_shard(layer)
        fully_shard(model)
        return model
    return DistributedDataParallel(model, gradient_as_bucket_view=True) if world > 1 else model


def tokens_of(options: argparse.Namespace) -> npt.NDArray[np.uint8]:
    """The bytes of a text. Without one, random ones: the time of a step does not depend on them."""
    if options.text:
        return np.fromfile(options.text, dtype=np.uint8)
    return np.random.default_rng(0).integers(0, options.vocab, 1 << 20, dtype=np.uint8)


def train(
    options: argparse.Namespace, on_step: OnStep, on_made: OnMade | None = None, on_loss: OnLoss | None = None
) -> None:
    """`on_step` is called before each step, `on_made` once before the first; `on_loss` gets this rank's after each."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    model = Llama(options.vocab, options.layers, options.width, options.heads, options.inner, options.length)
    model_ = wrapped(model, options.system, world)
    matrices = [p for p in model_.parameters() if p.dim() > 1]
    others = [p for p in model_.parameters() if p.dim() <= 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95), fused=True)
    if on_made is not None:
        on_made(model_, optimizer)
    tokens = tokens_of(options)
    length, own = options.length, options.samples // world
    pieces = own // options.micro_batch
    for step in range(options.steps):
        on_step(step)
        total = 0.0
        for piece in range(pieces):
            first = (step * options.samples + rank * own + piece * options.micro_batch) * length
            starts = [(first + i * length) % (len(tokens) - length - 1) for i in range(options.micro_batch)]
            rows = torch.from_numpy(np.stack([tokens[at : at + length + 1] for at in starts]).astype(np.int64))
            is_last = piece == pieces - 1
            if isinstance(model_, DistributedDataParallel) and not is_last:
                context = model_.no_sync()
            else:
                context = nullcontext()
                if options.system == "fsdp2":
                    model_.set_requires_gradient_sync(is_last)  # type: ignore[operator]
            with context:
                logits = model_(rows[:, :-1])
                loss = F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten()) / pieces
                torch.autograd.backward(loss)
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(model_.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if on_loss is not None:
            on_loss(total)
        if rank == 0 and options.print:
            print(f"step {step} loss {total:.4f}", flush=True)
    dist.destroy_process_group()


def parsed(argv: Sequence[str] | None = None) -> argparse.Namespace:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--system", choices=["ddp", "fsdp2"], default="ddp")
    sizes = {"vocab": 256, "layers": 4, "width": 256, "heads": 8, "inner": 704, "length": 128}
    for name, size in {**sizes, "samples": 16, "micro-batch": 2, "steps": 100}.items():
        made.add_argument(f"--{name}", type=int, default=size)
    made.add_argument("--text", default="", help="file whose bytes are the tokens")
    made.add_argument("--print", action="store_true", help="the loss of each step")
    return made.parse_args(argv)


if __name__ == "__main__":
    began = time.perf_counter()
    asked = parsed()
    train(asked, lambda step: None)
    print(f"{asked.steps * asked.samples * asked.length / (time.perf_counter() - began):.0f} tokens/s, start included")
