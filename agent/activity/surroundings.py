"""What moves around a worker that stands still, and will let it go on: the process at the other end of its socket or
pipe, pages that the host writes back for it, its own next attempt. Looked at only where the worker waits for such."""

import math
from collections.abc import Collection

from holdfast.agent.activity.host_flow import FLOW_AMOUNT, FLOW_LEAK, disk_bytes, is_asked, network_bytes, rdma_bytes
from holdfast.agent.activity.movement import BYTES_AMOUNT, BYTES_LEAK, CPU_AMOUNT, CPU_LEAK, Growth
from holdfast.agent.activity.other_ends import Holders, far_links
from holdfast.agent.activity.sums import ActivitySums
from holdfast.agent.activity.threads.attempts import Attempts
from holdfast.agent.activity.waits import TIMER, ThreadWait
from holdfast.agent.processes.proc_files import parse_io, parse_stat, read
from holdfast.agent.processes.sockets import Sockets

MOST_ENDS = 4


class Surroundings:
    """Of one worker. `look` says whether anything moves; `cpu` is what the other ends have used, seconds."""

    def __init__(self, proc: str = "/proc", sysfs: str = "/sys") -> None:
        self._proc, self._sysfs = proc, sysfs
        self._holders = Holders(proc)
        self._sums = ActivitySums()
        self._cpu, self._bytes = Growth(CPU_LEAK, CPU_AMOUNT), Growth(BYTES_LEAK, BYTES_AMOUNT)
        self._flows = [Growth(FLOW_LEAK, FLOW_AMOUNT) for _ in range(3)]  # disks, network, RDMA
        self._attempts = Attempts()
        self._was_asked = False
        self.cpu = 0.0
        self.ends: tuple[int, ...] = ()

    def other_ends(
        self,
        now: float,
        links: Collection[str],
        known: Sockets,
        without: Collection[int],
        leaders: Collection[int] = (),
    ) -> bool:
        """Whether the processes move that hold the other ends of these descriptors. `without`: whose movement is no
        evidence: the worker's own, which count anyhow, other workers, which may wait for this one, and the agent.
        `leaders`: neither these nor their children."""
        values: dict[int, tuple[float, ...]] = {}
        for pid in sorted(self._holders.look(far_links(links, known), without, now))[:MOST_ENDS]:
            stat = parse_stat(read(f"{self._proc}/{pid}/stat"))
            io = parse_io(read(f"{self._proc}/{pid}/io"))
            if stat is not None and pid not in leaders and stat.parent not in leaders:
                values[pid] = (stat.cpu + stat.reaped, float(io.taken + io.given) if io else 0.0)
        self.ends = tuple(values)
        # A process that is found late has not just begun: its counters are no growth.
        self.cpu, moved = self._sums.add(values, self.ends, whole=False) or (0.0, 0.0)
        found = self._cpu.add(now, self.cpu)
        return self._bytes.add(now, moved) or found

    def host(
        self,
        now: float,
        wait: ThreadWait,
        channel: str,
        states: str,
        is_alone: bool,
        has_rdma: bool,
        others_ask: bool = False,
    ) -> bool:
        """Whether bytes move on the host that a thread may wait for. `others_ask`: threads other than the main one."""
        found = False
        was_asked, self._was_asked = self._was_asked, others_ask or is_asked(wait.words, channel, states)
        if self._was_asked:
            found = self._flows[0].add(now, disk_bytes(self._proc), was_asked)
            over_network = self._flows[1].add(now, network_bytes(self._proc), was_asked)
            found |= over_network and not wait.words.startswith("the disk")
        if is_alone and has_rdma:
            found |= self._flows[2].add(now, rdma_bytes(self._sysfs))
        return found

    def attempts(self, now: float, wait: ThreadWait, ran_ns: int, slices: int, wake_s: float = 0.0) -> bool:
        """Whether it makes attempts at something, between waits that end by themselves: a sleep, or a wait for
        descriptors or a lock with a deadline."""
        is_timed = wait.words == TIMER or not math.isnan(wait.until)
        return self._attempts.look(now, is_timed, ran_ns, slices, wait.until, wake_s)
