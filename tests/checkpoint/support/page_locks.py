"""A GPU's driver that registers host memory, and keeps the last error of each thread until torch finds it."""

from __future__ import annotations

import threading
from typing import Any, Self

import pytest
import torch
from torch import Tensor


class Driver:
    """In place of `torch.cuda.cudart()`. It takes `room` ranges of memory."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.ranges: dict[int, int] = {}
        self.last_errors: dict[int, int] = {}
        """By thread, as CUDA has it."""

    def install(self, monkeypatch: pytest.MonkeyPatch) -> Self:
        zeros = torch.zeros

        def launched(*size: Any, device: Any = None, **named: Any) -> Tensor:
            if device == "cuda" and (error := self.last_errors.pop(threading.get_ident(), 0)):
                raise RuntimeError(f"CUDA error: {error}")
            return zeros(*size, **named)

        monkeypatch.setattr(torch.cuda, "cudart", lambda: self)
        monkeypatch.setattr(torch, "zeros", launched)
        return self

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:  # CUDA's name
        if len(self.ranges) == self.room:
            return self._failed(2)
        if address in self.ranges:
            return self._failed(712)
        self.ranges[address] = size
        return 0

    def cudaHostUnregister(self, address: int) -> int:  # CUDA's name
        return 0 if self.ranges.pop(address, 0) else self._failed(713)

    def _failed(self, error: int) -> int:
        self.last_errors[threading.get_ident()] = error
        return error
