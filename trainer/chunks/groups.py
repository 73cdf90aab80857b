"""Groups of chunks that replicas gather and reduce together: ZeRO over chunks (PatrickStar, section 7).

Without replicas a group is one chunk, which is computed with where it lies.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from holdfast.trainer.chunks.device import GATHERED, GRADIENTS, Device, Memory
from holdfast.trainer.chunks.moments import Moment
from holdfast.trainer.mesh import collectives
from holdfast.trainer.settings.chunk_layout import Chunks
from holdfast.trainer.telemetry import spans


class Groups:
    """What a rank computes with: a view for each tensor, valid while its group is here."""

    def __init__(
        self,
        chunks: Chunks,
        shapes: Mapping[str, torch.Size],
        device: Device,
        group: dist.ProcessGroup,
        dtype: torch.dtype,
    ) -> None:
        """`group`: the replicas."""
        self.chunks, self.device = chunks, device
        self._group, self._replicas, self._rank = group, group.size(), dist.get_rank(group)
        elements = chunks.layout.chunk_size
        where = device.own[0].tensor.device
        self._whole = device.own
        if self._replicas > 1:
            self._whole = [Memory(self._replicas * elements, dtype, where) for _ in device.own]
        self.views = self._views(self._whole, shapes, {name: self._offset(name) for name in shapes})
        """By name: what the model computes with."""
        owned = {name: shapes[name] for name in chunks.owned(self._rank)}
        self._own = self._views(device.own, owned, {name: chunks.layout.places[name].offset for name in owned})
        self._gathered: dict[int, None] = {}
        self._missing = [set(chunks.names_of(group)) for group in range(chunks.num_groups)]
        self._norms: dict[str, Tensor] = {}
        self.received = 0
        """Bytes from other replicas since the beginning."""

    @property
    def keys(self) -> set[int]:
        """All memory that parameters are views of."""
        return {memory.key for memory in (*self.device.own, *self._whole)}

    def begin(self) -> None:
        """A step begins: no gradient is there."""
        self._missing = [set(self.chunks.names_of(group)) for group in range(self.chunks.num_groups)]
        self._norms.clear()

    def enter(self, groups: Sequence[int], is_written: bool) -> None:
        """Have these here, whole. What is still gathered stays."""
        needed = tuple(sorted({*groups, *self._gathered}))
        self.device.need(Moment(needed, is_written))
        if self._replicas > 1:
            for group in groups:
                if group not in self._gathered:
                    self._gather(group)

    def leave(self, groups: Iterable[int]) -> None:
        """Nothing is computed with these until they are entered again; no gradient of theirs is here."""
        for group in groups:
            if group in self._gathered:
                self._free(group)

    def put_gradient(self, name: str, grad: Tensor) -> None:
        """In the place of the parameter, which nothing needs any more in this step."""
        group = self.chunks.group_of(name)
        assert group in self.device.held, f"the gradient of {name} came when its chunk was not there"
        self.device.take(GRADIENTS, grad.nbytes)
        self.views[name].copy_(grad)
        self.device.release(GRADIENTS, grad.nbytes)
        self._missing[group].remove(name)
        if self._replicas == 1:
            self._note([name], [grad])
        elif not self._missing[group]:
            self._reduce(group)

    def end(self) -> None:
        """Behind the last backward: all gradients are where their parameters were."""
        missing = [name for names in self._missing for name in names]
        assert not missing, f"{missing[0]} got no gradient"

    def norms(self, names: Iterable[str]) -> list[Tensor]:
        """Of gradients of this rank's own tensors."""
        return [self._norms[name] for name in names]

    def _gather(self, group: int) -> None:
        whole = self._whole[group]
        self.device.take(GATHERED, whole.num_bytes)
        into = whole.take()
        with spans.operation("dp:all_gather", whole.num_bytes):
            collectives.all_gather(into, self.device.own[group].tensor, self._group)
        self.received += whole.num_bytes - self.device.own[group].num_bytes
        self._gathered[group] = None

    def _reduce(self, group: int) -> None:
        whole, own = self._whole[group], self.device.own[group].tensor
        # What peers send of this rank's chunk, one row each.
        self.device.take(GRADIENTS, whole.num_bytes)
        with spans.operation("dp:reduce_scatter", whole.num_bytes):
            total = collectives.reduce_scatter(whole.tensor.view(self._replicas, -1), self._group)
        torch.div(total, self._replicas, out=own)
        self.device.release(GRADIENTS, whole.num_bytes)
        self.received += whole.num_bytes - own.nbytes
        self._free(group)
        names = [name for name in self.chunks.names_of(group) if name in self._own]
        self._note(names, [self._own[name] for name in names])

    def _free(self, group: int) -> None:
        del self._gathered[group]
        self._whole[group].give_back()
        self.device.release(GATHERED, self._whole[group].num_bytes)

    def _note(self, names: Sequence[str], grads: Sequence[Tensor]) -> None:
        """The norms that the optimizer will ask for, while the gradients are on the device."""
        if grads:
            precision = torch.float32 if grads[0].dtype == torch.bfloat16 else None
            self._norms |= zip(names, torch._foreach_norm(list(grads), 2, precision), strict=True)

    def _offset(self, name: str) -> int:
        """In all chunks of its group, side by side."""
        place = self.chunks.layout.places[name]
        return place.chunk % self._replicas * self.chunks.layout.chunk_size + place.offset

    def _views(
        self, memories: Sequence[Memory], shapes: Mapping[str, torch.Size], offsets: Mapping[str, int]
    ) -> dict[str, Tensor]:
        """Of each tensor in its group's memory, which has bytes for that long only: one group's at a time."""
        found = {}
        for group, memory in enumerate(memories):
            flat = memory.take()
            for name in self.chunks.names_of(group):
                if name in shapes:
                    found[name] = flat[offsets[name] : offsets[name] + self.chunks.sizes[name]].view(shapes[name])
            memory.give_back()
        return found
