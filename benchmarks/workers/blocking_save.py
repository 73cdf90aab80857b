"""How long one system holds training up for one save: first time, and the times after it. Started by `checkpoint.py`.

python blocking_save.py SYSTEM --size-mb 1024 --saves 20 --folder FOLDER

Prints one JSON object: the seconds of each save, of the preparation before the first one, and for Holdfast those of a
plain copy of the same bytes, taken alternately. What a save does behind training's back has ended before the next one
begins. Files go to FOLDER; give one in memory, and what remains is the systems' own cost.
"""

import argparse
import ctypes
import gc
import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import model_state
import torch
from torch import Tensor

COMPUTE_SHARE = 3.0
"""What runs beside an overlapped copy takes about so many times as long as the copy alone."""
State = dict[str, Tensor]


class System:
    """`save` is what training waits for; `settle` waits for the rest."""

    def __init__(self, state: State, folder: Path) -> None:
        self.state, self.folder = state, folder

    def save(self, step: int) -> None:
        raise NotImplementedError

    def settle(self) -> None:
        """Return when the last save is complete."""

    def close(self) -> None:
        """Leave nothing behind."""


class Memcpy(System):
    """The floor: each tensor into memory that has all its pages, by the C library, one thread."""

    def __init__(self, state: State, folder: Path) -> None:
        super().__init__(state, folder)
        self._copy = ctypes.CDLL(None).memmove
        self._copy.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
        targets = [torch.zeros_like(tensor) for tensor in state.values()]
        self._keep = targets
        self._moves = [
            (target.data_ptr(), tensor.data_ptr(), tensor.numel() * tensor.element_size())
            for target, tensor in zip(targets, state.values(), strict=True)
        ]

    def save(self, step: int) -> None:
        for move in self._moves:
            self._copy(*move)


class Holdfast(System):
    """A snapshot, and the wait for it right behind."""

    def __init__(self, state: State, folder: Path) -> None:
        from holdfast.checkpoint.format.tiles import GlobalTensor
        from holdfast.checkpoint.snapshots.arena import Arena
        from holdfast.checkpoint.snapshots.description import Description
        from holdfast.checkpoint.worker.snapshot import Snapshotter

        super().__init__(state, folder)
        whole = {name: GlobalTensor(name, tuple(tensor.shape), "F32") for name, tensor in state.items()}
        description = Description("bench", 0, 1, "", whole, [(name, one.shard) for name, one in whole.items()])
        self.arena = Arena.create(folder / "own.snap", description)
        self.snapshotter = Snapshotter(self.arena, torch.device("cpu"))
        self._tensors = list(state.values())

    def begin(self, step: int) -> None:
        assert self.snapshotter.begin(step, 0, {"step": step}, self._tensors)

    def save(self, step: int) -> None:
        self.begin(step)
        self.snapshotter.wait_copied()

    def settle(self) -> None:
        made = self.snapshotter.finish()
        assert made is not None

    def close(self) -> None:
        newest = self.arena.snapshots()[0]
        held, one = self.arena.held(newest.slot), next(iter(self.state))
        assert not self.arena.broken(newest)
        assert held[one][0].data.tobytes() == self.state[one].numpy().tobytes()
        self.snapshotter.close()
        self.arena.close()


class TorchSave(System):
    def save(self, step: int) -> None:
        torch.save(self.state, self.folder / "state.pt")


class Dcp(System):
    """torch.distributed.checkpoint, a new folder each time, as it wants."""

    def __init__(self, state: State, folder: Path) -> None:
        import torch.distributed as dist

        super().__init__(state, folder)
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        self._last: Path | None = None

    def target(self, step: int) -> str:
        if self._last is not None:
            shutil.rmtree(self._last)
        self._last = self.folder / f"step-{step}"
        return str(self._last)

    def save(self, step: int) -> None:
        import torch.distributed.checkpoint as dcp

        dcp.save(self.state, checkpoint_id=self.target(step))

    def close(self) -> None:
        import torch.distributed as dist

        dist.destroy_process_group()


class DcpAsync(Dcp):
    """`async_save` as it is by default."""

    options: dict[str, Any] = {}  # noqa: RUF012  # constants
    _future: Any = None

    def save(self, step: int) -> None:
        import torch.distributed.checkpoint as dcp

        self._future = dcp.async_save(self.state, checkpoint_id=self.target(step), **self.options)

    def settle(self) -> None:
        future = getattr(self._future, "upload_completion", self._future)
        future.result()


class DcpAsyncShared(DcpAsync):
    """`async_save` with the stager that keeps its memory, which is shared."""

    def __init__(self, state: State, folder: Path) -> None:
        from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

        super().__init__(state, folder)
        self._stager = DefaultStager(StagingOptions(False, True, False, False))
        self.options = {"async_stager": self._stager}

    def close(self) -> None:
        self._stager.close()
        super().close()


class DcpAsyncProcess(DcpAsyncShared):
    """The same, and a process of its own that writes."""

    def __init__(self, state: State, folder: Path) -> None:
        import torch.distributed as dist
        from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

        super().__init__(state, folder)
        # Its process meets ours once more, at this address.
        dist.destroy_process_group()
        os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": _free_port()}
        dist.init_process_group("gloo")
        self.options["async_checkpointer_type"] = AsyncCheckpointerType.PROCESS


class DlRover(System):
    """Flash checkpoint, into memory."""

    def __init__(self, state: State, folder: Path) -> None:
        os.environ["TORCHELASTIC_RUN_ID"] = os.environ["ELASTIC_JOB_NAME"] = f"bench{os.getpid()}"
        from dlrover.trainer.torch.flash_checkpoint.checkpointer import StorageType
        from dlrover.trainer.torch.flash_checkpoint.ddp import DdpCheckpointer

        super().__init__(state, folder)
        self._checkpointer = DdpCheckpointer(str(folder))
        self._kind = StorageType.MEMORY

    def save(self, step: int) -> None:
        self._checkpointer.save_checkpoint(step, dict(self.state), storage_type=self._kind)

    def close(self) -> None:
        engine = self._checkpointer._engine
        assert engine._cached_step > 0, "it skipped the saves"
        engine._shm_handler.unlink()
        engine.saver_proc.kill()


class LmResiliency(System):
    """Its host copy, without a peer; on a CPU `save_tensors` is the copy."""

    def __init__(self, state: State, folder: Path) -> None:
        from lm_resiliency import InMemoryCkptConfig
        from lm_resiliency.checkpointing.manager import InMemoryCheckpointManager

        super().__init__(state, folder)
        config = InMemoryCkptConfig(
            interval=1, pin_memory=False, disk_flush_interval=0, disk_folder=str(folder), run_id="bench"
        )
        self._manager = InMemoryCheckpointManager(config)
        self._tensors = list(state.values())

    def save(self, step: int) -> None:
        self._manager.save_tensors(self._tensors, step)
        self._manager.maybe_wait()

    def close(self) -> None:
        self._manager.close()


SYSTEMS: dict[str, type[System]] = {
    "memcpy": Memcpy,
    "holdfast": Holdfast,
    "torch.save": TorchSave,
    "DCP save": Dcp,
    "DCP async_save": DcpAsync,
    "DCP async_save, shared memory": DcpAsyncShared,
    "DCP async_save, shared memory, process": DcpAsyncProcess,
    "DLRover": DlRover,
    "lm-resiliency": LmResiliency,
}


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def measure(name: str, state: State, saves: int, folder: Path) -> dict[str, Any]:
    began = time.perf_counter()
    system = SYSTEMS[name](state, folder)
    result: dict[str, Any] = {"ready_s": time.perf_counter() - began, "times_s": []}
    floor = Memcpy(state, folder) if isinstance(system, Holdfast) else None
    step = 0
    for step in range(1, saves + 2):
        result["times_s"].append(timed(lambda: system.save(step)))  # noqa: B023  # called at once
        system.settle()
        if floor is not None:
            result.setdefault("floor_s", []).append(timed(lambda: floor.save(step)))  # noqa: B023
    if isinstance(system, Holdfast):
        del floor
        result |= _overlapped(system, saves, step, sum(result["floor_s"][1:]) / saves)
    system.close()
    return result


def _overlapped(system: Holdfast, saves: int, step: int, copy_s: float) -> dict[str, Any]:
    """What a save costs when a step's computation comes between its begin and the wait for it."""
    left, right = torch.rand(768, 768), torch.rand(768, 768)
    rounds = max(1, round(COMPUTE_SHARE * copy_s / min(timed(lambda: left @ right) for _ in range(10))))

    def compute() -> None:
        for _ in range(rounds):
            left @ right

    alone, beside, begin, wait = [], [], [], []
    for number in range(saves + 1):
        alone.append(timed(compute))
        began = time.perf_counter()
        begin.append(timed(lambda: system.begin(step + 1 + number)))  # noqa: B023
        compute()
        wait.append(timed(system.snapshotter.wait_copied))
        beside.append(time.perf_counter() - began)
        system.settle()
    return {"alone_s": alone, "beside_s": beside, "begin_s": begin, "wait_s": wait}


def _free_port() -> str:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def main() -> None:
    made = argparse.ArgumentParser(description=__doc__)
    made.add_argument("system", choices=SYSTEMS)
    made.add_argument("--size-mb", type=float, default=1024)
    made.add_argument("--saves", type=int, default=20)
    made.add_argument("--folder", type=Path, required=True)
    options = made.parse_args()
    torch.set_num_threads(1)
    # What the systems say of themselves does not belong into the answer.
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    state = {name: torch.rand(shape) for name, shape in model_state.tensors(options.size_mb).items()}
    gc.disable()
    try:
        result = measure(options.system, state, options.saves, options.folder)
    except ImportError as error:
        result = {"problem": f"not installed ({error.name or error})"}
    print(json.dumps(result), file=answer, flush=True)
    sys.stderr.flush()
    os._exit(0)  # threads and processes that some systems leave behind must not hold us up


if __name__ == "__main__":
    main()
