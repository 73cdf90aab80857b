"""What the replicas of a stage do for each other while a rank goes through its list: gather, free, reduce."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, UnshardHandle, fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_common import TrainingState

from holdfast.plan.plan import Action
from holdfast.trainer.mesh import collectives
from holdfast.trainer.model import accumulate
from holdfast.trainer.optim.buckets import FEWEST, GradientMeans, PiggybackedReductions
from holdfast.trainer.optim.replicas import FineSum
from holdfast.trainer.pipeline.beside import Beside
from holdfast.trainer.telemetry import spans


class Means(Protocol):
    """Averages a stage's gradients over its replicas, once a step, as `GradientMeans` has it."""

    @property
    def num_bytes(self) -> int: ...
    def expect(self) -> None: ...
    def begin(self) -> None: ...
    def finish(self) -> None: ...


class NoMeans:
    """Of gradients that are averaged in backward already, where they replace their parameters (trainer/chunks)."""

    num_bytes = 0

    def expect(self) -> None:
        pass

    def begin(self) -> None:
        pass

    def finish(self) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Sharing:
    """How a stage's replicas share its state; see trainer/optim/replicas.py."""

    group: dist.ProcessGroup
    zero: int
    units: tuple[nn.Module, ...] = ()
    """By layer: what is gathered at once, in the order of forward. Empty: the whole stage."""
    reduce_each: bool = True
    """By layer: whether every backward reduces gradients, or the last one of a step those of all."""
    piggybacked: PiggybackedReductions | None = None
    """What goes along with the last gradients, where each replica has whole ones."""
    crowded: bool = False
    """Whether there is no core to send gradients while others are computed."""
    make_means: Callable[[nn.Module], Means] | None = None
    """What averages the gradients, where not every replica has them all. None: `GradientMeans`."""
    divisor: int = 0
    """Replicas whose gradients are averaged, where `group` has others as well: those of other pipes have shares of the
    same mean, which are added up. 0: all."""
    piece: int = 0
    """Elements that are summed at once where the optimizer itself waits for them, piece by piece. 0: it does not."""


class SharedState:
    """A stage's parameters and gradients, of which each replica may hold a part."""

    def __init__(self, module: nn.Module, sharing: Sharing, device: torch.device) -> None:
        self.sharing = sharing
        self._module, self._device = module, device
        self._means: Means | None = None
        self._means_hear = False
        self._gathering: tuple[Action, list[UnshardHandle]] | None = None
        self._is_held_back = False
        self._is_reducing = False
        self._is_in_order = False
        self._beside: list[Beside] = []
        if sharing.group.size() > 1 and not isinstance(module, FSDPModule):
            fewest = 1 if sharing.crowded else FEWEST
            if sharing.make_means is None:
                self._means = GradientMeans(
                    module.parameters(), sharing.group, sharing.piggybacked, fewest, sharing.divisor, sharing.piece
                )
            else:
                self._means = sharing.make_means(module)
            self._means_hear = accumulate.hooks_hear()

    def start_gathering(self, is_forward: bool) -> None:
        """Start to gather what the stage's next forward, or backward, will need first. No-op if that is under way."""
        units = self.sharing.units
        for module in (self._module, *(units[:1] if is_forward else units[-1:])):
            if isinstance(module, FSDPModule):
                module.unshard(async_op=True)

    def gather(self, action: Action) -> None:
        """Start to gather all of the stage; `ready` waits for it."""
        handles = [shard.unshard(async_op=True) for shard in self._shards()]
        self._gathering = action, [handle for handle in handles if handle is not None]

    def ready(self) -> None:
        """Wait until what `gather` began has come. The span of the gathering is this wait."""
        if self._gathering is None:
            return
        action, handles = self._gathering
        self._gathering = None
        if handles:
            with _span(action), spans.operation("dp:all_gather", self._gathered_bytes()):
                for handle in handles:
                    handle.wait()

    def free(self) -> None:
        """Keep only this rank's part of the parameters."""
        for shard in self._shards():
            shard.reshard()

    @contextmanager
    def backward(self, is_last: bool, is_whole: bool = True) -> Iterator[None]:
        """Around a backward: `is_last` of the step for this stage, and whole or a half of one."""
        self._put_in_order()
        if self.sharing.units:
            # Hooks gather, reduce and free unit by unit.
            assert is_whole, "halves of a backward are not shared by layer"
            assert isinstance(self._module, FSDPModule)
            self._module.set_requires_gradient_sync(self.sharing.reduce_each or is_last)
            yield
            return
        # Replicas in several pipes come to their last backwards in different orders, and must begin in one.
        is_announced = self._means is not None and is_last and is_whole and not self.sharing.divisor
        if is_announced:
            assert self._means is not None
            self._means.expect()
        self._hold_back()
        # Halves of a backward ask for gradients themselves.
        with accumulate.in_place(is_whole and (not is_announced or self._means_hear)):
            yield

    def reduce(self, action: Action, is_awaited: bool = True) -> None:
        """Add up the gradients that the stage holds over its replicas. With units that has been done in backward.

        Unless `is_awaited`, they may still be on their way: `finish` waits for them. So does the next `reduce` of the
        stage, which adds to what this one brings.
        """
        with _span(action):
            if isinstance(self._module, FSDPModule):
                if self.sharing.units:
                    return
                self.finish()
                self._begin_reduce_scatter()
            elif self._means is not None:
                self._means.begin()
            else:
                return
            self._is_reducing = True
            if is_awaited:
                self.finish()

    def contribute_nothing(self) -> None:
        """No micro-batch comes through this replica: its share of the gradients is 0."""
        self.ready()
        if isinstance(self._module, FSDPModule):
            fully_shard.state(self._module)._lazy_init()  # type: ignore[attr-defined]  # else the first forward does
            self._put_in_order()
        for parameter in self._module.parameters():
            parameter.grad = torch.zeros_like(parameter)

    def finish(self) -> None:
        """Wait for what `reduce` has begun. On a GPU its compute stream does, and no other ever did."""
        if not self._is_reducing:
            return
        self._is_reducing = False
        if self.sharing.piece and self._means is not None:
            return  # the optimizer does, by `late`
        if self._means is None:
            self._finish_reduce_scatter()
        else:
            with spans.operation("pp:all_reduce" if self.sharing.divisor else "dp:all_reduce", self._means.num_bytes):
                self._means.finish()

    @property
    def late(self) -> GradientMeans | None:
        """Means that are still on their way when a step's computations are done."""
        return self._means if self.sharing.piece and isinstance(self._means, GradientMeans) else None

    def _put_in_order(self) -> None:
        """Behind the first forward, which makes FSDP's streams."""
        if not self._is_in_order and isinstance(self._module, FSDPModule):
            self._is_in_order = True
            for group in _all_groups(fully_shard.state(self._module)):  # type: ignore[attr-defined]  # torch's
                FineSum.in_order(group)

    def _hold_back(self) -> None:
        """Until `reduce`, gradients of whole parameters add up: FSDP neither reduces them nor frees anything."""
        if isinstance(self._module, FSDPModule) and not self._is_held_back:
            self._is_held_back = True
            self._module.set_is_last_backward(False)
            self._module.set_reshard_after_backward(False)
            self._module.set_requires_gradient_sync(False)

    def _begin_reduce_scatter(self) -> None:
        """What FSDP's hooks would do. Parameters stay whole if more micro-batches are to come.

        A GPU sums in a stream of FSDP's. Its last callback of a backward, which makes the compute stream wait for that,
        is left to `_finish_reduce_scatter`.
        """
        self._is_held_back = False
        module: Any = self._module
        module.set_is_last_backward(False)
        module.set_reshard_after_backward(self.sharing.zero != 2)
        module.set_requires_gradient_sync(True)
        state = fully_shard.state(module)  # type: ignore[attr-defined]  # torch's
        for group in _all_groups(state):
            _in_one_precision(group)
            if isinstance(group._reduce_scatter_comm, collectives.ReduceScatter):
                self._beside.append(Beside(partial(_post_backward, group)))
            else:
                group.post_backward()
        state._root_post_backward_final_callback()

    def _finish_reduce_scatter(self) -> None:
        beside, self._beside = self._beside, []
        # FSDP's own collective does not say its bytes.
        with spans.operation("dp:reduce_scatter", sum(one.num_bytes for one in beside)):
            for one in beside:
                one.finish()
            module: Any = self._module
            state = fully_shard.state(module)  # type: ignore[attr-defined]  # torch's
            groups = _all_groups(state)
            unsharding = [group._all_gather_result for group in groups]
            for group in groups:
                group._training_state = TrainingState.POST_BACKWARD  # it has been done: the callback need not
                group._all_gather_result = None  # of a gathering for what comes: it would be dropped
            module.set_is_last_backward(True)
            state._root_post_backward_final_callback()
            module.set_is_last_backward(False)
            for group, result in zip(groups, unsharding, strict=True):
                group._all_gather_result = result

    def whole_parameters(self) -> Iterator[Tensor]:
        """Those of which this rank keeps a part, as they were gathered: without bytes once they are freed."""
        for param in self._fsdp_params():
            if (whole := getattr(param, "_unsharded_param", None)) is not None:
                yield whole

    def gradients(self) -> Iterator[Tensor]:
        """All that is held now of gradients: whole ones, those of this rank's part, and their sums in float32."""
        if not isinstance(self._module, FSDPModule):
            yield from (p.grad for p in self._module.parameters() if p.grad is not None)
            return
        for param in self._fsdp_params():
            whole, summed = getattr(param, "_unsharded_param", None), param.unsharded_accumulated_grad
            if summed is None and whole is not None:  # else it is being added to the sum
                summed = whole.grad
            yield from (grad for grad in (param.sharded_param.grad, summed) if grad is not None)
        for group in _all_groups(fully_shard.state(self._module)):  # type: ignore[attr-defined]  # torch's
            if isinstance(hook := group._all_reduce_hook, FineSum) and hook.sum is not None:
                yield hook.sum

    def _fsdp_params(self) -> Iterator[Any]:
        if isinstance(self._module, FSDPModule):
            for group in _all_groups(fully_shard.state(self._module)):  # type: ignore[attr-defined]  # torch's
                yield from group.fsdp_params

    def _shards(self) -> list[FSDPModule]:
        return [module for module in self._module.modules() if isinstance(module, FSDPModule)]

    def _gathered_bytes(self) -> int:
        """Of all parameters of the stage together, in the precision in which they are gathered."""
        return sum(
            param._orig_size.numel() * (param.param_dtype or param.orig_dtype).itemsize
            for group in _parameter_groups(fully_shard.state(self._module))  # type: ignore[attr-defined]  # torch's
            for param in group.fsdp_params
        )


def _span(action: Action) -> Any:
    return spans.action(action.op, action.stage, turn=action.turn)


def _post_backward(group: Any) -> None:
    """Of a group on a thread of its own."""
    group.post_backward()
    # What FSDP keeps for its stream to be done with; a CPU has none, and is.
    context = group.comm_ctx
    if hasattr(context, "reduce_scatter_states"):
        context.reduce_scatter_states.clear()
    else:  # before torch 2.13
        context.reduce_scatter_state = None


def _in_one_precision(group: Any) -> None:
    """FSDP reduces gradients of one dtype. Of halves of a backward, it adds up those of one in the dtype of reductions,
    and what comes in the other half is left as it is."""
    for param in group.fsdp_params:
        param.accumulate_unsharded_grad_if_needed()
    if any(param.unsharded_accumulated_grad is not None for param in group.fsdp_params):
        for param in group.fsdp_params:
            param.to_accumulated_grad_if_needed()


def _all_groups(state: Any) -> list[Any]:
    """Those of an FSDP root and of what is in it."""
    return [group for unit in state._state_ctx.all_states for group in _parameter_groups(unit)]


def _parameter_groups(state: Any) -> list[Any]:
    """Those of an FSDP state; before torch 2.12 there was one at most."""
    if hasattr(state, "_fsdp_param_groups"):
        return list(state._fsdp_param_groups)
    return [state._fsdp_param_group] if state._fsdp_param_group else []
