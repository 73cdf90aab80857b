"""What the optimizer keeps of chunks, and their update one after the other, where their lists are.

The finer form of the parameters never leaves its place: it is what checkpoints are made from and read into. Of groups
in the margin the lists are on the device, of all others in host memory, where the host updates them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from holdfast.plan.plan import Action
from holdfast.trainer.chunks.device import GRADIENTS, OPTIMIZER, Device
from holdfast.trainer.chunks.moments import Moment
from holdfast.trainer.optim.optimizer import Optimizer
from holdfast.trainer.optim.slices import Slice
from holdfast.trainer.optim.states import MASTER, Clipping
from holdfast.trainer.optim.update_rules import Elements, Watcher, rule_class
from holdfast.trainer.settings.chunk_layout import Chunks
from holdfast.trainer.settings.config import OptimConfig


class ChunkStates:
    """Of this rank's own tensors, by their place in `names`."""

    def __init__(self, config: OptimConfig, chunks: Chunks, parameters: Mapping[str, Tensor], device: Device) -> None:
        """`parameters`: those of the model that this rank owns, whole and in host memory."""
        self._config, self._chunks, self._device, self._rule = config, chunks, device, rule_class(config)
        self.names = list(parameters)
        self.heeds_bad = self._rule.heeds_bad
        self._shapes = {name: parameter.shape for name, parameter in parameters.items()}
        self._dtype = device.host[0].dtype
        self._is_coarse = self._dtype == torch.bfloat16
        fine = torch.float32 if self._is_coarse else self._dtype
        kinds, elements = [MASTER, *self._rule.keys], chunks.layout.chunk_size
        self._lists = [{kind: torch.zeros(elements, dtype=fine) for kind in kinds} for _ in range(chunks.num_groups)]
        """By group."""
        self._by_group: list[list[str]] = [[] for _ in range(chunks.num_groups)]
        for name, parameter in parameters.items():
            self._by_group[chunks.group_of(name)].append(name)
            self._of(name, MASTER).copy_(parameter)
        self.masters = {name: nn.Parameter(self._of(name, MASTER)) for name in self.names}
        self.margin: range = range(0)
        """Groups whose lists are on the device."""
        self._is_updated = True
        self.settle_parameters()

    def in_bubbles(self, actions: Sequence[Action]) -> None:
        """None: elementwise rules do all of their work in the step."""

    @torch.no_grad()
    def settle_parameters(self) -> None:
        """Parameters from their finer form, which becomes what they are: as at the start of a run."""
        for name in self.names:
            finer = self._of(name, MASTER)
            finer.copy_(finer.to(self._dtype))
        for group in range(self._chunks.num_groups):
            self._restore(group)

    def end_backward(self) -> None:
        """All gradients are there. In the first step it is known now what fits beside everything else."""
        moments = self._device.moments
        self._is_updated = False
        if not moments.is_recording:
            return
        count = self._chunks.num_groups
        of_group = sum(kept.nbytes for kept in self._lists[0].values())
        coarse = self._lists[0][MASTER].nbytes if self._is_coarse else 0
        margin = moments.margin(count * self._chunks.chunk_bytes, of_group, count, coarse)
        self.margin = range(margin)
        moments.end(self.margin, count, margin * of_group)
        where = self._device.own[0].tensor.device
        for group in self.margin:
            self._device.take(OPTIMIZER, of_group)
            self._lists[group] = {kind: kept.to(where, copy=True) for kind, kept in self._lists[group].items()}
            for name in self._by_group[group]:
                self.masters[name].data = self._of(name, MASTER)

    @torch.no_grad()
    def update(self, lr: float, applied: int, clipping: Clipping, bad: Tensor | None) -> None:
        for group, names in enumerate(self._by_group):
            is_here = group in self.margin
            self._device.need(Moment((group,), is_here, not is_here))
            values = self._device.own[group].tensor if is_here else self._device.host[group]
            extra = self._lists[group][MASTER].nbytes if is_here and self._is_coarse else 0
            self._device.take(GRADIENTS, extra)
            elements = [self._elements(name, values) for name in names]
            if clipping is not None and elements:
                torch._foreach_mul_([one.grad for one in elements], clipping)
            self._rule.update_elements(self._config, elements, lr, applied, bad)
            self._device.release(GRADIENTS, extra)
            for name, one in zip(names, elements, strict=True):
                self._part(values, name).copy_(one.values)
        self._is_updated = True

    def drop(self) -> None:
        """Forget the gradients: where they were not used, parameters are put back in their place."""
        if not self._is_updated:
            for group in range(self._chunks.num_groups):
                self._restore(group)
            self._is_updated = True

    def state(self, index: int) -> dict[str, Tensor]:
        name = self.names[index]
        kinds = [*self._rule.keys, *([MASTER] if self._is_coarse else [])]
        return {kind: self._of(name, kind) for kind in kinds}

    @torch.no_grad()
    def set_state(self, index: int, state: Mapping[str, Tensor], applied: int) -> None:
        """Put back what `state` gave, and the parameter: of the finest form that is there."""
        for kind, held in self.state(index).items():
            held.copy_(state[kind])
        self._restore(self._chunks.group_of(self.names[index]))

    def owned(self) -> Mapping[str, Tensor]:
        return {}

    def on_device(self) -> Sequence[Tensor]:
        return [kept for group in self.margin for kept in self._lists[group].values()]

    def watchers(self, applied: int) -> Mapping[int, Watcher]:
        return {}

    @torch.no_grad()
    def _restore(self, group: int) -> None:
        """In host memory; what the device has of the group is worthless then."""
        self._device.forget(group)
        for name in self._by_group[group]:
            self._part(self._device.host[group], name).copy_(self._of(name, MASTER).view(-1))

    def _elements(self, name: str, values: Tensor) -> Elements:
        lists = self._lists[self._chunks.group_of(name)]
        grad = self._part(values, name)
        averages = {key: self._part(lists[key], name) for key in self._rule.keys}
        grad = grad.to(lists[MASTER].dtype)
        return Elements(self._part(lists[MASTER], name), grad, averages, len(self._shapes[name]) > 1)

    def _of(self, name: str, kind: str) -> Tensor:
        """One of its lists, in its shape."""
        flat = self._part(self._lists[self._chunks.group_of(name)][kind], name)
        return flat.view(self._shapes[name])

    def _part(self, chunk: Tensor, name: str) -> Tensor:
        offset = self._chunks.layout.places[name].offset
        return chunk[offset : offset + self._chunks.sizes[name]]


class ChunkOptimizer(Optimizer):
    """Its gradients never lie on the parameters, but where those were."""

    states: ChunkStates

    def __init__(
        self,
        config: OptimConfig,
        slices: Sequence[Slice],
        mesh: object,
        sums: Callable[[], None],
        states: ChunkStates,
        norms: Callable[[Sequence[str]], list[Tensor]],
    ) -> None:
        """`norms` of gradients, by name."""
        super().__init__(config, slices, mesh, sums, states=states)  # type: ignore[arg-type]
        self._norms = norms
        # The host updates, and must know first.
        self.skips_on_device = False

    def collect(self) -> None:
        self.states.end_backward()

    def squares(self) -> Tensor:
        if not self.slices:
            return torch.zeros((), dtype=torch.float64, device=self._copies.device)
        norms = torch.stack(self._norms([piece.name for piece in self.slices])).double()
        return (norms.square() / self._copies).sum()

    def value(self, piece: Slice) -> Tensor:
        return piece.shard.detach().to(piece.parameter.dtype)

    def set_value(self, piece: Slice, value: Tensor) -> None:
        # Of a bfloat16 parameter the finer form is in the state, and has perhaps been read into its memory by now.
        if piece.parameter.dtype == piece.shard.dtype:
            super().set_value(piece, value)
