"""The same model and training, written a second time: one process, plain tensors, no parallelism.

Shares with the trainer only the names that seeds are made from. An oracle, so it favours being obvious.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from holdfast.trainer.batches import Batches
from holdfast.trainer.config import Config
from holdfast.trainer.corpus import Corpus
from holdfast.trainer.optimizer import learning_rate
from holdfast.trainer.tensor_parallel import hash_of


class Reference:
    def __init__(self, config: Config, corpus: Corpus) -> None:
        torch.set_num_threads(1)  # tensors this small are slower on more, and ranks run beside us
        self.config = config
        m, v = config.model, corpus.vocab
        small = m.init_std / math.sqrt(2 * m.layers)
        self.p: dict[str, Tensor] = {}
        self._normal("embed.weight", (v, m.d_model), m.init_std)
        for i in range(m.layers):
            base = f"layers.{i}"
            self.p[f"{base}.norm.weight"] = torch.ones(m.d_model)
            if m.block == "serial":
                self.p[f"{base}.ffn_norm.weight"] = torch.ones(m.d_model)
            self._normal(f"{base}.attention.qkv.weight", (3 * m.d_model, m.d_model), m.init_std)
            self._normal(f"{base}.attention.out.weight", (m.d_model, m.d_model), small)
            self._normal(f"{base}.ffn.up.weight", (m.ffn_mult * m.d_model, m.d_model), m.init_std)
            self._normal(f"{base}.ffn.down.weight", (m.d_model, m.ffn_mult * m.d_model), small)
        self.p["head.norm.weight"] = torch.ones(m.d_model)
        self._normal("head.out.weight", (v, m.d_model), m.init_std)
        for tensor in self.p.values():
            tensor.requires_grad_()
        o = config.optim
        groups = [
            {"params": [t for t in self.p.values() if t.dim() > 1], "weight_decay": o.weight_decay},
            {"params": [t for t in self.p.values() if t.dim() == 1], "weight_decay": 0.0},
        ]
        self.adamw = torch.optim.AdamW(groups, lr=o.lr, betas=(o.beta1, o.beta2), eps=o.eps, foreach=False)
        t = config.train
        self.batches = Batches(corpus.tokens, config.data.seq_len, t.seed, t.micro_batches, t.micro_batch_size)

    def _normal(self, name: str, shape: tuple[int, ...], std: float) -> None:
        seeded = torch.Generator().manual_seed(hash_of(self.config.train.seed, name))
        self.p[name] = torch.empty(shape).normal_(0.0, std, generator=seeded)

    def gradients(self, step: int) -> float:
        """Accumulate the gradients of one step; the mean loss over the global batch."""
        total = 0.0
        count = self.config.train.micro_batches
        for number in range(count):
            x, y = self.batches.read(step, range(number, number + 1))
            loss = self._loss(torch.from_numpy(x), torch.from_numpy(y), step, number) / count
            torch.autograd.backward(loss)
            total += float(loss.detach())
        return total

    def train(self, steps: int) -> list[float]:
        losses = []
        for step in range(steps):
            losses.append(self.gradients(step))
            if self.config.optim.clip_norm:
                torch.nn.utils.clip_grad_norm_(list(self.p.values()), self.config.optim.clip_norm)
            for group in self.adamw.param_groups:
                group["lr"] = learning_rate(self.config.optim, step)
            self.adamw.step()
            self.adamw.zero_grad()
        return losses

    def _loss(self, tokens: Tensor, targets: Tensor, step: int, number: int) -> Tensor:
        m = self.config.model

        def drop(x: Tensor, site: str) -> Tensor:
            if not m.dropout:
                return x
            seed = hash_of(self.config.train.seed, "dropout", step, number, site)
            seeded = torch.Generator().manual_seed(seed)
            return x * (torch.rand(x.shape, generator=seeded) >= m.dropout) / (1 - m.dropout)

        def norm(x: Tensor, name: str) -> Tensor:
            return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * self.p[name]

        x = drop(self.p["embed.weight"][tokens], "embed")
        for i in range(m.layers):
            base = f"layers.{i}"
            seen = norm(x, f"{base}.norm.weight")
            attention = self._attention(seen, base)
            if m.block == "serial":
                x = x + drop(attention, f"{base}.attention")
                fed = self._ffn(norm(x, f"{base}.ffn_norm.weight"), base)
                x = x + drop(fed, f"{base}.ffn")
            else:
                x = x + drop(attention + self._ffn(seen, base), f"{base}.attention")
        logits = norm(x, "head.norm.weight") @ self.p["head.out.weight"].T
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    def _ffn(self, x: Tensor, base: str) -> Tensor:
        inner = F.gelu(x @ self.p[f"{base}.ffn.up.weight"].T, approximate="tanh")
        return inner @ self.p[f"{base}.ffn.down.weight"].T

    def _attention(self, x: Tensor, base: str) -> Tensor:
        m = self.config.model
        batch, length, width = x.shape
        head = width // m.heads
        mixed = (x @ self.p[f"{base}.attention.qkv.weight"].T).view(batch, length, m.heads, 3, head)
        q, k, v = (mixed[:, :, :, i].transpose(1, 2) for i in range(3))
        q, k = self._turn(q), self._turn(k)
        scores = q @ k.transpose(-1, -2) / math.sqrt(head)
        future = torch.ones(length, length, dtype=torch.bool).triu(1)
        mixed = scores.masked_fill(future, -torch.inf).softmax(-1) @ v
        return mixed.transpose(1, 2).reshape(batch, length, width) @ self.p[f"{base}.attention.out.weight"].T

    def _turn(self, x: Tensor) -> Tensor:
        """Rotary positions, by complex numbers."""
        half = x.shape[-1] // 2
        rates = 10000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
        angles = torch.outer(torch.arange(x.shape[-2], dtype=torch.float64), rates)
        pairs = torch.complex(x[..., :half], x[..., half:])
        turned = pairs * torch.polar(torch.ones_like(angles), angles).to(torch.complex64)
        return torch.cat([turned.real, turned.imag], dim=-1)
