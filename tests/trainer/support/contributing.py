"""What forked ranks do in the tests of partial backwards: gradients step by step, and who had which."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from joining import joined
from safetensors.torch import save_file
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from holdfast.trainer.optim import contributions


def steps(folder: Path, argv: list[str], count: int) -> dict[str, Any]:
    """Gradients of `count` steps without an update between them, into a file each. Returns, step by step, the names
    of parameters that this rank itself had gradients of, and the FLOPs of forward and backward."""
    own: list[list[str]] = []
    flops = []
    with joined(argv) as rank:
        trainer = rank.trainer()
        gather, names = contributions._Section.gather, {id(s.parameter): s.name for s in trainer.slices}

        def watched(self: contributions._Section, contributors: int) -> Tensor:
            own[-1] += [names[id(parameter)] for parameter in self.parameters]
            return gather(self, contributors)

        contributions._Section.gather = watched  # type: ignore[method-assign]
        for step in range(count):
            own.append([])
            with FlopCounterMode(display=False) as counter:
                trainer.gradients(step)
            flops.append(counter.get_total_flops())
            grads: dict[str, Tensor] = {s.name: s.shard.grad.clone() for s in trainer.slices}
            save_file(grads, folder / f"grads-{step}-{rank.launch.rank}.safetensors")
            trainer.optimizer.drop()
        contributions._Section.gather = gather  # type: ignore[method-assign]
    return {"own": own, "flops": flops}
