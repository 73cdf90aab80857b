"""What stages compute a second time: as actions of the plan, or layer by layer inside a backward.

A `cell` is a whole stage (GPipe, Huang et al., NeurIPS 2019): its forward keeps the input alone, and a recompute of its
own comes before the backward. `stage-aware` (Merak, Lai et al., TPDS 2023) keeps layers, as many in each stage as
`holdfast.plan.recompute` finds from what a real layer holds.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.tensor import DTensor

from holdfast.plan.plan import BACKWARDS, Action, Op, Order, Plan
from holdfast.plan.recompute import Kept, Recomputation, StageBytes, stage_aware
from holdfast.trainer.mesh.mesh import RankMesh
from holdfast.trainer.model.model import ModelStage


def add_recompute(orders: Sequence[Order], stages: Collection[int]) -> list[Order]:
    """A recompute directly before each backward of these stages: while its gradient is awaited."""
    return [tuple(action for one in order for action in _again(one, stages)) for order in orders]


def settle(plan: Plan, mesh: RankMesh, held: Sequence[ModelStage]) -> Recomputation:
    """Set what this rank's stages, which have been measured, recompute of each micro-batch. The same on every rank.

    All ranks of a pipeline call it together.
    """
    own = {index: stage.saved for index, stage in zip(mesh.layout.stages_of(mesh.pp_rank), held, strict=True)}
    found: list[Any] = [own] * mesh.layout.pp
    if mesh.layout.pp > 1:
        dist.all_gather_object(found, own, group=mesh.pp_group)
    sizes: dict[int, StageBytes] = {index: size for one in found for index, size in one.items()}
    result = stage_aware(plan, [sizes[index] for index in range(mesh.layout.stages)])
    for index, stage in zip(own, held, strict=True):
        stage.recompute = kinds_of(result.kept, index, len(stage.layers))
    return result


def kinds_of(kept: Mapping[tuple[int, int], Kept], stage: int, layers: int) -> Callable[[int], Sequence[str]]:
    """By micro-batch, what each layer of a stage recomputes.

    Its last layers are kept: they go back first, and have gone when the first ones are computed again.
    """
    return lambda micro_batch: kinds(kept[stage, micro_batch], layers)


def kinds(kept: Kept, layers: int) -> list[str]:
    """What each layer of a stage recomputes that keeps so much."""
    return ["full"] * (layers - sum(kept)) + ["selective"] * kept.selective + ["none"] * kept.whole


def measure(stage: ModelStage, x: Tensor, length: int, loss: Callable[[Tensor, Tensor], Tensor]) -> StageBytes:
    """What a stage keeps of a micro-batch, by computing one layer of it in each way, and what is outside layers.

    `x` as it comes into a layer, of samples of `length` tokens; `loss` of logits and targets. All tp ranks call it
    together, before parameters are shared out over replicas.
    """
    layer = next(iter(stage.layers.values()))
    x = torch.zeros_like(x, requires_grad=True)
    tokens = torch.zeros(x.shape[0], length, dtype=torch.int64, device=x.device)
    none, selective, full = (
        _saved(stage, partial(layer, x, stage.rotation, 0, kind)) for kind in ("none", "selective", "full")
    )
    rest = _saved(stage, lambda: stage.before(tokens, 0)) if stage.is_first else 0
    if stage.is_last:
        rest += _saved(stage, lambda: loss(stage.behind(x), tokens))
    return StageBytes(len(stage.layers), none, selective, full, rest)


def _saved(module: nn.Module, compute: Callable[[], Tensor]) -> int:
    with Saved(module) as saved:
        output = compute()  # its graph is what keeps them
    found = saved.bytes
    del output
    return found


class Saved:
    """Counts the bytes that graphs recorded meanwhile hold for their backwards, parameters and buffers left out.

    Only numbers: tokens and targets are there anyway. What several operations save of one memory counts once. What a
    checkpoint recomputes inside a backward is not held between the two, and not counted.
    """

    def __init__(self, module: nn.Module) -> None:
        self.bytes = 0
        self._left_out = {_place(tensor) for tensor in chain(module.parameters(), module.buffers())}
        self._users: dict[int, int] = {}
        self._hooks = saved_tensors_hooks(self._pack, _unpack)

    def __enter__(self) -> Saved:
        self._hooks.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._hooks.__exit__(*error)

    def _pack(self, tensor: Tensor) -> Tensor | _Held:
        place = _place(tensor)
        if not tensor.is_floating_point() or place in self._left_out:
            return tensor
        return _Held(self, tensor, place)

    def has(self, tensor: Tensor) -> bool:
        """Whether a graph holds it, and it is counted."""
        return _place(tensor) in self._users

    def add(self, place: int, num_bytes: int) -> None:
        """A graph has begun to hold it."""
        self._users[place] = self._users.get(place, 0) + 1
        if self._users[place] == 1:
            self.bytes += num_bytes

    def remove(self, place: int, num_bytes: int) -> None:
        """A graph has let go of it."""
        self._users[place] -= 1
        if not self._users[place]:
            del self._users[place]
            self.bytes -= num_bytes


class _Held:
    """A tensor in a graph, which is counted for as long as the graph has it."""

    def __init__(self, saved: Saved, tensor: Tensor, place: int) -> None:
        self._saved, self.tensor, self._place = saved, tensor.detach(), place
        saved.add(place, tensor.untyped_storage().nbytes())

    def __del__(self) -> None:
        self._saved.remove(self._place, self.tensor.untyped_storage().nbytes())


def _unpack(held: Any) -> Tensor:
    tensor: Tensor = held.tensor if isinstance(held, _Held) else held
    return tensor


def _place(tensor: Tensor) -> int:
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return local.untyped_storage().data_ptr()


def _again(action: Action, stages: Collection[int]) -> list[Action]:
    if action.op in BACKWARDS and action.stage in stages:
        return [replace(action, op=Op.RECOMPUTE), action]
    return [action]
