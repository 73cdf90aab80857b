"""Host memory registered with the GPU's driver, which a copy engine then reaches by itself."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch


def lock(address: int, size: int) -> int:
    """Register these pages. Returns 0, or CUDA's error, of which the process then knows no more."""
    runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]  # torch's
    code = int(runtime.cudaHostRegister(address, size, 0))
    if code:
        _forget_error()
    return code


def unlock(address: int) -> None:
    """The driver holds registered pages even when they are no longer mapped."""
    runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]  # torch's
    if int(runtime.cudaHostUnregister(address)):
        _forget_error()


def _forget_error() -> None:
    """CUDA keeps a thread's last error, and torch raises it behind the next kernel that it launches, whose it is not.

    So one is launched for it. `cudaGetLastError` would do, but torch has no name for it, and the runtime library that
    torch was linked with is not always to be found by one.
    """
    with suppress(RuntimeError):
        torch.zeros(1, device="cuda")
