"""Which operation of which group a PyTorch worker is in: the process groups' own methods, counted by group.

All of torch.distributed's functions in Python end in these methods and wait on what they return, however a script
came by the functions. Nothing is changed in what they do. What starts and ends in C++ is not seen here (the buckets of
DistributedDataParallel, compiled functional collectives): `torch_record` has it.
"""

import functools
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any
from zlib import crc32

from holdfast.agent import open_operations, probe
from holdfast.agent.hooks.sizes import measure
from holdfast.agent.probe_file.layout import OPEN_IS_RECORDED, OPEN_IS_TIMED, OPERATION_KINDS

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
    "reduce": "reduce",
    "reduce_scatter": "reduce_scatter",
    "reduce_scatter_single": "reduce_scatter",
    "reduce_scatter_single_coalesced": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "scatter": "scatter",
}
"""What a method of a process group is called here. Which of them there are depends on the version of torch."""


_ROOTS = {"broadcast": 1, "reduce": 1, "gather": 2, "scatter": 2}
"""By method of a process group: which argument behind the group has the root, or is the root."""
_AS_GLOO_DOES = {"reduce_scatter": "all_reduce"}
"""Gloo does the one as the other, and records it so."""
_BARRIER, _NEW_GROUP = OPERATION_KINDS.index("monitored_barrier"), OPERATION_KINDS.index("new_group")
MONITORED = 2
"""Numbers of its group that a monitored barrier takes on all ranks but the first, and in torch's record on all."""
_NEVER = timedelta(0)
"""What `Work.wait` has for a timeout where the script gives none."""


_Begun = tuple[int, int, int, int, int, int]
"""An operation whose Work the script has, as `open_operations.waits` takes it: kind, slot, number, size, root, flags.
"""


class Group:
    """A process group as the probe knows it, and the slots of the messages that its ranks send each other."""

    def __init__(self, group: Any, ranks: list[int], backends: frozenset[str]) -> None:
        self.ranks = ranks
        self.own = ranks[group.rank()]
        self.name = str(group.group_name)
        described = str(getattr(group, "group_desc", ""))
        self.label = {"default_pg": "world", "undefined": "group", "": "group"}.get(described, described)
        self.ident = crc32(self.name.encode())
        self.backends = backends
        self.is_gloo = backends == {"ProcessGroupGloo"}
        self.has_numbers = (self.is_gloo or backends == {"ProcessGroupNCCL"}) and _has_number(group)
        self.slot = open_operations.group(self.label, self.ident, ranks)
        self.messages: dict[tuple[int, int, int], int] = {}
        self.from_any = False
        """Whether a message was received from whoever sent first: no channel's count is all of it then."""
        self._threads: set[int] = set()  # that have begun operations in it
        self._is_in_order = ranks == sorted(ranks)
        self.sent = 0
        """Messages of this rank, in both directions: gloo's number of a group counts them with the collectives."""
        self._monitored = 0
        self.is_uneven = False
        """Whether its number may differ between ranks: within a monitored barrier, and after one that failed."""
        self.entered = -1
        """Its number when the only thread that uses it entered a monitored barrier; -1 outside of one."""

    def message(self, source: int, target: int, tag: int) -> int:
        """The slot of messages in one direction, given ranks in the group."""
        slot = self.messages.get((source, target, tag))
        if slot is None:
            ends = (self.ranks[source], self.ranks[target])
            label = f"{self.label}:{ends[0]}>{ends[1]}" + (f"#{tag}" if tag else "")
            slot = open_operations.group(label, self.ident, ends, is_seen=True, is_whole=not self.from_any)
            self.messages[source, target, tag] = slot
        return slot

    def monitored(self) -> int:
        """The slot of its monitored barriers, which torch does not record."""
        if not self._monitored:
            self._monitored = open_operations.group(f"{self.label}:monitored", self.ident, self.ranks, is_seen=True)
        return self._monitored

    def begun(self, group: Any) -> int:
        """Collectives that were begun in it so far, by whomever; -1 where torch does not say."""
        if not self.has_numbers or self.entered >= 0:
            return self.entered
        number: int = group._get_sequence_number_for_group()
        return number - self.sent if self.is_gloo else number

    def begins(self) -> None:
        """This thread is about to begin an operation in it."""
        self._threads.add(threading.get_ident())

    @property
    def has_one_thread(self) -> bool:
        return len(self._threads) == 1

    def is_number(self, group: Any, number: int) -> bool:
        """Whether what this thread has just begun is certain to be gloo's collective of this number: no other began
        since torch was asked for the number. And whether its tree is that of the sorted ranks, which the agent reports.

        A message of another thread is in gloo's number before it is in `sent`: where there are any, two may hide.
        """
        is_only = self.begun(group) == number + 1 and (self.has_one_thread or not self.sent)
        return is_only and number >= 0 and self.is_gloo and self._is_in_order

    def slots(self) -> list[int]:
        return [self.slot, self._monitored, *self.messages.values()]


class Watch:
    """Of all process groups of this process."""

    def __init__(self, c10d: Any, compiling: Callable[[], bool] = lambda: False) -> None:
        """`compiling`: whether a compiler traces what runs: then it must meet the method that it knows."""
        self.c10d = c10d
        self._compiling = compiling
        self._ranks_of: Callable[[Any], list[int]] = c10d.get_process_group_ranks
        self._groups: weakref.WeakKeyDictionary[Any, Group] = weakref.WeakKeyDictionary()
        self._works: weakref.WeakKeyDictionary[Any, _Begun] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()
        self._new_groups: dict[tuple[int, ...], int] = {}
        self.leaving = 0
        """Calls under way that destroy groups: their destructors must run in the thread that dropped them."""

    def known(self, group: Any) -> Group | None:
        found = self._groups.get(group)
        if found is None:
            with self._lock:  # to register a group twice restarts its count
                found = self._groups.get(group)
                if found is None:
                    try:
                        ranks = self._ranks_of(group)
                        found = Group(group, list(ranks), _backends(group))
                    except (KeyError, ValueError, RuntimeError):
                        return None  # made behind torch's back, or not of this rank
                    self._groups[group] = found
        return found

    def slot(self, group: Any) -> int:
        """0 where it has none."""
        known = self.known(group) if probe.attached() else None
        return known.slot if known is not None else 0

    def meet(self) -> None:
        """Register the groups that were made meanwhile."""
        if probe.attached():
            for group in list(self.c10d._world.pg_map):
                self.known(group)

    def collective(self, method: Callable[..., Any], name: str) -> Callable[..., Any]:
        sized, at = measure(name), _ROOTS.get(name)
        kind = OPERATION_KINDS.index(_COLLECTIVES[name])
        by_gloo = OPERATION_KINDS.index(_AS_GLOO_DOES.get(_COLLECTIVES[name], _COLLECTIVES[name]))

        compiling = self._compiling

        @functools.wraps(method)
        def watched(group: Any, *args: Any, **kwargs: Any) -> Any:
            known = self.known(group) if probe.attached() and not compiling() else None
            if known is None:
                return method(group, *args, **kwargs)
            size = sized(args) if sized is not None else 0
            known.begins()
            ahead = known.begun(group)
            number = open_operations.begin(kind, known.slot, size, ahead)
            work = method(group, *args, **kwargs)
            if known.slot and work is not None:
                root = _root(args, kwargs, at, known.ranks) if at is not None else -1
                if root >= 0 and known.is_number(group, ahead):
                    open_operations.rooted(kind, known.slot, number, root)
                as_torch_has_it = by_gloo if known.is_gloo else kind
                flags = OPEN_IS_RECORDED if ahead >= 0 else 0
                flags |= self._timed(_timeout_of(args[-1] if args else kwargs.get("opts")))
                self._works[work] = (as_torch_has_it, known.slot, number, size, root, flags)
            return work

        return watched

    def message(self, method: Callable[..., Any], kind: int, is_send: bool) -> Callable[..., Any]:
        compiling = self._compiling

        @functools.wraps(method)
        def watched(group: Any, tensors: Any, peer: int, tag: int = 0, *args: Any, **kwargs: Any) -> Any:
            known = self.known(group) if probe.attached() and not compiling() else None
            if known is None:
                return method(group, tensors, peer, tag, *args, **kwargs)
            known.begins()
            own = group.rank()
            slot = known.message(own, peer, tag) if is_send else known.message(peer, own, tag)
            number = open_operations.begin(kind, slot)
            work = method(group, tensors, peer, tag, *args, **kwargs)
            known.sent += 1
            if slot and work is not None:
                self._works[work] = (kind, slot, number, 0, -1, 0)
            return work

        return watched

    def from_any(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """Which message this takes is not known before it has come: an operation of which nothing can be concluded."""

        compiling = self._compiling

        @functools.wraps(method)
        def watched(group: Any, *args: Any, **kwargs: Any) -> Any:
            known = self.known(group) if probe.attached() and not compiling() else None
            if known is None:
                return method(group, *args, **kwargs)
            known.begins()
            if not known.from_any:
                known.from_any = True
                open_operations.counts_in_part([slot for slot in known.messages.values() if slot])
            work = method(group, *args, **kwargs)
            known.sent += 1
            if known.slot and work is not None:
                self._works[work] = (0, known.slot, 0, 0, -1, 0)
            return work

        return watched

    def monitored(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """A barrier that blocks in the call, and is not recorded by torch."""

        compiling = self._compiling

        @functools.wraps(method)
        def watched(group: Any, *args: Any, **kwargs: Any) -> Any:
            known = self.known(group) if probe.attached() and not compiling() else None
            if known is None:
                return method(group, *args, **kwargs)
            number = open_operations.begin(_BARRIER, slot := known.monitored())
            given = args[0] if args else kwargs.get("timeout")
            known.begins()
            before, known.is_uneven = known.begun(group), True
            try:
                known.entered = before if known.has_one_thread else -1
                with open_operations.wait(_BARRIER, slot, number, flags=self._timed(given)):
                    done = method(group, *args, **kwargs)
            finally:
                known.entered = -1
            # Its first rank sends to and receives from all others, and gloo counts each message.
            known.sent += max(known.begun(group) - before - MONITORED, 0)
            known.is_uneven = False
            return done

        return watched

    def wait(self, method: Callable[..., Any]) -> Callable[..., Any]:
        compiling = self._compiling

        @functools.wraps(method)
        def watched(work: Any, *args: Any, **kwargs: Any) -> Any:
            begun = self._works.get(work) if not compiling() else None
            if begun is None:
                return method(work, *args, **kwargs)
            kind, slot, number, size, root, flags = begun
            if args or kwargs:
                flags |= self._timed(args[0] if args else kwargs.get("timeout"))
            row = open_operations.waits(kind, slot, number, size, root, flags)
            try:
                return method(work, *args, **kwargs)
            finally:
                open_operations.waited(row)

        return watched

    def making_group(self, args: Sequence[Any], kwargs: dict[str, Any]) -> AbstractContextManager[None]:
        """The operation of `new_group`, given its arguments: its members connect to each other, and who is none returns
        at once. With TORCH_DIST_INIT_BARRIER=1 all ranks of the job meet in it."""
        nothing = open_operations.wait(0, 0, -1)
        try:
            default = self.known(self.c10d._get_default_group()) if probe.attached() else None
            given = args[0] if args else kwargs.get("ranks")
            members = everyone = tuple(default.ranks) if default is not None else ()
            is_local = args[4] if len(args) > 4 else kwargs.get("use_local_synchronization")
            if given is not None and (is_local or not self.c10d._is_barrier_after_init()):
                members = tuple(sorted(given))
        except (AttributeError, TypeError, ValueError, RuntimeError):  # no group yet, or what is no list of ranks
            return nothing
        if default is None or default.own not in members:
            return nothing
        slot = self._new_groups.get(members)
        if slot is None:
            ident = default.ident if members == everyone else crc32(repr(members).encode())
            slot = self._new_groups[members] = open_operations.group("world:new_group", ident, members, is_seen=True)
        number = open_operations.begin(_NEW_GROUP, slot)
        timeout = args[1] if len(args) > 1 else kwargs.get("timeout")
        return open_operations.wait(_NEW_GROUP, slot, number, flags=self._timed(timeout))

    def _timed(self, given: Any) -> int:
        """The flag of a wait whose timeout, which the script gave, is shorter than torch's default."""
        is_short = isinstance(given, timedelta) and _NEVER < given < self.c10d.default_pg_timeout
        return OPEN_IS_TIMED if is_short else 0


def _timeout_of(last: Any) -> Any:
    """Of one operation, where the script gave it one: by itself, or in its options."""
    return last if isinstance(last, timedelta) else getattr(last, "timeout", None)


def _backends(group: Any) -> frozenset[str]:
    """The classes of its backends; empty where torch does not say."""
    try:
        return frozenset(type(group._get_backend(device)).__name__ for device in group._device_types)
    except (AttributeError, RuntimeError):
        return frozenset()


def _has_number(group: Any) -> bool:
    """Whether this torch counts the collectives of the group."""
    try:
        return isinstance(group._get_sequence_number_for_group(), int)
    except (AttributeError, RuntimeError):
        return False


def _root(args: tuple[Any, ...], kwargs: dict[str, Any], at: int, ranks: list[int]) -> int:
    """The rank of the job that is the root; -1 where it is not found."""
    given = args[at] if len(args) > at else kwargs.get("opts", kwargs.get("root"))
    root = getattr(given, "rootRank", given)
    return ranks[root] if isinstance(root, int) and 0 <= root < len(ranks) else -1


def install(torch: Any) -> Watch:
    """Watch all process groups of this process. Called once."""
    c10d = torch.distributed.distributed_c10d
    watch = Watch(c10d, torch.compiler.is_compiling)
    groups, works = c10d.ProcessGroup, c10d.Work
    for name in _COLLECTIVES:
        if (method := getattr(groups, name, None)) is not None:
            setattr(groups, name, watch.collective(method, name))
    groups.send = watch.message(groups.send, OPERATION_KINDS.index("send"), is_send=True)
    groups.recv = watch.message(groups.recv, OPERATION_KINDS.index("recv"), is_send=False)
    groups.recv_anysource = watch.from_any(groups.recv_anysource)
    groups.monitored_barrier = watch.monitored(groups.monitored_barrier)
    works.wait = watch.wait(works.wait)
    return watch
