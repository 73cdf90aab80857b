"""What forked ranks do in the tests of transfer plans: real messages over gloo."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from holdfast.plan.moves.order import Algorithm
from holdfast.plan.moves.strategies import Strategy
from holdfast.plan.moves.transfer_plan import make_plan
from holdfast.plan.moves.units import units
from holdfast.trainer.mesh.transfer import run
from tests.holdfast.support.random_moves import random_case

FIRST, SECOND = "first", "second"


def moved(folder: Path, seeds: list[int], world: int) -> dict[str, Any]:
    """Transfer two tensors of each case by each strategy; in which of them something here differs from slicing."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    store = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), world, is_master=False)
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=60))
    group, wrong, received, messages = dist.group.WORLD, [], 0, 0
    assert group is not None
    for seed in seeds:
        case = random_case(seed)
        if len(case.hosts) > world:
            continue
        wholes = {
            FIRST: torch.randn(case.shape, generator=torch.Generator().manual_seed(seed)).bfloat16(),
            SECOND: torch.randint(-(2**62), 2**62, case.shape, generator=torch.Generator().manual_seed(seed)),
        }
        found = [
            unit
            for name, whole in wholes.items()
            for unit in units(name, whole.element_size(), case.source.held(case.shape), case.target.held(case.shape))
        ]
        source, target = {}, {}
        for name, whole in wholes.items():
            if rank in case.source.ranks:
                shard = case.source.shard(case.source.ranks.index(rank), case.shape)
                source[name] = (shard, whole[shard.slices].clone())
            if rank in case.target.ranks:
                shard = case.target.shard(case.target.ranks.index(rank), case.shape)
                target[name] = (shard, torch.full(shard.size, -1, dtype=whole.dtype))
        for strategy in (None, *Strategy):
            for _, part in target.values():
                part.fill_(-1)
            plan = make_plan(found, case.hosts, strategy, chunks=3, algorithm=Algorithm.LOAD)
            run(plan, source, target, group)
            messages += sum(m.target == rank for move in plan.moves for m in plan.messages(move))
            for name, (shard, part) in target.items():
                received += part.numel()
                if not torch.equal(part, wholes[name][shard.slices]):
                    wrong.append([seed, str(strategy), name])
    dist.barrier()
    dist.destroy_process_group()
    return {"wrong": wrong, "received": received, "messages": messages}
