"""Executes a transfer plan on a process group: each rank does its part of the messages, unit by unit.

All ranks of the group need the same plan; those with no part in it return at once. Works on gloo and on any backend
that has point-to-point messages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

import torch.distributed as dist
from torch import Tensor

from holdfast.plan.moves.strategies import Message
from holdfast.plan.moves.transfer_plan import TransferPlan
from holdfast.plan.tiles import TensorShard

Held = Mapping[str, tuple[TensorShard, Tensor]]
"""By tensor: the part of it that this rank has in memory, and that part."""


class Sent(Protocol):
    """A message on its way."""

    def wait(self) -> object:
        """Return when its memory may be used again."""


Send = Callable[[Tensor, int], Sent]
"""Start to send a tensor to a rank of the group; messages to one rank arrive in order."""


def run(plan: TransferPlan, source: Held, target: Held, group: dist.ProcessGroup, send: Send | None = None) -> None:
    """Fill this rank's parts in `target` from the ranks that have them in `source`. Tensors must not overlap.

    The plan's ranks are those of the group. `send`: another transport for the sending side.
    """
    rank, send = dist.get_rank(group), send or partial(_send, group)
    for move in plan.moves:
        unit = move.unit
        mine = [(i, m) for i, m in enumerate(plan.messages(move)) if rank in (m.source, m.target)]
        if not mine and rank not in unit.receivers:
            continue
        part = _part(unit.shard, target[unit.tensor]) if rank in unit.receivers else None
        if rank in unit.senders:
            held = _part(unit.shard, source[unit.tensor])
            if part is not None:
                part.copy_(held)
            _exchange(mine, held.reshape(-1), group, send)
        else:
            assert part is not None, "only receivers pass on"
            # Without a copy where the part is one piece of memory.
            flat = part.view(-1) if part.is_contiguous() else part.new_empty(part.numel())
            _exchange(mine, flat, group, send)
            if not part.is_contiguous():
                part.copy_(flat.view(part.shape))


def _exchange(mine: list[tuple[int, Message]], flat: Tensor, group: dist.ProcessGroup, send: Send) -> None:
    """A rank's messages of one unit, in order. A send waits only for the message that brought its elements."""
    rank = dist.get_rank(group)
    receiving: dict[int, dist.Work] = {}
    sending: list[Sent] = []
    for index, message in mine:
        piece = flat[message.start : message.stop]
        if message.target == rank:
            work = dist.irecv(piece, group=group, group_src=message.source)
            assert work is not None
            receiving[index] = work
        else:
            if message.after in receiving:
                receiving.pop(message.after).wait()
            sending.append(send(piece, message.target))
    for received in receiving.values():
        received.wait()
    for sent in sending:
        sent.wait()


def _part(shard: TensorShard, held: tuple[TensorShard, Tensor]) -> Tensor:
    """The elements of `shard`, as a view of what is held."""
    outer, tensor = held
    return tensor[shard.within(outer).slices]


def _send(group: dist.ProcessGroup, piece: Tensor, target: int) -> Sent:
    work = dist.isend(piece, group=group, group_dst=target)
    assert work is not None
    return work
