"""The transformer, cut into pipeline stages.

Layers keep their global number in every stage, so parameter names are the same in all layouts. What a
layer computes depends on seed, step and micro-batch, never on which ranks compute it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from math import gcd

import torch
from torch import Tensor, nn
from torch.compiler import is_dynamo_compiling
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.utils.checkpoint import checkpoint

from holdfast.plan.recompute import StageBytes
from holdfast.trainer.model import accumulate
from holdfast.trainer.model.attention import attend, rotations
from holdfast.trainer.model.dropout import Dropout
from holdfast.trainer.model.dropout import Moment as Moment
from holdfast.trainer.model.layers import Embedding, Head, Linear, Positions, Site, activation, norm, packed_activation
from holdfast.trainer.model.sub_batches import Section, pipelined
from holdfast.trainer.model.tensor_parallel import Packed, Parameters, local
from holdfast.trainer.settings.checks import recompute_of
from holdfast.trainer.settings.config import Config, ModelConfig

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}

TIED = "embed.weight"


class ModelShape:
    """Widths of one layer. Rows go group by group, so that a split over tp is a split by groups.

    A group is one key-value head with the query heads that share it, and as many parts of the
    feed-forward layer's width as there are groups, in parallel blocks, which have one matrix for both.
    """

    def __init__(self, model: ModelConfig) -> None:
        self.width = model.d_model
        self.groups = model.kv_heads or model.heads
        self.heads = model.heads // self.groups
        self.head_width = model.d_model // model.heads
        self.inner = model.inner
        self.inner_groups = gcd(self.groups, self.inner)
        """Into so many parts the feed-forward layer's width is cut where nothing else is in its matrices."""
        self.is_gated = model.mlp == "swiglu"
        self.qkv = (self.heads + 2) * self.head_width
        """Columns of one group that attention reads; what it gives has heads x head_width."""
        self.std = model.init_std
        self.small = model.init_std / (2 * model.layers) ** 0.5

    def qkv_matrix(self, name: str) -> Packed:
        return Packed(f"{name}.attention.qkv.weight", (self.groups * self.qkv, self.width), self.std)

    def out_matrix(self, name: str) -> Packed:
        shape = (self.width, self.groups * self.heads * self.head_width)
        return Packed(f"{name}.attention.out.weight", shape, self.small)

    def in_matrices(self, name: str) -> list[Packed]:
        """Into the feed-forward layer: up, and before it a gate if there is one."""
        names = ("gate", "up") if self.is_gated else ("up",)
        return [Packed(f"{name}.ffn.{which}.weight", (self.inner, self.width), self.std) for which in names]

    def down_matrix(self, name: str) -> Packed:
        return Packed(f"{name}.ffn.down.weight", (self.width, self.inner), self.small)


class Block(nn.Module):
    """What serial and parallel layers have in common: attention, the non-linearity, what is recomputed."""

    def __init__(self, model: ModelConfig, site: Site) -> None:
        super().__init__()
        self.model, self.site = model, site
        self.shape = ModelShape(model)

    def forward(self, x: Tensor, rotation: Tensor | None, micro_batch: int, recompute: str = "none") -> Tensor:
        """`recompute`: none, selective or full, of this micro-batch."""
        if recompute != "full":
            return self.layer(x, rotation, micro_batch, recompute == "selective")
        return _again(self.layer, x, rotation, micro_batch, False)

    def layer(self, x: Tensor, rotation: Tensor | None, micro_batch: int, selective: bool) -> Tensor:
        raise NotImplementedError

    def sections(self, rotation: Tensor | None, selective: bool) -> list[Section]:
        """`layer` cut where ranks add up, for sub-batches; no dropout."""
        raise NotImplementedError

    def grouped(self, columns: Tensor) -> Tensor:
        """(batch, sequence, columns of a matrix) with the groups as a dimension of their own."""
        return columns.view(*columns.shape[:-1], self.shape.groups // self.site.group.size(), -1)

    def attend(self, mixed: Tensor, rotation: Tensor | None, selective: bool) -> Tensor:
        core = functools.partial(
            attend, heads=self.shape.heads, head_width=self.shape.head_width, window=self.model.window
        )
        if selective:
            return _again(lambda m, r: core(m, rotation=r), mixed, rotation)
        return core(mixed, rotation=rotation)

    def activate(self, function: Callable[..., Tensor], selective: bool, *inner: Tensor | str) -> Tensor:
        return _again(function, *inner) if selective else function(*inner)


class FeedForward(nn.Module):
    """The matrices of a serial layer's second half."""

    def __init__(self, name: str, shape: ModelShape, make: Parameters, site: Site) -> None:
        super().__init__()
        self.site = site
        *gate, up = (Linear([matrix], True, shape.inner_groups, make, site) for matrix in shape.in_matrices(name))
        self.gate = gate[0] if gate else None
        self.up, self.down = up, Linear([shape.down_matrix(name)], False, shape.inner_groups, make, site)

    def enter(self, x: Tensor) -> tuple[Tensor, ...]:
        """The inputs of `activation`. Not side by side in one matrix: a CPU takes longer for what lies apart."""
        weights = [local(matrix.weight) for matrix in (self.gate, self.up) if matrix is not None]
        return self.site.enter(x, *weights)


class SerialBlock(Block):
    """One after the other: x + attention(norm(x)), then x + feed-forward(norm(x))."""

    def __init__(self, name: str, model: ModelConfig, site: Site, make: Parameters, moment: Moment) -> None:
        super().__init__(model, site)
        shape = self.shape
        self.norm, self.ffn_norm = norm(model, make), norm(model, make)
        self.attention = nn.ModuleDict(
            {
                "qkv": Linear([shape.qkv_matrix(name)], True, shape.groups, make, site),
                "out": Linear([shape.out_matrix(name)], False, shape.groups, make, site),
            }
        )
        self.ffn = FeedForward(name, shape, make, site)
        self.dropout = Dropout(model.dropout, f"{name}.attention", moment, site.split)
        self.ffn_dropout = Dropout(model.dropout, f"{name}.ffn", moment, site.split)

    def layer(self, x: Tensor, rotation: Tensor | None, micro_batch: int, selective: bool) -> Tensor:
        x = x + self.dropout(self._seen(self.norm(x), rotation, selective), micro_batch)
        return x + self.ffn_dropout(self._fed(self.ffn_norm(x), selective), micro_batch)

    def sections(self, rotation: Tensor | None, selective: bool) -> list[Section]:
        parameters = list(self.parameters())
        seen = functools.partial(self._seen, rotation=rotation, selective=selective)
        fed = functools.partial(self._fed, selective=selective)
        return [Section(self.norm, seen, parameters), Section(self.ffn_norm, fed, parameters)]

    def _seen(self, x: Tensor, rotation: Tensor | None, selective: bool) -> Tensor:
        mixed = self.grouped(self.attention["qkv"](x))
        return self.attention["out"](self.attend(mixed, rotation, selective).flatten(-2))  # type: ignore[no-any-return]

    def _fed(self, x: Tensor, selective: bool) -> Tensor:
        return self.ffn.down(self.activate(activation, selective, *self.ffn.enter(x)))  # type: ignore[no-any-return]


class ParallelBlock(Block):
    """Both from the same input: x + attention(norm(x)) + feed-forward(norm(x)) (MegaScale, section 3.1).

    One matrix in and one out for the two, and one pair of collectives under tensor parallelism.
    """

    def __init__(self, name: str, model: ModelConfig, site: Site, make: Parameters, moment: Moment) -> None:
        super().__init__(model, site)
        shape = self.shape
        self.norm = norm(model, make)
        self.inward = Linear([shape.qkv_matrix(name), *shape.in_matrices(name)], True, shape.groups, make, site)
        self.outward = Linear([shape.out_matrix(name), shape.down_matrix(name)], False, shape.groups, make, site)
        self.dropout = Dropout(model.dropout, f"{name}.attention", moment, site.split)

    def layer(self, x: Tensor, rotation: Tensor | None, micro_batch: int, selective: bool) -> Tensor:
        return x + self.dropout(self._both(self.norm(x), rotation, selective), micro_batch)

    def sections(self, rotation: Tensor | None, selective: bool) -> list[Section]:
        both = functools.partial(self._both, rotation=rotation, selective=selective)
        return [Section(self.norm, both, list(self.parameters()))]

    def _both(self, x: Tensor, rotation: Tensor | None, selective: bool) -> Tensor:
        columns = self.grouped(self.inward(x))
        seen = self.attend(columns[..., : self.shape.qkv], rotation, selective)
        fed = self.activate(packed_activation, selective, columns[..., self.shape.qkv :], self.model.mlp)
        return self.outward(torch.cat([seen, fed], dim=-1).flatten(-2))  # type: ignore[no-any-return]


class ModelStage(nn.Module):
    """Consecutive layers, with the embedding before the first and the head after the last one."""

    def __init__(self, config: Config, index: int, layers: range, vocab: int, make: Parameters, moment: Moment) -> None:
        """Stage number `index` of the job's, with these layers."""
        super().__init__()
        model, shard = config.model, config.parallel.shard_vocabulary
        self.is_first, self.is_last = layers.start == 0, layers.stop == model.layers
        self.is_tied = model.tied and (self.is_first or self.is_last)
        self.tied = TIED if self.is_tied else None
        """The parameter that first and last stage both hold."""
        group = make.mesh.get_group()
        is_alone = group.size() == 1
        chunks = 1 if is_alone else config.parallel.overlap_chunks
        self.sub_batches = 1 if is_alone else config.parallel.sub_batches
        site = Site(group, config.parallel.sequence and not is_alone, chunks, is_alone, self.sub_batches)
        self._group = group
        self.embed = Embedding(vocab, model, make, shard, site) if self.is_first or self.is_tied else None
        self.positions: Positions | None = None
        if self.is_first and model.positions == "learned":
            self.positions = Positions(config.data.seq_len, model, make, site)
        self.dropout = Dropout(model.dropout, "embed", moment, site.split)
        kind = ParallelBlock if model.block == "parallel" else SerialBlock

        def layer(number: int) -> tuple[str, nn.Module]:
            return str(number), kind(f"layers.{number}", model, site, make, moment)

        if make.at_once == 1:  # in this thread, whose torch modes others do not have
            self.layers = nn.ModuleDict(dict(map(layer, layers)))
        else:
            with ThreadPoolExecutor(make.at_once, "layers") as pool:
                self.layers = nn.ModuleDict(dict(pool.map(layer, layers)))
        self.recompute = _alike(recompute_of(config.train.recompute, index), len(layers))
        """What each layer recomputes of a micro-batch: none, selective or full."""
        self.without_way_back: Callable[[], int] = lambda: 0
        """How many of its first layers have no backward in this step, and the embedding with them."""
        self.moment = moment
        self.saved: StageBytes | None = None
        """What it keeps of a micro-batch, where that has been measured."""
        self.head = Head(vocab, model, make, shard, site) if self.is_last else None
        self.rotation: Tensor | None
        self.register_buffer("rotation", _rotation(config, make), persistent=False)

    def forward(self, x: Tensor, micro_batch: int) -> Tensor:
        """One micro-batch through this stage.

        `x` is (batch, seq) tokens in the first stage, as `boundary` in others; `micro_batch` is counted
        within the replica. Returns as `boundary`, or logits from the last stage.
        """
        number = micro_batch if self.dropout.rate else 0  # only dropout reads it
        skipped = self.without_way_back()
        with _way_back(not skipped):
            x = self.before(x, number)
        recomputes = self.recompute(micro_batch)
        if self.sub_batches > 1:
            return self.behind(pipelined(x, self._sections(recomputes), self._group, self.sub_batches))
        for place, (layer, recompute) in enumerate(zip(self.layers.values(), recomputes, strict=True)):
            with _way_back(place >= skipped):
                x = layer(x, self.rotation, number, recompute)
        return self.behind(x)

    def _sections(self, recomputes: Sequence[str]) -> list[Section]:
        found: list[Section] = []
        for layer, recompute in zip(self.layers.values(), recomputes, strict=True):
            assert isinstance(layer, Block)
            found += layer.sections(self.rotation, recompute == "selective")
        return found

    def before(self, x: Tensor, number: int) -> Tensor:
        """What comes into the first of its layers."""
        if not self.is_first:
            return x
        assert self.embed is not None
        x = self.embed(x)
        return self.dropout(x if self.positions is None else self.positions(x), number)

    def behind(self, x: Tensor) -> Tensor:
        """What becomes of what the last of its layers gives."""
        if self.head is None:
            return x
        table = self.embed.weight if self.embed is not None and self.is_tied else None
        return self.head(x, table)  # type: ignore[no-any-return]


def _way_back(is_kept: bool) -> AbstractContextManager[None]:
    """For layers without a backward autograd keeps nothing."""
    return nullcontext() if is_kept else torch.no_grad()


def _alike(recompute: str, layers: int) -> Callable[[int], Sequence[str]]:
    """The same of every micro-batch. What is no choice of a layer leaves it alone."""
    kinds = (recompute if recompute in ("selective", "full") else "none",) * layers
    return lambda micro_batch: kinds


def _rotation(config: Config, make: Parameters) -> Tensor | None:
    model = config.model
    if model.positions != "rope":
        return None
    precision = torch.float64 if make.dtype == torch.float64 else torch.float32
    angles = rotations(config.data.seq_len, model.d_model // model.heads, model.rope_theta, precision)
    return angles.to(make.device)


def boundary(config: Config, tp: int, device: torch.device) -> Tensor:
    """What goes from one stage to the next for a micro-batch: shape (batch, seq, width), values unset.

    With sequence parallelism each tp rank sends its own positions.
    """
    length = config.data.seq_len // (tp if config.parallel.sequence else 1)
    shape = (config.train.micro_batch_size, length, config.model.d_model)
    return torch.empty(shape, dtype=DTYPES[config.train.dtype], device=device, requires_grad=True)


def sum_precision(config: Config) -> MixedPrecisionPolicy:
    """How replicas add up gradients: those of bfloat16 parameters in float32."""
    is_coarse = config.train.dtype == "bfloat16"
    return MixedPrecisionPolicy(reduce_dtype=torch.float32 if is_coarse else None)


def _again(function: Callable[..., Tensor], *args: Tensor | int | str | None) -> Tensor:
    """Call it now, keep none of its intermediate results, and call it again in backward.

    Dropout draws from seeds of its own, so both calls give the same bits without saving generators.
    """
    is_alone = accumulate.is_alone()  # backward must find the very operations that forward did, wherever it calls

    def same(*args: Tensor | int | str | None) -> Tensor:
        with accumulate.alone(is_alone):
            return function(*args)

    twice = function if is_dynamo_compiling() else same
    result: Tensor = checkpoint(twice, *args, use_reentrant=False, preserve_rng_state=False)
    return result
