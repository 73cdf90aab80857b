"""What a plain PyTorch trainer holds of each kind in a step, counted as `holdfast.trainer.memory.measured` does.

Torch alone. Memory counts once, whatever shares it; what an operation takes and frees within itself is not seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor


class Held:
    """Counts from entry to exit. One step at a time: gradients are read before the optimizer's update."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.model, self.optimizer = model, optimizer
        self.gradients = self.activations = self.gathered = self._saved = 0
        self._users: dict[int, int] = {}
        self._hooks = saved_tensors_hooks(self._pack, _unpack)
        self._remove: Callable[[], None] = lambda: None

    def __enter__(self) -> Held:
        self._hooks.__enter__()
        self._remove = self.optimizer.register_step_pre_hook(self._before_update).remove
        return self

    def __exit__(self, *error: Any) -> None:
        self._hooks.__exit__(*error)
        self._remove()

    def kinds(self) -> dict[str, int]:
        """The most bytes of each kind so far, after a step."""
        states = (x for state in self.optimizer.state.values() for x in state.values() if isinstance(x, Tensor))
        # A parameter of FSDP is this rank's part of it between steps.
        return {
            "weights": num_bytes(self.model.parameters()),
            "gradients": self.gradients,
            "optimizer": num_bytes(x for x in states if x.dim()),
            "activations": self.activations,
            "gathered": self.gathered,
        }

    def _before_update(self, *_: Any) -> None:
        grads = [p.grad for p in self.model.parameters() if p.grad is not None]
        self.gradients = max(self.gradients, num_bytes(grads))

    def _pack(self, tensor: Tensor) -> Any:
        if not tensor.is_floating_point():
            return tensor
        whole = dict(_places(whole_parameters(self.model)))
        self.gathered = max(self.gathered, sum(whole.values()))
        # FSDP's own gradients wait unreduced while more micro-batches are to come.
        self.gradients = max(self.gradients, num_bytes(unreduced(self.model)))
        place, size = _place(tensor)
        left_out = whole.keys() | {place for place, _ in _places([*self.model.parameters(), *self.model.buffers()])}
        return tensor if place in left_out else _Kept(self, tensor.detach(), place, size)

    def add(self, place: int, size: int) -> None:
        """A graph begins to hold it."""
        self._users[place] = self._users.get(place, 0) + 1
        if self._users[place] == 1:
            self._saved += size
            self.activations = max(self.activations, self._saved)

    def remove(self, place: int, size: int) -> None:
        """A graph lets go of it."""
        self._users[place] -= 1
        if not self._users[place]:
            del self._users[place]
            self._saved -= size


class _Kept:
    """A tensor in a graph."""

    def __init__(self, held: Held, tensor: Tensor, place: int, size: int) -> None:
        held.add(place, size)
        self.held, self.tensor, self.place, self.size = held, tensor, place, size

    def __del__(self) -> None:
        self.held.remove(self.place, self.size)


def _unpack(kept: Any) -> Any:
    return kept.tensor if isinstance(kept, _Kept) else kept


def whole_parameters(model: nn.Module) -> Iterator[Tensor]:
    """Those that FSDP has gathered at the moment."""
    for param in _sharded(model):
        whole = getattr(param, "_unsharded_param", None)
        if whole is not None and whole.untyped_storage().nbytes():
            yield whole


def unreduced(model: nn.Module) -> Iterator[Tensor]:
    """Whole gradients that FSDP keeps."""
    for param in _sharded(model):
        for grad in (getattr(getattr(param, "_unsharded_param", None), "grad", None), param.unsharded_accumulated_grad):
            if grad is not None:
                yield grad


def _sharded(model: nn.Module) -> Iterator[Any]:
    for module in model.modules():
        if isinstance(module, FSDPModule):
            state: Any = module._get_fsdp_state()
            if hasattr(state, "_fsdp_param_groups"):
                groups = state._fsdp_param_groups
            else:  # before torch 2.12 there was one at most
                groups = [state._fsdp_param_group] if state._fsdp_param_group else []
            yield from (param for group in groups for param in group.fsdp_params)


def num_bytes(tensors: Iterable[Tensor]) -> int:
    """Of their memory; what several share counts once."""
    return sum(dict(_places(tensors)).values())


def _places(tensors: Iterable[Tensor]) -> Iterator[tuple[int, int]]:
    return (_place(tensor) for tensor in tensors)


def _place(tensor: Tensor) -> tuple[int, int]:
    storage = (tensor.to_local() if isinstance(tensor, DTensor) else tensor).untyped_storage()
    return storage.data_ptr(), storage.nbytes()
