"""Does a rank's list of a plan, once a step: in order, each action as soon as what it needs is there.

The rank's thread does the list's computations. What goes on beside them has a queue of its own, which is begun here and
waited for where it is needed: receives, in the transport; gathering of parameters and sums of gradients, in their
groups' collectives (`shared_state`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch.distributed as dist
from torch import Tensor

from holdfast.plan.plan import COMPUTE, LAST_BACKWARDS, Action, Op, Order, Plan
from holdfast.trainer.pipeline.messages import Messages
from holdfast.trainer.pipeline.stage import Stage
from holdfast.trainer.telemetry import spans

LossFunction = Callable[[Tensor, Tensor], Tensor]
"""Output and targets of a micro-batch to a scalar. Gradients of all are added up, so it does the averaging."""
Key = tuple[int, int]
"""(stage, micro-batch). Micro-batches are numbered over all pipes, so these say which pipe."""


class Executor:
    """One rank's part of a plan."""

    def __init__(
        self, plan: Plan, rank: int, stages: Sequence[Stage], loss: LossFunction, group: dist.ProcessGroup, like: Tensor
    ) -> None:
        """`stages` are this rank's. `rank` counts within the pipeline, as `group` does; messages are `like` this."""
        self._count, self._loss = plan.micro_batches, loss
        self._stages = {(stage.pipe, stage.index): stage for stage in stages}
        self._messages = Messages(plan, rank, group, like)
        order = plan.orders[rank]
        self._again = {(a.stage, a.micro_batch) for a in order if a.op is Op.RECOMPUTE}
        self._gathers = list(_gathers(order))
        self._todo = list(self._bound(order))
        self._reduced = [self._stages[a.pipe, a.stage].state for a in order if a.op is Op.REDUCE_GRAD]
        self._inputs: Sequence[Tensor] = ()
        self._targets: Sequence[Tensor] = ()
        # What a stage has made for another: on this rank, or on its way out.
        self._outputs: dict[Key, Tensor] = {}
        self._gradients: dict[Key, Tensor | None] = {}

    def prefetch(self) -> None:
        """Start the first gathering of a step, before its data is there. `step` goes on with it."""
        if self._gathers:
            action, is_forward = self._gathers[0]
            self._stages[action.pipe, action.stage].state.start_gathering(is_forward)

    def step(self, inputs: Tensor | None, targets: Tensor | None) -> None:
        """Do the list. `inputs` of all micro-batches where a first stage is, `targets` where a last one is."""
        self._inputs = () if inputs is None else inputs.tensor_split(self._count)
        self._targets = () if targets is None else targets.tensor_split(self._count)
        self._outputs.clear()
        self._gradients.clear()
        self._messages.begin()
        for stage in self._stages.values():
            stage.begin()
        for do in self._todo:
            do()
        for state in self._reduced:
            state.finish()
        self._messages.finish()

    def _bound(self, order: Order) -> Iterator[Callable[[], None]]:
        """What to do for each action but those of the loop around the step: reading data, the optimizer."""
        lasts = {(a.pipe, a.stage): a for a in order if a.op in LAST_BACKWARDS}
        is_forward = {action.id: before for action, before in self._gathers}
        busy = [action for action in order if action.op in COMPUTE or action.op is Op.REDUCE_GRAD]
        for action in order:
            stage = self._stages[action.pipe, action.stage]
            is_last = lasts.get((action.pipe, action.stage)) is action
            match action.op:
                case Op.FORWARD:
                    yield partial(self._forward, stage, action)
                case Op.RECOMPUTE:
                    yield partial(self._recompute, stage, action)
                case Op.BACKWARD:
                    yield partial(self._backward, stage, action, is_last)
                case Op.BACKWARD_INPUT:
                    yield partial(self._backward_input, stage, action)
                case Op.BACKWARD_WEIGHT:
                    yield partial(self._backward_weight, stage, action, is_last)
                case Op.RECV_FORWARD | Op.RECV_BACKWARD:
                    yield partial(self._messages.post, action)
                case Op.SEND_FORWARD:
                    yield partial(self._send_forward, action)
                case Op.SEND_BACKWARD:
                    yield partial(self._send_backward, action)
                case Op.UNSHARD if stage.state.sharing.units:
                    yield partial(_start_gathering, stage, action, is_forward[action.id])
                case Op.UNSHARD:
                    yield partial(stage.state.gather, action)
                case Op.RESHARD if not stage.state.sharing.units:  # else a part of the computation before it
                    yield stage.state.free
                case Op.REDUCE_GRAD:
                    # The last of all waits at once, the others until there is nothing else to do.
                    yield partial(stage.state.reduce, action, action is busy[-1])
                case Op.RESHARD | Op.LOAD | Op.STEP:
                    pass
                case _:
                    raise ValueError(f"{action.id} is no action of the trainer")

    def _forward(self, stage: Stage, action: Action) -> None:
        stage.state.ready()
        m = action.micro_batch
        x = self._inputs[m] if stage.is_first else self._arrived(Op.RECV_FORWARD, action, self._outputs)
        assert x is not None
        is_kept = (stage.index, m) not in self._again
        output = stage.forward(action, x, is_kept)
        if not stage.is_last:
            self._outputs[stage.index + 1, m] = output.detach()
        elif is_kept:
            stage.end(action, self._loss(output, self._targets[m]))

    def _recompute(self, stage: Stage, action: Action) -> None:
        stage.state.ready()
        if action.late and not stage.is_last:
            self._gradients[stage.index, action.micro_batch] = self._of_output(stage, action)
        output = stage.recompute(action)
        if stage.is_last:
            stage.end(action, self._loss(output, self._targets[action.micro_batch]))

    def _backward(self, stage: Stage, action: Action, is_last: bool) -> None:
        stage.state.ready()
        grad = stage.backward(action, self._of_output(stage, action), is_last)
        if not stage.is_first:
            self._gradients[stage.index - 1, action.micro_batch] = grad

    def _backward_input(self, stage: Stage, action: Action) -> None:
        stage.state.ready()
        grad = stage.backward_input(action, self._of_output(stage, action))
        if not stage.is_first:
            self._gradients[stage.index - 1, action.micro_batch] = grad

    def _backward_weight(self, stage: Stage, action: Action, is_last: bool) -> None:
        stage.state.ready()
        stage.backward_weight(action, is_last)

    def _send_forward(self, action: Action) -> None:
        self._messages.send(action, self._outputs.pop((action.stage + 1, action.micro_batch)))

    def _send_backward(self, action: Action) -> None:
        grad = self._gradients.pop((action.stage - 1, action.micro_batch))
        assert grad is not None, "a stage's input got no gradient"
        self._messages.send(action, grad)

    def _of_output(self, stage: Stage, action: Action) -> Tensor | None:
        """The gradient of what the stage has made of a micro-batch. None in the last: it made the loss."""
        return None if stage.is_last else self._arrived(Op.RECV_BACKWARD, action, self._gradients)

    def _arrived(self, op: Op, action: Action, here: dict[Key, Tensor] | dict[Key, Tensor | None]) -> Tensor | None:
        """From another rank, once it is there, or from a stage of this one."""
        received = self._messages.take(op, action.stage, action.micro_batch)
        return here.pop((action.stage, action.micro_batch)) if received is None else received


def _gathers(order: Order) -> Iterator[tuple[Action, bool]]:
    """Each UNSHARD in a list, and whether the stage's next computation is a forward."""
    for i, action in enumerate(order):
        if action.op is Op.UNSHARD:
            mine = (a for a in order[i:] if a.op in COMPUTE and (a.pipe, a.stage) == (action.pipe, action.stage))
            yield action, next(a.op in (Op.FORWARD, Op.RECOMPUTE) for a in mine)


def _start_gathering(stage: Stage, action: Action, is_forward: bool) -> None:
    """Hooks do the gathering; it is only started here, while the computation waits for its input."""
    with spans.action(action.op, action.stage, turn=action.turn):
        stage.state.start_gathering(is_forward)
