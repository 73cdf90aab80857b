"""What a rank holds while it trains, counted by the kinds of `expected`. Needs torch.

Model states are counted by their memory, activations by what graphs save and by what stages keep of each micro-batch,
at the end of every action. It takes a few milliseconds an action: for the first steps of a run. What an operation takes
for itself, and copies on their way to other ranks, are not seen; a GPU counts them, in its peak of allocated memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from holdfast.trainer.pipeline.recompute import Saved

if TYPE_CHECKING:
    from holdfast.trainer.run.loop import Trainer

STEPS = 2
"""That are measured: the optimizer has its averages from the first on, gradients are added to from the second on."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The most bytes of each kind. They need not have been there at the same time."""

    weights: int
    gradients: int
    optimizer: int
    activations: int
    gathered: int
    allocated: int | None
    """The most that a GPU's allocator gave out for everything; None on a CPU."""

    def kinds(self) -> dict[str, int]:
        found = asdict(self)
        del found["allocated"]
        return found


class Gauge:
    """Measures a trainer's steps from entry to exit; `result` says what was found."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._modules = nn.ModuleList(trainer.stages)
        self._saved = _Saved(self._modules, trainer)
        self._gradients = self._activations = self._gathered = 0

    def __enter__(self) -> Gauge:
        self._saved.__enter__()
        self._trainer.executor.after = self._look
        if (device := self._trainer.mesh.device).type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._trainer.executor.after = None
        self._saved.__exit__(kind, error, trace)

    def result(self) -> Measured:
        """After a step: the optimizer's averages are there."""
        optimizer, device = self._trainer.optimizer, self._trainer.mesh.device
        states = [tensor for piece in optimizer.slices for tensor in optimizer.state(piece).values()]
        return Measured(
            num_bytes(piece.shard for piece in self._trainer.slices),
            self._gradients,
            num_bytes(states),
            self._activations,
            self._gathered,
            torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None,
        )

    def _look(self) -> None:
        whole, gradients = [], [p.grad for p in self._modules.parameters() if p.grad is not None]
        for parameter, gradient in self._trainer.executor.unsharded():
            whole.append(parameter)
            gradients += [gradient] if gradient is not None else []
        self._gathered = max(self._gathered, num_bytes(whole))
        self._gradients = max(self._gradients, num_bytes(gradients))
        kept = (x for x in self._trainer.executor.kept() if x.is_floating_point() and not self._saved.has(x))
        self._activations = max(self._activations, self._saved.bytes + num_bytes(kept))


class _Saved(Saved):
    """Leaves out parameters that have been gathered, too: each time they lie elsewhere."""

    def __init__(self, module: nn.Module, trainer: Trainer) -> None:
        super().__init__(module)
        self._trainer = trainer

    def _pack(self, tensor: Tensor) -> Any:
        whole = {storage(parameter).data_ptr() for parameter, _ in self._trainer.executor.unsharded()}
        return tensor if storage(tensor).data_ptr() in whole else super()._pack(tensor)


def num_bytes(tensors: Iterable[Tensor]) -> int:
    """Of their memory; what several share counts once."""
    return sum(dict(_places(tensors)).values())


def _places(tensors: Iterable[Tensor]) -> Iterator[tuple[int, int]]:
    for tensor in tensors:
        yield storage(tensor).data_ptr(), storage(tensor).nbytes()


def storage(tensor: Tensor) -> torch.UntypedStorage:
    """The memory of a tensor, or of this rank's part of it."""
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return local.untyped_storage()
