"""What a rank holds while it trains, counted by the kinds of `expected`. Needs torch.

Model states are counted by their memory, activations by what graphs save and by what stages keep of each micro-batch,
at the end of every action. It takes a few milliseconds an action: for the first steps of a run. What an operation takes
for itself, and copies on their way to other ranks, are not seen; a GPU counts them, in its peak of allocated memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from holdfast.trainer.optim.optimizer import Optimizer
from holdfast.trainer.pipeline.executor import Executor
from holdfast.trainer.pipeline.recompute import Saved

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
    """Measures a rank's steps from entry to exit; `result` says what was found."""

    def __init__(
        self, executor: Executor, stages: Sequence[nn.Module], optimizer: Optimizer, device: torch.device
    ) -> None:
        self._executor, self._optimizer, self._device = executor, optimizer, device
        self._saved = _Saved(nn.ModuleList(stages), executor)
        self._gradients = self._activations = self._gathered = 0

    def __enter__(self) -> Gauge:
        self._saved.__enter__()
        self._executor.after = self._look
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._executor.after = None
        self._saved.__exit__(kind, error, trace)

    def result(self) -> Measured:
        """After a step: the optimizer's averages are there."""
        return Measured(
            num_bytes(piece.shard for piece in self._optimizer.all),
            self._gradients,
            num_bytes(self._optimizer.states.on_device()),
            self._activations,
            self._gathered,
            torch.cuda.max_memory_allocated(self._device) if self._device.type == "cuda" else None,
        )

    def _look(self) -> None:
        self._gathered = max(self._gathered, num_bytes(_whole(self._executor)))
        gradients = (grad for state in self._executor.states() for grad in state.gradients())
        self._gradients = max(self._gradients, num_bytes(gradients))
        kept = (x for x in self._executor.kept() if x.is_floating_point() and not self._saved.has(x))
        # With an `offload`, it has what graphs save.
        offload = self._executor.offload
        saved = self._saved.bytes + (0 if offload is None else offload.held)
        self._activations = max(self._activations, saved + num_bytes(kept))


class _Saved(Saved):
    """Leaves out parameters that have been gathered, too: each time they lie elsewhere."""

    def __init__(self, module: nn.Module, executor: Executor) -> None:
        super().__init__(module)
        self._executor = executor

    def _pack(self, tensor: Tensor) -> Any:
        whole = {storage(parameter).data_ptr() for parameter in _whole(self._executor)}
        return tensor if storage(tensor).data_ptr() in whole else super()._pack(tensor)


def _whole(executor: Executor) -> Iterator[Tensor]:
    return (parameter for state in executor.states() for parameter in state.whole_parameters())


def num_bytes(tensors: Iterable[Tensor]) -> int:
    """Of their memory; what several share counts once."""
    return sum(dict(_places(tensors)).values())


def _places(tensors: Iterable[Tensor]) -> Iterator[tuple[int, int]]:
    for tensor in tensors:
        if isinstance(tensor, DTensor) and not hasattr(tensor, "_local_tensor"):
            continue  # the thread that sums gradients is about to make it: it is there at the next look
        yield storage(tensor).data_ptr(), storage(tensor).nbytes()


def storage(tensor: Tensor) -> torch.UntypedStorage:
    """The memory of a tensor, or of this rank's part of it."""
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return local.untyped_storage()
