"""Folders of Hugging Face: what we write for transformers to load, and Llamas that we read.

`architectures` knows which model of theirs ours is. Token 0 begins and ends a document, in their config too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from holdfast.trainer.data.tokens import Tokenizer
from holdfast.trainer.settings.config import ModelConfig
from holdfast.trainer.settings.errors import ConfigError
from holdfast.trainer.weights import tokenizer_files
from holdfast.trainer.weights.architectures import IN_LAYER, LLAMA, PLAIN, QKV, architecture_of, common

Get = Callable[[str], Tensor]
FILE_BYTES = 5 * 10**9
"""Weights beyond this go into several files with an index, as transformers writes them."""


def export(
    folder: Path,
    model: ModelConfig,
    vocab: int,
    seq_len: int,
    weights: Mapping[str, Tensor],
    tokenizer: Tokenizer | None,
    file_bytes: int = FILE_BYTES,
) -> None:
    """Write `weights`, whole tensors by our names, as a folder that transformers loads.

    Without `tokenizer` there are no tokenizer files. Raises ConfigError for a model that no architecture computes,
    and OSError.
    """
    from huggingface_hub import save_torch_state_dict  # every worker imports this module for `reader`

    theirs = architecture_of(model)
    folder.mkdir(parents=True, exist_ok=True)
    described = {
        "architectures": [theirs.name],
        **theirs.describe(model, seq_len),
        **common(model, vocab, weights["embed.weight"].dtype),
    }
    (folder / "config.json").write_text(json.dumps(described, indent=2) + "\n")
    save_torch_state_dict(theirs.tensors(model, weights), folder, max_shard_size=file_bytes)
    for path in folder.glob("model*.safetensors"):
        # The library makes them readable for their owner alone; a server often runs as another user.
        path.chmod((folder / "config.json").stat().st_mode & 0o777)
    if tokenizer is not None:
        tokenizer_files.write(folder, tokenizer, seq_len)


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
    if name in PLAIN:
        return get(PLAIN[name])
    _, layer, part = name.split(".", 2)
    base = f"model.layers.{layer}"
    if part in IN_LAYER:
        return get(f"{base}.{IN_LAYER[part]}")
    assert part == "attention.qkv.weight", part
    groups = model.kv_heads or model.heads
    parts = [get(f"{base}.{their}").view(groups, -1, model.d_model) for their in QKV]
    return torch.cat(parts, dim=1).view(-1, model.d_model)
