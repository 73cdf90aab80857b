"""How well the hardware is used: MFU and HFU by stated formulas, step-time parts, memory. Pure but for memory.

MFU counts what the model needs, HFU what was done, recomputation included. Both over the dense peak of
the device in the precision of the run; a device that is not in the table has no figure rather than a wrong one.
"""

from __future__ import annotations

import math
import resource
from dataclasses import dataclass

import torch

from holdfast.trainer.model.attention import score_pairs
from holdfast.trainer.settings.config import Config, ModelConfig

# Dense bfloat16 peak in FLOP/s from the vendors' data sheets, by what the device's name contains. The first that
# fits counts, so a special form stands before the plain one.
PEAKS = (
    ("H100 PCIe", 756e12),
    ("H100 NVL", 835e12),
    ("GH200", 989.4e12),
    ("H200", 989.4e12),
    ("H100", 989.4e12),
    ("H800", 989.4e12),
    ("A100", 312e12),
    ("A800", 312e12),
    ("L40S", 362e12),
    ("L4", 121e12),
)


def peak_of(device: str, dtype: str) -> float | None:
    """Peak FLOP/s of a device by name, None if unknown or if the run does not use what the peak is stated for."""
    if dtype != "bfloat16":
        return None
    words = device.replace("-", " ")
    return next((peak for name, peak in PEAKS if f" {name} " in f" {words} "), None)


def paper_flops(layers: int, width: int, length: int, vocab: int, samples: int) -> float:
    """FLOPs of one step: 72 B s L h^2 (1 + s / 6h + V / 12hL) (arXiv 2104.04473, section 5.1).

    For a GPT with a feed-forward width of 4h, without recomputation. Attention counts all s x s pairs.
    """
    ratio = 1 + length / (6 * width) + vocab / (12 * width * layers)
    return 72.0 * samples * length * layers * width**2 * ratio


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


def step_flops(
    model: ModelConfig, vocab: int, length: int, samples: int, recompute: str = "none", way_back: float = 1.0
) -> Flops:
    """FLOPs of forward and backward of `samples` samples. Backward is twice forward, of the layers' share `way_back`.

    Each parameter of a matrix takes 2 a token; scores and mixing of values 4 h a layer and pair.
    """
    head = model.d_model // model.heads
    groups = model.kv_heads or model.heads
    inner = model.ffn_width or model.ffn_mult * model.d_model
    attention_weights = model.d_model * (2 * model.heads + 2 * groups) * head
    ffn_weights = model.d_model * inner * (3 if model.mlp == "swiglu" else 2)
    tokens = float(samples * length)
    matrices = 2 * tokens * model.layers * (attention_weights + ffn_weights)
    head_matrix = 2 * tokens * vocab * model.d_model
    scores = 4.0 * samples * model.layers * model.d_model
    dense = scores * length * length
    seen = scores * 2 * score_pairs(length, model.window)
    again = {"none": 0.0, "selective": dense, "full": matrices + dense}[recompute]
    times = 1 + 2 * way_back
    total = times * (matrices + dense) + 3 * head_matrix
    return Flops(total, times * (matrices + seen) + 3 * head_matrix, total + way_back * again)


class Meter:
    """Utilisation of a run whose steps are all alike."""

    def __init__(
        self,
        config: Config,
        vocab: int,
        device: torch.device,
        world: int,
        recomputes: list[str],
        head_again: bool = False,
        way_back: float = 1.0,
        own: float | None = None,
    ) -> None:
        """`recomputes` says for each layer what is computed again, `head_again` whether the head is, `way_back` which
        share of the layers has a backward. `own`: FLOPs of a micro-batch forward, of a module that is not ours.
        """
        samples = config.train.micro_batches * config.train.micro_batch_size
        shape = (config.model, vocab, config.data.seq_len, samples)
        self.flops = step_flops(*shape, way_back=way_back)
        more = [step_flops(*shape, kind, way_back).hardware - self.flops.model for kind in recomputes]
        self.hardware = self.flops.model + sum(more) / max(1, len(more))
        if head_again:
            self.hardware += 2.0 * samples * config.data.seq_len * vocab * config.model.d_model
        if own is not None:  # backward is twice forward
            self.flops = Flops(*(3 * own * config.train.micro_batches,) * 3)
            again = "full" in recomputes
            self.hardware = self.flops.model * (4 if again else 3) / 3
        self.device = device
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
        peak = peak_of(name, config.train.dtype)
        self.peak = None if peak is None else peak * world

    def utilisation(self, seconds: float) -> dict[str, float | None]:
        """MFU, the same by the pairs that a window allows, and HFU of a step, from 0 to 1; None if unknown."""
        counted = {"mfu": self.flops.model, "mfu_pairs": self.flops.pairs, "hfu": self.hardware}
        return {name: None if self.peak is None else flops / seconds / self.peak for name, flops in counted.items()}

    def mfu(self, seconds: float) -> float:
        """MFU alone, NaN if unknown."""
        return math.nan if self.peak is None else self.flops.model / seconds / self.peak

    def memory_bytes(self) -> int:
        """The most that this rank has held so far: of the GPU's memory, or of the host's when it is a CPU."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def percent(share: float | None) -> str:
    """For people."""
    return "n/a" if share is None else f"{share:.1%}"
