"""Stages on torch's pipelining. The only file that touches its private names.

Shapes are given in advance, so torch exchanges no pickled metadata and runs no trial forward. Waits and
computation are marked for the probe at the few places where every schedule passes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B
from torch.distributed.pipelining import schedules as torch_schedules

from holdfast.agent import probe
from holdfast.trainer.config import Config
from holdfast.trainer.mesh import Mesh
from holdfast.trainer.model import DTYPES, Moment, Stage, boundary, sum_precision
from holdfast.trainer.tensor_parallel import Parameters

LossFunction = Callable[[Tensor, Tensor], Tensor]
Schedule = ScheduleGPipe | Schedule1F1B | ScheduleInterleaved1F1B


class WatchedStage(PipelineStage):
    """A stage whose compute and gradient reduction are visible to the probe."""

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        with probe.span("forward", micro_batch=fwd_chunk_id, stage=self.stage_index):
            return super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)

    def backward_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        with probe.span("backward", micro_batch=bwd_chunk_id, stage=self.stage_index):
            return super().backward_one_chunk(bwd_chunk_id, *args, **kwargs)

    def perform_reduce_grad(self, grad_scale_factor: int) -> None:
        if not isinstance(self.submod, FSDPModule):
            super().perform_reduce_grad(grad_scale_factor)
            return
        with probe.operation("dp:reduce_scatter"):
            super().perform_reduce_grad(grad_scale_factor)


def build_stages(config: Config, mesh: Mesh, vocab: int, moment: Moment) -> list[Stage]:
    """This rank's stages, with parameters initialised, split over tp and sharded over dp."""
    layout = mesh.layout
    make = Parameters(config.train.seed, mesh.tp, mesh.device, DTYPES[config.train.dtype])
    stages = []
    for index in layout.stages_of(mesh.pp_rank):
        layers = layout.layers_of(index, config.model.layers)
        stage = Stage(config, index, layers, vocab, make, moment)
        if layout.dp > 1:
            # One unit a stage: a collective costs more than the memory it would save at these sizes.
            fully_shard(stage, mesh=mesh.dp, reshard_after_forward=False, mp_policy=sum_precision(config))
        stages.append(stage)
    return stages


def build_schedule(config: Config, mesh: Mesh, stages: list[Stage], loss: LossFunction) -> Schedule:
    """The schedule that runs this rank's stages. `loss` maps logits and targets to a scalar.

    Gradients of the losses of all micro-batches are added up, so `loss` does the averaging.
    """
    _watch_waits()
    shape = (config.train.micro_batch_size, config.data.seq_len)
    tokens = torch.empty(shape, dtype=torch.int64, device=mesh.device)
    hidden = boundary(config, mesh.layout.tp, mesh.device)
    pipeline_stages = [
        WatchedStage(
            stage,
            index,
            mesh.layout.stages,
            mesh.device,
            input_args=tokens if stage.is_first else hidden,
            output_args=hidden,
            group=mesh.pp_group,
        )
        for index, stage in zip(mesh.layout.stages_of(mesh.pp_rank), stages, strict=True)
    ]
    count = mesh.layout.local_micro_batches
    match config.parallel.schedule:
        case "interleaved":
            return ScheduleInterleaved1F1B(list(pipeline_stages), count, loss_fn=loss, scale_grads=False)
        case "gpipe":
            return ScheduleGPipe(pipeline_stages[0], count, loss_fn=loss, scale_grads=False)
        case "1f1b":
            return Schedule1F1B(pipeline_stages[0], count, loss_fn=loss, scale_grads=False)


def run_schedule(
    schedule: Schedule, stages: list[Stage], inputs: Tensor | None, targets: Tensor | None, count: int
) -> list[Tensor]:
    """Forward and backward of one step; the losses of its micro-batches on ranks with the last stage.

    `inputs` is needed where the first stage is, `targets` where the last one is.
    """
    if not isinstance(schedule, ScheduleInterleaved1F1B):
        # Interleaved does its own gathering, stage by stage, and insists on it.
        for stage in stages:
            if isinstance(stage, FSDPModule):
                with probe.operation("dp:all_gather"):
                    stage.unshard()
    losses: list[Tensor] = []
    args = () if inputs is None else (inputs,)
    schedule.step(*args, target=targets, losses=losses, return_outputs=False, micro_batch=torch.arange(count))
    return losses


class _Works(list[dist.Work]):
    """Pending transfers that remember what they are."""

    operation = "pp:send"


def _watch_waits() -> None:
    """Mark waiting for a neighbour stage as an operation. Once a process; schedules are unchanged."""
    # When a peer dies, torch prints its whole schedule on every rank, over the line that says what happened.
    logging.getLogger(torch_schedules.__name__).setLevel(logging.CRITICAL)
    if not hasattr(torch_schedules, "_wait_batch_p2p") or not hasattr(torch_schedules, "_batch_p2p"):
        return  # another torch: train on, unwatched
    wait = torch_schedules._wait_batch_p2p
    start = torch_schedules._batch_p2p
    if getattr(wait, "is_watched", False):
        return

    def watched_start(p2p_ops: list[dist.P2POp], desc: str | None = None) -> list[dist.Work]:
        works = _Works(start(p2p_ops, desc))
        if any(op.op is dist.irecv for op in p2p_ops):
            works.operation = "pp:recv"
        return works

    def watched_wait(work: list[dist.Work]) -> None:
        if work:
            with probe.operation(getattr(work, "operation", "pp:wait")):
                wait(work)

    watched_wait.is_watched = True  # type: ignore[attr-defined]
    torch_schedules._wait_batch_p2p = watched_wait
    torch_schedules._batch_p2p = watched_start
