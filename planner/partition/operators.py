"""A model as a graph of operators with their FLOPs and bytes, as planners see it. Pure.

Operators are in the order in which they are computed, so that no graph has a cycle. What is small beside the others
*follows* one of its inputs: it is laid on the mesh as that one is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from holdfast.planner.partition.specs import Shape, Spec


class Kind(StrEnum):
    """What an operator is to a planner."""

    INPUT = "input"
    """What comes from outside: data, or what another stage made."""
    PARAMETER = "parameter"
    MATMUL = "matmul"
    """x (..., in) times the transpose of w (out, in)."""
    EMBEDDING = "embedding"
    """Rows of a table (rows, width) by tokens (...)."""
    ATTENTION = "attention"
    """Of queries, keys and values (batch, heads, positions, width)."""
    FOLLOW = "follow"
    OUTPUT = "output"
    """What is to become of an input at last, a loss for example; it gives nothing."""


@dataclass(frozen=True, slots=True)
class Operator:
    """One of a graph. `flops` are of its forward, over all devices."""

    name: str
    kind: Kind
    inputs: tuple[str, ...]
    shape: Shape
    """Of what it gives; of an OUTPUT, of what comes in."""
    item: int = 4
    """Bytes of an element."""
    flops: float = 0.0
    dims: tuple[tuple[int | None, ...], ...] = ()
    """Of a FOLLOW: for each input, and each dimension of what it gives, the dimension of the input that it comes from.
    None: from none, or from all of one together. A mesh axis that cuts an input elsewhere is gathered before."""
    fixed: Spec | None = None
    """The only layout, of an INPUT or OUTPUT that has one."""
    has_gradient: bool | None = None
    """Of an INPUT: whether its gradient is wanted (default no). Of others it follows from their inputs."""
    is_view: bool = False
    """Whether what it gives lies in the memory of its input."""
    layer: int = 0
    """The block of the model that it belongs to, ascending; cuts between stages lie between blocks."""

    @property
    def num_bytes(self) -> int:
        """Of what it gives."""
        return math.prod(self.shape) * self.item


@dataclass(frozen=True)
class OperatorGraph:
    """Operators in the order of computation. ValueError, in one line, for what is no such order."""

    operators: tuple[Operator, ...]

    def __post_init__(self) -> None:
        names = [one.name for one in self.operators]
        known: set[str] = set()
        for one in self.operators:
            if one.name in known:
                raise ValueError(f"operator {one.name} is in the graph twice: give each a name of its own")
            for name in one.inputs:
                if name not in known:
                    why = (
                        "is computed after it: the graph has a cycle or is out of order" if name in names else "is not"
                    )
                    raise ValueError(f"operator {one.name} needs {name}, which {why} in the graph")
            if any(size < 1 for size in one.shape):
                raise ValueError(f"operator {one.name} has shape {one.shape}: planners need whole sizes of 1 or more")
            if one.kind is Kind.FOLLOW and len(one.dims) != len(one.inputs):
                raise ValueError(f"operator {one.name} follows: it needs dims of each of its {len(one.inputs)} inputs")
            known.add(one.name)

    @cached_property
    def index(self) -> Mapping[str, int]:
        """Place of each operator by its name."""
        return {one.name: i for i, one in enumerate(self.operators)}

    @cached_property
    def gradients(self) -> Mapping[str, bool]:
        """Of each operator, whether its gradient is computed on the way back."""
        found: dict[str, bool] = {}
        for one in self.operators:
            if one.kind is Kind.PARAMETER:
                found[one.name] = True
            elif one.kind is Kind.INPUT:
                found[one.name] = bool(one.has_gradient)
            else:
                found[one.name] = any(found[name] for name in one.inputs)
        return found

    @cached_property
    def last_uses(self) -> Mapping[str, int]:
        """Place of the last operator that reads each; its own where none does."""
        found = dict(self.index)
        for i, one in enumerate(self.operators):
            found.update(dict.fromkeys(one.inputs, i))
        return found

    def leader(self, one: Operator) -> str:
        """The input that a FOLLOW is laid out as: no parameter, one with a gradient, the one computed last, as far as
        there is a choice."""

        def weight(name: str) -> tuple[bool, bool, bool, int]:
            kind = self.operators[self.index[name]].kind
            return kind is not Kind.PARAMETER, self.gradients[name], kind is not Kind.INPUT, self.index[name]

        return max(one.inputs, key=weight)

    def traffic(self, one: Operator) -> int:
        """Bytes that an operator reads and writes."""
        read = sum(self.operators[self.index[name]].num_bytes for name in one.inputs)
        return 0 if one.is_view else read + one.num_bytes

    def flops(self) -> float:
        """Of a forward."""
        return sum(one.flops for one in self.operators)

    def of_layers(self, first: int, stop: int) -> OperatorGraph:
        """The operators of some layers, with inputs for what they need of earlier ones."""
        own = [one for one in self.operators if first <= one.layer < stop]
        names = {one.name for one in own}
        outside = [self.operators[self.index[n]] for n in dict.fromkeys(i for one in own for i in one.inputs)]
        fed = [
            one
            if one.kind in (Kind.PARAMETER, Kind.INPUT)
            else Operator(one.name, Kind.INPUT, (), one.shape, one.item, has_gradient=self.gradients[one.name])
            for one in outside
            if one.name not in names
        ]
        return OperatorGraph((*fed, *own))
