"""The stream in which bfloat16 gradients are added up: FSDP2 takes memory in one, and calls its hook in another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from holdfast.trainer.mesh.pretended import rank_of
from holdfast.trainer.optim.replicas import FineSum
from holdfast.trainer.pipeline.shared_state import SharedState, Sharing
from holdfast.trainer.settings.layout import TrainerLayout


class Stream:
    """One that knows itself, as a GPU's does; torch's for a CPU are all alike."""

    def __init__(self, priority: int = 0) -> None:
        pass

    def wait_stream(self, other: Stream) -> None:
        pass

    def wait_event(self, event: object) -> None:
        pass

    def record_event(self) -> object:
        return object()


class Streams:
    def __init__(self) -> None:
        self.now = Stream()

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        before, self.now = self.now, stream
        try:
            yield
        finally:
            self.now = before


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> Streams:
    """Of the CPU."""
    found = Streams()
    monkeypatch.setattr(torch.cpu, "Stream", Stream)
    monkeypatch.setattr(torch.cpu, "stream", found.stream)
    monkeypatch.setattr(torch.cpu, "current_stream", lambda *device: found.now)
    return found


class Reduction:
    """Notes where memory for sums is taken; the last one is what a hook gets."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self.taken_in: list[Stream] = []

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        self.taken_in.append(self._streams.now)
        return torch.zeros(*size, dtype=dtype, device=device)

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, *others: Any, **named: Any) -> None:
        output_tensor.copy_(input_tensor[: output_tensor.numel()])


@pytest.mark.parametrize("by_layer", [True, False])
def test_gradients_are_summed_in_the_stream_that_takes_their_memory(
    streams: Streams, monkeypatch: pytest.MonkeyPatch, by_layer: bool
) -> None:
    """FSDP2 holds what it gives to a hook until the host goes on. In a stream of its own the hook would read it later:
    the next unit's sum is written over it by then."""
    hooked_in: list[tuple[Stream, Stream]] = []
    reduction = Reduction(streams)
    add: Callable[[FineSum, Tensor], None] = FineSum.__call__

    def noting(self: FineSum, reduced: Tensor) -> None:
        hooked_in.append((reduction.taken_in[-1], streams.now))
        add(self, reduced)

    monkeypatch.setattr(FineSum, "__call__", noting)
    with rank_of(TrainerLayout(1, 2, 1, 1, 1)) as mesh:
        module = nn.Sequential(*(nn.Linear(4, 4, bias=False, dtype=torch.bfloat16) for _ in range(3)))
        units = tuple(module) if by_layer else ()
        policy = MixedPrecisionPolicy(reduce_dtype=torch.float32)
        for one in (*units, module):
            fully_shard(one, mesh=mesh.replicas, reshard_after_forward=by_layer, mp_policy=policy)
            assert isinstance(one, FSDPModule)
            one.set_all_reduce_hook(FineSum(list(one.parameters(recurse=not by_layer))))
            one.set_custom_reduce_scatter(reduction)  # type: ignore[arg-type]  # a protocol to us
        state = SharedState(module, Sharing(mesh.replicas.get_group(), 3 if by_layer else 2, units), mesh.device)
        computing = streams.now
        for last in (False, True):
            loss = module(torch.ones(2, 4, dtype=torch.bfloat16)).float().square().sum()
            with state.backward(is_last=last):
                loss.backward()
            if not by_layer:
                state._begin_reduce_scatter()
                state._finish_reduce_scatter()
    assert len(hooked_in) == 2 * (3 if by_layer else 1)
    assert all(taken is hooked for taken, hooked in hooked_in)
    assert not any(hooked is computing for _, hooked in hooked_in)
