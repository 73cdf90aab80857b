"""Plans on torch's pipelining runtime. The only file that touches its private names.

torch executes our lists as they are. Shapes are given in advance, so no pickled metadata is exchanged and no
trial forward is run. Waits and computation are marked for the probe at the few places that every list passes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining import schedules as torch_schedules
from torch.distributed.pipelining.schedules import _Action, _PipelineScheduleRuntime

from holdfast.plan import TORCH, Action, Order, Plan, from_csv
from holdfast.trainer import spans

LossFunction = Callable[[Tensor, Tensor], Tensor]


class WatchedStage(PipelineStage):
    """A stage whose compute and gradient reduction are visible to the probe."""

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        with spans.span("forward", micro_batch=fwd_chunk_id, stage=self.stage_index):
            return super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)

    def backward_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        with spans.span("backward", micro_batch=bwd_chunk_id, stage=self.stage_index):
            return super().backward_one_chunk(bwd_chunk_id, *args, **kwargs)

    def backward_weight_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        with spans.span("backward_weight", micro_batch=bwd_chunk_id, stage=self.stage_index):
            return super().backward_weight_one_chunk(bwd_chunk_id, *args, **kwargs)

    def perform_reduce_grad(self, grad_scale_factor: int) -> None:
        if not isinstance(self.submod, FSDPModule):
            super().perform_reduce_grad(grad_scale_factor)
            return
        with spans.operation("dp:reduce_scatter"):
            super().perform_reduce_grad(grad_scale_factor)


class Runtime(_PipelineScheduleRuntime):
    """Executes this rank's list of a plan, once a step."""

    def __init__(self, plan: Plan, stages: Sequence[WatchedStage], loss: LossFunction) -> None:
        """`stages` are this rank's, in order. `loss` maps logits and targets of a micro-batch to a scalar.

        Gradients of the losses of all micro-batches are added up, so `loss` does the averaging.
        """
        _watch_waits()
        count = plan.micro_batches
        super().__init__(list(stages), count, loss_fn=loss, scale_grads=False)  # type: ignore[no-untyped-call]  # torch's
        actions: dict[int, list[_Action | None]] = {
            rank: [_Action.from_str(action.text) for action in order if action.op in TORCH]
            for rank, order in enumerate(plan.orders)
        }
        self._prepare_schedule_with_comms(actions, format="compute_comms")

    def _assert_unsharded(self, stage: Any) -> None:
        if stage.stage_index not in self.unshard_ops:
            super()._assert_unsharded(stage)
            return
        with spans.operation("dp:all_gather"):
            super()._assert_unsharded(stage)


def zero_bubble(schedule: str, ranks: int, chunks: int, micro_batches: int) -> list[Order]:
    """torch's own lists of computations for `zbv` and `interleaved-zero-bubble` (Qi et al. 2023)."""
    kinds = {
        "zbv": torch_schedules.ScheduleZBVZeroBubble,
        "interleaved-zero-bubble": torch_schedules.ScheduleInterleavedZeroBubble,
    }
    lists = kinds[schedule](stages_without_ranks(ranks, chunks), micro_batches).pipeline_order
    text = "\n".join(",".join("" if a is None else str(a) for a in lists[rank]) for rank in range(ranks))
    return list(from_csv(text))


def stages_without_ranks(ranks: int, chunks: int) -> list[Any]:
    """As much of rank 0's stages as torch's schedules need to make their lists: no group, no module."""
    return [
        SimpleNamespace(
            stage_index=chunk * ranks,
            num_stages=ranks * chunks,
            group_size=ranks,
            group_rank=0,
            submod=None,
            is_first=chunk == 0,
            is_last=False,
        )
        for chunk in range(chunks)
    ]


def lowered(schedule: Any) -> list[Order]:
    """The lists with transfers that torch makes of one of its own multi-stage schedules."""
    lists = schedule.pipeline_order_with_comms
    return [tuple(Action.parse(str(action)) for action in lists[rank]) for rank in sorted(lists)]


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
            with spans.operation(getattr(work, "operation", "pp:wait")):
                wait(work)

    watched_wait.is_watched = True  # type: ignore[attr-defined]
    torch_schedules._wait_batch_p2p = watched_wait
    torch_schedules._batch_p2p = watched_start
