"""More frameworks of random scripts: FSDP2, tensor parallel, a pipeline, asynchronous checkpoints, RPC."""

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from random_frameworks import FINISH, RANK, WIDTH, WORLD, At, Step, ddp, init, net, optimizer_of, plain_step
from torch import Tensor
from torch.distributed import rpc
from torch.distributed.checkpoint import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import async_save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

SAVE_EVERY = 5


def fsdp2(at: At, folder: Path) -> Step:
    init()
    mesh, model = init_device_mesh("cpu", (WORLD,)), net(at)
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    return plain_step(model, optimizer_of(model, at), at)


def tp(at: At, folder: Path) -> Step:
    init()
    model = parallelize_module(
        net(at, 3), init_device_mesh("cpu", (WORLD,)), {"0": ColwiseParallel(), "2": RowwiseParallel()}
    )
    return plain_step(model, optimizer_of(model, at), at)


def pipeline(at: At, folder: Path) -> Step:
    init()
    model = net(at, WIDTH)
    stage = PipelineStage(model, RANK, WORLD, torch.device("cpu"))
    schedule = Schedule1F1B(stage, 4, loss_fn=lambda out, target: (out - target).square().mean())
    optimizer = optimizer_of(model, at)

    def step(number: int) -> None:
        batch, is_last = torch.randn(8, WIDTH), RANK == WORLD - 1
        optimizer.zero_grad()
        schedule.step(*([batch] if RANK == 0 else []), **({"target": batch, "losses": []} if is_last else {}))
        at("after-backward")
        optimizer.step()

    return step


class _Writer(FileSystemWriter):
    def __init__(self, path: Path, at: At) -> None:
        super().__init__(path)
        self.at = at

    def write_data(self, *args: Any, **more: Any) -> Any:
        self.at("writer")
        return super().write_data(*args, **more)


def dcp(at: At, folder: Path) -> Step:
    """A thread saves in a group of its own while training goes on."""
    step, group = ddp(at, folder), dist.new_group(list(range(WORLD)))
    state, saves = net(lambda place: None).state_dict(), []

    def saving_step(number: int) -> None:
        step(number)
        if number % SAVE_EVERY == SAVE_EVERY - 1:
            if saves:
                saves.pop().result()
            writer = _Writer(folder / f"saved-{number}", at)
            saves.append(async_save({"model": state}, storage_writer=writer, process_group=group))

    return saving_step


_REMOTE_AT: list[At] = []


def _remote(number: int) -> Tensor:
    _REMOTE_AT[0](f"remote:{number}")
    return torch.ones(2) * number


def remote(at: At, folder: Path) -> Step:
    """Rank 0 trains, and calls the others, which serve until all is over."""
    _REMOTE_AT.append(at)
    rpc.init_rpc(
        f"worker{RANK}", rank=RANK, world_size=WORLD,
        rpc_backend_options=rpc.TensorPipeRpcBackendOptions(rpc_timeout=1800),
    )  # fmt: skip
    FINISH.append(rpc.shutdown)
    model = net(at)
    own = plain_step(model, optimizer_of(model, at), at)

    def step(number: int) -> None:
        if RANK == 0:
            replies = [rpc.rpc_async(f"worker{other}", _remote, (number,)) for other in range(1, WORLD)]
            own(number)
            torch.futures.wait_all(replies)

    return step


PARALLEL: dict[str, Any] = {"fsdp2": fsdp2, "tp": tp, "pipeline": pipeline, "dcp": dcp, "rpc": remote}
