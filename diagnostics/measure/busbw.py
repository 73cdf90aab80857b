"""Bus bandwidth as nccl-tests defines it (doc/PERFORMANCE.md), so that a figure compares with a link's peak at any n.

`size`: bytes of the whole operation, S. For all_gather and reduce_scatter that is the whole array, n times what one
rank holds; for all_to_all what one rank sends to all, itself included. `seconds`: of one operation. Bytes per second.
"""

from enum import StrEnum


class Collective(StrEnum):
    ALL_REDUCE = "all_reduce"
    ALL_REDUCE_IN_NETWORK = "all_reduce_in_network"  # SHARP, NVLink SHARP: the switch adds up
    REDUCE_SCATTER = "reduce_scatter"
    ALL_GATHER = "all_gather"
    ALL_TO_ALL = "all_to_all"
    BROADCAST = "broadcast"
    REDUCE = "reduce"
    SEND_RECV = "send_recv"


def algbw(size: float, seconds: float) -> float:
    """Algorithm bandwidth S/t. ValueError unless both are positive."""
    if size <= 0 or seconds <= 0:
        raise ValueError(f"size and seconds must be positive, not {size} and {seconds}")
    return size / seconds


def factor(collective: Collective, ranks: int) -> float:
    """Bus bandwidth over algorithm bandwidth. ValueError below two ranks: nothing crosses a link there."""
    if ranks < 2:
        raise ValueError(f"a collective needs 2 ranks or more, not {ranks}")
    match collective:
        case Collective.ALL_REDUCE:
            return 2 * (ranks - 1) / ranks
        case Collective.ALL_REDUCE_IN_NETWORK:
            return (ranks - 1) / (ranks + 1)
        case Collective.REDUCE_SCATTER | Collective.ALL_GATHER | Collective.ALL_TO_ALL:
            return (ranks - 1) / ranks
        case Collective.BROADCAST | Collective.REDUCE | Collective.SEND_RECV:
            return 1.0


def busbw(collective: Collective, size: float, seconds: float, ranks: int) -> float:
    """Bytes per second over the slowest link of a perfect ring or tree."""
    return algbw(size, seconds) * factor(collective, ranks)
