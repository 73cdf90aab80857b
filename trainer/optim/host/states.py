"""What the optimizer keeps, in host memory (AxoNN, Singh and Bhatele, IPDPS 2022, section V).

With bfloat16 parameters the device then has 4 bytes a parameter, its value and its gradient, and for AdamW 16 bytes an
element of a bucket: float32 parameter, gradient and two averages. Parameters of a finer type lie on the device as they
are, with their gradients: a bucket has the averages alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from holdfast.plan.cache.arena import Arena
from holdfast.plan.plan import Action
from holdfast.trainer.optim.host.cuts import Bucket, cut, halves
from holdfast.trainer.optim.host.lanes import Lanes, lanes_of
from holdfast.trainer.optim.host.pinned import pin, zeros
from holdfast.trainer.optim.host.staging import Staging
from holdfast.trainer.optim.slices import Slice
from holdfast.trainer.optim.states import MASTER, Clipping
from holdfast.trainer.optim.update_rules import Elements, Watcher, rule_class
from holdfast.trainer.settings.config import OptimConfig

GRADIENT = "gradient"
Bring = Callable[[Slice, int], None]
"""Returns when so many of a slice's gradient's first elements are what they are to be."""


class HostStates:
    """Of slices, in the order in which they come. Elementwise rules only."""

    def __init__(
        self, config: OptimConfig, slices: Sequence[Slice], device: torch.device, lanes: Lanes | None = None
    ) -> None:
        # Gradients that come piece by piece come in the order of backward.
        self._slices = list(slices)[::-1] if config.reduce_pieces else slices
        self._is_turned = bool(config.reduce_pieces)
        self._config, self._rule = config, rule_class(config)
        self.heeds_bad = self._rule.heeds_bad
        # Contiguous: what is written to a view of another form would be lost.
        self._values = [piece.shard.detach().view(-1) for piece in self._slices]
        dtypes = {values.dtype for values in self._values} or {torch.float32}
        (self._dtype,) = dtypes
        self._is_coarse = self._dtype == torch.bfloat16
        sizes = [values.numel() for values in self._values]
        names = [*self._rule.keys, *([MASTER] if self._is_coarse else [])]
        fine = torch.float32 if self._is_coarse else self._dtype
        held = {name: zeros(sum(sizes), fine) for name in names}
        self._by_slice = [
            dict(zip(names, parts, strict=True))
            for parts in zip(*(torch.split(whole, sizes) for whole in held.values()), strict=True)
        ]
        if self._is_coarse:
            for values, state in zip(self._values, self._by_slice, strict=True):
                state[MASTER].copy_(values)
        if device.type == "cuda":
            pin(list(held.values()), self)
        room = halves(config.bucket, sum(sizes))
        self._buckets = cut(sizes, room)
        self.arena = Arena("device")
        """Counts what the device has for the optimizer, by kind, wherever that is."""
        self.arena.take("parameters", sum(values.nbytes for values in self._values))
        others = [GRADIENT] if self._is_coarse else []
        self.staging = Staging(held, others, room, device, lanes or lanes_of(device))
        self.arena.take("optimizer", self.staging.memory.nbytes)

    def watchers(self, applied: int) -> Mapping[int, Watcher]:
        """None: elementwise rules see gradients alone."""
        return {}

    def in_bubbles(self, actions: Sequence[Action]) -> None:
        """None: elementwise rules do all of their work in the step."""

    def owned(self) -> Mapping[str, Tensor]:
        """Nothing: elementwise rules keep what has the shape of parameters."""
        return {}

    @torch.no_grad()
    def update(
        self, lr: float, applied: int, clipping: Clipping, bad: Tensor | None, bring: Bring | None = None
    ) -> None:
        """Bucket by bucket; on a GPU not yet done on return, but before what is computed next there.

        `bring`: waits for gradients that are on their way, and is asked for those of each bucket before its update.
        """
        grads = [_flat(piece) for piece in self._slices]
        if isinstance(clipping, Tensor):
            clipping = clipping.to(self.staging.memory.dtype)
        num_bytes = sum(grad.nbytes for grad in grads)
        self.arena.take("gradients", num_bytes)

        def work(bucket: Bucket, slot: Mapping[str, Tensor]) -> None:
            if bring is not None:
                for part in bucket.parts:
                    bring(self._slices[part.index], part.stop)
            elements = self._elements(bucket, slot, grads)
            if clipping is not None:
                torch._foreach_mul_([one.grad for one in elements], clipping)
            self._rule.update_elements(self._config, elements, lr, applied, bad)
            if self._is_coarse:
                for part, one in zip(bucket.parts, elements, strict=True):
                    self._values[part.index][part.start : part.stop].copy_(one.values)

        self.staging.run(self._buckets, work)
        self.arena.release("gradients", num_bytes)

    def drop(self) -> None:
        """Forget the gradients."""
        for piece in self._slices:
            piece.shard.grad = piece.parameter.grad = None

    def state(self, index: int) -> dict[str, Tensor]:
        """What is kept of slice `index` in its shape, in host memory. Not copied."""
        self.staging.settle()
        index = len(self._slices) - 1 - index if self._is_turned else index
        shape = self._slices[index].shard.shape
        return {name: flat.view(shape) for name, flat in self._by_slice[index].items()}

    def set_state(self, index: int, state: Mapping[str, Tensor], applied: int) -> None:
        """Put back what `state` gave."""
        with torch.no_grad():
            for name, held in self.state(index).items():
                held.copy_(state[name])

    def on_device(self) -> Sequence[Tensor]:
        """Room for buckets."""
        return [self.staging.memory]

    def _elements(self, bucket: Bucket, slot: Mapping[str, Tensor], grads: Sequence[Tensor]) -> list[Elements]:
        found = []
        for part in bucket.parts:
            buffers = {name: buffer[part.offset :][: part.stop - part.start] for name, buffer in slot.items()}
            grad = grads[part.index][part.start : part.stop]
            values = self._values[part.index][part.start : part.stop]
            if self._is_coarse:
                values, grad = buffers[MASTER], buffers[GRADIENT].copy_(grad)
            averages = {key: buffers[key] for key in self._rule.keys}
            found.append(Elements(values, grad, averages, self._slices[part.index].parameter.dim() > 1))
        return found


def _flat(piece: Slice) -> Tensor:
    """Its gradient in one dimension; a copy where that lies in another order."""
    if not piece.shard.numel():
        return piece.shard.detach().view(-1)
    assert piece.shard.grad is not None, f"{piece.name} got no gradient"
    return piece.shard.grad.reshape(-1)
