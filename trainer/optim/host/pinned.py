"""Host memory that a GPU's copy engines reach by themselves."""

from __future__ import annotations

import mmap
import weakref
from collections.abc import Sequence

import torch
from torch import Tensor

from holdfast.checkpoint.worker import page_lock
from holdfast.trainer.settings.errors import ConfigError


def own_pages(num_bytes: int) -> Tensor:
    """So many bytes, rounded up to pages that hold nothing else: CUDA registers whole pages, and refuses one that is
    registered already."""
    size = -(-num_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
    whole = torch.empty(size + mmap.PAGESIZE, dtype=torch.uint8)
    return whole[-whole.data_ptr() % mmap.PAGESIZE :][:size]


def zeros(size: int, dtype: torch.dtype) -> Tensor:
    """A flat tensor in pages of its own."""
    return own_pages(size * dtype.itemsize).zero_().view(dtype)[:size]


def pin(
    tensors: Sequence[Tensor], owner: object, setting: str = "optim.state = host", instead: str = "optim.state = device"
) -> None:
    """Lock the tensors' pages, which are their own, while `owner` lives. `setting` is what asks for it, `instead` what
    does without.

    Not torch's own pinned memory, whose sizes are powers of two: that could take twice as much. ConfigError where the
    driver refuses.
    """
    done: list[Tensor] = []
    weakref.finalize(owner, _unpin, done).atexit = False  # the process returns its memory anyway
    for tensor in tensors:
        if not tensor.nbytes:
            continue
        if code := page_lock.lock(tensor.data_ptr(), tensor.nbytes):
            raise ConfigError(
                f"{setting}: the GPU driver would not pin {tensor.nbytes / 1e6:.1f} MB of host memory (error "
                f"{code}); raise the limit of locked memory, or set {instead}",
                is_local=True,
            )
        done.append(tensor)


def _unpin(tensors: list[Tensor]) -> None:
    for tensor in tensors:
        page_lock.unlock(tensor.data_ptr())
