"""Does a rank's list of a plan, once a step: in order, each action as soon as what it needs is there.

The rank's thread does the list's computations. What goes on beside them has a queue of its own, which is begun here and
waited for where it is needed: receives, in the transport; gathering of parameters and sums of gradients, in their
groups' collectives (`shared_state`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import torch.distributed as dist
from torch import Tensor

from holdfast.plan.plan import COMPUTE, LAST_BACKWARDS, SECOND_ORDER, Action, Op, Order, Plan
from holdfast.trainer.optim.buckets import GradientMeans
from holdfast.trainer.pipeline.messages import Messages, Way
from holdfast.trainer.pipeline.offload.offload import Offload
from holdfast.trainer.pipeline.pieces import Piece, Pieces
from holdfast.trainer.pipeline.shared_state import SharedState
from holdfast.trainer.pipeline.stage import Stage
from holdfast.trainer.telemetry import spans

LossFunction = Callable[[Tensor, Tensor, float], Tensor]
"""Output and targets of such a share of a micro-batch to a scalar. Gradients of all are added up, so it does the
averaging."""
Key = tuple[int, Piece]
"""(stage, piece). Micro-batches are numbered over all pipes, so these say which pipe."""
UNDER_WAY = 2
"""Stages whose gradients may be on their way at once where no replica keeps whole ones (ZeRO 2 and 3): each needs room
for all of its own until they have come."""


class Executor:
    """One rank's part of a plan."""

    def __init__(
        self,
        plan: Plan,
        rank: int,
        stages: Sequence[Stage],
        loss: LossFunction,
        group: dist.ProcessGroup,
        like: Tensor | Mapping[int, Tensor],
        back: dist.ProcessGroup | None = None,
        way: Way | None = None,
        device_bytes: int = 0,
    ) -> None:
        """`stages` are this rank's. `rank` counts within the pipeline, as `group` does; messages are `like` this,
        or like that of the stage before their cut. Gradients go over `back` if it is given. `way`: how a message goes,
        if not from one rank to another. `device_bytes` of what graphs save stay on the device, the rest goes to the
        host; 0: all stays."""
        self._count, self._loss, self._pieces = plan.micro_batches, loss, Pieces(plan)
        self._stages = {(stage.pipe, stage.index): stage for stage in stages}
        self._messages = Messages(plan, rank, group, like, self._pieces, back, way)
        order = plan.orders[rank]
        self._again = {(a.stage, m) for a in order if a.op is Op.RECOMPUTE for m in a.micro_batches}
        self._gathers = list(_gathers(order))
        self._todo = list(self._bound(order))
        self.offload: Offload | None = None
        """What takes activations to the host and back."""
        if device_bytes:
            assert isinstance(like, Tensor), "a module of the user's own keeps its activations"
            self.offload = Offload(order, self._pieces.of, device_bytes, like.device)
            self._todo = [(action, self.offload.around(action, do)) for action, do in self._todo]
            for stage in stages:
                stage.offload = self.offload
        self._reduced = [self._stages[a.pipe, a.stage].state for a in order if a.op is Op.REDUCE_GRAD]
        self._under_way: list[SharedState] = []
        self._inputs: dict[Piece, Tensor] = {}
        self._targets: dict[Piece, Tensor] = {}
        # What a stage has made for another: on this rank, or on its way out.
        self._outputs: dict[Key, Tensor] = {}
        self._gradients: dict[Key, Tensor] = {}
        self.after: Callable[[], None] | None = None
        """Called at the end of each action, for who measures."""
        self.computed: Callable[[], None] | None = None
        """Called before the first action that waits for other replicas."""
        self._first_reduction = next((action for action in order if action.op is Op.REDUCE_GRAD), None)
        self.second_order: Callable[[Action], None] | None = None
        """Does what the list has of the optimizer's work between computations."""

    def kept(self) -> Iterator[Tensor]:
        """What stages keep of micro-batches under way: what came in, and what went out."""
        for stage in self._stages.values():
            yield from stage.kept()

    def states(self) -> Iterator[SharedState]:
        """Of its stages."""
        return (stage.state for stage in self._stages.values())

    def late(self) -> list[GradientMeans]:
        """Of its stages: gradients that replicas still sum when `step` returns, if there are such."""
        return [late for state in self.states() if (late := state.late) is not None]

    def prefetch(self) -> None:
        """Start the first gathering of a step, before its data is there. `step` goes on with it."""
        if self._gathers:
            action, is_forward = self._gathers[0]
            self._stages[action.pipe, action.stage].state.start_gathering(is_forward)

    def step(self, inputs: Tensor | None, targets: Tensor | None) -> None:
        """Do the list. `inputs` of all micro-batches where a first stage is, `targets` where a last one is."""
        self._inputs = {} if inputs is None else self._pieces.cut(inputs, self._count)
        self._targets = {} if targets is None else self._pieces.cut(targets, self._count)
        self._outputs.clear()
        self._gradients.clear()
        self._messages.begin()
        for stage in self._stages.values():
            stage.begin()
        if self.offload is not None:
            self.offload.begin()
        self._run()
        if self.offload is not None:
            self.offload.finish()
        for state in self._reduced:
            state.finish()
        self._under_way.clear()
        self._messages.finish()

    def _run(self) -> None:
        """Do the list's actions."""
        for action, do in self._todo:
            if action is self._first_reduction and self.computed is not None:
                self.computed()
            do()
            if self.after is not None:
                self.after()

    def _bound(self, order: Order) -> Iterator[tuple[Action, Callable[[], object]]]:
        """Each action with what to do for it, but those of the loop around the step: reading data, the optimizer."""
        lasts = {(a.pipe, a.stage): a for a in order if a.op in LAST_BACKWARDS}
        is_forward = {action.id: before for action, before in self._gathers}
        busy = [action for action in order if action.op in COMPUTE | SECOND_ORDER | {Op.REDUCE_GRAD}]
        for action in order:
            stage, pieces = self._stages[action.pipe, action.stage], self._pieces.of(action)
            is_last = lasts.get((action.pipe, action.stage)) is action
            match action.op:
                case Op.FORWARD:
                    yield action, partial(self._forward, stage, action, pieces)
                case Op.RECOMPUTE:
                    yield action, partial(self._recompute, stage, action, pieces)
                case Op.BACKWARD:
                    yield action, partial(self._backward, stage, action, pieces, is_last)
                case Op.BACKWARD_INPUT:
                    yield action, partial(self._backward_input, stage, action, pieces)
                case Op.BACKWARD_WEIGHT:
                    yield action, partial(self._backward_weight, stage, action, pieces, is_last)
                case Op.RECV_FORWARD | Op.RECV_BACKWARD:
                    yield action, partial(self._messages.post, action, pieces)
                case Op.SEND_FORWARD:
                    yield action, partial(self._send_forward, action, pieces)
                case Op.SEND_BACKWARD:
                    yield action, partial(self._send_backward, action, pieces)
                case Op.UNSHARD if stage.state.sharing.units:
                    yield action, partial(_start_gathering, stage, action, is_forward[action.id])
                case Op.UNSHARD:
                    yield action, partial(stage.state.gather, action)
                case Op.RESHARD if not stage.state.sharing.units:  # else a part of the computation before it
                    yield action, stage.state.free
                case Op.REDUCE_GRAD:
                    if (action.pipe, action.stage) not in lasts:
                        yield action, stage.state.contribute_nothing
                    yield action, partial(self._reduce, stage.state, action, action is busy[-1])
                case Op.FACTOR | Op.INVERT:
                    yield action, partial(self._second_order, action)
                case Op.RESHARD | Op.LOAD | Op.STEP:
                    pass
                case _:
                    raise ValueError(f"{action.id} is no action of the trainer")

    def _forward(self, stage: Stage, action: Action, pieces: Sequence[Piece]) -> None:
        stage.state.ready()
        if stage.is_first:
            xs = {piece: self._inputs[piece] for piece in pieces}
        else:
            xs = self._arrived(Op.RECV_FORWARD, stage.index, pieces, self._outputs)
        is_kept = (stage.index, action.micro_batch) not in self._again
        outputs = stage.forward(action, xs, is_kept)
        if not stage.is_last:
            self._outputs |= {(stage.index + 1, piece): output.detach() for piece, output in outputs.items()}
        elif is_kept:
            self._end(stage, outputs)

    def _recompute(self, stage: Stage, action: Action, pieces: Sequence[Piece]) -> None:
        stage.state.ready()
        if action.late and not stage.is_last:
            grads = self._arrived(Op.RECV_BACKWARD, stage.index, pieces, self._gradients)
            self._gradients |= {(stage.index, piece): grad for piece, grad in grads.items()}
        outputs = stage.recompute(action, pieces)
        if stage.is_last:
            self._end(stage, outputs)

    def _end(self, stage: Stage, outputs: Mapping[Piece, Tensor]) -> None:
        for piece, output in outputs.items():
            share = 1 / self._pieces.count(piece[0])
            with stage.recording(piece):
                loss = self._loss(output, self._targets[piece], share)
            stage.end(piece, loss)

    def _backward(self, stage: Stage, action: Action, pieces: Sequence[Piece], is_last: bool) -> None:
        stage.state.ready()
        self._pass_on(stage, stage.backward(action, self._of_outputs(stage, pieces), is_last))

    def _backward_input(self, stage: Stage, action: Action, pieces: Sequence[Piece]) -> None:
        stage.state.ready()
        self._pass_on(stage, stage.backward_input(action, self._of_outputs(stage, pieces)))

    def _backward_weight(self, stage: Stage, action: Action, pieces: Sequence[Piece], is_last: bool) -> None:
        stage.state.ready()
        stage.backward_weight(action, pieces, is_last)

    def _reduce(self, state: SharedState, action: Action, is_last: bool) -> None:
        """The last of all waits at once, the others until there is nothing else to do, or too much under way."""
        state.reduce(action, is_last)
        if state.sharing.zero >= 2:
            self._under_way = [one for one in self._under_way if one is not state] + [state]
            for early in self._under_way[:-UNDER_WAY]:
                early.finish()
            del self._under_way[:-UNDER_WAY]

    def _second_order(self, action: Action) -> None:
        """Leaves a span in every step, as all actions do, also where there is nothing to do."""
        with spans.action(action.op, action.stage, turn=action.turn):
            if self.second_order is not None:
                self.second_order(action)

    def _send_forward(self, action: Action, pieces: Sequence[Piece]) -> None:
        self._messages.send(action, [self._outputs.pop((action.stage + 1, piece)) for piece in pieces])

    def _send_backward(self, action: Action, pieces: Sequence[Piece]) -> None:
        self._messages.send(action, [self._gradients.pop((action.stage - 1, piece)) for piece in pieces])

    def _pass_on(self, stage: Stage, grads: Mapping[Piece, Tensor]) -> None:
        self._gradients |= {(stage.index - 1, piece): grad for piece, grad in grads.items()}

    def _of_outputs(self, stage: Stage, pieces: Sequence[Piece]) -> Mapping[Piece, Tensor | None]:
        """The gradients of what the stage has made. None in the last: it made losses."""
        if stage.is_last:
            return dict.fromkeys(pieces)
        return self._arrived(Op.RECV_BACKWARD, stage.index, pieces, self._gradients)

    def _arrived(self, op: Op, stage: int, pieces: Sequence[Piece], here: dict[Key, Tensor]) -> dict[Piece, Tensor]:
        """From another rank, once it is there, or from a stage of this one."""
        found = {}
        for piece in pieces:
            received = self._messages.take(op, stage, piece)
            found[piece] = here.pop((stage, piece)) if received is None else received
        return found


def _gathers(order: Order) -> Iterator[tuple[Action, bool]]:
    """Each UNSHARD in a list, and whether the stage's next computation is a forward."""
    for i, action in enumerate(order):
        if action.op is Op.UNSHARD:
            mine = (a for a in order[i:] if a.op in COMPUTE and (a.pipe, a.stage) == (action.pipe, action.stage))
            yield action, next((a.op in (Op.FORWARD, Op.RECOMPUTE) for a in mine), True)


def _start_gathering(stage: Stage, action: Action, is_forward: bool) -> None:
    """Hooks do the gathering; it is only started here, while the computation waits for its input."""
    with spans.action(action.op, action.stage, turn=action.turn):
        stage.state.start_gathering(is_forward)
