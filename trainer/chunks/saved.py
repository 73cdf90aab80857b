"""What graphs keep for backward, counted on a device that an arena stands for.

A GPU's allocator counts everything itself. What an operation takes for itself and gives back is not seen here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from holdfast.trainer.chunks.device import ACTIVATIONS, Device, key_of


class SavedOnArena:
    """While it is entered, what is recorded takes bytes of the device until its graph lets go of it.

    Numbers alone: tokens are there anyway. What several operations keep of one memory counts once; parameters and
    buffers, which `left_out` names by their memory, do not count.
    """

    def __init__(self, device: Device, left_out: Callable[[], Collection[int]]) -> None:
        self._device = device
        self._left_out = left_out()
        self._users: dict[int, int] = {}
        self._hooks = saved_tensors_hooks(self._pack, _unpack)

    def __enter__(self) -> None:
        self._hooks.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._hooks.__exit__(*error)

    def add(self, key: int, num_bytes: int) -> None:
        """A graph has begun to hold it."""
        if key not in self._users:
            self._device.take(ACTIVATIONS, num_bytes)
        self._users[key] = self._users.get(key, 0) + 1

    def remove(self, key: int, num_bytes: int) -> None:
        """A graph has let go of it."""
        self._users[key] -= 1
        if not self._users[key]:
            del self._users[key]
            self._device.release(ACTIVATIONS, num_bytes)

    def _pack(self, tensor: Tensor) -> Tensor | _Held:
        key = key_of(tensor)
        if not tensor.is_floating_point() or key in self._left_out:
            return tensor
        return _Held(self, tensor, key)


class _Held:
    """A tensor in a graph."""

    def __init__(self, saved: SavedOnArena, tensor: Tensor, key: int) -> None:
        self._num_bytes = tensor.untyped_storage().nbytes()
        saved.add(key, self._num_bytes)
        self._saved, self.tensor, self._key = saved, tensor.detach(), key

    def __del__(self) -> None:
        if hasattr(self, "_saved"):
            self._saved.remove(self._key, self._num_bytes)


def _unpack(held: Any) -> torch.Tensor:
    tensor: Tensor = held.tensor if isinstance(held, _Held) else held
    return tensor
