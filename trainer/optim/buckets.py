"""Gradients that replicas add up while backward goes on: a bucket goes out as soon as its gradients are final."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

LARGEST = 25 << 20
"""Bytes of a bucket, unless one parameter alone has more."""
FEWEST = 2
"""Buckets of a stage whose gradients would fit into one: until it is full, nothing is on its way. Each more is another
turn of messages around all replicas, which costs more than it hides where gradients are so few, or where messages
take the cores that compute."""
SMALLEST = 1 << 20


def cut(sizes: Sequence[int], fewest: int = FEWEST) -> list[range]:
    """Which adjacent ones go together, as ranges of places. `sizes` are bytes, in the order in which they become final.

    >>> cut([9 << 20, 9 << 20, 9 << 20, 9 << 20])
    [range(0, 2), range(2, 4)]
    """
    return cut_at(sizes, min(LARGEST, max(SMALLEST, sum(sizes) // fewest)))


def cut_at(sizes: Sequence[int], limit: int) -> list[range]:
    """The same, with so many bytes together at most, unless one alone has more."""
    found: list[range] = []
    first = held = 0
    for place, size in enumerate(sizes):
        if held and held + size > limit:
            found.append(range(first, place))
            first, held = place, 0
        held += size
    return [*found, range(first, len(sizes))] if sizes else []


@dataclass(frozen=True, slots=True)
class PiggybackedReductions:
    """A few numbers that all replicas want the sums of. In a collective of their own they would go around them all once
    more; so they go out behind the last gradients."""

    ask: Callable[[], Tensor]
    """What this replica has to say: one dimension, the same length on all. Asked once a step, in its last backward."""
    report: Callable[[Tensor], None]
    """Takes the sums."""


class _Bucket:
    """Some parameters' gradients side by side."""

    def __init__(
        self, parameters: Sequence[nn.Parameter], wide: torch.dtype, piggybacked: PiggybackedReductions | None
    ) -> None:
        self.parameters, self.wide, self.piggybacked = parameters, wide, piggybacked
        self.sizes = [_local(parameter).numel() for parameter in parameters]
        self.clear()

    def clear(self) -> None:
        self.missing = set(range(len(self.parameters)))
        self.slots: tuple[Tensor, ...] = ()  # by parameter, then the piggybacked ones
        self.flat: Tensor | None = None
        self.works: list[dist.Work] = []
        self.came = 0
        """How many of them have been waited for."""

    def put(self, place: int, ranks: int) -> None:
        """Take this parameter's share of the mean."""
        parameter = self.parameters[place]
        assert parameter.grad is not None, "a parameter got no gradient"
        grad = _local(parameter.grad)
        if self.flat is None:
            self._open(grad.device)
        slot = self.slots[place].view_as(grad)
        torch.div(grad, ranks, out=slot)
        if _is_plain(parameter, self.wide):
            parameter.grad = slot  # what backward left is freed
        self.missing.discard(place)

    def _open(self, device: torch.device) -> None:
        along = torch.empty(0) if self.piggybacked is None else self.piggybacked.ask()
        sizes = [*self.sizes, len(along)]
        self.flat = torch.empty(sum(sizes), dtype=self.wide, device=device)
        self.slots = torch.split(self.flat, sizes)
        self.slots[-1].copy_(along)

    def send(self, group: dist.ProcessGroup, piece: int) -> None:
        """Sum over replicas: as one, or in pieces of so many elements, which come in order."""
        assert self.flat is not None
        parts = torch.split(self.flat, piece) if piece else (self.flat,)
        self.works = [dist.all_reduce(part, group=group, async_op=True) for part in parts]

    def bring(self, stop: int, piece: int) -> None:
        """Wait for the pieces with the first `stop` elements, and hand out what they hold."""
        while self.lacks(stop, piece):
            self.works[self.came].wait()
            self._give(self.came * piece, (self.came + 1) * piece if piece else sum(self.sizes))
            self.came += 1

    def lacks(self, stop: int, piece: int) -> bool:
        """Whether some of the first `stop` elements have not been waited for."""
        return self.came < len(self.works) and self.came * (piece or stop) < stop

    def finish(self, piece: int) -> None:
        """Wait for all, hand out all, and be ready for the next step."""
        assert self.flat is not None
        self.bring(self.flat.numel(), piece)
        if self.piggybacked is not None:
            self.piggybacked.report(self.slots[-1].clone())  # what is kept of it must not keep the bucket
        self.clear()

    def _give(self, start: int, stop: int) -> None:
        """Means of these elements to the parameters that do not hold them already."""
        begin = 0
        for parameter, slot in zip(self.parameters, self.slots[:-1], strict=True):
            first, last = max(start - begin, 0), min(stop - begin, slot.numel())
            begin += slot.numel()
            if first >= last or _is_plain(parameter, self.wide):
                continue
            assert parameter.grad is not None
            grad = _local(parameter.grad)
            if last - first == slot.numel():
                grad.copy_(slot.view_as(grad))
            else:
                grad.view(-1)[first:last].copy_(slot[first:last])


class GradientMeans:
    """The means of a stage's gradients over its replicas, in float32 or finer.

    Buckets go out in one order on all ranks, whatever becomes final first, so that each step adds up alike.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        group: dist.ProcessGroup,
        piggybacked: PiggybackedReductions | None = None,
        fewest: int = FEWEST,
        divisor: int = 0,
        piece: int = 0,
    ) -> None:
        """`parameters` in the order of forward: backward is done with the last of them first. `fewest`: see FEWEST; on
        all replicas the same. `divisor`: of the sum, where it is not the number of replicas. `piece`: elements that are
        summed at once, for who waits for a few of them (`bring`); 0: a bucket's.
        """
        self._group, self._piece = group, piece
        self._divisor = divisor or group.size()
        order = list(parameters)[::-1]
        wides = [torch.promote_types(parameter.dtype, torch.float32) for parameter in order]
        sizes = [_local(p).numel() * wide.itemsize for p, wide in zip(order, wides, strict=True)]
        self._num_bytes = sum(sizes)
        self._buckets = [
            _Bucket(order[p.start : p.stop], wides[p.start], piggybacked if p.stop == len(order) else None)
            for p in (cut_at(sizes, piece * max(wide.itemsize for wide in wides)) if piece else cut(sizes, fewest))
        ]
        self._places = {
            id(parameter): (bucket, sum(bucket.sizes[:place]))
            for bucket in self._buckets
            for place, parameter in enumerate(bucket.parameters)
        }
        self._sent = 0
        self._is_last = False
        for bucket in self._buckets:
            for place, parameter in enumerate(bucket.parameters):
                final = partial(self._final, bucket, place)
                parameter.register_post_accumulate_grad_hook(final)  # type: ignore[no-untyped-call]  # torch's

    @property
    def num_bytes(self) -> int:
        """Gradients that a replica adds up with others in a step."""
        return self._num_bytes

    def expect(self) -> None:
        """The backward that follows is the last one of the step: what it leaves on a parameter is final."""
        self._is_last = True

    def begin(self) -> None:
        """Send what no backward has announced."""
        self._is_last = False
        with torch.no_grad():
            for bucket in self._buckets:
                for place in sorted(bucket.missing):
                    bucket.put(place, self._divisor)
            self._send()

    def finish(self) -> None:
        """Wait: afterwards all gradients are means. Begins what has not begun."""
        self.begin()
        with torch.no_grad():
            for bucket in self._buckets:
                bucket.finish(self._piece)
        self._sent = 0

    def has(self, parameter: nn.Parameter) -> bool:
        """Whether it is one of these."""
        return id(parameter) in self._places

    def lacks(self, parameter: nn.Parameter, stop: int) -> bool:
        """Whether `bring` would wait."""
        bucket, start = self._places[id(parameter)]
        return bucket.lacks(start + stop, self._piece)

    def bring(self, parameter: nn.Parameter, stop: int) -> None:
        """Wait until the parameter's gradient holds the means of its first `stop` elements. Behind `begin`."""
        bucket, start = self._places[id(parameter)]
        bucket.bring(start + stop, self._piece)

    def _final(self, bucket: _Bucket, place: int, parameter: nn.Parameter) -> None:
        if self._is_last:
            with torch.no_grad():
                bucket.put(place, self._divisor)
                if not bucket.missing:
                    self._send()

    def _send(self) -> None:
        while self._sent < len(self._buckets) and not (bucket := self._buckets[self._sent]).missing:
            bucket.send(self._group, self._piece)
            self._sent += 1


def _is_plain(parameter: nn.Parameter, wide: torch.dtype) -> bool:
    """Whether a part of a bucket can be the parameter's gradient."""
    return parameter.dtype == wide and not isinstance(parameter, DTensor)


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
