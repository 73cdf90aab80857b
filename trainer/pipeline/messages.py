"""Activations and gradients between the stages of different ranks.

Messages have no names: those from one rank to another arrive in the order in which they are sent, which a plan has
checked (`holdfast.plan.check.verify`). The transport keeps one queue for each pair and direction.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from holdfast.plan.plan import RECEIVES, SENDS, Action, Op, Plan
from holdfast.trainer.pipeline.pieces import Piece, Pieces
from holdfast.trainer.telemetry import spans

_LOOK_S = 2e-5
"""Between two looks at a GPU's receive: NCCL wakes nobody."""


class Going(Protocol):
    """A message, or this rank's part of one, on its way."""

    def wait(self) -> object:
        """Return when what was received is there, or the memory of what was sent may be used again."""

    def is_completed(self) -> bool:
        """Whether `wait` would wait for nothing."""


class Way(Protocol):
    """How messages go between pipeline ranks. `peer` is the other one's, tensors are whole activations of this rank."""

    def receive(self, room: Tensor, peer: int, group: dist.ProcessGroup) -> Going: ...

    def send(self, tensor: Tensor, peer: int, group: dist.ProcessGroup) -> Going | None: ...


class Straight:
    """From one rank to another: peers have one place in tp, and `group` a rank for each pipeline rank."""

    def receive(self, room: Tensor, peer: int, group: dist.ProcessGroup) -> Going:
        work = dist.irecv(room, group=group, group_src=peer)
        assert work is not None
        return work

    def send(self, tensor: Tensor, peer: int, group: dist.ProcessGroup) -> Going | None:
        return dist.isend(tensor, group=group, group_dst=peer)


@dataclass(frozen=True, slots=True)
class ByNetwork:
    """As `Straight`, but for peers that a group of their own reaches by a better network (`RankMesh.near_pp_group`)."""

    near: dist.ProcessGroup
    places: Mapping[int, int]
    """In `near`, by pipeline rank."""

    def receive(self, room: Tensor, peer: int, group: dist.ProcessGroup) -> Going:
        return Straight().receive(room, *self._way(peer, group))

    def send(self, tensor: Tensor, peer: int, group: dist.ProcessGroup) -> Going | None:
        return Straight().send(tensor, *self._way(peer, group))

    def _way(self, peer: int, group: dist.ProcessGroup) -> tuple[int, dist.ProcessGroup]:
        place = self.places.get(peer)
        return (peer, group) if place is None else (place, self.near)


@dataclass(slots=True)
class Receive:
    """A message on its way, piece by piece."""

    action: Action
    rooms: dict[Piece, Tensor]
    works: list[Going]

    def wait(self) -> None:
        if self.works:
            with _span(self.action, self.rooms.values()), spans.operation("pp:recv"):
                for work in self.works:
                    _wait(work)
            self.works.clear()

    def arrive(self) -> None:
        """Wait in another thread than the one that trains. What a GPU receives, the latter has to `wait` for as well:
        its stream does not know of it."""
        if any(room.is_cuda for room in self.rooms.values()):
            while not all(work.is_completed() for work in self.works):
                time.sleep(_LOOK_S)
            return
        for work in self.works:
            work.wait()
        self.works.clear()


_FORWARDS = {Op.SEND_FORWARD, Op.RECV_FORWARD}


class Messages:
    """The messages of one rank in a step."""

    def __init__(
        self,
        plan: Plan,
        rank: int,
        group: dist.ProcessGroup,
        like: Tensor | Mapping[int, Tensor],
        pieces: Pieces,
        back: dist.ProcessGroup | None = None,
        way: Way | None = None,
    ) -> None:
        """`rank` counts within the pipeline, as `group` does. That of a whole micro-batch is `like` this one,
        or like that of the stage before the cut which it crosses.

        `back`: for gradients, of the same ranks, where the two directions of a link must not wait for each other.
        """
        self._pieces, self._way = pieces, way or Straight()
        self._groups = {op: group if op in _FORWARDS or back is None else back for op in SENDS | RECEIVES}
        self._peers = {
            action.id: plan.rank_of(_other(action), action.pipe)
            for action in plan.orders[rank]
            if action.op in SENDS | RECEIVES
        }
        self._like = {
            (cut, n): torch.empty_like(one[: len(one) // n], requires_grad=False)
            for cut, one in ({0: like} if isinstance(like, Tensor) else like).items()
            for n in pieces.counts
        }
        self._is_alike = isinstance(like, Tensor)
        self._posted: dict[tuple[Op, int, Piece], Receive] = {}
        self._sent: dict[tuple[Op, int, Piece], Going | None] = {}
        """On their way: a transport keeps each message in memory until it is waited for."""

    def begin(self) -> None:
        """A step begins."""
        self._posted.clear()
        self._sent.clear()

    def post(self, action: Action, pieces: Sequence[Piece]) -> Receive:
        """Make room for a message, and do not wait for it."""
        cut = 0 if self._is_alike else min(action.stage, _other(action))
        rooms = {piece: torch.empty_like(self._like[cut, self._pieces.count(piece[0])]) for piece in pieces}
        peer = self._peers[action.id]
        works = [self._way.receive(room, peer, self._groups[action.op]) for room in rooms.values()]
        receive = Receive(action, rooms, works)
        for piece in pieces:
            self._posted[action.op, action.stage, piece] = receive
        return receive

    def take(self, op: Op, stage: int, piece: Piece) -> Tensor | None:
        """What the receive of this piece has brought, once it is there; None if none was posted."""
        receive = self._posted.pop((op, stage, piece), None)
        if receive is None:
            return None
        receive.wait()
        if op is Op.RECV_BACKWARD:
            # The gradient of what went forward is here, so that has arrived: this waits for nothing.
            _wait(self._sent.pop((Op.SEND_FORWARD, stage, piece), None))
        return receive.rooms.pop(piece)

    def send(self, action: Action, tensors: Sequence[Tensor]) -> None:
        """Hand a message over, piece by piece, and do not wait for its arrival."""
        peer = self._peers[action.id]
        with _span(action, tensors):
            group = self._groups[action.op]
            if any(tensor.is_cuda for tensor in tensors):  # gloo does not say what has arrived
                self._sent = {key: work for key, work in self._sent.items() if work and not work.is_completed()}
            for piece, tensor in zip(self._pieces.of(action), tensors, strict=True):
                self._sent[action.op, action.stage, piece] = self._way.send(tensor, peer, group)

    def finish(self) -> None:
        """Wait until everything sent has gone."""
        for work in self._sent.values():
            with spans.operation("pp:send"):
                _wait(work)
        self._sent.clear()


def _other(action: Action) -> int:
    """The stage at the other end."""
    return action.stage + (1 if action.op in (Op.SEND_FORWARD, Op.RECV_BACKWARD) else -1)


def _span(action: Action, tensors: Iterable[Tensor]) -> AbstractContextManager[None]:
    num_bytes = sum(tensor.nbytes for tensor in tensors)
    return spans.action(action.op, action.stage, action.micro_batch, action.turn, num_bytes)


def _wait(work: Going | None) -> None:
    if work is not None:
        work.wait()
