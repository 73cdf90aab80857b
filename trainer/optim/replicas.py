"""What the replicas of a stage keep of its state: ZeRO stages 0 to 3 (Rajbhandari et al. 2020), on FSDP2.

P parameters over d replicas, M micro-batches each, float32 with AdamW; bytes a rank, and elements that it sends in
a step times (d-1)/d. Beside them stand one unit's gradients on their way, and FSDP's buffers for them.

| stage | kept between steps | and at the end of backward | sent |
| 0 | 12P | 16P | 2P: gradients all-reduced, in buckets, during the last backward |
| 1 | 12P/d | 8P + 12P/d | 2P: parameters gathered once, gradients reduced once |
| 2 | 12P/d | 4P + 16P/d | (1+M)P: gradients reduced after each micro-batch, 2P for M = 1 as in the paper |
| 3 by layer | 12P/d | 16P/d | 3MP: gathered for each forward and each backward, and freed behind it |
| the same, reduced once | 12P/d | 4P + 12P/d | (2M+1)P: whole gradients add up until the last micro-batch |
| 3 by stage | 12P/d | 16P/d | gathered for each run of computations of a stage: breadth-first (2V-1)/V P + P |
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard

from holdfast.trainer.mesh import collectives
from holdfast.trainer.mesh.mesh import RankMesh
from holdfast.trainer.model.model import ModelStage, sum_precision
from holdfast.trainer.modules.stage import AnyStage
from holdfast.trainer.settings.config import Config


def by_layer(config: Config, replicas: int) -> bool:
    """Whether FSDP gathers and frees parameters layer by layer, inside each forward and backward."""
    return (
        config.memory.policy == "whole"
        and replicas > 1
        and config.parallel.zero == 3
        and config.parallel.zero_unit == "layer"
    )


def share(stage: AnyStage, config: Config, mesh: RankMesh) -> None:
    """Cut the stage's parameters over its replicas as parallel.zero says. Called once, before anything refers to them.

    Replicas in dp have a mean each, of the same weight; those in several pipes have parts of one, which add up.
    """
    if mesh.layout.replicas == 1 or config.parallel.zero == 0 or config.memory.policy == "chunks":
        return
    policy = sum_precision(config)
    units = units_of(stage) if isinstance(stage, ModelStage) and by_layer(config, mesh.layout.replicas) else []
    for module in (*units, stage):
        fully_shard(module, mesh=mesh.replicas, reshard_after_forward=bool(units), mp_policy=policy)
    shards = [module for module in (*units, stage) if isinstance(module, FSDPModule)]
    for shard in shards:
        if mesh.device.type == "cpu":
            _talk_over_gloo(shard, bool(units))
        if config.train.dtype == "bfloat16" and config.parallel.zero >= 2:
            shard.set_all_reduce_hook(FineSum(_own_parameters(shard)))
        if mesh.layout.pipes > 1:
            shard.set_gradient_divide_factor(mesh.layout.dp)
            shard.set_force_sum_reduction_for_comms(True)  # gloo has no sum of products, which torch would choose
    if units:
        _prefetch(shards[-1], shards[:-1])


def units_of(stage: ModelStage) -> list[nn.Module]:
    """What is gathered at once by layer, in the order of forward. The rest of the stage is one more."""
    # The head reads the embedding's table when they are tied, so then both belong to the rest.
    first, last = (None, None) if stage.is_tied else (stage.embed, stage.head)
    return [module for module in (first, *stage.layers.values(), last) if module is not None]


class FineSum:
    """Adds up a unit's bfloat16 gradients of several micro-batches in float32, and hands on the rounded sum.

    FSDP2 reduces each in float32 but keeps and adds what it rounded. It calls this with what was reduced.

    By itself it does so in its stream for all-reduces, and holds the memory no longer than the host takes. The stream
    for reduce-scatters may then write the next unit's over it before this has read it: NaN with deterministic
    algorithms, by which torch fills new memory (PyTorch pull request 180889 has the same without a hook). `in_order`
    has it all in one stream.
    """

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self._parameters = parameters
        self.sum: Tensor | None = None

    def __call__(self, reduced: Tensor) -> None:
        is_first = any(parameter.grad is None for parameter in self._parameters)
        if self.sum is None or is_first:
            self.sum = reduced.clone()
        else:
            reduced.copy_(self.sum.add_(reduced))
        for parameter in self._parameters:
            parameter.grad = None

    @staticmethod
    def in_order(group: Any) -> None:
        """Have FSDP's group of parameters, once it has its streams, call its hook in the one that takes the memory."""
        if isinstance(group._all_reduce_hook, FineSum):
            group._all_reduce_hook_stream = group.comm_ctx.reduce_scatter_stream


def _talk_over_gloo(shard: FSDPModule, in_hooks: bool) -> None:
    if hasattr(shard, "set_custom_reduce_scatter"):
        shard.set_custom_reduce_scatter(collectives.ReduceScatter())  # type: ignore[arg-type]  # a protocol to us
    if not in_hooks:
        return
    if hasattr(shard, "set_custom_all_gather"):
        shard.set_custom_all_gather(collectives.AllGather())  # type: ignore[arg-type]  # a protocol to us
    # Without streams, only an operation that says so goes on while the rank computes.
    if hasattr(shard, "_set_unshard_async_op"):
        shard._set_unshard_async_op(True)


def _prefetch(stage: FSDPModule, units: Sequence[FSDPModule]) -> None:
    """Each unit starts the gathering of the one that computes next; in backward that is the one before it."""
    stage.set_modules_to_forward_prefetch([units[0]])
    stage.set_modules_to_backward_prefetch([units[-1]])
    for unit, following in itertools.pairwise(units):
        unit.set_modules_to_forward_prefetch([following])
        following.set_modules_to_backward_prefetch([unit])
    # An empty list would have FSDP guess, from another micro-batch's forward: itself is nothing to be done.
    units[0].set_modules_to_backward_prefetch([units[0]])


def _own_parameters(shard: FSDPModule) -> list[nn.Parameter]:
    """Those of this unit, without those of units inside it."""
    assert isinstance(shard, nn.Module)
    inside = {
        id(parameter)
        for module in shard.modules()
        if module is not shard and isinstance(module, FSDPModule)
        for parameter in module.parameters()
    }
    return [parameter for parameter in shard.parameters() if id(parameter) not in inside]
