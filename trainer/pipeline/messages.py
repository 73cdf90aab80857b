"""Activations and gradients between the stages of different ranks.

Messages have no names: those from one rank to another arrive in the order in which they are sent, which a plan has
checked (`holdfast.plan.check.verify`). The transport keeps one queue for each pair and direction.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from holdfast.plan.plan import RECEIVES, SENDS, Action, Op, Plan
from holdfast.trainer.telemetry import spans


class Messages:
    """The messages of one rank in a step."""

    def __init__(self, plan: Plan, rank: int, group: dist.ProcessGroup, like: Tensor) -> None:
        """`rank` counts within the pipeline, as `group` does. All messages are `like` this one."""
        self._group, self._like = group, like
        self._peers = {
            action.id: plan.rank_of(_other(action), action.pipe)
            for action in plan.orders[rank]
            if action.op in SENDS | RECEIVES
        }
        self._posted: dict[tuple[Op, int, int], tuple[Action, Tensor, dist.Work | None]] = {}
        self._sent: list[dist.Work | None] = []

    def begin(self) -> None:
        """A step begins."""
        self._posted.clear()
        self._sent.clear()

    def post(self, action: Action) -> None:
        """Make room for a message, and do not wait for it."""
        room = torch.empty_like(self._like, requires_grad=False)
        work = dist.irecv(room, group=self._group, group_src=self._peers[action.id])
        self._posted[action.op, action.stage, action.micro_batch] = action, room, work

    def take(self, op: Op, stage: int, micro_batch: int) -> Tensor | None:
        """What the receive of these has brought, once it is there; None if none was posted."""
        posted = self._posted.pop((op, stage, micro_batch), None)
        if posted is None:
            return None
        action, room, work = posted
        with _span(action, room), spans.operation("pp:recv"):
            _wait(work)
        return room

    def send(self, action: Action, tensor: Tensor) -> None:
        """Hand a message over, and do not wait for its arrival."""
        with _span(action, tensor):
            self._sent.append(dist.isend(tensor, group=self._group, group_dst=self._peers[action.id]))

    def finish(self) -> None:
        """Wait until everything sent has gone."""
        for work in self._sent:
            with spans.operation("pp:send"):
                _wait(work)
        self._sent.clear()


def _other(action: Action) -> int:
    """The stage at the other end."""
    return action.stage + (1 if action.op in (Op.SEND_FORWARD, Op.RECV_BACKWARD) else -1)


def _span(action: Action, tensor: Tensor) -> spans._Block:
    return spans.action(action.op, action.stage, action.micro_batch, num_bytes=tensor.nbytes)


def _wait(work: dist.Work | None) -> None:
    if work is not None:
        work.wait()
