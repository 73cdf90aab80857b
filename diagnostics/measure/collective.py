"""One rank of a measured collective: `python -m holdfast.diagnostics.measure.collective` for the ranks of one node."""

import argparse
import json
import os
import sys
import time

from holdfast.base import service
from holdfast.diagnostics.measure.busbw import Collective, busbw
from holdfast.diagnostics.measure.hardware import nic_addresses


def measure(
    collective: Collective, backend: str, rank: int, ranks: int, meet: str, size: int, iterations: int, own: str = ""
) -> float:
    """Bus bandwidth of this rank, bytes per second. ImportError without torch; RuntimeError when the group fails.

    `meet`: host:port where rank 0 listens. `size`: bytes, S of busbw. `own`: this node's address, so that gloo takes
    the right interface instead of what the hostname resolves to.
    """
    import torch
    from torch import distributed

    interface = next((name for name, address in nic_addresses() if address == own), "")
    if interface:
        os.environ["GLOO_SOCKET_IFNAME"] = interface
    if backend == "nccl":
        torch.cuda.set_device(rank)
    torch.set_num_threads(1)
    distributed.init_process_group(backend, init_method=f"tcp://{meet}", rank=rank, world_size=ranks)
    try:
        device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
        count = size // 4 // ranks * ranks
        given = torch.ones(count, device=device)
        taken = torch.empty_like(given)

        def once() -> None:
            if collective is Collective.ALL_TO_ALL:
                distributed.all_to_all_single(taken, given)
            else:
                distributed.all_reduce(given)

        def settled() -> None:
            if device.type == "cuda":
                torch.cuda.synchronize(device)

        once()
        distributed.barrier()
        settled()
        start = time.perf_counter()
        for _ in range(iterations):
            once()
        settled()
        seconds = (time.perf_counter() - start) / iterations
        return busbw(collective, count * 4, seconds, ranks)
    finally:
        distributed.destroy_process_group()


def main(argv: list[str]) -> int:
    service.follow_parent()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("collective", type=Collective, choices=[Collective.ALL_TO_ALL, Collective.ALL_REDUCE])
    parser.add_argument("--backend", default="gloo")
    parser.add_argument("--meet", required=True)
    for name in ("rank", "ranks", "size", "iterations"):
        parser.add_argument(f"--{name}", type=int, required=True)
    given = parser.parse_args(argv)
    rate = measure(
        given.collective, given.backend, given.rank, given.ranks, given.meet, given.size, given.iterations, "127.0.0.1"
    )
    print(json.dumps({"busbw": rate}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
