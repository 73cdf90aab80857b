"""How well the hardware is used: MFU and HFU by stated formulas, step-time parts, memory. Pure but for memory.

MFU counts what the model needs, HFU what was done, recomputation included. Both over the dense peak of
the device in the precision of the run; a device that is not in the table has no figure rather than a wrong one.
"""

from __future__ import annotations

import math
import resource

import torch

from holdfast.plan.transformer import Flops, step_flops
from holdfast.planner.cluster.gpus import find
from holdfast.trainer.settings.config import Config, ModelConfig
from holdfast.trainer.settings.shape import shape_of


def peak_of(device: str, dtype: str) -> float | None:
    """Peak FLOP/s of a device by name, None if unknown or if the run does not use what the peak is stated for."""
    known = find(device) if dtype == "bfloat16" else None
    return None if known is None else known.flops


def model_flops(
    model: ModelConfig, vocab: int, length: int, samples: int, recompute: str = "none", way_back: float = 1.0
) -> Flops:
    """As `step_flops`, of the settings' model."""
    return step_flops(shape_of(model, vocab, length), samples, recompute, way_back)


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
        self.flops = model_flops(*shape, way_back=way_back)
        more = [model_flops(*shape, kind, way_back).hardware - self.flops.model for kind in recomputes]
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
