"""What a collective takes: alpha-beta costs of rings and halves, and of groups that span nodes. Pure, closed forms.

`num_bytes` is the whole array, S of nccl-tests: what every rank has afterwards (all-gather, all-reduce, broadcast),
what every rank brings (reduce-scatter), what one rank sends to all, itself included (all-to-all).

A hierarchical collective (COMET; NCCL does likewise) splits the work by level. Over n1 devices of a node and n2 nodes
an all-reduce is a reduce-scatter within each node, an all-reduce over nodes of 1/n1 of the data on each device's own
NIC, and an all-gather within each node.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from holdfast.planner.cluster.cluster import Hop


class Collective(StrEnum):
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_REDUCE = "all_reduce"
    ALL_TO_ALL = "all_to_all"
    BROADCAST = "broadcast"
    SEND = "send"


@dataclass(frozen=True, slots=True)
class Ring:
    """Devices of one level, and the link that each has to the next."""

    size: int
    hop: Hop


def ring(op: Collective, num_bytes: float, level: Ring) -> float:
    """Seconds over one level. An all-reduce takes the faster of a ring and of halves.

    A ring of n passes n - 1 pieces of S/n, an all-reduce twice as many. A broadcast passes pieces down a chain: S beta
    and a latency for each of n - 1 links, with pieces small enough that nothing else counts.
    """
    n, alpha, beta = level.size, level.hop.alpha, level.hop.beta
    if n == 1:
        return 0.0
    piece = (n - 1) * (alpha + num_bytes / n * beta)
    match op:
        case Collective.ALL_GATHER | Collective.REDUCE_SCATTER | Collective.ALL_TO_ALL:
            return piece
        case Collective.ALL_REDUCE:
            return min(2 * piece, halving(num_bytes, level))
        case Collective.BROADCAST:
            return (n - 1) * alpha + num_bytes * beta
        case Collective.SEND:
            return alpha + num_bytes * beta


def halving(num_bytes: float, level: Ring) -> float:
    """Seconds of an all-reduce by recursive halving and doubling (Thakur et al. 2005), as gloo has it; NCCL's
    trees have the same latencies. 2 log2 n exchanges move 2(n-1)/n S; ranks beyond a power of two add two messages.
    """
    n, alpha, beta = level.size, level.hop.alpha, level.hop.beta
    power = 1 << (n.bit_length() - 1)
    found = 2 * math.log2(power) * alpha + 2 * (power - 1) / power * num_bytes * beta
    return found if n == power else found + 2 * (alpha + num_bytes * beta)


def hierarchical(op: Collective, num_bytes: float, levels: Sequence[Ring]) -> float:
    """Seconds over several levels, the innermost first; of one level as `ring`.

    All-gather and reduce-scatter: outside on what one device of each inner group holds, inside on all. All-to-all:
    what goes to another node goes straight to it. A message crosses the outermost level that has two ends.
    """
    levels = [one for one in levels if one.size > 1]
    if not levels:
        return 0.0
    inner, outer = levels[0], levels[1:]
    if op is Collective.SEND or not outer:
        return ring(op, num_bytes, levels[-1])
    if op is Collective.ALL_TO_ALL:
        return _all_to_all(num_bytes, levels)
    if op is Collective.BROADCAST:
        return hierarchical(op, num_bytes, outer) + ring(op, num_bytes, inner)
    own = hierarchical(op, num_bytes / inner.size, outer)
    if op is not Collective.ALL_REDUCE:
        return own + ring(op, num_bytes, inner)
    halves = ring(Collective.REDUCE_SCATTER, num_bytes, inner) + ring(Collective.ALL_GATHER, num_bytes, inner)
    return halves + own


def _all_to_all(num_bytes: float, levels: Sequence[Ring]) -> float:
    """Each device has S/n for every other one: those of its own node, then of others, one at a time."""
    total = math.prod(one.size for one in levels)
    seconds, reached = 0.0, 1
    for one in levels:
        peers = reached * one.size - reached
        seconds += peers * (one.hop.alpha + num_bytes / total * one.hop.beta)
        reached *= one.size
    return seconds


def left_in_parts(computed: float, summed: float, halves: int, parts: int) -> float:
    """Seconds of sums that are waited for where a micro-batch goes through so many halves of layers in parts (Merak).

    `computed`, `summed`: of one part in one half. One part is summed while another is computed: n halves of p parts
    take p n g + c where a sum c is no longer than computation g, else g + n p c.
    """
    rounds = halves * parts
    return max(summed, computed + rounds * (summed - computed))


def left_in_pieces(summed: float, updated: float, pieces: float) -> float:
    """Seconds of a sum that are waited for where it comes in pieces, and each is updated while the next one is summed.

    S + (m - 1) max(0, S - U) of m pieces (AxoNN, section V). `summed`, `updated`: of all pieces.
    """
    count = max(1.0, pieces)
    return summed / count + (1 - 1 / count) * max(0.0, summed - updated)


def sent(op: Collective, num_bytes: float, size: int) -> float:
    """Bytes that all ranks of a group send together: 2(n-1)S of an all-reduce, (n-1)S of the others, S to one."""
    match op:
        case Collective.ALL_REDUCE:
            return 2 * (size - 1) * num_bytes
        case Collective.SEND:
            return num_bytes
        case _:
            return (size - 1) * num_bytes
