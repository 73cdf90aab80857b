"""Which of a planner's strategies the trainer can execute, and under which settings. Pure.

The mesh of a stage has two axes: 0 are its replicas (dp), 1 the ranks that share each layer (tp). The trainer gives
whole micro-batches to replicas, and lays matrices over tp in one way, the same in all layers. What it cannot do is
left out with a reason, so that each plan that is found is one that `holdfast train` runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from holdfast.planner.partition.operators import Kind, Operator
from holdfast.planner.partition.rules import STATES
from holdfast.planner.partition.specs import Spec
from holdfast.planner.partition.strategies import Obstacle, Strategy

DP, TP = 0, 1
REPLICAS = "replicas (dp) take whole samples, and cut nothing else"
MATRICES = "tp ranks cut a layer's first matrices by columns and its last by rows (Megatron), and nothing else"
POSITIONS = "between matrices, tp ranks hold what parallel.sequence says, in all layers alike"
VOCABULARY = "embedding and head lie on tp ranks as parallel.shard_vocabulary says"
SHARES = "replicas share parameters and states as parallel.zero says, and tp ranks only what they compute with"
_INWARD = ("attention.qkv.weight", "ffn.gate.weight", "ffn.up.weight", "inward.weight")
_OUTWARD = ("attention.out.weight", "ffn.down.weight", "outward.weight")


@dataclass(frozen=True, slots=True)
class Way:
    """Settings that say how the operators of every stage lie."""

    zero: int
    sequence: bool = False
    shard_vocabulary: bool = False

    @property
    def boundary(self) -> Spec:
        """Of the activation between layers and stages: (samples, positions, width)."""
        return ((DP,), (TP,) if self.sequence else (), ())


def ways(dp: int, tps: Sequence[int]) -> Iterator[Way]:
    """All that differ on so many replicas, with pipeline ranks of these tp."""
    for zero in (0, 1, 3) if dp > 1 else (1,):
        for sequence in (False, True) if max(tps) > 1 else (False,):
            yield Way(zero, sequence)
            if max(tps) > 1:
                yield Way(zero, sequence, shard_vocabulary=True)


def obstacle(way: Way, dp: int, tp: int) -> Obstacle:
    """Why a strategy of an operator is none of the trainer's. Without replicas, or tp, there is nothing to refuse."""

    def of(one: Operator, strategy: Strategy) -> str | None:
        if one.fixed is not None or one.kind is Kind.FOLLOW:
            return None
        replica, rank = strategy.rules
        return (_of_replicas(one, replica, way) if dp > 1 else None) or (_of_ranks(one, rank, way) if tp > 1 else None)

    return of


def _of_replicas(one: Operator, rule: str, way: Way) -> str | None:
    match one.kind:
        case Kind.PARAMETER:
            wanted = {0: rule == "replicate", 1: rule == STATES, 3: rule.startswith("cut")}
            return None if wanted[way.zero] else SHARES
        case Kind.INPUT:
            return None if rule == ("cut0" if one.name == "x" else "replicate") else REPLICAS
        case _:
            return None if rule == "batch0" else REPLICAS


def _of_ranks(one: Operator, rule: str, way: Way) -> str | None:
    match one.kind:
        case Kind.PARAMETER:
            return SHARES if rule == STATES else None
        case Kind.INPUT:
            return None if rule == "replicate" else REPLICAS
        case Kind.ATTENTION:
            return None if rule == "heads" else MATRICES
        case Kind.EMBEDDING:
            split = "vocabulary-scatter1" if way.sequence else "vocabulary"
            return None if rule == (split if way.shard_vocabulary else _between(way)) else VOCABULARY
        case Kind.OUTPUT:
            return None if rule == ("vocabulary" if way.shard_vocabulary else _between(way)) else VOCABULARY
        case _:
            return _of_matrix(one.inputs[-1], rule, way)


def _of_matrix(weight: str, rule: str, way: Way) -> str | None:
    column = "column-gather1" if way.sequence else "column"
    if weight.endswith(_INWARD):
        return None if rule == column else POSITIONS if rule.startswith("column") else MATRICES
    if weight.endswith(_OUTWARD):
        row = "row-scatter1" if way.sequence else "row"
        return None if rule == row else POSITIONS if rule.startswith("row") else MATRICES
    return None if rule == (column if way.shard_vocabulary else _between(way)) else VOCABULARY


def _between(way: Way) -> str:
    """How what is not cut over tp is computed: by each rank for its own positions, or by all for all."""
    return "batch1" if way.sequence else "replicate"
