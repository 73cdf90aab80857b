"""What forked ranks do in the tests of group initialisation."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from holdfast.trainer.__main__ import parse
from holdfast.trainer.mesh.mesh import choose_device, group_of, join, leave, require_agreement
from holdfast.trainer.mesh.rendezvous import CountingStore, open_store
from holdfast.trainer.settings.launch import from_environment, keep_loopback_local
from holdfast.trainer.settings.layout import plan


def meet(folder: Path, argv: list[str]) -> dict[str, Any]:
    """Group initialisation alone, up to the first collective of all ranks; what it asked of the store."""
    config = parse(argv)
    launch = from_environment(os.environ)
    layout = plan(config, launch.world, 256)
    timeout = timedelta(seconds=config.parallel.timeout_s)
    begun = time.perf_counter()
    keep_loopback_local(os.environ)
    store = CountingStore(open_store(config.parallel.rendezvous, launch, os.environ, timeout))
    join(config, launch, layout, choose_device(config, launch), store)
    try:
        require_agreement(7, "anything")
        return {"operations": dict(store.operations), "seconds": time.perf_counter() - begun}
    finally:
        leave()


def unlike(folder: Path) -> list[int]:
    """Sums over groups of ranks 0 and 1, of 1 and 2, and of 1 and 2 once more: rank 1 is in all of them."""
    launch, timeout = from_environment(os.environ), timedelta(seconds=200)
    store = open_store("env", launch, os.environ, timeout)
    dist.init_process_group("gloo", store=store, rank=launch.rank, world_size=launch.world, timeout=timeout)
    try:
        found = []
        for ranks in ((0, 1), (1, 2), (1, 2)):
            if launch.rank in ranks:
                sums = torch.tensor([launch.rank])
                dist.all_reduce(sums, group=group_of(ranks, timeout, "pair"))
                found.append(int(sums))
        return found
    finally:
        leave()
