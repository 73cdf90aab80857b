"""What one layer of a transformer holds, computes and sends, on one tp rank for one micro-batch. Pure.

Parts of a model: what is before the first layer (embedding), a layer, what is behind the last one (head and loss).
Activations are those that the trainer's operations save, counted in tests against the trainer's own; the attention
kernel saves no scores (FlashAttention).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from holdfast.plan.transformer import Transformer, score_pairs
from holdfast.planner.cost.collectives import Collective
from holdfast.planner.cost.compute import Engine, Product
from holdfast.planner.cost.layout import Layout

Sends = tuple[tuple[Collective, float], ...]
"""Collectives over tp, one after the other, with their bytes."""
AGAIN = 2.5
"""Backward of attention over its forward: four products instead of two, and the scores once more (FlashAttention)."""


@dataclass(frozen=True, slots=True)
class LayerProfile:
    """Of one part of a model. Analytic, until measured times replace `t_f` and `t_b`."""

    params: int
    flops_f: float
    flops_b: float
    held: Mapping[str, float]
    """Bytes from forward to backward, by what is recomputed; what goes out counts, what comes in does not."""
    passing: Mapping[str, float]
    """The most bytes beside that while it is computed."""
    boundary: float
    """Bytes of what goes out."""
    t_f: float | None = None
    """Seconds of forward and backward without collectives; None: by the roofline."""
    t_b: float | None = None
    t_again: float | None = None
    """Seconds of what `selective` computes again."""
    sends_f: Sends = ()
    sends_b: Sends = ()


@dataclass(frozen=True, slots=True)
class Parts:
    """A whole model: the first part, each layer, the last part."""

    first: LayerProfile
    layer: LayerProfile
    last: LayerProfile


@dataclass(frozen=True, slots=True)
class Precision:
    """Bytes of a number, by what it is for."""

    weight: int = 2
    gradient: int = 4
    """Where gradients add up."""
    optimizer: int = 12
    """Of all that the optimizer keeps of one parameter."""

    @classmethod
    def of(cls, dtype: str, averages: int = 2) -> Precision:
        """As the trainer keeps them: with bfloat16 the optimizer has float32 copies. `averages`: 2 of AdamW."""
        item = {"bfloat16": 2, "float32": 4, "float64": 8}[dtype]
        fine = max(4, item)
        return cls(item, fine, fine * (averages + (item == 2)))

    @property
    def is_coarse(self) -> bool:
        return self.weight == 2


def parts(model: Transformer, layout: Layout, precision: Precision, engine: Engine | None = None) -> Parts:
    """The profile of each part. With an engine its seconds too."""
    shape = _Shape(model, layout, precision.weight)
    found = Parts(shape.first(), shape.layer(), shape.last())
    if engine is None:
        return found
    return Parts(shape.first_timed(found.first, engine), shape.layer_timed(found.layer, engine),
                 shape.last_timed(found.last, engine))  # fmt: skip


class _Shape:
    """Sizes of one tp rank's share, for one micro-batch."""

    def __init__(self, model: Transformer, layout: Layout, item: int) -> None:
        self.model, self.layout, self.item, self.tp = model, layout, item, layout.tp
        self.tokens = layout.micro_batch_size * model.length
        self.unit = float(self.tokens * model.width * item)
        """Bytes of whole activations between layers."""
        self.own = self.unit / (layout.tp if layout.sequence else 1)
        """Of the part that lies on this rank."""

    def first(self) -> LayerProfile:
        model = self.model
        table = model.table_parameters // (self.tp if self.layout.shard_vocabulary else 1)
        held = dict.fromkeys(("none", "selective", "full"), self.own)
        sends = self._joined() if self.layout.shard_vocabulary else ()
        params = table + model.first_parameters - model.table_parameters
        back = self._spread_back() if self.layout.shard_vocabulary else ()
        return LayerProfile(params, 0.0, 0.0, held, dict.fromkeys(held, 0.0), self.own, sends_f=sends, sends_b=back)

    def layer(self) -> LayerProfile:
        model, tp = self.model, self.tp
        params = (model.attention_weights + model.ffn_weights) // tp + model.norms * model.norm_parameters
        forward = sum(one.flops for one in self._products()) + self._scores()
        backward = 2 * sum(one.flops for one in self._products()) + AGAIN * self._scores()
        held, passing = self._held()
        times = model.norms
        return LayerProfile(
            params, forward, backward, held, passing, self.own,
            sends_f=times * self._pair(), sends_b=times * self._pair(),
        )  # fmt: skip

    def last(self) -> LayerProfile:
        model, layout = self.model, self.layout
        table = model.table_parameters // (self.tp if layout.shard_vocabulary else 1)
        rows, columns = self._logits()
        logits = rows * columns * max(4.0, self.item)
        flops = 2.0 * rows * columns * model.width
        normed = self.unit if layout.shard_vocabulary else self.own
        held = dict.fromkeys(("none", "selective", "full"), normed + logits)
        passing = dict.fromkeys(held, 2 * logits)
        # A tied table is not the same memory in the last stage, unless that is the first one too.
        params = model.norm_parameters + (0 if model.tied and layout.stages == 1 else table)
        sends: Sends = ()
        if layout.shard_vocabulary and self.tp > 1:
            sums = ((Collective.ALL_REDUCE, self.tokens * max(4.0, self.item)),) * 3
            sends = (*((Collective.ALL_GATHER, self.unit),) * layout.sequence, *sums)
        back = self._joined() if layout.shard_vocabulary else ()
        return LayerProfile(params, flops, 2 * flops, held, passing, 0.0, sends_f=sends, sends_b=back)

    def first_timed(self, one: LayerProfile, engine: Engine) -> LayerProfile:
        """The table's rows are read, and backward writes a gradient of the whole table."""
        rows = 2 * self.own / engine.bytes_per_s
        return replace(one, t_f=rows, t_b=rows + 3.0 * one.params * self.item / engine.bytes_per_s)

    def layer_timed(self, one: LayerProfile, engine: Engine) -> LayerProfile:
        products = self._products()
        forward = sum(p.forward(engine, self.item) for p in products)
        backward = sum(sum(p.backward(engine, self.item)) for p in products)
        attention = engine.seconds(self._scores(), self._attention_traffic())
        attention_back = engine.seconds(AGAIN * self._scores(), 2 * self._attention_traffic())
        elementwise = self._elementwise() / engine.bytes_per_s
        nonlinear = (self.model.gates + 1) * self._inner() / engine.bytes_per_s
        return replace(
            one,
            t_f=forward + attention + elementwise,
            t_b=backward + attention_back + 2 * elementwise,
            t_again=attention + nonlinear,
        )

    def last_timed(self, one: LayerProfile, engine: Engine) -> LayerProfile:
        rows, columns = self._logits()
        product = Product(rows, self.model.width, columns)
        logits = rows * columns * max(4.0, self.item)
        return replace(
            one,
            t_f=product.forward(engine, self.item) + (4 * logits + 2 * self.own) / engine.bytes_per_s,
            t_b=sum(product.backward(engine, self.item)) + (2 * logits + 4 * self.own) / engine.bytes_per_s,
        )

    def _logits(self) -> tuple[float, float]:
        """Positions and words that this rank has logits of."""
        if self.layout.shard_vocabulary:
            return self.tokens, self.model.vocab / self.tp
        return self.tokens / (self.tp if self.layout.sequence else 1), self.model.vocab

    def _products(self) -> list[Product]:
        model, tp, tokens = self.model, self.tp, self.tokens
        inward, inner = (model.width + 2 * model.kv_width) / tp, model.inner / tp
        if model.block == "parallel":
            return [Product(tokens, model.width, inward + model.gates * inner),
                    Product(tokens, model.width / tp + inner, model.width)]  # fmt: skip
        return [
            Product(tokens, model.width, inward),
            Product(tokens, model.width / tp, model.width),
            Product(tokens, model.width, model.gates * inner),
            Product(tokens, inner, model.width),
        ]

    def _scores(self) -> float:
        """FLOPs of scores and of mixing values, of the pairs that are not masked."""
        model = self.model
        pairs = self.layout.micro_batch_size * score_pairs(model.length, model.window)
        return 4.0 * pairs * model.width / self.tp

    def _attention_traffic(self) -> float:
        return self.tokens * self.item * (2 * self.model.width + 2 * self.model.kv_width) / self.tp

    def _inner(self) -> float:
        """Bytes of the feed-forward layer's width."""
        return self.tokens * self.item * self.model.inner / self.tp

    def _elementwise(self) -> float:
        """Bytes that go through memory in a forward besides products and attention."""
        model = self.model
        rotated = 2 * self.tokens * self.item * (model.width + model.kv_width) / self.tp * (model.positions == "rope")
        between = (2 * model.norms + 3 * model.norms) * self.own
        return between + rotated + (model.gates + 1) * self._inner()

    def _pair(self) -> Sends:
        """What one pair of split matrices adds up, forward or back: an all-reduce, or its two halves."""
        if self.tp == 1:
            return ()
        if self.layout.sequence:
            return (Collective.ALL_GATHER, self.unit), (Collective.REDUCE_SCATTER, self.unit)
        return ((Collective.ALL_REDUCE, self.unit),)

    def _joined(self) -> Sends:
        if self.tp == 1:
            return ()
        return ((Collective.REDUCE_SCATTER if self.layout.sequence else Collective.ALL_REDUCE, self.unit),)

    def _spread_back(self) -> Sends:
        """Backward of what `join` did: a gather with sequence parallelism, otherwise nothing."""
        return ((Collective.ALL_GATHER, self.unit),) if self.layout.sequence and self.tp > 1 else ()

    def _held(self) -> tuple[dict[str, float], dict[str, float]]:
        """Bytes held, and passing, by what is recomputed.

        Held by all: the normalised input (whole on each tp rank), queries, keys and values, what comes out of
        attention, both sides of the non-linearity, and the output.
        """
        model = self.model
        share = self.tokens * self.item / self.tp
        qkv = share * (model.width + 2 * model.kv_width)
        mixed = share * model.width
        inner = share * model.inner
        opened = inner if model.mlp == "swiglu" else 0.0
        rotated = share * (model.width + model.kv_width) if model.positions == "rope" else 0.0
        basic = model.norms * (self.unit + self.own) + qkv + mixed + (model.gates + 1) * inner
        # A parallel block copies attention's output beside the feed-forward's, and attention keeps its own.
        copied = mixed if model.block == "parallel" else 0.0
        whole = basic + rotated + opened + copied
        if model.block == "parallel":
            passing = qkv + 2 * model.gates * inner
        else:
            passing = self.tokens * self.item * model.gates * model.inner
        held = {"none": whole, "selective": basic, "full": self.own}
        return held, {"none": passing + self.unit, "selective": passing + self.unit, "full": whole + passing}
