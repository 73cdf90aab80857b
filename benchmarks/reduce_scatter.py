"""Reduce-scatter of float32 over gloo: its own, which is an all-reduce inside, against ours by exchange of pieces.

python benchmarks/reduce_scatter.py [--json] [--ranks 2,4,8] [--repeat 15]

Alternating in one run, with the average that FSDP2 asks for; milliseconds are the median of rank 0's.
"""

import multiprocessing as processes
import os
import time
from datetime import timedelta
from multiprocessing.connection import Connection
from statistics import median

from common import Json, finish, free_port, parser

SIZES = {"64 KiB": 1 << 14, "4 MiB": 1 << 20, "16 MiB": 1 << 22}
DEADLINE_S = 120.0


def rank_main(rank: int, world: int, port: int, repeat: int, answer: Connection) -> None:
    import torch
    import torch.distributed as dist

    from holdfast.trainer.mesh.collectives import ReduceScatter

    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world, timeout=timedelta(seconds=DEADLINE_S))
    group, average, ours = dist.group.WORLD, dist.ReduceOp.AVG, ReduceScatter()
    theirs = dist.reduce_scatter_single if hasattr(dist, "reduce_scatter_single") else dist.reduce_scatter_tensor
    result: Json = {}
    for label, size in SIZES.items():
        x, total = torch.ones(size), torch.empty(size // world)
        times: dict[str, list[float]] = {"gloo": [], "holdfast": []}
        for _ in range(repeat + 2):
            for name, reduce in (("gloo", theirs), ("holdfast", ours)):
                dist.barrier()
                begun = time.perf_counter()
                reduce(total, x, group=group, op=average)
                times[name].append(time.perf_counter() - begun)
        result[label] = {name: round(1e3 * median(taken[2:]), 3) for name, taken in times.items()}
    if rank == 0:
        answer.send(result)
    dist.destroy_process_group()


def measure(world: int, repeat: int) -> Json:
    """Milliseconds by size and system."""
    context = processes.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    port = free_port()
    ranks = [context.Process(target=rank_main, args=(rank, world, port, repeat, sender)) for rank in range(world)]
    try:
        for rank in ranks:
            rank.start()
        if not receiver.poll(DEADLINE_S):
            raise SystemExit(f"reduce_scatter.py: {world} ranks gave no figures in {DEADLINE_S:g} s")
        found: Json = receiver.recv()
        for rank in ranks:
            rank.join(DEADLINE_S)
        return found
    finally:
        for rank in ranks:
            if rank.is_alive():
                rank.kill()


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--ranks", default="2,4,8", help="sizes of group (default: 2,4,8)")
    made.add_argument("--repeat", type=int, default=15)
    options = made.parse_args()
    found = {int(world): measure(int(world), options.repeat) for world in options.ranks.split(",")}
    rows = [
        (f"{world} ranks, {size}", ms["gloo"], ms["holdfast"], ms["gloo"] / ms["holdfast"])
        for world, sizes in found.items()
        for size, ms in sizes.items()
    ]
    finish({"medians_ms": found}, options.json, ("reduce-scatter", "gloo ms", "holdfast ms", "ratio"), rows)


if __name__ == "__main__":
    main()
