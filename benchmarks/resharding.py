"""Transfers between meshes: what each strategy and each order should take, and what they take on throttled links.

python benchmarks/resharding.py [--hosts 4] [--per-host 2] [--chunks 8 64] [--unit-s 1] [--repeats 5]
    [--only ring order] [--json]

Real processes and messages over gloo; ranks stand for hosts' devices. A message from host to host waits in its sender
until its receiver is at the same unit, and then for a token bucket; inside a host nothing is throttled. First one unit
goes from one rank to all hosts by each strategy: time in units of t, in which one NIC sends it once. Then a tensor goes
from two replicas of 3 parts to 5 parts on hosts of their own, in the order of each algorithm: time relative to the
lower bound. `formula` is computed here, `simulated` by the planner's simulator. The fastest repeat counts: other work
on the machine only adds.
"""

import math
import multiprocessing
import os
import queue
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from common import finish, parser

from holdfast.plan.moves.order import Algorithm, Task, lower_bound
from holdfast.plan.moves.shard_spec import ShardSpec
from holdfast.plan.moves.simulate import simulate
from holdfast.plan.moves.strategies import Strategy
from holdfast.plan.moves.transfer_plan import TransferPlan, make_plan
from holdfast.plan.moves.units import units
from holdfast.plan.plan import Mesh
from holdfast.trainer.preload import preload

ITEM = 4
COUNT = 1 << 18
"""Elements: little data on slow links, so that the processors do not matter."""


@dataclass(frozen=True)
class Case:
    name: str
    chunks: int | None
    source: ShardSpec
    target: ShardSpec
    plan: TransferPlan
    bytes_per_s: float
    unit_s: float
    """What the figures are relative to."""
    formula: float = math.nan

    @property
    def simulated(self) -> float:
        return simulate(self.plan, self.bytes_per_s).makespan / self.unit_s


def strategies(a: int, b: int, chunks: Sequence[int], unit_s: float) -> list[Case]:
    """One unit from rank 0 to A hosts with B ranks each."""
    source = ShardSpec(Mesh.of(), ((),))
    target = ShardSpec(Mesh.of(dp=a * b), ((),), tuple(range(1, a * b + 1)))
    found = units("w", ITEM, source.held((COUNT,)), target.held((COUNT,)))
    hosts = [0, *(1 + i // b for i in range(a * b))]
    ways: list[tuple[Strategy, int | None, float]] = [
        (Strategy.SEND_RECV, None, a * b),
        (Strategy.LOCAL_ALL_GATHER, None, a),
        (Strategy.GLOBAL_ALL_GATHER, None, 2 - 1 / (a * b) if a > 1 else 1),
        *((Strategy.RING, k, 1 + (a - 1) / k) for k in chunks),
    ]
    rate = COUNT * ITEM / unit_s
    return [
        Case(str(way), k, source, target, make_plan(found, hosts, way, k or 1), rate, unit_s, formula)
        for way, k, formula in ways
    ]


def orders(unit_s: float) -> list[Case]:
    """Two replicas of three parts become five parts; every rank is a host."""
    source = ShardSpec(Mesh.of(dp=2, tp=3), (("tp",),))
    target = ShardSpec(Mesh.of(tp=5), (("tp",),), tuple(range(6, 11)))
    found = units("w", ITEM, source.held((COUNT,)), target.held((COUNT,)))
    hosts = range(11)
    rate = COUNT * ITEM / 4 / unit_s
    least = lower_bound([Task(unit.num_bytes / rate, unit.senders, unit.receivers) for unit in found])
    return [
        Case(f"order: {way}", None, source, target, make_plan(found, hosts, None, 1, way), rate, least)
        for way in Algorithm
    ]


@dataclass
class Ticket:
    """A message that waits for the link, or has gone."""

    send: Callable[[], Any]
    target: int
    unit: int
    num_bytes: int
    queued: float
    gone: threading.Event = field(default_factory=threading.Event)

    def wait(self) -> None:
        self.gone.wait()


class Nic:
    """A token bucket in front of this rank's messages to other hosts. One rank of a host sends to others at a time."""

    def __init__(self, send: Callable[[Any, int], Any], progress: Any) -> None:
        """`progress`: shared, the unit that each rank is at."""
        self._send, self._progress = send, progress
        self._waiting: queue.SimpleQueue[Ticket] = queue.SimpleQueue()
        self._rank, self._hosts, self._bytes_per_s = 0, (0,), math.inf
        threading.Thread(target=self._work, daemon=True).start()

    def set(self, rank: int, hosts: Sequence[int], bytes_per_s: float) -> None:
        self._rank, self._hosts, self._bytes_per_s = rank, tuple(hosts), bytes_per_s

    def send(self, piece: Any, target: int) -> Any:
        if self._hosts[self._rank] == self._hosts[target]:
            return self._send(piece, target)
        unit = self._progress[self._rank]
        ticket = Ticket(lambda: self._send(piece, target), target, unit, piece.nbytes, time.monotonic())
        self._waiting.put(ticket)
        return ticket

    def _work(self) -> None:
        free = 0.0
        while True:
            ticket = self._waiting.get()
            # From when it was queued, not from now: a thread that wakes late does not make the link slower.
            begun = ticket.queued
            while self._progress[ticket.target] < ticket.unit:
                time.sleep(0.0005)
                begun = time.monotonic()
            free = max(free, begun) + ticket.num_bytes / self._bytes_per_s
            time.sleep(max(0.0, free - time.monotonic()))
            ticket.send().wait()
            ticket.gone.set()


def measure(cases: Sequence[Case], world: int, repeats: int) -> list[list[float]]:
    """Seconds of each repeat of each case. Each rank is a process of its own."""
    preload()
    forked = multiprocessing.get_context("fork")
    reader, writer = forked.Pipe(duplex=False)
    progress = forked.RawArray("q", world)
    with tempfile.TemporaryDirectory() as folder:
        work: Callable[..., None] = _rank
        processes = [
            forked.Process(target=work, args=(rank, world, cases, repeats, f"{folder}/store", progress, writer))
            for rank in range(world)
        ]
        for process in processes:
            process.start()
        writer.close()
        try:
            found: list[list[float]] = reader.recv()
        finally:
            for process in processes:
                process.join(60)
                process.kill()
    return found


def _rank(rank: int, world: int, cases: Sequence[Case], repeats: int, store: str, progress: Any, results: Any) -> None:
    import torch.distributed as dist

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", store=dist.FileStore(store, world), rank=rank, world_size=world)
    nic = Nic(lambda piece, target: dist.isend(piece, target), progress)
    found = [[_once(case, rank, world, nic, progress) for _ in range(repeats)] for case in cases]
    if rank == 0:
        results.send(found)
    dist.barrier()
    dist.destroy_process_group()


def _once(case: Case, rank: int, world: int, nic: Nic, progress: Any) -> float:
    import torch
    import torch.distributed as dist

    from holdfast.trainer.mesh.transfer import Held, run

    whole = torch.arange(COUNT, dtype=torch.float32)

    def held(spec: ShardSpec, empty: bool) -> Held:
        ranks = spec.ranks or range(spec.mesh.world)
        if rank not in ranks:
            return {}
        shard = spec.shard(ranks.index(rank), (COUNT,))
        part = whole[shard.slices]
        return {"w": (shard, torch.empty_like(part) if empty else part)}

    source, target = held(case.source, False), held(case.target, True)
    nic.set(rank, case.plan.hosts, case.bytes_per_s)
    group = dist.group.WORLD
    assert group is not None
    progress[rank] = -1
    dist.barrier()
    begun = time.monotonic()
    for number, move in enumerate(case.plan.moves):
        progress[rank] = number
        run(replace(case.plan, moves=(move,)), source, target, group, nic.send)
    progress[rank] = len(case.plan.moves)
    ended = time.monotonic()
    for shard, part in target.values():
        assert torch.equal(part, whole[shard.slices]), "not what slicing gives"
    times: list[tuple[float, float]] = [(0.0, 0.0)] * world
    dist.all_gather_object(times, (begun, ended))  # one clock for all processes of a machine
    return max(end for _, end in times) - max(begin for begin, _ in times)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--hosts", type=int, default=4, help="that receive")
    options.add_argument("--per-host", type=int, default=2)
    options.add_argument("--chunks", type=int, nargs="+", default=[8, 64], help="of the ring")
    options.add_argument("--unit-s", type=float, default=1.0, help="seconds in which a NIC sends the unit once")
    options.add_argument("--repeats", type=int, default=5)
    options.add_argument("--only", nargs="+", metavar="NAME", help="the rows whose names begin so")
    asked = options.parse_args()
    if min(asked.hosts, asked.per_host, asked.repeats, *asked.chunks) < 1 or asked.unit_s <= 0:
        options.error("hosts, ranks a host, chunks, seconds and repeats are above 0")
    cases = [*strategies(asked.hosts, asked.per_host, asked.chunks, asked.unit_s), *orders(asked.unit_s)]
    cases = [case for case in cases if case.name.startswith(tuple(asked.only or [""]))]
    if not cases:
        options.error(f"no row begins with {' or '.join(asked.only)}: take {', '.join(Strategy)}, order")
    world = max(len(case.plan.hosts) for case in cases)
    times = measure(cases, world, asked.repeats)
    rows = []
    for case, seconds in zip(cases, times, strict=True):
        measured = min(seconds) / case.unit_s
        rows.append((case.name, case.chunks or "", case.formula, case.simulated, measured, measured / case.simulated))
    head = ["strategy", "chunks", "formula", "simulated", "measured", "measured / simulated"]
    names = ("name", "chunks", "formula", "simulated", "measured")
    shown = [["" if cell != cell else cell for cell in row] for row in rows]
    found = [{name: None if cell == "" else cell for name, cell in zip(names, row, strict=False)} for row in shown]
    result = {"cases": found}
    finish(result, asked.json, head, shown)


if __name__ == "__main__":
    main()
