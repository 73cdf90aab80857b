"""Which operation of which group a PyTorch worker is in: the process groups' own methods, counted by group.

All of torch.distributed's functions in Python end in these methods and wait on what they return, however a script
came by the functions. Nothing is changed in what they do. What starts and ends in C++ is not seen: the buckets of
DistributedDataParallel, compiled functional collectives.
"""

import functools
import weakref
from collections.abc import Callable
from typing import Any
from zlib import crc32

from holdfast.agent import probe
from holdfast.agent.hooks.sizes import measure
from holdfast.agent.probe_file.layout import OPERATION_KINDS

_COLLECTIVES = {
    "_allgather_base": "all_gather",
    "_reduce_scatter_base": "reduce_scatter",
    "all_gather_single": "all_gather",
    "all_gather_single_coalesced": "all_gather",
    "all_to_all_single": "all_to_all",
    "allgather": "all_gather",
    "allgather_coalesced": "all_gather",
    "allgather_into_tensor_coalesced": "all_gather",
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all",
    "barrier": "barrier",
    "broadcast": "broadcast",
    "gather": "gather",
    "monitored_barrier": "barrier",
    "reduce": "reduce",
    "reduce_scatter": "reduce_scatter",
    "reduce_scatter_single": "reduce_scatter",
    "reduce_scatter_single_coalesced": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "scatter": "scatter",
}
"""What a method of a process group is called here. Which of them there are depends on the version of torch."""


class _Group:
    """A process group as the probe knows it, and the slots of the messages that its ranks send each other."""

    def __init__(self, group: Any, ranks: list[int]) -> None:
        self.ranks = ranks
        self.own = ranks[group.rank()]
        name = str(group.group_name)
        described = str(getattr(group, "group_desc", ""))
        self.label = {"default_pg": "world", "undefined": "group", "": "group"}.get(described, described)
        self.ident = crc32(name.encode())
        self.slot = probe.group(self.label, self.ident, ranks)
        self.messages: dict[tuple[int, int], int] = {}

    def message(self, source: int, target: int) -> int:
        """The slot of messages in one direction, given ranks in the group."""
        slot = self.messages.get((source, target))
        if slot is None:
            ends = (self.ranks[source], self.ranks[target])
            slot = probe.group(f"{self.label}:{ends[0]}>{ends[1]}", self.ident, ends)
            self.messages[source, target] = slot
        return slot


class _Watch:
    def __init__(self, c10d: Any) -> None:
        self._ranks_of: Callable[[Any], list[int]] = c10d.get_process_group_ranks
        self._groups: weakref.WeakKeyDictionary[Any, _Group] = weakref.WeakKeyDictionary()
        self._works: weakref.WeakKeyDictionary[Any, tuple[int, int, int, int]] = weakref.WeakKeyDictionary()

    def known(self, group: Any) -> _Group | None:
        found = self._groups.get(group)
        if found is None:
            try:
                ranks = self._ranks_of(group)
                found = _Group(group, list(ranks))
            except (KeyError, ValueError, RuntimeError):
                return None  # made behind torch's back, or not of this rank
            self._groups[group] = found
        return found

    def collective(self, method: Callable[..., Any], name: str, kind: int) -> Callable[..., Any]:
        sized = measure(name)

        @functools.wraps(method)
        def watched(group: Any, *args: Any, **kwargs: Any) -> Any:
            known = self.known(group) if probe.attached() else None
            if known is None:
                return method(group, *args, **kwargs)
            size = sized(args) if sized is not None else 0
            number = probe.begin(kind, known.slot, size)
            work = method(group, *args, **kwargs)
            return self.noted(work, kind, known.slot, number, size)

        return watched

    def message(self, method: Callable[..., Any], kind: int, is_send: bool) -> Callable[..., Any]:
        @functools.wraps(method)
        def watched(group: Any, tensors: Any, peer: int, *args: Any, **kwargs: Any) -> Any:
            known = self.known(group) if probe.attached() else None
            if known is None:
                return method(group, tensors, peer, *args, **kwargs)
            own = group.rank()
            slot = known.message(own, peer) if is_send else known.message(peer, own)
            number = probe.begin(kind, slot)
            work = method(group, tensors, peer, *args, **kwargs)
            return self.noted(work, kind, slot, number)

        return watched

    def noted(self, work: Any, kind: int, slot: int, number: int, size: int = 0) -> Any:
        if slot and work is not None:
            self._works[work] = (kind, slot, number, size)
        return work

    def wait(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def watched(work: Any, *args: Any, **kwargs: Any) -> Any:
            begun = self._works.get(work)
            if begun is None:
                return method(work, *args, **kwargs)
            with probe.wait(*begun):
                return method(work, *args, **kwargs)

        return watched


def install(torch: Any) -> None:
    """Watch all process groups of this process. Called once."""
    c10d = torch.distributed.distributed_c10d
    watch = _Watch(c10d)
    groups, works = c10d.ProcessGroup, c10d.Work
    for name, kind in _COLLECTIVES.items():
        if (method := getattr(groups, name, None)) is not None:
            setattr(groups, name, watch.collective(method, name, OPERATION_KINDS.index(kind)))
    groups.send = watch.message(groups.send, OPERATION_KINDS.index("send"), is_send=True)
    groups.recv = watch.message(groups.recv, OPERATION_KINDS.index("recv"), is_send=False)
    works.wait = watch.wait(works.wait)
