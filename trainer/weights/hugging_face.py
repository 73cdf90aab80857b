"""Weights to and from Hugging Face's Llama folders: config.json and safetensors, names and shapes as theirs.

Both sides hold the same numbers; those of attention's inputs in another order: ours go group by group of key-value
heads (see model.Shape), theirs projection by projection. Both turn pairs (i, i + half) for rotary positions.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from holdfast.trainer.settings.config import ModelConfig
from holdfast.trainer.settings.errors import ConfigError

Get = Callable[[str], Tensor]
# What a Llama is, in our settings.
LLAMA: dict[str, Any] = {"block": "serial", "norm": "rms", "positions": "rope", "mlp": "swiglu", "window": 0}
_PLAIN = {
    "embed.weight": "model.embed_tokens.weight",
    "head.norm.weight": "model.norm.weight",
    "head.weight": "lm_head.weight",
}
_IN_LAYER = {
    "norm.weight": "input_layernorm.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "attention.out.weight": "self_attn.o_proj.weight",
    "ffn.gate.weight": "mlp.gate_proj.weight",
    "ffn.up.weight": "mlp.up_proj.weight",
    "ffn.down.weight": "mlp.down_proj.weight",
}


def export(folder: Path, model: ModelConfig, vocab: int, seq_len: int, weights: Mapping[str, Tensor]) -> None:
    """Write `weights`, whole tensors by our names, as a folder that transformers loads.

    Raises ConfigError for a model that is no Llama, and OSError.
    """
    other = [f"model.{key} = {getattr(model, key)}" for key, value in LLAMA.items() if getattr(model, key) != value]
    if other:
        need = ", ".join(f"{key} = {value}" for key, value in LLAMA.items())
        raise ConfigError(f"--export-hf writes Llama models ({need}); this one has {', '.join(other)}")
    folder.mkdir(parents=True, exist_ok=True)
    theirs = {name: tensor.contiguous() for name, tensor in to_llama(model, weights).items()}
    save_file(theirs, folder / "model.safetensors", {"format": "pt"})
    dtype = str(weights["embed.weight"].dtype).removeprefix("torch.")
    described = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": model.d_model,
        "intermediate_size": _inner(model),
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads or model.heads,
        "head_dim": model.d_model // model.heads,
        "vocab_size": vocab,
        "max_position_embeddings": seq_len,
        "rms_norm_eps": model.norm_eps,
        "rope_theta": model.rope_theta,
        "tie_word_embeddings": model.tied,
        "initializer_range": model.init_std,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "torch_dtype": dtype,
    }
    (folder / "config.json").write_text(json.dumps(described, indent=2) + "\n")


def settings_of(folder: Path) -> tuple[dict[str, Any], int]:
    """Our model settings for a folder of theirs, and its vocabulary. Raises ConfigError if we have none for it."""
    path = folder / "config.json"
    try:
        theirs = json.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; name a folder with a Hugging Face Llama") from None
    except ValueError:
        raise ConfigError(f"{path}: not JSON; name a folder with a Hugging Face Llama") from None
    try:
        return _settings(theirs, path)
    except KeyError as error:
        raise ConfigError(f"{path} has no {error}: not a Hugging Face Llama") from None


def _settings(theirs: Mapping[str, Any], path: Path) -> tuple[dict[str, Any], int]:
    heads = theirs["num_attention_heads"]
    groups = theirs.get("num_key_value_heads") or heads
    head = theirs.get("head_dim") or theirs["hidden_size"] // heads
    # Newer versions of transformers keep rotary settings in a table of their own.
    rope = theirs.get("rope_parameters") or {}
    kind = (theirs.get("rope_scaling") or {}).get("rope_type") or rope.get("rope_type", "default")
    for key, value, ours in (
        ("model_type", theirs.get("model_type"), "llama"),
        ("hidden_act", theirs.get("hidden_act", "silu"), "silu"),
        ("attention_bias", theirs.get("attention_bias", False), False),
        ("mlp_bias", theirs.get("mlp_bias", False), False),
        ("rope type", kind, "default"),
        ("head_dim x num_attention_heads", head * heads, theirs["hidden_size"]),
    ):
        if value != ours:
            raise ConfigError(f"{path}: {key} is {value}, the trainer knows {ours} only")
    found = {
        **LLAMA,
        "d_model": theirs["hidden_size"],
        "ffn_width": theirs["intermediate_size"],
        "layers": theirs["num_hidden_layers"],
        "heads": heads,
        "kv_heads": 0 if groups == heads else groups,
        "norm_eps": theirs["rms_norm_eps"],
        "rope_theta": float(theirs.get("rope_theta") or rope.get("rope_theta", 10000.0)),
        "tied": bool(theirs.get("tie_word_embeddings", False)),
    }
    return found, int(theirs["vocab_size"])


def reader(folder: Path) -> Get:
    """Reads one tensor of theirs at a time, from one file or from several with an index. Raises ConfigError."""
    index = folder / "model.safetensors.index.json"
    files: dict[str, str] = json.loads(index.read_text())["weight_map"] if index.exists() else {}

    def get(name: str) -> Tensor:
        path = folder / files.get(name, "model.safetensors")
        try:
            with safe_open(path, "pt") as opened:
                tensor: Tensor = opened.get_tensor(name)
        except Exception as error:  # the library has an error of its own, and OSError
            raise ConfigError(f"{path}: {name}: {error}") from None
        return tensor

    return get


def ours(name: str, model: ModelConfig, get: Get) -> Tensor:
    """Our whole parameter `name` out of theirs."""
    if name in _PLAIN:
        return get(_PLAIN[name])
    _, layer, part = name.split(".", 2)
    base = f"model.layers.{layer}"
    if part in _IN_LAYER:
        return get(f"{base}.{_IN_LAYER[part]}")
    assert part == "attention.qkv.weight", part
    groups = model.kv_heads or model.heads
    parts = [get(f"{base}.{their}").view(groups, -1, model.d_model) for their in _QKV]
    return torch.cat(parts, dim=1).view(-1, model.d_model)


_QKV = tuple(f"self_attn.{which}_proj.weight" for which in "qkv")


def to_llama(model: ModelConfig, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Their tensors by their names, out of our whole ones."""
    theirs = {_PLAIN[name]: weights[name] for name in _PLAIN if name in weights}
    groups, head = model.kv_heads or model.heads, model.d_model // model.heads
    for layer in range(model.layers):
        base = f"model.layers.{layer}"
        for mine, their in _IN_LAYER.items():
            theirs[f"{base}.{their}"] = weights[f"layers.{layer}.{mine}"]
        qkv = weights[f"layers.{layer}.attention.qkv.weight"].view(groups, -1, model.d_model)
        sizes = [model.heads // groups * head, head, head]
        for name, rows in zip(_QKV, torch.split(qkv, sizes, dim=1), strict=True):
            theirs[f"{base}.{name}"] = rows.reshape(-1, model.d_model)
    return theirs


def _inner(model: ModelConfig) -> int:
    return model.ffn_width or model.ffn_mult * model.d_model
