"""Which workers begin operations of NCCL although they make no move, and which have begun fewer than their peers.

Asked of NCCL's RAS (`nccl_ras`), only for workers that stand still and use a GPU. Every question goes through all
processes of the job, so the pauses between them grow with the job: all agents together ask some twelve times a second.
"""

import math
import os
import socket
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address

from holdfast.agent.activity.nccl_ras import (
    ADDRESS,
    ENV_ADDRESS,
    TOGETHER,
    Absent,
    Ask,
    RasMember,
    RasStatus,
    TooLong,
    ask,
)
from holdfast.agent.processes.aside import Aside
from holdfast.agent.processes.proc_files import parse_stat, read
from holdfast.base import log
from holdfast.base.errors import HoldfastError

SOON_S, LATER_S = 0.5, 1.0
"""From the first answer about a standstill to the second, without which it says nothing; and then."""
PER_RANK_S = 0.01
"""More between two questions, for each rank of a communicator in the answer."""
SHARE = 0.003
"""Of a core that questions may take."""
RESTS_S, ABSENT_S = 5.0, 30.0
"""Seconds without questions after one that failed, and after one for which no process listened."""

_Key = tuple[str, int]  # communicator and the rank there
_Counts = dict[_Key, dict[str, int]]


@dataclass(slots=True)
class _Known:
    """Of one process."""

    counts: _Counts
    grew_at: float = math.nan
    behind: str = ""


class NcclOperations:
    """Of the workers of this node. `look` may block for half a second for each address; nothing else does."""

    def __init__(
        self,
        ask: Ask = ask,
        clock: Callable[[], float] = time.monotonic,
        proc: str = "/proc",
        is_local: Callable[[str], bool] | None = None,
    ) -> None:
        self._ask, self._clock, self._proc = ask, clock, proc
        self._is_local = is_local or is_own_address
        self._known: dict[int, _Known] = {}
        self._addresses: dict[int, str] = {}
        self._as_text: set[str] = set()
        self._own: dict[str, bool] = {}  # address of a host -> whether it is this one
        self._failed: set[str] = set()
        self._next_at = -math.inf
        self._aside = Aside("ras", clock=clock)
        self.variable: Callable[[int, str], str] = lambda pid, name: ""
        """Of a worker's environment, as far as its starter knows it."""

    def begin(self, pids: list[int], now: float) -> bool:
        """Ask about these processes in another thread, if there are any and it is time for it. Whether it was."""
        is_time = bool(pids) and now >= self._next_at and self._aside.is_free
        if is_time:
            self._aside.begin(lambda lane: self.look(pids))
        return is_time

    def close(self) -> None:
        self._aside.close()

    def grew_at(self, pid: int) -> float:
        """When it was last seen to have begun another operation; NaN: never in this standstill."""
        known = self._known.get(pid)
        return known.grew_at if known is not None else math.nan

    def behind(self, pid: int) -> str:
        """In words which operations it has not begun that its peers have, in two answers; empty: none, or not known."""
        known = self._known.get(pid)
        return known.behind if known is not None else ""

    def forget(self, pid: int) -> None:
        """It moves again, or has ended: its next standstill is another one."""
        self._known.pop(pid, None)
        self._addresses.pop(pid, None)

    def look(self, pids: Iterable[int]) -> None:
        """Ask about these processes. Never raises."""
        cpu, wait = time.thread_time(), 0.0
        by_address: dict[str, list[int]] = {}
        for pid in pids:
            by_address.setdefault(self._address(pid), []).append(pid)
        for address, theirs in by_address.items():
            wait = max(wait, self._look_at(address, frozenset(theirs)))
        self._next_at = self._clock() + max(wait, (time.thread_time() - cpu) / SHARE)

    def _look_at(self, address: str, pids: frozenset[int]) -> float:
        """Seconds until the next question."""
        try:
            status = self._ask(address, as_text=address in self._as_text)
        except TooLong:
            self._as_text.add(address)  # which names few ranks only
            return SOON_S
        except HoldfastError as error:
            if address not in self._failed:
                self._failed.add(address)
                log.debug("ras.silent", address=address, error=str(error))
            return ABSENT_S if isinstance(error, Absent) else RESTS_S
        is_first = False
        for pid in pids:
            is_first |= pid not in self._known
            self._take(pid, [m for m in status.members if m.pid == pid and self._is_here(m.host)], status)
        return max(SOON_S if is_first else LATER_S, PER_RANK_S * len(status.members))

    def _take(self, pid: int, members: list[RasMember], status: RasStatus) -> None:
        counts: _Counts = {(m.communicator, m.rank): m.counts for m in members}
        before = self._known.get(pid)
        if before is None:
            self._known[pid] = _Known(counts)
            return
        grown = any(
            count > before.counts[key].get(kind, count)
            for key, kinds in counts.items()
            if key in before.counts
            for kind, count in kinds.items()
        )
        if grown:
            before.grew_at = self._clock()
        # Two processes are not read at the same instant: a rank is behind only if it was so before and did not move.
        before.behind = "" if grown else _behind(counts, before.counts, status)
        before.counts = counts
        log.debug("ras.counts", worker_pid=pid, communicators=len(counts), grown=grown, behind=before.behind)

    def _is_here(self, host: str) -> bool:
        if host not in self._own:
            if len(self._own) > 65536:
                self._own.clear()
            self._own[host] = self._is_local(host)
        return self._own[host]

    def _address(self, pid: int) -> str:
        if pid not in self._addresses:
            known = self.variable(pid, ENV_ADDRESS)[:128] or self._reported(pid)
            self._addresses[pid] = known or os.environ.get(ENV_ADDRESS) or ADDRESS
        return self._addresses[pid]

    def _reported(self, pid: int) -> str:
        """What /proc shows of its environment; of a forked worker, that is its fork server's. A process in state D is
        not asked: that could block."""
        stat = parse_stat(read(f"{self._proc}/{pid}/stat"))
        if stat is None or stat.state in "DZX":
            return ""
        for entry in read(f"{self._proc}/{pid}/environ", 1 << 17).split(b"\0"):
            name, _, value = entry.partition(b"=")
            if name == ENV_ADDRESS.encode():
                return value.decode("ascii", "replace")[:128]
        return ""


def _behind(counts: _Counts, before: _Counts, status: RasStatus) -> str:
    for (communicator, rank), kinds in sorted(counts.items()):
        for kind, count in sorted(kinds.items()):
            most = status.most.get((communicator, kind), 0)
            if kind in TOGETHER and count < most and before.get((communicator, rank), {}).get(kind) == count:
                name = "" if kind == "collective" else f" {kind}"
                return (
                    f"by NCCL's count it has begun {count}{name} operations as rank {rank} of communicator "
                    f"{communicator}, and a peer {most}"
                )
    return ""


def is_own_address(host: str) -> bool:
    """Whether an address is one of this host's: only to such a one a socket can be bound."""
    with suppress(OSError, ValueError):
        family = socket.AF_INET6 if ip_address(host).version == 6 else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as trial:
            trial.bind((host, 0))
            return True
    return False
