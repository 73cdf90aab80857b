"""Which of Hugging Face's architectures computes what our settings describe, and our weights by its names.

Attention's inputs lie in another order: ours go group by group of key-value heads (see model.ModelShape), theirs
projection by projection. All turn pairs (i, i + half) for rotary positions. Pure: tensors in, tensors out.

No architecture of theirs has parallel blocks with RMSNorm. Phi has parallel blocks with LayerNorm, and LayerNorm of
[x, -x] is RMSNorm of x: the mean is 0 and the variance is the mean square. So Phi with twice the width, whose second
half mirrors the first, computes the same (Jiang et al. 2023, arXiv:2305.14858).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from holdfast.trainer.data.tokens import SEPARATOR
from holdfast.trainer.settings.config import ModelConfig
from holdfast.trainer.settings.errors import ConfigError

Weights = Mapping[str, Tensor]
LLAMA: dict[str, Any] = {"block": "serial", "norm": "rms", "positions": "rope", "mlp": "swiglu", "window": 0}
"""What a Llama is, in our settings."""
PLAIN = {
    "embed.weight": "model.embed_tokens.weight",
    "head.norm.weight": "model.norm.weight",
    "head.weight": "lm_head.weight",
}
IN_LAYER = {
    "norm.weight": "input_layernorm.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "attention.out.weight": "self_attn.o_proj.weight",
    "ffn.gate.weight": "mlp.gate_proj.weight",
    "ffn.up.weight": "mlp.up_proj.weight",
    "ffn.down.weight": "mlp.down_proj.weight",
}
QKV = tuple(f"self_attn.{which}_proj.weight" for which in "qkv")
_GELU = "gelu_pytorch_tanh"


@dataclass(frozen=True, slots=True)
class Architecture:
    """One of theirs."""

    name: str
    settings: Mapping[str, Any]
    """Our model settings that it computes; it takes any value of the others."""
    describe: Callable[[ModelConfig, int], dict[str, Any]]
    """What its config.json says of the model and its seq_len, beyond `common`."""
    tensors: Callable[[ModelConfig, Weights], dict[str, Tensor]]
    """Whole tensors by its names, out of ours."""

    def obstacles(self, model: ModelConfig) -> list[str]:
        """Settings that it does not compute."""
        return [key for key, value in self.settings.items() if getattr(model, key) != value]


def architecture_of(model: ModelConfig) -> Architecture:
    """The one that computes this model. Raises ConfigError with the settings in the way of the nearest one."""
    nearest = min(ARCHITECTURES, key=lambda one: len(one.obstacles(model)))
    wrong = nearest.obstacles(model)
    if wrong:
        has = ", ".join(f"model.{key} = {getattr(model, key)}" for key in wrong)
        needs = ", ".join(f"model.{key} = {nearest.settings[key]}" for key in wrong)
        raise ConfigError(
            f"no Hugging Face architecture that Holdfast writes computes {has}; the nearest, {nearest.name}, "
            f"needs {needs}: train with that, or use holdfast checkpoint export --to dcp"
        )
    return nearest


def common(model: ModelConfig, vocab: int, dtype: torch.dtype) -> dict[str, Any]:
    """What every config.json says."""
    return {
        "vocab_size": vocab,
        "tie_word_embeddings": model.tied,
        "initializer_range": model.init_std,
        "bos_token_id": SEPARATOR,
        "eos_token_id": SEPARATOR,
        "torch_dtype": str(dtype).removeprefix("torch."),
    }


def _rotary(model: ModelConfig, seq_len: int) -> dict[str, Any]:
    return {
        "hidden_size": model.d_model,
        "intermediate_size": model.inner,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": _groups(model),
        "head_dim": model.d_model // model.heads,
        "max_position_embeddings": seq_len,
        "rope_theta": model.rope_theta,
    }


def _llama(model: ModelConfig, seq_len: int) -> dict[str, Any]:
    more = {"hidden_act": "silu", "attention_bias": False, "mlp_bias": False}
    return {"model_type": "llama", **_rotary(model, seq_len), "rms_norm_eps": model.norm_eps, **more}


def _arcee(model: ModelConfig, seq_len: int) -> dict[str, Any]:
    """A Llama whose feed-forward layer has no gate."""
    return {**_llama(model, seq_len), "model_type": "arcee", "hidden_act": _GELU}


def _gpt2(model: ModelConfig, seq_len: int) -> dict[str, Any]:
    return {
        "model_type": "gpt2",
        "n_embd": model.d_model,
        "n_inner": model.inner,
        "n_layer": model.layers,
        "n_head": model.heads,
        "n_positions": seq_len,
        "layer_norm_epsilon": model.norm_eps,
        "activation_function": _GELU,
    }


def _phi(model: ModelConfig, seq_len: int) -> dict[str, Any]:
    return {
        **_rotary(model, seq_len),
        "model_type": "phi",
        "hidden_size": model.d_model * (2 if model.norm == "rms" else 1),
        "layer_norm_eps": model.norm_eps,
        "partial_rotary_factor": 1.0,
        "hidden_act": _GELU,
        "qk_layernorm": False,
    }


def _llama_tensors(model: ModelConfig, weights: Weights) -> dict[str, Tensor]:
    theirs = {PLAIN[name]: weights[name] for name in PLAIN if name in weights}
    for layer in range(model.layers):
        mine, base = f"layers.{layer}", f"model.layers.{layer}"
        for name, their in IN_LAYER.items():
            if f"{mine}.{name}" in weights:  # no gate without swiglu
                theirs[f"{base}.{their}"] = weights[f"{mine}.{name}"]
        for name, rows in zip(QKV, _rows(model, weights[f"{mine}.attention.qkv.weight"]), strict=True):
            theirs[f"{base}.{name}"] = rows
    return theirs


def _gpt2_tensors(model: ModelConfig, weights: Weights) -> dict[str, Tensor]:
    """Its matrices lie the other way round, have biases, and each head has its own keys and values."""
    theirs = {"transformer.wte.weight": weights["embed.weight"], "transformer.wpe.weight": weights["positions.weight"]}
    if not model.tied:
        theirs["lm_head.weight"] = weights["head.weight"]

    def linear(name: str, weight: Tensor) -> None:
        theirs[f"{name}.weight"] = weight.t()
        theirs[f"{name}.bias"] = weight.new_zeros(weight.shape[0])

    def norm(name: str, mine: str) -> None:
        theirs.update({f"{name}.{which}": weights[f"{mine}.{which}"] for which in ("weight", "bias")})

    sharing, head = model.heads // _groups(model), model.d_model // model.heads
    for layer in range(model.layers):
        mine, base = f"layers.{layer}", f"transformer.h.{layer}"
        query, *pair = _rows(model, weights[f"{mine}.attention.qkv.weight"])
        pair = [rows.view(-1, head, model.d_model).repeat_interleave(sharing, 0).flatten(0, 1) for rows in pair]
        norm(f"{base}.ln_1", f"{mine}.norm")
        linear(f"{base}.attn.c_attn", torch.cat([query, *pair]))
        linear(f"{base}.attn.c_proj", weights[f"{mine}.attention.out.weight"])
        norm(f"{base}.ln_2", f"{mine}.ffn_norm")
        linear(f"{base}.mlp.c_fc", weights[f"{mine}.ffn.up.weight"])
        linear(f"{base}.mlp.c_proj", weights[f"{mine}.ffn.down.weight"])
    norm("transformer.ln_f", "head.norm")
    return theirs


def _phi_tensors(model: ModelConfig, weights: Weights) -> dict[str, Tensor]:
    is_rms = model.norm == "rms"
    theirs: dict[str, Tensor] = {}

    def linear(name: str, weight: Tensor) -> None:
        theirs[f"{name}.weight"] = weight
        theirs[f"{name}.bias"] = weight.new_zeros(weight.shape[0])

    def norm(name: str, mine: str) -> None:
        weight = weights[f"{mine}.weight"]
        # With a weight of 0 the second half ends here: behind it is the model of the plain width.
        theirs[f"{name}.weight"] = _filled(weight) if is_rms else weight
        theirs[f"{name}.bias"] = weight.new_zeros(2 * len(weight)) if is_rms else weights[f"{mine}.bias"]

    def inward(name: str, weight: Tensor) -> None:
        linear(name, _filled(weight) if is_rms else weight)

    def outward(name: str, weight: Tensor) -> None:
        linear(name, torch.cat([weight, -weight]) if is_rms else weight)

    table = weights["embed.weight"]
    theirs["model.embed_tokens.weight"] = torch.cat([table, -table], dim=1) if is_rms else table
    for layer in range(model.layers):
        mine, base = f"layers.{layer}", f"model.layers.{layer}"
        norm(f"{base}.input_layernorm", f"{mine}.norm")
        *qkv, up = _rows(model, weights[f"{mine}.inward.weight"])
        for which, rows in zip("qkv", qkv, strict=True):
            inward(f"{base}.self_attn.{which}_proj", rows)
        inward(f"{base}.mlp.fc1", up)
        out, down = _columns(model, weights[f"{mine}.outward.weight"])
        outward(f"{base}.self_attn.dense", out)
        outward(f"{base}.mlp.fc2", down)
    norm("model.final_layernorm", "head.norm")
    if model.tied:
        theirs["lm_head.bias"] = table.new_zeros(table.shape[0])
    else:
        inward("lm_head", weights["head.weight"])
    return theirs


def _filled(weight: Tensor) -> Tensor:
    """As many zeros behind the last dimension."""
    return torch.cat([weight, torch.zeros_like(weight)], dim=-1)


def _rows(model: ModelConfig, weight: Tensor) -> list[Tensor]:
    """Rows of queries, keys and values out of our matrix, and those of a feed-forward layer that it has too."""
    head, groups = model.d_model // model.heads, _groups(model)
    in_group = weight.view(groups, -1, model.d_model)
    attention = [model.heads // groups * head, head, head]
    rest = in_group.shape[1] - sum(attention)
    parts = torch.split(in_group, [*attention, rest] if rest else attention, dim=1)
    return [rows.reshape(-1, model.d_model) for rows in parts]


def _columns(model: ModelConfig, weight: Tensor) -> list[Tensor]:
    """Columns of attention's output and of the feed-forward layer's out of the matrix of both."""
    groups = _groups(model)
    in_group = weight.view(model.d_model, groups, -1)
    parts = torch.split(in_group, [model.d_model // groups, model.inner // groups], dim=2)
    return [columns.reshape(model.d_model, -1) for columns in parts]


def _groups(model: ModelConfig) -> int:
    return model.kv_heads or model.heads


ARCHITECTURES = (
    Architecture("LlamaForCausalLM", LLAMA, _llama, _llama_tensors),
    Architecture("ArceeForCausalLM", {**LLAMA, "mlp": "gelu"}, _arcee, _llama_tensors),
    Architecture(
        "GPT2LMHeadModel",
        {"block": "serial", "norm": "layer", "positions": "learned", "mlp": "gelu", "window": 0},
        _gpt2,
        _gpt2_tensors,
    ),
    # Its norm is a LayerNorm, and by twice the width an RMSNorm.
    Architecture(
        "PhiForCausalLM",
        {"block": "parallel", "positions": "rope", "mlp": "gelu", "window": 0},
        _phi,
        _phi_tensors,
    ),
)
