"""How one mesh axis can share an operator: what it cuts, and which collectives that takes. Pure.

The names are those of tensor parallelism: *column* cuts the output's width (Megatron's first matrix), *row* the width
that is summed over (its second); with *gather* and *scatter* activations between them lie cut along a batch dimension
(sequence parallelism, where that is the positions).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from holdfast.planner.partition.axes import Collective
from holdfast.planner.partition.operators import Kind, Operator

Made = tuple[Collective, int]
"""A collective, and the tensor that it is on: number of the input, or OUTPUT."""
OUTPUT = -1
STATES = "states"
"""Of a parameter: every device has it whole, and a share of its optimizer's states (ZeRO stages 1 and 2)."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What one axis cuts of an operator. None: nothing, each device has a copy."""

    name: str
    output: int | None
    inputs: tuple[int | None, ...]
    forward: tuple[Made, ...] = ()
    backward: tuple[Made, ...] = ()
    """Counted where the gradient of that input (or, of OUTPUT, of any) is wanted."""
    is_shared: bool = True
    """Whether the devices share the work; else each does all of it."""


def rules(one: Operator, width: int) -> tuple[Rule, ...]:
    """All of an operator, but of one that follows. `width`: number of its inputs."""
    rank = len(one.shape)
    match one.kind:
        case Kind.INPUT:
            return (_copies(0), *(Rule(f"cut{d}", d, ()) for d in range(rank)))
        case Kind.PARAMETER:
            return (_copies(0), *(Rule(f"cut{d}", d, ()) for d in range(rank)), Rule(STATES, None, (), is_shared=False))
        case Kind.MATMUL:
            return (_copies(2), *_matmul(rank))
        case Kind.EMBEDDING:
            return (_copies(2), *_embedding(rank))
        case Kind.ATTENTION:
            heads = Rule("heads", 1, (1,) * 3 + (None,) * (width - 3))
            return (_copies(width), Rule("batch0", 0, (0,) * 3 + (None,) * (width - 3)), heads)
        case Kind.OUTPUT:
            batch = (Rule(f"batch{d}", d, (d,)) for d in range(rank - 1))
            # A loss over a vocabulary that is cut: the largest logit, the sum, the target's own.
            return (_copies(1), *batch, Rule("vocabulary", rank - 1, (rank - 1,)))
        case Kind.FOLLOW:
            raise ValueError(f"operator {one.name} follows another: it has no rules of its own")


def _copies(width: int) -> Rule:
    return Rule("replicate", None, (None,) * width, is_shared=False)


def _matmul(rank: int) -> Iterator[Rule]:
    last = rank - 1
    yield Rule("column", last, (None, 0), backward=((Collective.ALL_REDUCE, 0),))
    yield Rule("row", None, (last, 1), forward=((Collective.ALL_REDUCE, OUTPUT),))
    for d in range(last):
        yield Rule(f"batch{d}", d, (d, None))
        gather, scatter = Collective.ALL_GATHER, Collective.REDUCE_SCATTER
        yield Rule(f"column-gather{d}", last, (d, 0), ((gather, 0),), ((scatter, 0),))
        yield Rule(f"row-scatter{d}", d, (last, 1), ((scatter, OUTPUT),), ((gather, OUTPUT),))


def _embedding(rank: int) -> Iterator[Rule]:
    last = rank - 1
    yield Rule("column", last, (1, None))
    yield Rule("vocabulary", None, (0, None), ((Collective.ALL_REDUCE, OUTPUT),))
    for d in range(last):
        yield Rule(f"batch{d}", d, (None, d))
        scatter = ((Collective.REDUCE_SCATTER, OUTPUT),)
        yield Rule(f"vocabulary-scatter{d}", d, (0, None), scatter, ((Collective.ALL_GATHER, OUTPUT),))
