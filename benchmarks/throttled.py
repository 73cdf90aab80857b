"""Predicted against measured step times of twelve (tp, pp, dp) layouts, executed with sleeping stages and slow links.

python benchmarks/throttled.py [--layer-ms 80] [--repeats 2] [--json]

C10's check of the cost model where cores are few: one process a rank, each in its own order of actions. Layers sleep
for what the profile says they take. Activations, gradients and parameters really go over gloo, in small arrays, and
are there no sooner than links of two nodes with four devices each allow. Collectives are rings, and all-reduces
halvings, message by message: what they take is measured, not given. What comes late because others had the processor
is made up for by the next wait (see bubble.py). The sums that come out are compared with what they must be. The least
of the repeats counts. Targets: Kendall's tau of 0.9 or more, errors of 10 % or less.
"""

import multiprocessing
import os
import tempfile
import time
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from common import Json, finish, parser
from cost_model import LAYOUTS, kendall

from holdfast.plan.plan import Op
from holdfast.plan.transformer import Transformer
from holdfast.planner.cluster.cluster import Cluster, Hop, Level, Node
from holdfast.planner.cluster.gpus import Gpu
from holdfast.planner.cost.layers import Precision, parts
from holdfast.planner.cost.layout import Layout
from holdfast.planner.cost.measured import PartTimes, Profile, key
from holdfast.planner.cost.predict import CostModel
from holdfast.planner.cost.schedule import plan_of

MODEL = Transformer(layers=4, width=256, heads=8, vocab=256, length=128, block="parallel", norm="rms")
SIZE, COUNT, PER_NODE, RANKS = 2, 8, 4, 8
"""Samples of a micro-batch, micro-batches of a step, devices of a node, and of both."""
PRECISION = Precision.of("float32")
UPDATE = 4e-9
"""Seconds of a parameter's update."""
DEADLINE_S = 400.0


def cluster(layer_s: float, world: int) -> Cluster:
    """Links on which a layer's activations take a quarter of its forward within a node, half of it between nodes."""
    unit = SIZE * MODEL.length * MODEL.width * 4
    hops = {Level.NODE: Hop(0.02 * layer_s, layer_s / 4 / unit), Level.SWITCH: Hop(0.05 * layer_s, layer_s / 2 / unit)}
    nodes = tuple(Node(f"n{i}", min(PER_NODE, world)) for i in range(-(-world // PER_NODE)))
    return Cluster(Gpu("sleep", 1e12, 1e12, 1e12), nodes, hops)


def profile(layer_s: float) -> Profile:
    """A backward takes two forwards; the embedding a tenth of a layer, the head half of one whatever tp is."""
    found = {
        key(tp, False): {
            "first": PartTimes(0.1 * layer_s, 0.1 * layer_s),
            "layer": PartTimes(layer_s / tp, 2 * layer_s / tp),
            "last": PartTimes(0.5 * layer_s, layer_s),
        }
        for tp in (1, 2, 4)
    }
    return Profile({}, "float32", SIZE, "sleep", found, UPDATE)


def layout_of(tp: int, pp: int, dp: int) -> Layout:
    return Layout(pp, dp, tp, micro_batches=COUNT, micro_batch_size=SIZE, zero=1)


def predicted(layer_s: float, layout: Layout) -> float:
    cost = CostModel(cluster(layer_s, layout.world), PRECISION, profile(layer_s), overlap=False)
    return cost.predict(MODEL, layout).step_s


@dataclass
class Rank:
    """One process of a layout. Its clock is when it should be done with what it did; it waits for it."""

    rank: int
    layout: Layout
    links: Cluster
    clock: float
    sent: list[Any] = field(default_factory=list)

    def wait(self) -> None:
        time.sleep(max(0.0, self.clock - time.monotonic()))

    def compute(self, seconds: float) -> None:
        self.clock += seconds
        self.wait()

    def send(self, value: torch.Tensor, to: int, num_bytes: float, tag: int) -> None:
        """There after the link's seconds; the rank goes on."""
        due = torch.tensor([self.clock + self.links.link(self.rank, to).seconds(num_bytes)], dtype=torch.float64)
        message = torch.cat([due, value.double()])
        self.sent.append((message, dist.isend(message, to, tag=tag)))

    def receive(self, like: torch.Tensor, source: int, tag: int) -> torch.Tensor:
        message = torch.empty(1 + len(like), dtype=torch.float64)
        dist.recv(message, source, tag=tag)
        self.clock = max(self.clock, float(message[0]))
        self.wait()
        return message[1:].to(like.dtype)

    def exchange(self, value: torch.Tensor, to: int, source: int, num_bytes: float) -> torch.Tensor:
        self.send(value, to, num_bytes, 0)
        return self.receive(value, source, 0)

    def all_reduce(self, value: torch.Tensor, group: list[int], num_bytes: float) -> torch.Tensor:
        """By recursive halving and doubling; what crosses nodes is summed last, on a share."""
        share, masks = num_bytes, [1 << bit for bit in range((len(group) - 1).bit_length())]
        place = group.index(self.rank)
        for mask in masks:
            share /= 2
            peer = group[place ^ mask]
            value = value + self.exchange(value, peer, peer, share)
        for mask in reversed(masks):
            peer = group[place ^ mask]
            self.exchange(value, peer, peer, share)
            share *= 2
        return value

    def ring(self, value: torch.Tensor, group: list[int], num_bytes: float) -> torch.Tensor:
        """n - 1 pieces around a ring: a reduce-scatter, or an all-gather. The sum of all values comes out."""
        place, total, piece = group.index(self.rank), value, value
        for _ in range(len(group) - 1):
            piece = self.exchange(piece, group[(place + 1) % len(group)], group[place - 1], num_bytes / len(group))
            total = total + piece
        return total

    def replicas(self, value: torch.Tensor, group: list[int], num_bytes: float) -> torch.Tensor:
        """Rings in each node, and of each device's share over nodes."""
        nodes = [[one for one in group if one // PER_NODE == node] for node in sorted({r // PER_NODE for r in group})]
        inner = next(one for one in nodes if self.rank in one)
        outer = [one[inner.index(self.rank)] for one in nodes]
        value = self.ring(value, inner, num_bytes) if len(inner) > 1 else value
        return self.ring(value, outer, num_bytes / len(inner)) if len(outer) > 1 else value


def step(rank: int, layout: Layout, layer_s: float, begin: float) -> float:
    """Execute one. Returns when it is over, by the host's clock. RuntimeError for sums that are not right."""
    one = Rank(rank, layout, cluster(layer_s, layout.world), begin)
    times, sizes = profile(layer_s).parts[key(layout.tp, False)], parts(MODEL, layout, PRECISION)
    stage, rest = divmod(rank, layout.dp * layout.tp)
    replica, place = divmod(rest, layout.tp)
    beside = layout.dp * layout.tp
    line = [stage * beside + replica * layout.tp + i for i in range(layout.tp)]
    copies = [stage * beside + i * layout.tp + place for i in range(layout.dp)]
    layers = len(layout.layers_of(stage, MODEL.layers))
    ends = ["first"] * (stage == 0) + ["last"] * (stage == layout.pp - 1)
    held = layers * sizes.layer.params + sum(getattr(sizes, name).params for name in ends)
    value = torch.ones(4)
    one.wait()
    if layout.dp > 1:
        _same(one.replicas(value, copies, held * PRECISION.weight), layout.dp)
    for action in plan_of(layout).orders[stage]:
        ahead = action.op is Op.FORWARD
        source, to = (rank - beside, rank + beside) if ahead else (rank + beside, rank - beside)
        tag = 1 + 2 * action.micro_batch + ahead
        if 0 <= source < layout.world:
            value = one.receive(value, source, tag)
        for name in [*["layer"] * layers, *ends]:
            one.compute(times[name].forward if ahead else times[name].backward)
            if name == "layer" and layout.tp > 1:
                value = one.all_reduce(value, line, sizes.layer.boundary) / layout.tp
        if 0 <= to < layout.world:
            one.send(value, to, sizes.layer.boundary, tag)
    _same(value, 1)
    if layout.dp > 1:
        _same(one.replicas(value, copies, held * PRECISION.gradient), layout.dp)
    one.compute(held / layout.dp * UPDATE)
    for _, work in one.sent:
        work.wait()
    return time.monotonic()


def _same(value: torch.Tensor, expected: float) -> None:
    if not torch.allclose(value, torch.full_like(value, expected)):
        raise RuntimeError(f"a sum came to {value.tolist()}, and must be {expected}")


def _work(rank: int, layer_s: float, repeats: int, store: str, results: Any) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(store, RANKS), rank=rank, world_size=RANKS)
    found: dict[tuple[int, int, int], float] = {}
    for _ in range(repeats):
        for sizes in LAYOUTS:
            layout = layout_of(*sizes)
            begin = torch.tensor([time.monotonic() + 0.1], dtype=torch.float64)
            dist.broadcast(begin, 0)
            end = step(rank, layout, layer_s, float(begin)) if rank < layout.world else float(begin)
            took = torch.tensor([end], dtype=torch.float64) - begin
            dist.all_reduce(took, dist.ReduceOp.MAX)
            found[sizes] = min(float(took), found.get(sizes, float("inf")))
    if rank == 0:
        results.send(found)
    dist.barrier()
    dist.destroy_process_group()


def measured(layer_s: float, repeats: int) -> dict[tuple[int, int, int], float]:
    """By (tp, pp, dp), seconds of a step."""
    forked = multiprocessing.get_context("fork")
    reader, writer = forked.Pipe(duplex=False)
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            forked.Process(target=_work, args=(rank, layer_s, repeats, f"{folder}/store", writer), daemon=True)
            for rank in range(RANKS)
        ]
        for one in ranks:
            one.start()
        writer.close()
        try:
            if not reader.poll(DEADLINE_S):
                raise RuntimeError(f"twelve layouts took more than {DEADLINE_S:g} s")
            found: dict[tuple[int, int, int], float] = reader.recv()
        finally:
            for one in ranks:
                one.join(30)
                one.kill()
    return found


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--layer-ms", type=float, default=80.0, help="of a layer's forward of a micro-batch")
    options.add_argument("--repeats", type=int, default=2)
    asked = options.parse_args()
    if asked.layer_ms <= 0 or asked.repeats < 1:
        options.error("--layer-ms must be above 0, --repeats 1 or more")
    layer_s, begun = asked.layer_ms / 1000, os.getloadavg()[0]
    took = measured(layer_s, asked.repeats)
    expected = {one: predicted(layer_s, layout_of(*one)) for one in LAYOUTS}
    rows = [
        {"tp": one[0], "pp": one[1], "dp": one[2], "predicted_s": expected[one], "measured_s": took[one],
         "error": expected[one] / took[one] - 1}
        for one in LAYOUTS
    ]  # fmt: skip
    tau = kendall([expected[one] for one in LAYOUTS], [took[one] for one in LAYOUTS])
    worst = max(abs(float(row["error"])) for row in rows)
    found: Json = {"layouts": rows, "tau": tau, "worst_error": worst, "load": [begun, os.getloadavg()[0]]}
    head = ("tp", "pp", "dp", "predicted, s", "measured, s", "error")
    cells = [
        [*(str(row[name]) for name in head[:3]), f"{row['predicted_s']:.3f}", f"{row['measured_s']:.3f}",
         f"{row['error']:+.1%}"]
        for row in rows
    ]  # fmt: skip
    finish(found, asked.json, head, cells)
    if not asked.json:
        print(f"tau {tau:.2f}, worst error {worst:.1%}, load {begun:.1f} to {found['load'][1]:.1f}")


if __name__ == "__main__":
    main()
