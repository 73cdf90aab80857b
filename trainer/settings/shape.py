"""The shape of the settings' model, as the core and the planner have it. No torch."""

from __future__ import annotations

from holdfast.plan.transformer import Transformer
from holdfast.trainer.settings.config import ModelConfig


def shape_of(model: ModelConfig, vocab: int, length: int) -> Transformer:
    """With this vocabulary, for samples of `length` tokens."""
    return Transformer(
        layers=model.layers,
        width=model.d_model,
        heads=model.heads,
        vocab=vocab,
        length=length,
        kv_heads=model.kv_heads,
        ffn_width=model.inner,
        mlp=model.mlp,
        block=model.block,
        norm=model.norm,
        positions=model.positions,
        window=model.window,
        tied=model.tied,
    )
