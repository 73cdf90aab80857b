"""The trainer's side of checkpoints: what is kept, and its callbacks. The rest is `checkpoint.worker.manager`'s."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from torch import Tensor

from holdfast.agent import probe
from holdfast.checkpoint.restore.group import ProcessGroup
from holdfast.checkpoint.worker.manager import CheckpointManager
from holdfast.checkpoint.worker.options import CheckpointOptions, CheckpointWatch, Run
from holdfast.checkpoint.worker.stage1 import Tensors
from holdfast.trainer.mesh.mesh import RankMesh
from holdfast.trainer.optim.optimizer import Optimizer
from holdfast.trainer.optim.slices import Slice
from holdfast.trainer.settings.config import CheckpointConfig
from holdfast.trainer.settings.launch import Launch
from holdfast.trainer.weights.state import APPLIED, put_back, tensors, values


class TrainerState:
    """Slices and what the optimizer keeps of them."""

    def __init__(self, slices: list[Slice], optimizer: Optimizer) -> None:
        self.slices, self.optimizer = slices, optimizer

    @property
    def has_own(self) -> bool:
        """None: random numbers and the place in the data follow from the step, and parts from the layout."""
        return False

    def capture(self) -> tuple[Tensors, dict[str, Any]]:
        return tensors(self.slices, self.optimizer), values(self.optimizer)

    def put_back(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any], is_same_world: bool) -> None:
        put_back(tensors, values, self.slices, self.optimizer)

    def problem(self, values: Mapping[str, Any]) -> str:
        return "" if type(values.get(APPLIED)) is int else f"{APPLIED} is not there, or not a number"


def make_manager(
    config: CheckpointConfig,
    launch: Launch,
    mesh: RankMesh,
    slices: list[Slice],
    optimizer: Optimizer,
    settings: Mapping[str, object],
) -> CheckpointManager:
    """Called by all ranks together. Raises StaleGeneration, UsageError as `CheckpointManager` does."""
    options = CheckpointOptions(**{one.name: getattr(config, one.name) for one in fields(CheckpointOptions)})
    run = Run(launch.rank, launch.world, launch.job, launch.generation)
    watch = CheckpointWatch(probe.operation, probe.phase, probe.requested, probe.restored, warn)
    group = ProcessGroup(operation=probe.operation)
    return CheckpointManager(
        options, run, group, TrainerState(slices, optimizer), mesh.sizes, settings, mesh.device, watch
    )


def warn(text: str) -> None:
    """One line on standard error."""
    print(f"holdfast train: {text}", file=sys.stderr, flush=True)
