"""`toy_ddp.py` as torchft wants it: each worker a replica group, which takes the state from one that is ahead.

    torchrun --nproc-per-node 1 benchmarks/workers/toy_torchft.py --folder DIR --group 0 [--fixed 4]

With `--fixed`, so many groups count in each step, and any others are spares. TORCHFT_LIGHTHOUSE names the lighthouse.
"""

import argparse
from datetime import timedelta
from pathlib import Path

import torch
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo
from torchft.manager import WorldSizeMode
from toy_ddp import EVERY, batch, done, network


def main() -> None:
    cli = argparse.ArgumentParser()
    cli.add_argument("--folder", type=Path, required=True)
    cli.add_argument("--group", type=int, required=True)
    cli.add_argument("--fixed", type=int, default=0)
    options = cli.parse_args()
    torch.set_num_threads(1)
    plain = network()
    inner = torch.optim.SGD(plain.parameters(), lr=1e-3)

    def load(state: dict[str, dict[str, object]]) -> None:
        plain.load_state_dict(state["model"])
        inner.load_state_dict(state["optimizer"])

    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=5)),
        load_state_dict=load,
        state_dict=lambda: {"model": plain.state_dict(), "optimizer": inner.state_dict()},
        min_replica_size=options.fixed or 1,
        world_size_mode=WorldSizeMode.FIXED_WITH_SPARES if options.fixed else WorldSizeMode.DYNAMIC,
        replica_id=f"toy_{options.group}",
        timeout=timedelta(seconds=10),
    )
    model, optimizer = DistributedDataParallel(manager, plain), Optimizer(manager, inner)
    with open(options.folder / f"rank{options.group}.log", "a", buffering=1) as log:
        while True:
            x = batch(options.folder, options.group, manager.current_step())
            optimizer.zero_grad()
            before = manager.current_step()  # which may have become another's
            model(x).square().mean().backward()
            optimizer.step()
            if (step := manager.current_step() - 1) >= before:  # it was committed
                log.write(done(step))
                if options.group == 0 and (step + 1) % EVERY == 0:
                    torch.save({"model": plain.state_dict(), "step": step + 1}, options.folder / "newest.pt")


if __name__ == "__main__":
    main()
