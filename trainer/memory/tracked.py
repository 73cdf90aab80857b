"""Bytes of tensors that operations make, while they make them. Needs torch.

Under torch's FakeTensorMode nothing is computed and no memory is taken, so a layer of any size is counted in
milliseconds. Memory that an operation takes and frees within itself is not seen.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Live(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's
    """Counts what operations under it have made and nobody has let go of. Memory in `there` is left out."""

    def __init__(self, there: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self.bytes = self.peak = 0
        self._known: dict[int, weakref.ref[Any]] = {}
        for tensor in there:
            self._add(tensor, counts=False)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for one in tree_leaves(out):
            if isinstance(one, Tensor):
                self._add(one)
        return out

    def restart_peak(self) -> None:
        """From here on `peak` is the most from here on."""
        self.peak = self.bytes

    def _add(self, tensor: Tensor, counts: bool = True) -> None:
        local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        storage = local.untyped_storage()
        key, size = id(storage), storage.nbytes()
        if key in self._known:
            return

        def gone(_: Any) -> None:
            del self._known[key]
            self.bytes -= size if counts else 0

        self._known[key] = weakref.ref(storage, gone)
        if counts:
            self.bytes += size
            self.peak = max(self.peak, self.bytes)
