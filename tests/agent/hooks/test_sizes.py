"""The size of what is handed to a process group, by the ways in which torch's own functions call its methods."""

from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.agent.hooks.sizes import MOST_TENSORS, SIZES, measure
from holdfast.wire.operation_size import words


class Tensor:
    def __init__(self, elements: int, dtype: str = "torch.float32") -> None:
        self.elements, self.dtype = elements, dtype

    def numel(self) -> int:
        return self.elements


OPTS = SimpleNamespace()


@pytest.mark.parametrize(
    ("method", "args", "said"),
    [
        ("allreduce", ([Tensor(4)], OPTS), "4 x float32"),
        ("allreduce", (Tensor(4, "torch.bfloat16"),), "4 x bfloat16"),
        ("allreduce_coalesced", ([Tensor(4), Tensor(3)], OPTS), "7 x float32"),
        ("broadcast", ([Tensor(5)], OPTS), "5 x float32"),
        ("reduce", ([Tensor(5)], OPTS), "5 x float32"),
        ("_allgather_base", (Tensor(8), Tensor(4), OPTS), "8 x float32"),
        ("allgather", ([[Tensor(3), Tensor(5)]], [Tensor(3)], OPTS), "8 x float32"),
        ("_reduce_scatter_base", (Tensor(4), Tensor(8), OPTS), "8 x float32"),
        ("reduce_scatter", ([Tensor(3)], [[Tensor(3), Tensor(5)]], OPTS), "8 x float32"),
        ("alltoall_base", (Tensor(8), Tensor(8), [], [], OPTS), "8 x float32"),
        ("alltoall_base", (Tensor(8), Tensor(8), [3, 5], [], OPTS), ""),
        ("allreduce", ([],), ""),
        ("allreduce", (), ""),
        ("allreduce", ("no tensor",), ""),
        ("allreduce", ([Tensor(4, "torch.quint8")],), ""),
        ("allgather", ([[Tensor(1)] * (MOST_TENSORS + 1)], [Tensor(1)], OPTS), ""),
        ("allreduce", ([Tensor(1 << 30)],), "33554432 or more x float32"),
    ],
)
def test_sizes(method: str, args: tuple[Any, ...], said: str) -> None:
    sized = measure(method)
    assert sized is not None
    signature = sized(args)
    assert (words(signature) if signature else "") == said


def test_what_may_be_uneven_has_none() -> None:
    assert not {"gather", "scatter", "alltoall", "barrier", "send", "recv"} & SIZES.keys()
    assert measure("gather") is measure("barrier") is None
