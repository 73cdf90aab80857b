"""What forked ranks do in the tests of partial backwards: gradients step by step, and who had which."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from joining import joined
from safetensors.torch import save_file
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from holdfast.trainer.optim.contributions import ContributionMeans


def steps(folder: Path, argv: list[str], count: int) -> dict[str, Any]:
    """Gradients of `count` steps without an update between them, into a file each. Returns, step by step, the names
    of parameters that this rank itself had gradients of, and the FLOPs of forward and backward."""
    own: list[list[str]] = []
    flops = []
    with joined(argv) as rank:
        trainer = rank.trainer()
        begin = ContributionMeans.begin

        def watched(self: ContributionMeans) -> None:
            if len(own) == len(flops):
                own.append([s.name for s in trainer.slices if s.parameter.grad is not None])
            begin(self)

        ContributionMeans.begin = watched  # type: ignore[method-assign]
        for step in range(count):
            with FlopCounterMode(display=False) as counter:
                trainer.gradients(step)
            flops.append(counter.get_total_flops())
            grads: dict[str, Tensor] = {s.name: s.shard.grad.clone() for s in trainer.slices}
            save_file(grads, folder / f"grads-{step}-{rank.launch.rank}.safetensors")
            trainer.optimizer.drop()
        ContributionMeans.begin = begin  # type: ignore[method-assign]
    return {"own": own, "flops": flops}
