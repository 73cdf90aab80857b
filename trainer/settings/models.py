"""Shapes of published models, by the names that `--model` takes.

Shapes alone: where a paper's model has biases in its matrices, ours has none.
"""

from __future__ import annotations

from typing import Any

from holdfast.base.settings import nearest
from holdfast.trainer.settings.errors import ConfigError


def _gpt(layers: int, width: int, heads: int, length: int, vocab: int, tied: bool) -> dict[str, Any]:
    return {
        "model.layers": layers, "model.d_model": width, "model.heads": heads, "model.kv_heads": 0,
        "model.ffn_mult": 4, "model.ffn_width": 0, "model.block": "serial", "model.norm": "layer",
        "model.positions": "learned", "model.mlp": "gelu", "model.tied": tied,
        "data.seq_len": length, "data.tokenizer": f"bpe:{vocab}",
    }  # fmt: skip


def _llama(layers: int, width: int, heads: int, kv_heads: int, inner: int, length: int) -> dict[str, Any]:
    return {
        "model.layers": layers, "model.d_model": width, "model.heads": heads, "model.kv_heads": kv_heads,
        "model.ffn_width": inner, "model.block": "serial", "model.norm": "rms", "model.positions": "rope",
        "model.mlp": "swiglu", "model.tied": False, "data.seq_len": length, "data.tokenizer": "bpe:32000",
    }  # fmt: skip


MODELS: dict[str, dict[str, Any]] = {
    # Radford et al. 2019, table 2.
    "gpt2": _gpt(12, 768, 12, 1024, 50257, True),
    "gpt2-medium": _gpt(24, 1024, 16, 1024, 50257, True),
    "gpt2-large": _gpt(36, 1280, 20, 1024, 50257, True),
    "gpt2-xl": _gpt(48, 1600, 25, 1024, 50257, True),
    # Narayanan et al. 2021 (arXiv 2104.04473), table 1; 175b: Brown et al. 2020.
    "gpt-39b": _gpt(48, 8192, 64, 2048, 51200, True),
    "gpt-175b": _gpt(96, 12288, 96, 2048, 51200, True),
    "gpt-530b": _gpt(105, 20480, 128, 2048, 51200, True),
    "gpt-1t": _gpt(128, 25600, 160, 2048, 51200, True),
    # Touvron et al. 2023 (arXiv 2302.13971 and 2307.09288).
    "llama-7b": _llama(32, 4096, 32, 0, 11008, 2048),
    "llama-13b": _llama(40, 5120, 40, 0, 13824, 2048),
    "llama-65b": _llama(80, 8192, 64, 0, 22016, 2048),
    "llama2-70b": _llama(80, 8192, 64, 8, 28672, 4096),
}


def settings_of(name: str) -> list[tuple[str, Any]]:
    """The model's settings. Raises ConfigError for a name that is none of them."""
    if name not in MODELS:
        raise ConfigError(f"--model is {name[:100]!r}, which is not known{nearest(name[:100].lower(), MODELS)}")
    return list(MODELS[name].items())
