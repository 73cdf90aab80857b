"""What checkpoints are made of, as the manager sees it."""

from collections.abc import Mapping
from typing import Any, Protocol

import torch

from holdfast.checkpoint.worker.stage1 import Tensors


class State(Protocol):
    """What is kept of one worker."""

    @property
    def has_own(self) -> bool:
        """Whether some of it is this worker's alone: in nobody else's capture, and wanted in a world of its size."""

    def capture(self) -> tuple[Tensors, dict[str, Any]]:
        """What it holds, not copied, always of the same names and shapes; and what it has besides, as JSON."""

    def put_back(self, tensors: Mapping[str, torch.Tensor], values: Mapping[str, Any], is_same_world: bool) -> None:
        """Undo it. `tensors`: those of a capture, filled; of this worker's own maybe fewer.

        `values`: of the job, with what workers had otherwise under WORKERS."""

    def problem(self, values: Mapping[str, Any]) -> str:
        """Why `put_back` could make nothing of these values, whatever the tensors are, in words; "" when it could."""
