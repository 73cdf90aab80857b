"""A model whose parameters are in chunks: brings what a layer needs before it computes, forward and back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from holdfast.trainer.chunks.device import Device, key_of
from holdfast.trainer.chunks.groups import Groups
from holdfast.trainer.chunks.saved import SavedOnArena
from holdfast.trainer.chunks.states import ChunkOptimizer, ChunkStates
from holdfast.trainer.mesh.mesh import RankMesh
from holdfast.trainer.model.model import ModelStage
from holdfast.trainer.optim.slices import Slice
from holdfast.trainer.optim.traffic import chunks_of
from holdfast.trainer.settings.chunk_layout import Chunks
from holdfast.trainer.settings.config import Config


@dataclass(frozen=True, slots=True)
class Moved:
    """What chunks did in a step on this rank, in bytes."""

    fetched: int
    """From host memory to the device."""
    evicted: int
    """From the device to host memory."""
    received: int
    """From other replicas."""
    device: int
    """The most that was on the device so far: on a CPU all that the arena counts, on a GPU chunks and lists alone."""


class ModelInChunks:
    """Takes the parameters of a stage, which lie in host memory, into chunks."""

    def __init__(self, stage: ModelStage, config: Config, mesh: RankMesh) -> None:
        """Called by all ranks together. ConfigError where nothing fits."""
        self.config, self.stage, self._mesh = config, stage, mesh
        parameters = dict(stage.named_parameters())
        device = mesh.device
        capacity = capacity_of(config, device)
        if capacity is not None and mesh.layout.replicas > 1:
            # All replicas cut alike, whatever else is on the device of one of them.
            least = torch.tensor([capacity], device=device)
            dist.all_reduce(least, dist.ReduceOp.MIN, mesh.replicas.get_group())
            capacity = int(least)
        vocab = parameters["embed.weight"].shape[0]
        self.chunks: Chunks = chunks_of(config, mesh.layout, vocab, capacity or 0)
        dtype = next(iter(parameters.values())).dtype
        self.device = Device(self.chunks, dtype, device, capacity, config.memory.evict)
        shapes = {name: parameters[name].shape for name in self.chunks.sizes}
        self.groups = Groups(self.chunks, shapes, self.device, mesh.replicas.get_group(), dtype)
        owned = {name: parameters[name].detach() for name in self.chunks.owned(mesh.dp_rank)}
        self.states = ChunkStates(config.optim, self.chunks, owned, self.device)
        self._received = 0
        for name, view in self.groups.views.items():
            parameter = parameters[name]
            parameter.data = view
            hook = partial(self._got_gradient, name)
            parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]  # torch's
        units = list(self.chunks.units)
        for place, unit in enumerate(units):
            module, following = _module_of(stage, unit), units[place + 1 : place + 2]
            module.register_forward_pre_hook(partial(self._before_forward, unit))
            module.register_forward_hook(partial(self._behind_forward, unit, following))
        self._saved: AbstractContextManager[Any] = nullcontext()
        if device.type == "cpu":
            keys = self.groups.keys
            buffers = {key_of(buffer) for buffer in stage.buffers()}
            self._saved = SavedOnArena(self.device, lambda: keys | buffers)
        else:
            for name, buffer in stage.named_buffers():
                setattr(stage, name, buffer.to(device))

    def slices(self) -> list[Slice]:
        """This rank's own tensors, whole: their finer form, for the optimizer and checkpoints."""
        parameters = dict(self.stage.named_parameters())
        is_sharded = self._mesh.layout.dp > 1
        return [
            Slice(name, parameters[name], master, 1, False, False, is_sharded)
            for name, master in self.states.masters.items()
        ]

    def optimizer(self, slices: list[Slice], sums: Callable[[], None]) -> ChunkOptimizer:
        """Of `slices`, whose values may have been set meanwhile."""
        self.states.settle_parameters()
        return ChunkOptimizer(self.config.optim, slices, self._mesh, sums, self.states, self.groups.norms)

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Around all computations of a step, forward and back."""
        self.device.begin()
        self.groups.begin()
        self._received = self.groups.received
        with self._saved:
            yield
        self.groups.end()

    def moved(self) -> Moved:
        """Of the step that was done last."""
        device, received = self.device, self.groups.received - self._received
        return Moved(device.fetched, device.evicted, received, device.arena.peak)

    @property
    def text(self) -> str:
        """One line for people, after the first step."""
        here, count = len(self.states.margin), self.chunks.num_groups
        return f"chunks: {self.chunks.text}; the device updates {here}, the host {count - here} of {count} groups"

    def _before_forward(self, unit: str, module: nn.Module, args: Any) -> None:
        self.groups.enter(self.chunks.groups_of(unit), is_written=False)

    def _behind_forward(self, unit: str, following: list[str], module: nn.Module, args: Any, output: Tensor) -> None:
        kept = {group for name in following for group in self.chunks.groups_of(name)}
        self.groups.leave(group for group in self.chunks.groups_of(unit) if group not in kept)
        if output.requires_grad:
            output.register_hook(partial(self._before_backward, unit))  # type: ignore[no-untyped-call]  # torch's

    def _before_backward(self, unit: str, grad: Tensor) -> None:
        self.groups.enter(self.chunks.groups_of(unit), is_written=True)

    @torch.no_grad()
    def _got_gradient(self, name: str, parameter: nn.Parameter) -> None:
        grad, parameter.grad = parameter.grad, None
        assert grad is not None
        self.groups.put_gradient(name, grad)


def capacity_of(config: Config, device: torch.device) -> int | None:
    """Bytes of the device that a rank may take, None without a limit. A GPU's allocator is held to it."""
    if device.type != "cuda":
        return config.memory.device_bytes or None
    free, whole = torch.cuda.mem_get_info(device)
    capacity = min(config.memory.device_bytes or free, free)
    torch.cuda.set_per_process_memory_fraction(capacity / whole, device)
    return capacity


def _module_of(stage: ModelStage, unit: str) -> nn.Module:
    return stage.get_submodule(unit)
