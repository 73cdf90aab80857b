"""What a job does in every step, what that is planned to take, and what its links carry. Sent once, by rank 0."""

from __future__ import annotations

import contextlib

import torch

from holdfast.agent import probe
from holdfast.plan.plan import Plan
from holdfast.trainer.settings import layout
from holdfast.trainer.settings.config import Config
from holdfast.trainer.settings.own_module import ModuleSizes
from holdfast.trainer.settings.planned import planned_of, step_traffic


def publish_plan(plan: Plan, config: Config, world: int, device: torch.device, own: ModuleSizes | None = None) -> None:
    """Beside an agent. What was planned for other settings, ranks or GPUs is left out, and one line says why. `own`: of
    a module of the user's."""
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    planned, why = planned_of(config, world, gpu)
    if why:
        print(f"not compared with a plan: {why}", flush=True)
    vocab = layout.vocab_of(config.data.tokenizer)
    traffic = step_traffic(config, layout.plan(config, world, vocab), vocab, plan, own)
    # Late: protobuf is the agent's dependency, and a trainer does without.
    with contextlib.suppress(ImportError):
        from holdfast.wire.plans import encode_plan

        probe.publish_plan(encode_plan(plan, planned, traffic))
