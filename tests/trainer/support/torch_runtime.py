"""Plans on torch's pipelining runtime: the oracle of the trainer's own executor.

torch executes our lists as they are. Shapes are given in advance, so no pickled metadata is exchanged and no
trial forward is run. Waits and computation are marked for the probe at the few places that every list passes.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining import schedules as torch_schedules
from torch.distributed.pipelining._backward import stage_backward
from torch.distributed.pipelining.schedules import _Action, _PipelineScheduleRuntime

from holdfast.plan.plan import COMPUTE, RECEIVES, TORCH, Action, Op, Order, Plan
from holdfast.trainer.mesh.mesh import RankMesh
from holdfast.trainer.model import accumulate
from holdfast.trainer.model.model import ModelStage, boundary
from holdfast.trainer.optim.buckets import FEWEST, GradientMeans, PiggybackedReductions
from holdfast.trainer.pipeline import pipeline
from holdfast.trainer.pipeline.executor import LossFunction
from holdfast.trainer.pipeline.shared_state import Sharing
from holdfast.trainer.settings.config import Config
from holdfast.trainer.telemetry import spans


class _Turns(Counter[Op]):
    """How often a stage's ops have been done in this step."""

    def next(self, op: Op) -> int:
        self[op] += 1
        return self[op] - 1


class WatchedStage(PipelineStage):
    """A stage whose actions are visible to the probe."""

    def __init__(self, *args: Any, sharing: Sharing, **kwargs: Any) -> None:
        """`sharing`: with its replicas; everything else as torch's."""
        super().__init__(*args, **kwargs)
        self.sharing = sharing
        self.turns = _Turns()
        self.means: GradientMeans | None = None
        self.means_hear = False
        if sharing.group.size() > 1 and not isinstance(self.submod, FSDPModule):
            self.means = GradientMeans(
                self.submod.parameters(), sharing.group, sharing.piggybacked, 1 if sharing.crowded else FEWEST
            )
            self.means_hear = accumulate.hooks_hear()

    def gathered_bytes(self) -> int:
        """Of all parameters of the stage together, in the precision in which they are gathered."""
        if not isinstance(self.submod, FSDPModule):
            return 0
        return sum(
            param._orig_size.numel() * (param.param_dtype or param.orig_dtype).itemsize
            for group in _parameter_groups(fully_shard.state(self.submod))  # type: ignore[attr-defined]  # torch's
            for param in group.fsdp_params
        )

    def forward_one_chunk(self, fwd_chunk_id: int, args: Any, kwargs: Any = None, **more: Any) -> Any:
        # The first of a step has nothing to add to; by layer, nothing is kept.
        is_alone = fwd_chunk_id == 0 or bool(self.sharing.units)
        with spans.action(Op.FORWARD, self.stage_index, fwd_chunk_id), accumulate.alone(is_alone):
            return super().forward_one_chunk(fwd_chunk_id, args, {"micro_batch": fwd_chunk_id}, **more)

    def backward_one_chunk(
        self, bwd_chunk_id: int, loss: Any = None, full_backward: bool = True, last_backward: bool = False
    ) -> Any:
        with spans.action(Op.BACKWARD if full_backward else Op.BACKWARD_INPUT, self.stage_index, bwd_chunk_id):
            return super().backward_one_chunk(bwd_chunk_id, loss, full_backward, last_backward)

    def backward_weight_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        with spans.action(Op.BACKWARD_WEIGHT, self.stage_index, bwd_chunk_id):
            return super().backward_weight_one_chunk(bwd_chunk_id, *args, **kwargs)

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        return _Transfer(Op.SEND_FORWARD, self.stage_index, fwd_chunk_id, super().get_fwd_send_ops(fwd_chunk_id))

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        return _Transfer(Op.SEND_BACKWARD, self.stage_index, bwd_chunk_id, super().get_bwd_send_ops(bwd_chunk_id))

    def get_fwd_recv_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        return _Transfer(Op.RECV_FORWARD, self.stage_index, fwd_chunk_id, super().get_fwd_recv_ops(fwd_chunk_id))

    def get_bwd_recv_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        return _Transfer(Op.RECV_BACKWARD, self.stage_index, bwd_chunk_id, super().get_bwd_recv_ops(bwd_chunk_id))

    def backward_maybe_with_nosync(
        self, backward_type: str, bwd_kwargs: dict[str, Any], last_backward: bool = False
    ) -> Any:
        is_announced = self.means is not None and last_backward and backward_type == "full"
        if is_announced:
            assert self.means is not None
            self.means.expect()
        if not self.sharing.units:
            # Halves of a backward ask for gradients themselves.
            with accumulate.in_place(backward_type == "full" and (not is_announced or self.means_hear)):
                return super().backward_maybe_with_nosync(backward_type, bwd_kwargs, last_backward)
        # torch would hold back what FSDP's hooks do here: gather, reduce and free unit by unit.
        assert backward_type == "full", "halves of a backward are not shared by layer"
        assert isinstance(self.submod, FSDPModule)
        self.submod.set_requires_gradient_sync(self.sharing.reduce_each or last_backward)
        grads = stage_backward(bwd_kwargs["stage_output"], bwd_kwargs["output_grads"], bwd_kwargs["input_values"])
        return grads, None

    def perform_reduce_grad(self, grad_scale_factor: int) -> None:
        """Add up the gradients that the stage holds over its replicas. With units that has been done in backward."""
        with spans.action(Op.REDUCE_GRAD, self.stage_index, turn=self.turns.next(Op.REDUCE_GRAD)):
            if isinstance(self.submod, FSDPModule):
                if not self.sharing.units:
                    # Over gloo the collective itself says that it is one.
                    is_reported = self.device.type == "cpu"
                    with contextlib.nullcontext() if is_reported else spans.operation("dp:reduce_scatter"):
                        self._reduce_scatter()
            elif self.means is not None:
                with spans.operation("dp:all_reduce", self.means.num_bytes):
                    self.means.finish()

    def _reduce_scatter(self) -> None:
        """As torch's, except that parameters stay whole if more micro-batches are to come."""
        module: Any = self.submod
        module.set_is_last_backward(True)
        module.set_reshard_after_backward(self.sharing.zero != 2)
        module.set_requires_gradient_sync(True)
        state = fully_shard.state(module)  # type: ignore[attr-defined]  # torch's
        for group in (group for unit in state._state_ctx.all_states for group in _parameter_groups(unit)):
            group.post_backward()
        state._root_post_backward_final_callback()

    def start_gathering(self, is_forward: bool) -> None:
        """Start to gather what the stage's next forward, or backward, will need first. No-op if that is under way."""
        units = self.sharing.units
        for module in (self.submod, *(units[:1] if is_forward else units[-1:])):
            if isinstance(module, FSDPModule):
                module.unshard(async_op=True)


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
        self._own = {stage.stage_index: stage for stage in stages}
        # By UNSHARD in this rank's list: the stage, and whether it is for a forward.
        self._gathers = list(_gathers(plan.orders[self.rank]))
        self._gathered = 0
        self._by_layer = any(stage.sharing.units for stage in stages)
        if self._by_layer:
            # Hooks do the gathering; the runtime only starts it, while the computation waits for its input.
            self.register_custom_function(torch_schedules.UNSHARD, self._gather_next)
            self.register_custom_function(torch_schedules.RESHARD, _has_been_done)
            self.register_custom_function(torch_schedules.REDUCE_GRAD, self._reduce)

    def prefetch(self) -> None:
        """Start the first gathering of a step, before its data is there. `step` goes on with it."""
        if self._gathers:
            stage, is_forward = self._gathers[0]
            self._own[stage].start_gathering(is_forward)

    def _gather_next(self, action: _Action, ctx: Any) -> None:
        _, is_forward = self._gathers[self._gathered % len(self._gathers)]
        self._gathered += 1
        stage = self._own[action.stage_index]
        with spans.action(Op.UNSHARD, stage.stage_index, turn=stage.turns.next(Op.UNSHARD)):
            stage.start_gathering(is_forward)

    def _reduce(self, action: _Action, ctx: Any) -> None:
        self._own[action.stage_index].perform_reduce_grad(1)

    def _assert_unsharded(self, stage: Any) -> None:
        if self._by_layer:
            return
        if stage.stage_index not in self.unshard_ops:
            super()._assert_unsharded(stage)
            return
        own = self._own[stage.stage_index]
        gather = spans.operation("dp:all_gather", own.gathered_bytes())
        with spans.action(Op.UNSHARD, stage.stage_index, turn=own.turns.next(Op.UNSHARD)), gather:
            super()._assert_unsharded(stage)

    def _step_microbatches(self, *args: Any, **kwargs: Any) -> None:
        for stage in self._own.values():
            stage.turns.clear()
        super()._step_microbatches(*args, **kwargs)


class TorchExecutor(Runtime):
    """As `holdfast.trainer.pipeline.executor.Executor`."""

    offload = None

    def late(self) -> list[object]:
        return []

    def step(self, inputs: Tensor | None, targets: Tensor | None) -> None:  # type: ignore[override]
        args = () if inputs is None else (inputs,)
        super().step(*args, target=targets, return_outputs=False)


def build(
    config: Config,
    mesh: RankMesh,
    plan: Plan,
    stages: list[ModelStage],
    loss: LossFunction,
    piggybacked: PiggybackedReductions | None = None,
    crowded: bool = False,
    own: object | None = None,
) -> TorchExecutor:
    """As `holdfast.trainer.pipeline.pipeline.build_executor`, for the trainer's own model."""
    assert own is None
    tokens = torch.empty((config.train.micro_batch_size, config.data.seq_len), dtype=torch.int64, device=mesh.device)
    hidden = boundary(config, mesh.layout.tp, mesh.device)
    made = [
        WatchedStage(
            stage,
            index,
            mesh.layout.stages,
            mesh.device,
            input_args=tokens if stage.is_first else hidden,
            output_args=hidden,
            group=mesh.pp_group,
            sharing=pipeline.sharing_of(config, mesh, stage, piggybacked, crowded),
        )
        for index, stage in zip(mesh.layout.stages_of(mesh.pp_rank), stages, strict=True)
    ]
    return TorchExecutor(plan, made, lambda output, target: loss(output, target, 1.0))


def install() -> None:
    """Trainers that this process makes from now on are on torch's runtime."""
    pipeline.build_executor = build  # type: ignore[assignment]


def lowered(schedule: Any) -> list[Order]:
    """The lists with transfers that torch makes of one of its own multi-stage schedules."""
    lists = schedule.pipeline_order_with_comms
    return [tuple(Action.parse(str(action)) for action in lists[rank]) for rank in sorted(lists)]


def _gathers(order: Order) -> Iterator[tuple[int, bool]]:
    """Of each UNSHARD in a list: the stage, and whether the stage's next computation is a forward."""
    for i, action in enumerate(order):
        if action.op is Op.UNSHARD:
            following = (a for a in order[i:] if a.op in COMPUTE and a.stage == action.stage)
            yield action.stage, next(a.op is Op.FORWARD for a in following)


def _has_been_done(action: _Action, ctx: Any) -> None:
    """For actions that are part of the computation before them."""


def _parameter_groups(state: Any) -> list[Any]:
    """Those of an FSDP state; before torch 2.12 there was one at most."""
    if hasattr(state, "_fsdp_param_groups"):
        return list(state._fsdp_param_groups)
    return [state._fsdp_param_group] if state._fsdp_param_group else []


class _Transfer(list[dist.P2POp]):
    """A message, and the action that sends it or waits for it."""

    def __init__(self, op: Op, stage: int, micro_batch: int, ops: list[dist.P2POp]) -> None:
        super().__init__(ops)
        self.op, self.stage, self.micro_batch = op, stage, micro_batch

    def span(self) -> AbstractContextManager[None]:
        return spans.action(self.op, self.stage, self.micro_batch, num_bytes=sum(op.tensor.nbytes for op in self))


class _Works(list[dist.Work]):
    """Pending transfers that remember what they are."""

    transfer: _Transfer | None = None


def _watch_waits() -> None:
    """Mark waiting for an adjacent stage as an operation. Once a process; schedules are unchanged."""
    # When a peer dies, torch prints its whole schedule on every rank, over the line that says what happened.
    logging.getLogger(torch_schedules.__name__).setLevel(logging.CRITICAL)
    if not hasattr(torch_schedules, "_wait_batch_p2p") or not hasattr(torch_schedules, "_batch_p2p"):
        return  # another torch: train on, unwatched
    wait = torch_schedules._wait_batch_p2p
    start = torch_schedules._batch_p2p
    if getattr(wait, "is_watched", False):
        return

    def watched_start(p2p_ops: list[dist.P2POp], desc: str | None = None) -> list[dist.Work]:
        transfer = p2p_ops if isinstance(p2p_ops, _Transfer) else None
        if transfer is None or transfer.op in RECEIVES:
            works = _Works(start(p2p_ops, desc))
            works.transfer = transfer
            return works
        with transfer.span():
            return _Works(start(p2p_ops, desc))

    def watched_wait(work: list[dist.Work]) -> None:
        if not work:
            return
        transfer = getattr(work, "transfer", None)
        if transfer is None:
            with spans.operation("pp:send"):
                wait(work)
        else:
            with transfer.span(), spans.operation("pp:recv"):
                wait(work)

    watched_wait.is_watched = True  # type: ignore[attr-defined]
    torch_schedules._wait_batch_p2p = watched_wait
    torch_schedules._batch_p2p = watched_start
