"""Transfers between meshes against their formulas, and the order of units against every order (MLSys 2023).

And where they are used: a checkpoint that is loaded at another layout than the one that saved it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import permutations, product

from holdfast.checkpoint.format.manifest import Manifest
from holdfast.checkpoint.format.parts import Part, header, part_name
from holdfast.checkpoint.format.tiles import GlobalTensor, Layout
from holdfast.checkpoint.format.transfer import write_shares
from holdfast.checkpoint.restore.reading import ByteSpan, Delivery, read_plan
from holdfast.checkpoint.restore.routes import arranged
from holdfast.plan.moves.order import Task, exact, lower_bound, makespan
from holdfast.plan.moves.shard_spec import ShardSpec
from holdfast.plan.moves.simulate import simulate
from holdfast.plan.moves.strategies import Strategy, duration
from holdfast.plan.plan import Mesh
from holdfast.plan.tiles import TensorShard
from holdfast.trainer.pipeline.crossings import crossing_plan
from holdfast.trainer.rows.row import Row

HOSTS, DEVICES = 4, 2
CASES = 40


def resharding() -> Iterator[Row]:
    far = [[host * DEVICES + i for i in range(DEVICES)] for host in range(HOSTS)]
    for chunks, expected in ((8, 1.375), (64, 1 + 3 / 64)):
        found = duration(Strategy.RING, 1.0, far, chunks)
        yield Row(f"ring, {HOSTS} hosts, K {chunks}, in t", expected, found)
    yield Row("to each receiver, in t", HOSTS * DEVICES, duration(Strategy.SEND_RECV, 1.0, far, 1))
    yield Row("to each host, in t", HOSTS, duration(Strategy.LOCAL_ALL_GATHER, 1.0, far, 1))
    same = bounded = 0
    for seed in range(CASES):
        tasks = _tasks(seed)
        least = _least(tasks)
        same += abs(makespan(tasks, exact(tasks)) - least) < 1e-9
        bounded += lower_bound(tasks) <= least + 1e-9
    yield Row(f"orders as good as the best of all, of {CASES}", CASES, same)
    yield Row(f"lower bounds that are none too high, of {CASES}", CASES, bounded)
    yield from _between_stages()
    yield from _loaded()


def _between_stages() -> Iterator[Row]:
    """What crosses between stages of unlike tp, in activations: one for each host that receives whole ones, one in all
    where positions are split; and what each receiving rank gets."""
    batch, positions, width, item = 2, 64, 128, 4
    whole = batch * positions * width * item
    for a, b, receiving, is_sequence in ((1, 2, 1, False), (4, 2, 1, False), (2, 4, 2, False), (2, 4, 2, True)):
        hosts = [0] * a + [1 + rank * receiving // b for rank in range(b)]
        targets = range(a, a + b)
        plan = crossing_plan(range(a), targets, (batch, positions, width), is_sequence, hosts, item)
        case = f"tp {a} to {b} on {receiving} hosts{', positions split' * is_sequence}, in activations"
        yield Row(f"{case}, crossing", 1 if is_sequence else receiving, simulate(plan, 1.0).crossed_bytes / whole)
        sent = [m for move in plan.moves for m in plan.messages(move)]
        got = {rank: sum(m.stop - m.start for m in sent if m.target == rank) * item / whole for rank in targets}
        yield Row(f"{case}, to each rank", 1 / b if is_sequence else 1, max(got.values()))


def _loaded() -> Iterator[Row]:
    """What four stages saved, at 2 stages of 2 replicas: parameters on both replicas, a moment on one (ZeRO)."""
    saved = _layout(4, 1)
    manifest = _manifest(saved)
    plan = read_plan(manifest, _layout(2, 2))
    read = sum(span.stop - span.start for span in plan)
    given = sum(one.num_bytes * len(one.targets) for span in plan for one in span.deliveries)
    unique = sum(tensor.num_bytes for tensor in saved.tensors.values())
    yield Row(
        "load 4x1 to 2x2: bytes read, in bytes of the files", 1, read / sum(part.bytes for part in manifest.parts)
    )
    yield Row("the same: bytes that reach a holder, in bytes of the state", (2 + 1) / 2, given / unique)
    circle = arranged([_span(rank, (rank + 1) % HOSTS) for rank in range(HOSTS)], ())
    yield Row("4 hosts that each read for the next: spans one after another", 2, _longest(circle))


def _layout(pp: int, dp: int) -> Layout:
    """A parameter and a moment for each of four layers, both of 6 MiB."""
    mesh, names = Mesh.of(pp=pp, dp=dp), [f"{layer}{kind}" for layer in range(4) for kind in ("", "@exp_avg")]
    tensors = {name: GlobalTensor(name, (1024, 1536), "F32") for name in names}
    held: list[dict[str, list[TensorShard]]] = [{} for _ in range(mesh.world)]
    for rank, mine in enumerate(held):
        for name, tensor in tensors.items():
            if int(name[0]) * pp // 4 == mesh.coordinate(rank)["pp"]:
                mine[name] = [ShardSpec(mesh, (("dp",) if "@" in name else (), ())).shard(rank, tensor.shape)]
    return Layout(tensors, held)


def _manifest(layout: Layout) -> Manifest:
    """The files that ranks of a layout write, without their bytes."""
    shares, parts = write_shares(layout), []
    for rank in range(len(layout.held)):
        own = [(share.tensor, share.shard) for share in shares if share.worker == rank]
        head, entries = header(layout.tensors, own, {})
        size = len(head) + sum(share.num_bytes for share in shares if share.worker == rank)
        parts.append(Part(part_name(rank), size, (), rank, tuple(entries)))
    return Manifest(1, 1, "", 0, "", 0.0, {"world": len(parts)}, layout.tensors, tuple(parts), {}, {})


def _span(reader: int, target: int) -> ByteSpan:
    tensor = GlobalTensor("t", (8,), "U8")
    return ByteSpan(0, 0, 8, reader, (Delivery(tensor, tensor.shard, tensor.shard, 0, (target,)),))


def _longest(plan: Sequence[ByteSpan]) -> int:
    """Spans of which each has to wait for the one before it, as they share a host."""
    clock: dict[int, int] = {}
    for span in plan:
        hosts = (span.reader, *span.deliveries[0].targets)
        clock.update(dict.fromkeys(hosts, max(clock.get(host, 0) for host in hosts) + 1))
    return max(clock.values())


def _tasks(seed: int) -> list[Task]:
    draw = random.Random(seed)

    def some(first: int, most: int) -> tuple[int, ...]:
        return tuple(draw.sample(range(first, first + 3), draw.randint(1, most)))

    return [Task(draw.choice((1.0, 2.0, 3.5)), some(0, 2), some(100, 2)) for _ in range(2 + seed % 4)]


def _least(tasks: Sequence[Task]) -> float:
    """Of every order and every choice of senders, counted here."""
    best = float("inf")
    for order in permutations(range(len(tasks))):
        for senders in product(*(task.senders for task in tasks)):
            clock: dict[int, float] = {}
            for number in order:
                hosts = (senders[number], *tasks[number].receivers)
                end = max(clock.get(host, 0.0) for host in hosts) + tasks[number].duration
                clock.update(dict.fromkeys(hosts, end))
            best = min(best, max(clock.values()))
    return best
