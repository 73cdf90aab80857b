"""Which text goes into which step: a function of seed, step and micro-batch number, and of nothing else.

There is no loader state. Any rank, of any layout, after any number of restarts, computes the same samples
for the same step; each epoch reads every sample once, in a new order.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from holdfast.trainer.data.tokens import Tokens

Batch = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]
_ROUNDS = 4
_FOUR = struct.Struct("<4Q").pack


class BatchRow(Protocol):
    """A long row of tokens: an array, or files that read as one."""

    def __len__(self) -> int: ...

    def __getitem__(self, where: slice, /) -> Tokens: ...


@dataclass(frozen=True, slots=True)
class Batches:
    """Samples of seq_len tokens, dealt out to steps and micro-batches."""

    tokens: BatchRow
    seq_len: int
    seed: int
    micro_batches: int
    """In one step, over all replicas."""
    micro_batch_size: int

    @property
    def num_samples(self) -> int:
        """Samples in one epoch. The token after the last input is a target too, hence the -1."""
        return (len(self.tokens) - 1) // self.seq_len

    def samples(self, step: int, micro_batch: int) -> list[int]:
        """Which samples of the text a micro-batch of a step holds."""
        first = (step * self.micro_batches + micro_batch) * self.micro_batch_size
        return [self._sample(first + i) for i in range(self.micro_batch_size)]

    def read(self, step: int, micro_batches: range) -> Batch:
        """Inputs and targets of several micro-batches, one below the other.

        Both of shape (len(micro_batches) x micro_batch_size, seq_len).
        """
        rows = [sample for number in micro_batches for sample in self.samples(step, number)]
        cut = np.stack([self.tokens[r * self.seq_len : (r + 1) * self.seq_len + 1] for r in rows]).astype(np.int64)
        return cut[:, :-1].copy(), cut[:, 1:].copy()

    def _sample(self, position: int) -> int:
        epoch, index = divmod(position, self.num_samples)
        return permuted(index, self.num_samples, self.seed, epoch)


def permuted(index: int, size: int, seed: int, epoch: int) -> int:
    """Where `index` lands in the epoch's permutation of range(size). Constant time and memory."""
    # A Feistel network permutes the next power of four; walking on until inside `size` permutes that.
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    mask = (1 << half) - 1
    while True:
        left, right = index >> half, index & mask
        for turn in range(_ROUNDS):
            left, right = right, left ^ (_mix(right, turn, seed, epoch) & mask)
        index = left << half | right
        if index < size:
            return index


def _mix(value: int, turn: int, seed: int, epoch: int) -> int:
    return int.from_bytes(hashlib.blake2b(_FOUR(value, turn, seed, epoch), digest_size=8).digest(), "little")
