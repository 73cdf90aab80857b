"""Counts how often one of torch's operations is called. What kernels do inside does not count."""

from __future__ import annotations

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode


class Calls(TorchDispatchMode):
    def __init__(self, operation: Any) -> None:
        super().__init__()
        self.operation, self.count = operation, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is self.operation
        return func(*args, **(kwargs or {}))
