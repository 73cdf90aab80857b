"""How the ranks of one job talk while they save or restore: bytes and yes/no, never pickled objects."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch
import torch.distributed as dist

from holdfast.checkpoint.format.arrays import Buffer
from holdfast.checkpoint.restore.host_peers import Sending, this_host

Operation = Callable[[str], contextlib.AbstractContextManager[object]]
"""Marks a blocking operation by name, for the watcher of this process."""


class SavingGroup(Protocol):
    """The ranks that save and restore together. Every call is made by all of them, in the same order."""

    rank: int
    size: int
    host: str
    """The same for ranks that can share memory."""

    def gather(self, payload: bytes) -> list[bytes]:
        """The payloads of all ranks, in rank order, at rank 0; an empty list elsewhere."""

    def broadcast(self, payload: bytes) -> bytes:
        """Rank 0's payload, at every rank."""

    def all_agree(self, ok: bool) -> bool:
        """True when every rank says True."""

    def send(self, payload: Buffer, to: int, tag: int = 0) -> Sending:
        """Begin to send to one rank; the payload must stay as it is until the end."""

    def receive(self, num_bytes: int, source: int, tag: int = 0) -> memoryview:
        """The next message of this tag from one rank, of a length that both know."""


class _Gone:
    """A message that was never on its way."""

    def wait(self) -> None:
        pass


class Alone:
    """A group of one."""

    rank = 0
    size = 1
    host = ""

    def gather(self, payload: bytes) -> list[bytes]:
        return [payload]

    def broadcast(self, payload: bytes) -> bytes:
        return payload

    def all_agree(self, ok: bool) -> bool:
        return ok

    def send(self, payload: Buffer, to: int, tag: int = 0) -> Sending:
        raise AssertionError("a group of one has no receiver")

    def receive(self, num_bytes: int, source: int, tag: int = 0) -> memoryview:
        raise AssertionError("a group of one has no sender")


class ProcessGroup:
    """The ranks of a torch process group that has a backend for CPU tensors."""

    def __init__(self, group: dist.ProcessGroup | None = None, operation: Operation = contextlib.nullcontext) -> None:
        self.rank = dist.get_rank(group)
        self.size = dist.get_world_size(group)
        self.host = this_host()
        self._group = group
        self._operation = operation

    def gather(self, payload: bytes) -> list[bytes]:
        with self._operation("checkpoint:gather"):
            longest = torch.tensor([len(payload)])
            dist.all_reduce(longest, dist.ReduceOp.MAX, group=self._group)
            width = int(longest.item()) + 8
            mine = _framed(payload, width)
            if self.rank != 0:
                dist.gather(mine, group=self._group, group_dst=0)
                return []
            everyone = [torch.empty(width, dtype=torch.uint8) for _ in range(self.size)]
            dist.gather(mine, everyone, group=self._group, group_dst=0)
        return [_unframed(frame) for frame in everyone]

    def broadcast(self, payload: bytes) -> bytes:
        with self._operation("checkpoint:broadcast"):
            width = torch.tensor([len(payload) + 8])
            dist.broadcast(width, group=self._group, group_src=0)
            frame = torch.zeros(int(width.item()), dtype=torch.uint8)
            if self.rank == 0:
                frame = _framed(payload, len(payload) + 8)
            dist.broadcast(frame, group=self._group, group_src=0)
        return _unframed(frame)

    def all_agree(self, ok: bool) -> bool:
        with self._operation("checkpoint:agree"):
            vote = torch.tensor([int(ok)])
            dist.all_reduce(vote, dist.ReduceOp.MIN, group=self._group)
        return bool(vote.item())

    def send(self, payload: Buffer, to: int, tag: int = 0) -> Sending:
        if not len(payload):
            return _Gone()
        # Nothing writes to it: torch merely has no tensors that cannot be written to.
        content = np.frombuffer(payload, dtype=np.uint8)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            message = torch.from_numpy(content)
        with self._operation("checkpoint:send"):
            work: Any = dist.isend(message, group=self._group, group_dst=to, tag=tag)
        return _OnItsWay(work, message, self._operation)

    def receive(self, num_bytes: int, source: int, tag: int = 0) -> memoryview:
        message = torch.empty(num_bytes, dtype=torch.uint8)
        if num_bytes:
            with self._operation("checkpoint:receive"):
                dist.recv(message, group=self._group, group_src=source, tag=tag)
        content: memoryview = message.numpy().data
        return content


class _OnItsWay:
    def __init__(self, work: Any, message: torch.Tensor, operation: Operation) -> None:
        self._work, self._message, self._operation = work, message, operation

    def wait(self) -> None:
        with self._operation("checkpoint:send"):
            self._work.wait()


def _framed(payload: bytes, width: int) -> torch.Tensor:
    content = bytearray(len(payload).to_bytes(8, "little") + payload).ljust(width, b"\0")
    return torch.frombuffer(content, dtype=torch.uint8)


def _unframed(frame: torch.Tensor) -> bytes:
    content = frame.numpy().tobytes()
    length = int.from_bytes(content[:8], "little")
    return content[8 : 8 + length]
