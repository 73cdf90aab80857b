"""Parameters and floating-point operations of a transformer, from its shape alone. Pure.

The one place of these formulas: the trainer's meters, the planner's costs and the rows of techniques use them.
"""

from __future__ import annotations

from dataclasses import dataclass

RECOMPUTE = ("none", "selective", "full")
"""What a layer can compute again in its backward: nothing, attention and the non-linearity, all."""


@dataclass(frozen=True, slots=True)
class Transformer:
    """The shape of a model, and of the samples that go through it. Settings with their texts: the trainer's."""

    layers: int
    width: int
    heads: int
    vocab: int
    length: int
    """Tokens of a sample."""
    kv_heads: int = 0
    """0: one per head."""
    ffn_width: int = 0
    """0: four times the width."""
    mlp: str = "gelu"
    block: str = "serial"
    norm: str = "layer"
    positions: str = "rope"
    window: int = 0
    tied: bool = False

    @property
    def inner(self) -> int:
        """Width of the feed-forward layer."""
        return self.ffn_width or 4 * self.width

    @property
    def head(self) -> int:
        """Width of one head."""
        return self.width // self.heads

    @property
    def kv_width(self) -> int:
        """Numbers of a token's keys, and as many of its values."""
        return (self.kv_heads or self.heads) * self.head

    @property
    def gates(self) -> int:
        """Matrices into the feed-forward layer."""
        return 2 if self.mlp == "swiglu" else 1

    @property
    def attention_weights(self) -> int:
        """Of one layer: queries, keys, values, and the way out."""
        return self.width * 2 * (self.width + self.kv_width)

    @property
    def ffn_weights(self) -> int:
        return self.width * self.inner * (self.gates + 1)

    @property
    def layer_matrices(self) -> tuple[tuple[int, int], ...]:
        """(out, in) of each matrix of one layer, as it is multiplied: a parallel block has one in and one out."""
        qkv, out = self.width + 2 * self.kv_width, (self.width, self.width)
        if self.block == "parallel":
            return (qkv + self.gates * self.inner, self.width), (self.width, self.width + self.inner)
        return (qkv, self.width), out, *((self.inner, self.width),) * self.gates, (self.width, self.inner)

    @property
    def norms(self) -> int:
        """In one layer."""
        return 1 if self.block == "parallel" else 2

    @property
    def norm_parameters(self) -> int:
        """Of one normalisation."""
        return self.width * (2 if self.norm == "layer" else 1)

    @property
    def layer_parameters(self) -> int:
        return self.attention_weights + self.ffn_weights + self.norms * self.norm_parameters

    @property
    def table_parameters(self) -> int:
        """Of the embedding's table; the head has as many, or the same."""
        return self.vocab * self.width

    @property
    def first_parameters(self) -> int:
        """Before the first layer."""
        return self.table_parameters + (self.length * self.width if self.positions == "learned" else 0)

    @property
    def last_parameters(self) -> int:
        """Behind the last layer. A tied table is counted with the first."""
        return self.norm_parameters + (0 if self.tied else self.table_parameters)

    @property
    def parameters(self) -> int:
        """Of the whole model, each once."""
        return self.first_parameters + self.layers * self.layer_parameters + self.last_parameters


@dataclass(frozen=True, slots=True)
class Flops:
    """Of one step over all ranks."""

    model: float
    """As the papers count: every position sees all, before and after it. For the usual shape `paper_flops`."""
    pairs: float
    """The same with the pairs that the window allows, doubled as the papers' convention has it.

    Without a window this is `model` but for 1/s of attention.
    """
    hardware: float
    """`model` and what is computed a second time."""


def score_pairs(length: int, window: int = 0) -> int:
    """Pairs of positions (i, j), j at most i and in the window: w s - w (w - 1) / 2 for w <= s; window 0 is w = s."""
    width = min(window or length, length)
    return width * length - width * (width - 1) // 2


def paper_flops(layers: int, width: int, length: int, vocab: int, samples: int) -> float:
    """FLOPs of one step: 72 B s L h^2 (1 + s / 6h + V / 12hL) (arXiv 2104.04473, section 5.1).

    For a GPT with a feed-forward width of 4h, without recomputation. Attention counts all s x s pairs.
    """
    ratio = 1 + length / (6 * width) + vocab / (12 * width * layers)
    return 72.0 * samples * length * layers * width**2 * ratio


def step_flops(model: Transformer, samples: int, recompute: str = "none", way_back: float = 1.0) -> Flops:
    """FLOPs of forward and backward of `samples` samples. Backward is twice forward, of the layers' share `way_back`.

    Each parameter of a matrix takes 2 a token; scores and mixing of values 4 h a layer and pair.
    """
    tokens = float(samples * model.length)
    matrices = 2 * tokens * model.layers * (model.attention_weights + model.ffn_weights)
    head_matrix = 2 * tokens * model.table_parameters
    scores = 4.0 * samples * model.layers * model.width
    dense = scores * model.length * model.length
    seen = scores * 2 * score_pairs(model.length, model.window)
    again = {"none": 0.0, "selective": dense, "full": matrices + dense}[recompute]
    times = 1 + 2 * way_back
    total = times * (matrices + dense) + 3 * head_matrix
    return Flops(total, times * (matrices + seen) + 3 * head_matrix, total + way_back * again)
