"""The same model and training, written a second time: one process, plain tensors, no parallelism.

Shares with the trainer only the names that seeds are made from. An oracle, so it favours being obvious.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from holdfast.trainer.data.batches import Batches
from holdfast.trainer.data.corpus import Corpus
from holdfast.trainer.model.tensor_parallel import hash_of
from holdfast.trainer.settings.config import Config, OptimConfig
from holdfast.trainer.settings.learning_rate import learning_rate

DTYPES = {"float32": torch.float32, "float64": torch.float64}


class Reference:
    def __init__(self, config: Config, corpus: Corpus) -> None:
        torch.set_num_threads(1)  # tensors this small are slower on more, and ranks run beside us
        self.config, self.dtype = config, DTYPES[config.train.dtype]
        m, v = config.model, corpus.vocab
        self.groups = m.kv_heads or m.heads
        self.inner = m.ffn_width or m.ffn_mult * m.d_model
        self.head = m.d_model // m.heads
        self.inward = ["gate", "up"] if m.mlp == "swiglu" else ["up"]
        small = m.init_std / math.sqrt(2 * m.layers)
        self.p: dict[str, Tensor] = {"embed.weight": self._normal("embed.weight", (v, m.d_model), m.init_std)}
        if m.positions == "learned":
            self.p["positions.weight"] = self._normal("positions.weight", (config.data.seq_len, m.d_model), m.init_std)
        for i in range(m.layers):
            base = f"layers.{i}"
            qkv = (m.d_model + 2 * self.groups * self.head, m.d_model)
            into = [f"ffn.{end}" for end in self.inward]
            drawn = {
                "attention.qkv": self._normal(f"{base}.attention.qkv.weight", qkv, m.init_std),
                "attention.out": self._normal(f"{base}.attention.out.weight", (m.d_model, m.d_model), small),
                **{n: self._normal(f"{base}.{n}.weight", (self.inner, m.d_model), m.init_std) for n in into},
                "ffn.down": self._normal(f"{base}.ffn.down.weight", (m.d_model, self.inner), small),
            }
            self._norm(f"{base}.norm")
            if m.block == "serial":
                self._norm(f"{base}.ffn_norm")
                self.p |= {f"{base}.{name}.weight": matrix for name, matrix in drawn.items()}
            else:
                self.p[f"{base}.inward.weight"] = self._packed([drawn[n] for n in ("attention.qkv", *into)], 0)
                self.p[f"{base}.outward.weight"] = self._packed([drawn["attention.out"], drawn["ffn.down"]], 1)
        self._norm("head.norm")
        if not m.tied:
            self.p["head.weight"] = self._normal("head.weight", (v, m.d_model), m.init_std)
        for tensor in self.p.values():
            tensor.requires_grad_()
        t = config.train
        self.first: dict[str, Tensor] = {}
        self.batches = Batches(corpus.tokens, config.data.seq_len, t.seed, t.micro_batches, t.micro_batch_size)
        self.update = {"adamw": AdamW, "lamb": Lamb, "sgd": Sgd}[config.optim.name](config.optim, self.p)

    def _normal(self, name: str, shape: tuple[int, ...], std: float) -> Tensor:
        seeded = torch.Generator().manual_seed(hash_of(self.config.train.seed, name))
        return torch.empty(shape).normal_(0.0, std, generator=seeded).to(self.dtype)

    def _norm(self, name: str) -> None:
        self.p[f"{name}.weight"] = torch.ones(self.config.model.d_model, dtype=self.dtype)
        if self.config.model.norm == "layer":
            self.p[f"{name}.bias"] = torch.zeros(self.config.model.d_model, dtype=self.dtype)

    def _cut(self, matrix: Tensor, dim: int) -> tuple[Tensor, ...]:
        """The parts of each group of heads."""
        return matrix.chunk(self.groups, dim)

    def _packed(self, matrices: list[Tensor], dim: int) -> Tensor:
        """Group 0 of all, then group 1 of all..."""
        groups = zip(*(self._cut(matrix, dim) for matrix in matrices), strict=True)
        return torch.cat([part for group in groups for part in group], dim)

    def gradients(self, step: int) -> float:
        """Accumulate the gradients of one step; the mean loss over the global batch."""
        # All are as long, so the mean over them all is the mean of their means.
        x, y = self.batches.read(step, range(self.config.train.micro_batches))
        loss = self._loss(torch.from_numpy(x), torch.from_numpy(y), step, 0)
        torch.autograd.backward(loss)
        return float(loss.detach())

    def train(self, steps: int) -> list[float]:
        """The loss of each step. The first step's gradients, not clipped, are then in `first`."""
        losses = []
        for step in range(steps):
            losses.append(self.gradients(step))
            if step == 0:
                self.first = {name: t.grad.clone() for name, t in self.p.items() if t.grad is not None}
            limit = self.config.optim.clip_norm
            norm = torch.cat([t.grad.flatten() for t in self.p.values() if t.grad is not None]).norm()
            if limit and norm > limit:
                for tensor in self.p.values():
                    tensor.grad = tensor.grad * (limit / norm) if tensor.grad is not None else None
            with torch.no_grad():
                self.update(learning_rate(self.config.optim, step), step)
            self.forget()
        return losses

    def forget(self) -> None:
        for tensor in self.p.values():
            tensor.grad = None

    def _loss(self, tokens: Tensor, targets: Tensor, step: int, number: int) -> Tensor:
        logits = self.logits(self.p["embed.weight"][tokens], step, number)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    def logits(self, x: Tensor, step: int = 0, number: int = 0) -> Tensor:
        """From (batch, sequence, width), what the embedding gave: one micro-batch or more, the first one's `number`."""
        m = self.config.model

        def drop(x: Tensor, site: str) -> Tensor:
            if not m.dropout:
                return x
            drawn = []
            for place, part in enumerate(x.split(self.config.train.micro_batch_size)):  # each has its own
                seed = hash_of(self.config.train.seed, "dropout", step, number + place, site)
                drawn.append(torch.rand(part.shape, generator=torch.Generator().manual_seed(seed)))
            return x * (torch.cat(drawn) >= m.dropout) / (1 - m.dropout)

        def norm(x: Tensor, name: str) -> Tensor:
            if m.norm == "rms":
                return x / (x.square().mean(-1, keepdim=True) + m.norm_eps).sqrt() * self.p[f"{name}.weight"]
            x = x - x.mean(-1, keepdim=True)
            x = x / (x.square().mean(-1, keepdim=True) + m.norm_eps).sqrt()
            return x * self.p[f"{name}.weight"] + self.p[f"{name}.bias"]

        if m.positions == "learned":
            x = x + self.p["positions.weight"][: x.shape[1]]
        x = drop(x, "embed")
        for i in range(m.layers):
            base = f"layers.{i}"
            seen = norm(x, f"{base}.norm")
            if m.block == "serial":
                x = x + drop(self._attention(seen, *self._matrices(base, "attention")), f"{base}.attention")
                fed = self._ffn(norm(x, f"{base}.ffn_norm"), *self._matrices(base, "ffn"))
                x = x + drop(fed, f"{base}.ffn")
            else:
                both = self._attention(seen, *self._matrices(base, "attention"))
                both = both + self._ffn(seen, *self._matrices(base, "ffn"))
                x = x + drop(both, f"{base}.attention")
        table = self.p["embed.weight" if m.tied else "head.weight"]
        return norm(x, "head.norm") @ table.T

    def _matrices(self, base: str, part: str) -> tuple[list[Tensor], list[Tensor]]:
        """Matrix in and matrix out of attention or the feed-forward layer, group by group."""
        if self.config.model.block == "serial":
            if part == "ffn":  # heads mean nothing to it
                into = torch.cat([self.p[f"{base}.ffn.{name}.weight"] for name in self.inward])
                return [into], [self.p[f"{base}.ffn.down.weight"]]
            return (
                list(self._cut(self.p[f"{base}.attention.qkv.weight"], 0)),
                list(self._cut(self.p[f"{base}.attention.out.weight"], 1)),
            )
        heads = self.config.model.heads // self.groups
        rows, columns = (heads + 2) * self.head, heads * self.head
        inward = self._cut(self.p[f"{base}.inward.weight"], 0)
        outward = self._cut(self.p[f"{base}.outward.weight"], 1)
        if part == "attention":
            return [g[:rows] for g in inward], [g[:, :columns] for g in outward]
        return [g[rows:] for g in inward], [g[:, columns:] for g in outward]

    def _ffn(self, x: Tensor, ups: list[Tensor], downs: list[Tensor]) -> Tensor:
        total = torch.zeros_like(x)
        for up, down in zip(ups, downs, strict=True):
            if self.config.model.mlp == "gelu":
                inner = F.gelu(x @ up.T, approximate="tanh")
            else:
                gate, linear = up.chunk(2)
                inner = (x @ gate.T) * torch.sigmoid(x @ gate.T) * (x @ linear.T)
            total = total + inner @ down.T
        return total

    def _attention(self, x: Tensor, qkvs: list[Tensor], outs: list[Tensor]) -> Tensor:
        """Each group's key and value, and its query heads one by one."""
        m = self.config.model
        i = torch.arange(x.shape[1])
        hidden = i.unsqueeze(1) < i
        if m.window:
            hidden |= i.unsqueeze(1) - i >= m.window
        total = torch.zeros_like(x)
        for qkv, out in zip(qkvs, outs, strict=True):
            *queries, key, value = qkv.split(self.head)
            k, v = self._turn(x @ key.T), x @ value.T
            for query, columns in zip(queries, out.split(self.head, dim=1), strict=True):
                scores = self._turn(x @ query.T) @ k.transpose(-1, -2) / math.sqrt(self.head)
                total = total + scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v @ columns.T
        return total

    def _turn(self, x: Tensor) -> Tensor:
        """Rotary positions, by complex numbers."""
        if self.config.model.positions == "learned":
            return x
        half = x.shape[-1] // 2
        rates = self.config.model.rope_theta ** (-torch.arange(half, dtype=torch.float64) / half)
        angles = torch.outer(torch.arange(x.shape[-2], dtype=torch.float64), rates)
        pairs = torch.complex(x[..., :half], x[..., half:])
        turned = pairs * torch.polar(torch.ones_like(angles), angles).to(pairs.dtype)
        return torch.cat([turned.real, turned.imag], dim=-1)


class AdamW:
    def __init__(self, o: OptimConfig, p: dict[str, Tensor]) -> None:
        groups = [
            {"params": [t for t in p.values() if t.dim() > 1], "weight_decay": o.weight_decay},
            {"params": [t for t in p.values() if t.dim() == 1], "weight_decay": 0.0},
        ]
        self.adamw = torch.optim.AdamW(groups, lr=o.lr, betas=(o.beta1, o.beta2), eps=o.eps, foreach=False)

    def __call__(self, lr: float, step: int) -> None:
        for group in self.adamw.param_groups:
            group["lr"] = lr
        self.adamw.step()


class Lamb:
    """You et al., algorithm 2, one tensor after the other."""

    def __init__(self, o: OptimConfig, p: dict[str, Tensor]) -> None:
        self.o, self.p = o, p
        self.m = {name: torch.zeros_like(x) for name, x in p.items()}
        self.v = {name: torch.zeros_like(x) for name, x in p.items()}

    def __call__(self, lr: float, step: int) -> None:
        o = self.o
        for name, x in self.p.items():
            assert x.grad is not None
            self.m[name] = o.beta1 * self.m[name] + (1 - o.beta1) * x.grad
            self.v[name] = o.beta2 * self.v[name] + (1 - o.beta2) * x.grad**2
            m, v = self.m[name] / (1 - o.beta1 ** (step + 1)), self.v[name] / (1 - o.beta2 ** (step + 1))
            u = m / (v.sqrt() + o.eps) + (o.weight_decay if x.dim() > 1 else 0.0) * x
            phi = max(x.norm().item(), o.trust_low)
            if o.trust_high:
                phi = min(phi, o.trust_high)
            x -= lr * (phi / u.norm().item() if x.norm() > 0 and u.norm() > 0 else 1.0) * u


class Sgd:
    def __init__(self, o: OptimConfig, p: dict[str, Tensor]) -> None:
        self.o, self.p = o, p
        self.b = {name: torch.zeros_like(x) for name, x in p.items()}

    def __call__(self, lr: float, step: int) -> None:
        for name, x in self.p.items():
            assert x.grad is not None
            decay = self.o.weight_decay if x.dim() > 1 else 0.0
            self.b[name] = self.o.momentum * self.b[name] + x.grad + decay * x
            x -= lr * self.b[name]
