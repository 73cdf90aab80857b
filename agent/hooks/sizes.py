"""How large an operation of a process group is, where it must be the same on all ranks; some 0.3 us each.

The argument that gives it depends on the method: what is gathered may be uneven, but the whole is the same for all.
"""

from collections.abc import Callable
from typing import Any

from holdfast.wire.operation_size import EXACT, SHIFT, TYPES, pack

MOST_TENSORS = 64
"""Of a list; a longer one is not counted, for that takes time in the step."""

_shifted: dict[Any, int] = {}
"""torch.dtype -> its number where a signature has it; filled as they are met, since torch is not imported here."""


def _of(tensor: Any) -> int:
    """As `pack`, written out: a step may have hundreds of operations."""
    elements: int = tensor.numel()
    high = _shifted.get(tensor.dtype)
    if high is None:
        high = _learn(tensor.dtype)
    return high | elements if elements < EXACT and high else pack(elements, high >> SHIFT) if high else 0


def _learn(dtype: Any) -> int:
    name = str(dtype).removeprefix("torch.")
    high = _shifted[dtype] = TYPES.index(name) << SHIFT if name in TYPES else 0
    return high


def _of_all(tensors: Any) -> int:
    """Of all tensors of a list together, however it is nested."""
    flat = [tensor for one in tensors for tensor in (one if isinstance(one, list | tuple) else (one,))]
    if not 0 < len(flat) <= MOST_TENSORS:
        return 0
    first = _of(flat[0])
    return pack(sum(tensor.numel() for tensor in flat), first >> SHIFT) if first else 0


def _whole(given: Any) -> int:
    if type(given) is not list:
        return _of(given)
    one = given[0]
    return _of(one) if len(given) == 1 and type(one) is not list else _of_all(given)


def _first(args: tuple[Any, ...]) -> int:
    return _whole(args[0])


def _second(args: tuple[Any, ...]) -> int:
    return _whole(args[1])


def _even(args: tuple[Any, ...]) -> int:
    """All to all without split sizes, which would be each rank's own."""
    return 0 if args[2] or args[3] else _of(args[1])


SIZES: dict[str, Callable[[tuple[Any, ...]], int]] = {
    "_allgather_base": _first,
    "_reduce_scatter_base": _second,
    "all_gather_single": _first,
    "all_gather_single_coalesced": _first,
    "all_to_all_single": _even,
    "allgather": _first,
    "allgather_coalesced": _first,
    "allgather_into_tensor_coalesced": _first,
    "allreduce": _first,
    "allreduce_coalesced": _first,
    "alltoall_base": _even,
    "broadcast": _first,
    "reduce": _first,
    "reduce_scatter": _second,
    "reduce_scatter_single": _second,
    "reduce_scatter_single_coalesced": _second,
    "reduce_scatter_tensor_coalesced": _second,
}
"""By method of a process group. Not here: what may be of another size on each rank, and what has none."""


def measure(method: str) -> Callable[[tuple[Any, ...]], int] | None:
    """The function that computes the size from the method's arguments without the group; 0 if unknown. Never raises."""
    sized = SIZES.get(method)
    if sized is None:
        return None

    def size(args: tuple[Any, ...]) -> int:
        try:
            return sized(args)
        except Exception:  # by name, or a way to call it that is newer than this: the operation itself is what counts
            return 0

    return size
