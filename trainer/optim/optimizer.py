"""The optimizer on this rank's own shards.

Loss and norm stay on the device until the one place of a step where the host reads them (`Sums.read`). A GPU's update
is in its queue by then, and does nothing by itself if the step is not finite.
It works on plain tensors that share memory with the DTensor parameters, which costs no DTensor dispatch.
What it keeps of them, and where, is in states.py and host/.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from holdfast.plan.plan import Action, Op
from holdfast.trainer.mesh.mesh import RankMesh
from holdfast.trainer.optim.buckets import GradientMeans
from holdfast.trainer.optim.host.states import HostStates
from holdfast.trainer.optim.slices import Slice
from holdfast.trainer.optim.states import DeviceStates, States
from holdfast.trainer.optim.update_rules import InBubbles, InputWatcher, Peers, Watcher
from holdfast.trainer.settings.config import OptimConfig
from holdfast.trainer.settings.learning_rate import learning_rate
from holdfast.trainer.telemetry import spans
from holdfast.trainer.telemetry.totals import Pending, Totals


class Optimizer:
    """Updates slices. The learning rate is a function of the step, counted from 0."""

    def __init__(
        self,
        config: OptimConfig,
        slices: Sequence[Slice],
        mesh: RankMesh,
        sums: Callable[[], None],
        rows: int = 0,
        late: Sequence[GradientMeans] = (),
        states: States | None = None,
    ) -> None:
        """`sums` completes gradients of which other ranks have a part; `rows`: tokens of this rank in a step; `late`:
        gradients that are still on their way when the update begins; `states`: what is kept of the slices, where the
        settings of the optimizer do not say it. Called by all ranks together."""
        self.config, self.all, self._sums, self._late = config, list(slices), sums, late
        self._stages = mesh.layout.held_by(mesh.pp_rank)
        # A rank can hold nothing of a small parameter when dp is larger than its first dimension.
        self.slices = [piece for piece in slices if piece.shard.numel()]
        self.applied = 0
        """Updates done: one a step, but for steps that were skipped."""
        self._place = {id(piece): index for index, piece in enumerate(self.all)}
        self.states: States
        """What is kept of the slices."""
        if states is not None:
            self.states = states
        elif config.state == "host":
            self.states = HostStates(config, self.all, mesh.device)
        else:
            pipeline = mesh.pp_group if mesh.layout.pp > 1 else None
            self.states = DeviceStates(config, self.all, Peers(mesh.whole_stages(), pipeline, rows))
        self.skips_on_device = mesh.device.type == "cuda" and self.states.heeds_bad
        """Whether an update is started before the host knows that it is wanted."""
        self.holds_all = mesh.layout.pp == mesh.layout.tp == 1 and not any(piece.is_sharded for piece in slices)
        """Whether the gradients here are all there are, the same on every rank."""
        copies = [1 if self.holds_all else piece.copies for piece in self.slices]
        self.bubbles: InBubbles | None = None
        """What the pipeline does of its work."""
        self._copies = torch.tensor(copies, dtype=torch.float64, device=mesh.device)

    def watchers(self) -> Mapping[int, Watcher]:
        """What wants to see the next step's products, by id of a model's parameter."""
        return self.states.watchers(self.applied)

    def inputs(self) -> Mapping[int, InputWatcher]:
        """What wants to see inputs in the next step's forwards, by id of a model's parameter. Call `watchers` first."""
        return {} if self.bubbles is None else self.bubbles.inputs()

    def use_bubbles(self, actions: Sequence[Action]) -> InBubbles | None:
        """Leave to the pipeline what its list on this rank has of the optimizer's work. None: nothing."""
        self.bubbles = self.states.in_bubbles(actions)
        return self.bubbles

    def owned(self) -> Mapping[str, Tensor]:
        """State that this rank keeps for all that hold the same parameters, whole and in whatever shape, by name.
        Between two steps: nothing of it is left to the next one's bubbles then."""
        if self.bubbles is not None:
            self.bubbles.settle()
        return self.states.owned()

    def collect(self) -> None:
        """Move the gradients of the step to the shards, and complete them."""
        with torch.no_grad():
            for piece in self.slices:
                grad = piece.parameter.grad
                if self._late and grad is not None and not grad.is_contiguous():
                    # What has not come yet could not be handed out to a copy.
                    grad = piece.parameter.grad = grad.contiguous()
                piece.shard.grad = grad.to_local() if isinstance(grad, DTensor) else grad
            self._sums()

    def update_beside(self, step: int) -> None:
        """With `late` gradients: update each bucket as they come. Afterwards all have. A step that then turns out not
        to be finite has been applied: it must end the run."""
        if not self._late:
            return
        assert isinstance(self.states, HostStates)
        whose = {id(piece): means for means in self._late for piece in self.all if means.has(piece.parameter)}

        def bring(piece: Slice, stop: int) -> None:
            means = whose[id(piece)]
            if not means.lacks(piece.parameter, stop):
                return
            with spans.operation("dp:all_reduce"):
                means.bring(piece.parameter, stop)

        with spans.actions(Op.STEP, self._stages):
            self.states.update(learning_rate(self.config, step), self.applied, None, None, bring)
        for means in self._late:
            with spans.operation("dp:all_reduce", means.num_bytes):
                means.finish()

    def squares(self) -> Tensor:
        """This rank's share of the squared gradient norm: summed over all ranks, or with `holds_all` by itself, it is
        the whole. float64."""
        if not self.slices:
            return torch.zeros((), dtype=torch.float64, device=self._copies.device)
        grads = [_grad(s) for s in self.slices]
        precision = torch.float32 if any(g.dtype == torch.bfloat16 for g in grads) else None
        norms = torch.stack(torch._foreach_norm(grads, 2, precision)).double()
        return (norms.square() / self._copies).sum()

    def step(self, step: int, pending: Pending) -> Totals:
        """Clip, update and drop the gradients, unless the step is not finite: then only drop them.

        Called by all ranks together.
        """
        sums = pending.wait(self.squares() if self.holds_all else None)
        if self._late:
            totals = sums.read()  # `update_beside` did the rest
            self.applied += totals.is_finite
            self.drop()
            return totals
        with spans.actions(Op.STEP, self._stages):
            if self.skips_on_device:
                self._update(step, self._clipping(sums.norm), sums.bad())
                totals = sums.read()
            else:
                totals = sums.read()
                if totals.is_finite:
                    self._update(step, self._clipping(totals.norm), None)
        self.applied += totals.is_finite
        self.drop()
        return totals

    def _clipping(self, norm: Any) -> Any:
        """What gradients are multiplied with, a number or a tensor as `norm` is; None: nothing."""
        limit = self.config.clip_norm
        if isinstance(norm, Tensor):
            return (limit / norm).clamp(max=1.0) if limit else None
        return limit / norm if limit and norm > limit else None

    def _update(self, step: int, clipping: Any, bad: Tensor | None) -> None:
        """Change the parameters, but for a device that finds `bad` to be 1."""
        self.states.update(learning_rate(self.config, step), self.applied, clipping, bad)

    def drop(self) -> None:
        """Forget the gradients."""
        self.states.drop()

    def value(self, piece: Slice) -> Tensor:
        """The slice as the model has it, its own memory where that is possible."""
        return piece.shard

    def set_value(self, piece: Slice, value: Tensor) -> None:
        """Put back what `value` gave, before `set_state`. It may have been read into its own memory."""
        if value.data_ptr() != piece.shard.data_ptr():
            piece.shard.copy_(value)

    def state(self, piece: Slice) -> dict[str, Tensor]:
        """What the optimizer keeps of a slice, by name: averages, and the float32 form of a bfloat16 one."""
        return self.states.state(self._place[id(piece)])

    def set_state(self, piece: Slice, state: Mapping[str, Tensor]) -> None:
        """Put back what `state` gave. Set `applied` first."""
        self.states.set_state(self._place[id(piece)], state, self.applied)


def _grad(piece: Slice) -> Tensor:
    grad = piece.shard.grad
    assert grad is not None, f"{piece.name} got no gradient"
    return grad
