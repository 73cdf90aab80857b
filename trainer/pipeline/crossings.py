"""Messages between pipeline ranks of different tensor-parallel sizes, planned as any move between two meshes.

What one side holds (whole activations, or under sequence parallelism positions) is to lie on the other side as that
one holds it (Zhuang et al., MLSys 2023). The plan (`holdfast.plan.moves`) has each element cross into a host once, and
spreads it there. A receive is posted early for what comes from the other side; what receivers pass on among themselves
follows where the message is waited for. They all wait in the same order, that of their common list, so nothing is
mistaken for something else.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor

from holdfast.plan.moves.shard_spec import ShardSpec
from holdfast.plan.moves.strategies import Message, Strategy
from holdfast.plan.moves.transfer_plan import Move, TransferPlan, make_plan
from holdfast.plan.moves.units import Unit, units
from holdfast.plan.plan import Mesh
from holdfast.plan.tiles import TensorShard
from holdfast.trainer.pipeline.messages import Going

NAME = "activation"


def crossing_plan(
    sources: Sequence[int],
    targets: Sequence[int],
    shape: tuple[int, int, int],
    is_sequence: bool,
    hosts: Sequence[int],
    item_bytes: int,
) -> TransferPlan:
    """How an activation, or its gradient, of (batch, positions, width) goes from some tp ranks to others.

    All ranks hold all of it, or under sequence parallelism as many positions each. As many senders as receivers pair
    off: each has what its peer wants. `hosts`: of each rank.
    """
    before, after = _spec(sources, is_sequence), _spec(targets, is_sequence)
    if len(sources) != len(targets):
        return make_plan(units(NAME, item_bytes, before.held(shape), after.held(shape)), hosts)
    pairs = [
        Unit(NAME, before.shard(place, shape), item_bytes, (source,), (target,))
        for place, (source, target) in enumerate(zip(sources, targets, strict=True))
    ]
    return make_plan(pairs, hosts, Strategy.SEND_RECV)


def connect(links: Collection[tuple[int, int]], group: dist.ProcessGroup) -> None:
    """Have both ends of each link reach for it now. Called by all ranks of the group together, with the same links.

    Where gloo connects late, a receive blocks until its sender reaches for the link too, and posted early it would hold
    up ranks that the sender waits for: between unlike sizes many links carry messages in one direction only. All ranks
    go through theirs in one order, so no circular wait arises.
    """
    rank, byte = dist.get_rank(group), torch.zeros(1, dtype=torch.uint8)
    for low, high in sorted({(min(link), max(link)) for link in links}):
        if rank == low:
            dist.send(byte, group=group, group_dst=high)
        elif rank == high:
            dist.recv(byte, group=group, group_src=low)


def _spec(ranks: Sequence[int], is_sequence: bool) -> ShardSpec:
    return ShardSpec(Mesh((("tp", len(ranks)),)), ((), ("tp",) if is_sequence else (), ()), tuple(ranks))


@dataclass(frozen=True, slots=True)
class Crossings:
    """One rank's part in the messages of its pipeline."""

    tps: tuple[int, ...]
    """tp of each pipeline rank. In the group, ranks count through tp first."""
    hosts: tuple[int, ...]
    """Of each rank of the group."""
    pp_rank: int
    tp_rank: int
    is_sequence: bool
    _known: dict[tuple[int, int, torch.Size, int], list[tuple[Move, list[Message]]]] = field(default_factory=dict)

    def receive(self, room: Tensor, peer: int, group: dist.ProcessGroup) -> Going:
        """Post what comes from the tp ranks of `peer` into `room`, this rank's own part."""
        moves = self._moves(peer, self.pp_rank, room)
        brought = sum(move.unit.shard.count for move, _ in moves if self._rank in move.unit.receivers)
        assert brought == room.numel(), f"{brought} elements are to come, there is room for {room.numel()}"
        arriving = [_Arriving(move, messages, self._rank, room, self._own(room), group) for move, messages in moves]
        return _Several(arriving)

    def send(self, tensor: Tensor, peer: int, group: dist.ProcessGroup) -> Going:
        """Start to send what the tp ranks of `peer` get from this rank: maybe nothing, where another holds it too."""
        sent: list[Going] = []
        for move, messages in self._moves(self.pp_rank, peer, tensor):
            mine = [message for message in messages if message.source == self._rank]
            if mine:
                flat = tensor[move.unit.shard.within(self._own(tensor)).slices].reshape(-1)
                for message in mine:
                    work = dist.isend(flat[message.start : message.stop], group=group, group_dst=message.target)
                    assert work is not None
                    sent.append(work)
        return _Several(sent)

    @property
    def _rank(self) -> int:
        return sum(self.tps[: self.pp_rank]) + self.tp_rank

    def _moves(self, source: int, target: int, own: Tensor) -> list[tuple[Move, list[Message]]]:
        key = (source, target, own.shape, own.element_size())
        if key not in self._known:
            before, after = (range(sum(self.tps[:p]), sum(self.tps[: p + 1])) for p in (source, target))
            plan = crossing_plan(before, after, self._whole(own), self.is_sequence, self.hosts, own.element_size())
            self._known[key] = [(move, plan.messages(move)) for move in plan.moves]
        return self._known[key]

    def _whole(self, own: Tensor) -> tuple[int, int, int]:
        batch, positions, width = own.shape
        return batch, positions * (self.tps[self.pp_rank] if self.is_sequence else 1), width

    def _own(self, own: Tensor) -> TensorShard:
        """Where this rank's part lies in the whole."""
        batch, positions, width = own.shape
        return TensorShard((0, self.tp_rank * positions if self.is_sequence else 0, 0), (batch, positions, width))


@dataclass(slots=True)
class _Arriving:
    """One unit, on its way to this rank and from there to its tp peers."""

    move: Move
    messages: list[Message]
    rank: int
    room: Tensor
    own: TensorShard
    """Where `room` lies in the whole."""
    group: dist.ProcessGroup
    _part: Tensor = field(init=False)
    _flat: Tensor = field(init=False)
    _outside: dict[int, dist.Work] = field(init=False)

    def __post_init__(self) -> None:
        self._outside = {}
        if self.rank not in self.move.unit.receivers:
            return
        self._part = self.room[self.move.unit.shard.within(self.own).slices]
        # Without a copy where the part is one piece of memory.
        is_flat = self._part.is_contiguous()
        self._flat = self._part.view(-1) if is_flat else self._part.new_empty(self._part.numel())
        for number, message in enumerate(self.messages):
            if message.target == self.rank and message.after < 0:
                self._outside[number] = self._receive(message)

    def wait(self) -> None:
        """Return when all of the unit is here, and has gone on from here. Called by all receivers together."""
        if self.rank not in self.move.unit.receivers:
            return
        coming, sent = dict(self._outside), []
        for number, message in enumerate(self.messages):
            if message.after < 0:
                continue
            if message.target == self.rank:
                coming[number] = self._receive(message)
            elif message.source == self.rank:
                if message.after in coming:
                    coming.pop(message.after).wait()
                piece = self._flat[message.start : message.stop]
                sent.append(dist.isend(piece, group=self.group, group_dst=message.target))
        for work in (*coming.values(), *sent):
            assert work is not None
            work.wait()
        if not self._part.is_contiguous():
            self._part.copy_(self._flat.view(self._part.shape))

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._outside.values())

    def _receive(self, message: Message) -> dist.Work:
        piece = self._flat[message.start : message.stop]
        work = dist.irecv(piece, group=self.group, group_src=message.source)
        assert work is not None
        return work


@dataclass(frozen=True, slots=True)
class _Several:
    """All of them."""

    parts: Sequence[Going]

    def wait(self) -> None:
        for part in self.parts:
            part.wait()

    def is_completed(self) -> bool:
        return all(part.is_completed() for part in self.parts)
