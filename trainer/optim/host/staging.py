"""Brings a bucket's states to the device, has it updated there, and takes them back: two buckets are under way at once.

The device's room is one piece of memory, taken once. Each of its two slots has a buffer for every state, and one for
float32 gradients where they are needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from holdfast.trainer.optim.host.cuts import Bucket
from holdfast.trainer.optim.host.lanes import Lane, Lanes, Mark

Work = Callable[[Bucket, Mapping[str, Tensor]], None]
"""Updates a bucket, of which the device has these states."""


class Staging:
    """The way of `states`, by name one flat tensor each in host memory, to the device and back."""

    def __init__(
        self,
        states: Mapping[str, Tensor],
        others: Sequence[str],
        room: Sequence[int],
        device: torch.device,
        lanes: Lanes,
    ) -> None:
        """`others`: buffers that are not copied. `room`: elements of each slot."""
        self._states, self._lanes = states, lanes
        names = [*states, *others]
        (dtype,) = {state.dtype for state in states.values()}
        self.memory = torch.empty(sum(room) * len(names), dtype=dtype, device=device)
        """All of the room on the device."""
        buffers = iter(torch.split(self.memory, [size for size in room for _ in names]))
        self._slots = [{name: next(buffers) for name in names} for _ in room]
        # A GPU's allocator may have given memory that is still in use by what was computed so far.
        lanes.wait(Lane.IN, lanes.mark(Lane.COMPUTE))
        self.copied_in = self.copied_out = 0
        """Bytes since the beginning."""

    def run(self, buckets: Sequence[Bucket], work: Work) -> None:
        """Have `work` done to all of them, in order. It may be done later, but before what is computed next."""
        if not buckets:
            return
        arrived = self._bring(buckets[0], self._slots[0])
        for number, bucket in enumerate(buckets):
            following = arrived
            if number + 1 < len(buckets):
                following = self._bring(buckets[number + 1], self._slots[(number + 1) % len(self._slots)])
            slot = self._slots[number % len(self._slots)]
            self._lanes.wait(Lane.COMPUTE, arrived)
            self._lanes.do(Lane.COMPUTE, partial(work, bucket, slot))
            self._take_back(bucket, slot)
            arrived = following

    def settle(self) -> None:
        """Return when host memory has what the last update made."""
        self._lanes.settle()

    def _bring(self, bucket: Bucket, slot: Mapping[str, Tensor]) -> Mark:
        """Behind all that was taken back so far: the slot's last bucket, and the last update's states."""
        self._lanes.wait(Lane.IN, self._lanes.mark(Lane.OUT))
        for name, state in self._states.items():
            self.copied_in += self._copy(Lane.IN, slot[name][: bucket.size], _of(state, bucket))
        return self._lanes.mark(Lane.IN)

    def _take_back(self, bucket: Bucket, slot: Mapping[str, Tensor]) -> None:
        self._lanes.wait(Lane.OUT, self._lanes.mark(Lane.COMPUTE))
        for name, state in self._states.items():
            self.copied_out += self._copy(Lane.OUT, _of(state, bucket), slot[name][: bucket.size])

    def _copy(self, lane: Lane, target: Tensor, source: Tensor) -> int:
        def copy() -> None:
            target.copy_(source, non_blocking=True)

        self._lanes.do(lane, copy)
        return source.nbytes


def _of(state: Tensor, bucket: Bucket) -> Tensor:
    return state[bucket.start : bucket.start + bucket.size]
