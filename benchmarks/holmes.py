"""One job over two clusters with a slow link between: what the order of ranks costs (Holmes, ICPP 2024).

python benchmarks/holmes.py [--unit-ms 40] [--repeats 5] [--schedule gpipe] [--fast-mbit 800] [--slow-mbit 100] [--json]

Four hosts, each a network namespace behind a link of the fast rate, two under each of two switches, whose link has the
slow rate: an eighth, as Ethernet at 25 Gbit/s has of InfiniBand at 200. Four ranks, pp 2, dp 2: real processes, real
messages and sums over gloo, the trainer's executor. Computation sleeps, one unit forward and two backward, so that two
cores can run it. Behind the last backward each stage's replicas add up their gradients as with ZeRO stage 1: a
reduce-scatter and a gather.

homogeneous: the link between the switches is as fast as the others. by type: each stage's replicas under one switch,
as `holdfast plan` has it. naive: hosts in turn, so each stage's replicas are apart. `ideal` is (N + pp - 1)(f + b), and
the sums at the fast rate; bytes between the clusters are those of the link's counters without headers, and of the
formulas: 2 N b s h x 8 of float64 messages, 2 (d - 1) x the bytes of gradients of each stage. Needs root, ip and tc.
"""

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any

from bubble import difference, sleeping_stage
from common import finish, from_tests, parser
from formulas import BACKWARD, FORWARD

from holdfast.plan.schedules.table import SCHEDULES
from holdfast.trainer.pipeline.job_plan import job_plan
from holdfast.trainer.preload import preload
from holdfast.trainer.settings.layout import TrainerLayout

cables = from_tests("cables")

CLUSTER_OF = {"a0": "s0", "b0": "s1", "a1": "s0", "b1": "s1"}
BY_TYPE = ("a0", "a1", "b0", "b1")
NAIVE = ("a0", "b0", "a1", "b1")
PP, DP = 2, 2
SAMPLES = 2
"""Of a micro-batch."""
NOISE = 0.01
"""By so much equal steps differ from run to run."""


@dataclass(frozen=True)
class Job:
    schedule: str
    micro_batches: int
    """Of a replica."""
    width: int
    """Numbers of float64 of a sample's activations."""
    gradients: int
    """Numbers of float32 of a stage."""
    unit_s: float
    repeats: int

    @property
    def messages_bytes(self) -> int:
        """Of a step, both ways, over the one boundary."""
        return 2 * DP * self.micro_batches * SAMPLES * self.width * 8

    @property
    def sums_bytes(self) -> int:
        """Of a step, of the replicas of both stages."""
        return PP * 2 * (DP - 1) * self.gradients * 4

    def ideal_s(self, fast_bytes_per_s: float) -> float:
        """A rank sends (d - 1) / d of the gradients to be summed, and as much to be gathered."""
        steps = (self.micro_batches + PP - 1) * (FORWARD + BACKWARD) * self.unit_s
        return steps + 2 * (DP - 1) / DP * self.gradients * 4 / fast_bytes_per_s


def measure(job: Job, hosts: Sequence[str], laid: Any, deadline_s: float) -> tuple[list[float], float]:
    """Seconds of each repeat, and bytes of a step between the clusters. `hosts`: of each rank."""
    forked = multiprocessing.get_context("fork")
    reader, writer = forked.Pipe(duplex=False)
    switches = laid.space("sw")
    with tempfile.TemporaryDirectory() as folder:
        processes = [
            forked.Process(target=_rank, args=(rank, job, laid.space(host), switches, f"{folder}/store", writer))
            for rank, host in enumerate(hosts)
        ]
        for process in processes:
            process.start()
        writer.close()
        try:
            if not reader.poll(deadline_s):
                sys.exit(f"ranks did not end within {deadline_s:.0f} s")
            found: tuple[list[float], float] = reader.recv()
        except EOFError:
            sys.exit("a rank failed: see its error above")
        finally:
            for process in processes:
                process.join(10)
                process.kill()
                process.join()
    return found


def _rank(rank: int, job: Job, space: str, switches: str, store: str, results: Any) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
    with cables.inside(space):
        world = PP * DP
        dist.init_process_group("gloo", store=dist.FileStore(store, world), rank=rank, world_size=world)
        seconds, crossed = _steps(rank, job, switches)
        if rank == 0:
            results.send((seconds, crossed))
        dist.barrier()
        dist.destroy_process_group()


def _steps(rank: int, job: Job, switches: str) -> tuple[list[float], float]:
    import torch
    import torch.distributed as dist

    from holdfast.trainer.mesh.collectives import all_gather, reduce_scatter
    from holdfast.trainer.pipeline.executor import Executor
    from holdfast.trainer.pipeline.shared_state import Sharing
    from holdfast.trainer.pipeline.stage import Stage

    schedule = SCHEDULES[job.schedule]
    layout = TrainerLayout(PP, DP, 1, schedule.chunks, job.micro_batches, schedule.placement)
    orders = schedule.build(PP, layout.chunks, job.micro_batches)
    one = replace(layout, dp=1)  # replicas are summed below, so the plan has none
    plan = job_plan(one, job.schedule, layout.stages, orders, ahead=2)
    stage, replica, _ = layout.coordinate(rank)
    own = {"use_local_synchronization": True}
    pipeline = dist.new_group([layout.rank(p, replica, 0) for p in range(PP)], **own)
    replicas = dist.new_group([layout.rank(stage, d, 0) for d in range(DP)], **own)
    alone = Sharing(dist.new_group([rank], **own), 0, ())
    cpu, like = torch.device("cpu"), torch.zeros(SAMPLES, job.width, dtype=torch.float64)
    stages = [
        Stage(sleeping_stage(job.unit_s / layout.chunks, job.width), s, layout.stages, cpu, alone, pipe)
        for s, pipe in one.held_by(stage)
    ]
    executor = Executor(plan, stage, stages, difference, pipeline, like)
    held = one.stages_of(stage)
    rows = SAMPLES * job.micro_batches
    inputs = torch.ones(rows, job.width, dtype=like.dtype) if 0 in held else None
    target = torch.zeros(rows, job.width, dtype=like.dtype) if layout.stages - 1 in held else None
    gradients = torch.ones(DP, job.gradients // DP)
    whole = torch.empty(job.gradients)
    seconds, before = [], 0
    for number in range(1 + job.repeats):
        dist.barrier()
        if rank == 0 and number == 1:  # the first step has settled connections
            before = cables.crossed_bytes(switches)
        # All begin at one moment, which they read from the host's clock.
        begin = torch.tensor([time.monotonic() + 0.2], dtype=torch.float64)
        dist.broadcast(begin, 0)
        time.sleep(max(0.0, float(begin) - time.monotonic()))
        executor.step(inputs, target)
        all_gather(whole, reduce_scatter(gradients, replicas), replicas)
        assert float(whole[0]) == float(whole[-1]) == DP
        ends = torch.tensor([time.monotonic()], dtype=torch.float64) - begin
        dist.all_reduce(ends, dist.ReduceOp.MAX)
        seconds.append(float(ends))
    dist.barrier()
    crossed = (cables.crossed_bytes(switches) - before) / job.repeats if rank == 0 else 0.0
    return seconds[1:], crossed


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--schedule", choices=("gpipe", "1f1b", "eager-1f1b"), default="gpipe")
    made.add_argument("--micro-batches", type=int, default=8, help="of a replica in a step")
    made.add_argument("--unit-ms", type=float, default=40.0, help="of a stage's forward of a micro-batch")
    made.add_argument("--repeats", type=int, default=5)
    made.add_argument("--fast-mbit", type=float, default=800.0, help="rate of each host's link")
    made.add_argument("--slow-mbit", type=float, default=100.0, help="rate of the link between the clusters")
    made.add_argument("--message-kib", type=int, default=64, help="of a micro-batch's activations")
    made.add_argument("--gradients-mib", type=float, default=2.0, help="of a stage")
    options: argparse.Namespace = made.parse_args()
    if why := cables.missing():
        sys.exit(f"hosts of their own cannot be made here: {why}")
    job = Job(options.schedule, options.micro_batches, options.message_kib * 1024 // 8 // SAMPLES,
              int(options.gradients_mib * 2**20) // 4 // DP * DP, options.unit_ms / 1e3, options.repeats)  # fmt: skip
    fast, slow = (f"{rate:g}mbit" for rate in (options.fast_mbit, options.slow_mbit))
    ideal = job.ideal_s(options.fast_mbit * 1e6 / 8)
    # What the slow link needs for all that could cross, three times over, and time to start.
    crossing_s = (job.messages_bytes + job.sums_bytes) * 8 / options.slow_mbit / 1e6
    longest = 120 + (1 + job.repeats) * 3 * (ideal + crossing_s)
    preload()
    laid = cables.Cables(CLUSTER_OF, subnet="10.80.0")
    found: dict[str, tuple[list[float], float]] = {}
    try:
        laid.lay()
        for host in CLUSTER_OF:
            laid.limit(host, fast)
        for name, hosts, rate in (("homogeneous", BY_TYPE, fast), ("by type", BY_TYPE, slow), ("naive", NAIVE, slow)):
            laid.narrow(rate)
            found[name] = measure(job, hosts, laid, longest)
    finally:
        laid.close()
    steps = {name: median(seconds) for name, (seconds, _) in found.items()}
    formula = {"homogeneous": job.messages_bytes, "by type": job.messages_bytes, "naive": job.sums_bytes}
    rows = [
        [name, ideal, steps[name], steps[name] / ideal, crossed / 1e6, formula[name] / 1e6]
        for name, (_, crossed) in found.items()
    ]
    result: dict[str, Any] = {
        "job": asdict(job),
        "ideal_s": ideal,
        "steps_s": {name: seconds for name, (seconds, _) in found.items()},
        "median_s": steps,
        "crossed_bytes": {name: crossed for name, (_, crossed) in found.items()},
        "formula_bytes": formula,
        "in_order": steps["homogeneous"] <= (1 + NOISE) * steps["by type"] < steps["naive"],
        "hidden": steps["by type"] <= 1.1 * ideal,
    }
    finish(result, options.json, ["order of ranks", "ideal s", "step s", "of ideal", "MB across", "by formula"], rows)
    if not options.json:
        print(json.dumps({key: result[key] for key in ("in_order", "hidden")}))


if __name__ == "__main__":
    main()
