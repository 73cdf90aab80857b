"""Unmodified PyTorch scripts under the hooks, in real worker processes."""

import asyncio
import json
import math
import os
import signal
import time
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from holdfast.agent.probe_file.layout import SAVED_SUFFIX
from holdfast.agent.probe_file.reader import ProbeReader
from holdfast.diagnostics.hang.graph import Group, Reason, WaitState, judge
from holdfast.wire.messages import Program
from holdfast.wire.operation_size import words
from holdfast.wire.types import PendingCollective, Phase
from tests.agent.support.warm_node import Node, eventually, node

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="needs torch")

LOOP = """
import torch
model = torch.nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.01)
other = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.01)
for n in range({steps}):
    for _ in range(2):  # gradient accumulation
        loss = model(torch.ones(2, 4)).sum()
        loss.backward()
    opt.step()
    other.step()
    opt.zero_grad()
    {end}
print("done", loss.item())
"""

TWO_RANKS = """
import os, torch, torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from torch.nn.parallel import DistributedDataParallel
from holdfast.agent import probe
seen = []
real = probe.operation
probe.operation = lambda name: seen.append(name) or real(name)

dist.init_process_group("gloo")
rank = dist.get_rank()
assert dist.all_reduce is c10d.all_reduce and dist.all_reduce.__name__ == "all_reduce"
x = torch.ones(3) * (rank + 1)
assert dist.all_reduce(x) is None and x.tolist() == [3, 3, 3]
work = dist.all_reduce(x, async_op=True)
work.wait()
objects = [None, None]
dist.all_gather_object(objects, rank)
assert objects == [0, 1]
dist.send(x, 1) if rank == 0 else dist.recv(x, 0)
dist.barrier()
try:
    dist.all_reduce("not a tensor")
except TypeError as error:
    print("passed on:", error)
operations = [name for name in seen if name]
seen.clear()
model = DistributedDataParallel(torch.nn.Linear(4, 2))
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    out = {"logits": model(torch.ones(1, 4) * rank)}
    out["logits"].sum().backward()
    opt.step()
print(operations)
print(seen)
import copy, pickle
copy.deepcopy(model.module); model.state_dict()
dist.destroy_process_group()
"""


PRELOAD = ("torch", "holdfast.trainer.preload")
"""As agents have it. What optimizers import on their first step would cost each worker more than all that it does."""


async def start(one: Node, code: str, rank: int = 0, **env: str) -> ProbeReader:
    spec = one.spec("", rank)
    (one.folder / f"script{rank}.py").write_text(code)
    program = Program(str(one.folder / f"script{rank}.py"), cwd=str(one.folder))
    path = one.folder / f"probe{rank}"
    await one.start(code, rank, program=program, env={**spec.env, **env})
    await eventually(path.exists)
    return ProbeReader(str(path))


@pytest.mark.slow
def test_unmodified_scripts(tmp_path: Path) -> None:
    async def story() -> None:
        async with node(tmp_path, *PRELOAD) as one:
            assert one.warm
            assert one.warm.preload_errors == {}
            await steps_are_counted(one)
            await what_is_saved_is_seen(one)
            await what_others_save_is_seen(one)
            await a_script_that_reports_is_left_alone(one)
            await nan_reaches_the_loss(one)
            await two_ranks(one)
            await a_hang_is_named(one)
            await tearing_down_is_no_training(one)
            await another_size_is_named(one)
            await a_fresh_interpreter_is_hooked_and_computes_the_same(one)

    asyncio.run(story())


async def steps_are_counted(one: Node) -> None:
    reader = await start(one, LOOP.format(steps=5, end=""))
    assert (await one.ended()).code == 0, one.err()
    steps = reader.new_steps()
    assert [record.step for record in steps] == [0, 1, 2, 3, 4]
    assert all(record.is_counted for record in steps)
    sample = reader.sample(time.monotonic_ns())
    assert (sample.step, sample.phase) == (4, Phase.DONE)
    assert math.isnan(sample.loss)
    reader.close()


async def what_is_saved_is_seen(one: Node) -> None:
    end = """
    if n < 1: torch.save(model.state_dict(), "before.pt")
    buffer = __import__("io").BytesIO(); torch.save(1, buffer)
    with open(f"step_{n * 10}.pt", "wb") as file: torch.save(n, file); torch.save(n, file)
    """
    head = LOOP.format(steps=3, end=end).replace("for n in", "torch.save(1, 'start.pt')\nfor n in", 1)
    reader = await start(one, head, 40)
    assert (await one.ended(40)).code == 0, one.err(40)
    reader.close()
    said = json.loads((one.folder / f"probe40{SAVED_SUFFIX}").read_text())
    # What was saved before the first step is no progress; two pieces of one file are one.
    assert said == {"count": 4, "path": "step_20.pt", "number": 20}


WAYS = {
    "safetensors": ("from safetensors.torch import save_file", "save_file({'n': torch.ones(1)}, FILE)"),
    "numpy": ("import numpy as np", "np.savez(FILE, n=n)"),
    "array": ("import numpy as np", "with open(FILE, 'wb') as file: np.save(file, n)"),
    "pickle": ("from pickle import dump", "with open(FILE, 'wb') as file: dump(n, file=file)"),
}


async def what_others_save_is_seen(one: Node) -> None:
    for rank, (way, (head, save)) in enumerate(WAYS.items(), 41):
        name = f"f'ckpt_step_{{n * 10}}.{way}'"
        reader = await start(one, f"{head}\n{LOOP.format(steps=3, end=save.replace('FILE', name))}", rank)
        assert (await one.ended(rank)).code == 0, one.err(rank)
        reader.close()
        said = json.loads((one.folder / f"probe{rank}{SAVED_SUFFIX}").read_text())
        assert said == {"count": 3, "path": f"ckpt_step_20.{way}", "number": 20}
    # Files of any kind are no progress, and the functions stay what others take them for.
    code = """
import functools, numpy, pickle
numpy.save("metrics.npy", [1.0])
with open("cache.pkl", "wb") as file: pickle.dump(1, file)
pickle.loads(pickle.dumps(functools.partial(pickle.dump, 1)))
assert pickle.dumps(numpy.save) and pickle.dumps(torch.save)
"""
    reader = await start(one, LOOP.format(steps=3, end="") + code, 49)
    assert (await one.ended(49)).code == 0, one.err(49)
    reader.close()
    assert not (one.folder / f"probe49{SAVED_SUFFIX}").exists()


async def a_script_that_reports_is_left_alone(one: Node) -> None:
    code = LOOP.format(steps=3, end="probe.step(n + 100, loss=1.0)")
    reader = await start(one, "from holdfast.agent import probe\nprobe.phase('train')\n" + code, 1)
    assert (await one.ended(1)).code == 0, one.err(1)
    steps = reader.new_steps()
    assert [record.step for record in steps] == [100, 101, 102]
    assert not any(record.is_counted for record in steps)
    reader.close()


async def nan_reaches_the_loss(one: Node) -> None:
    reader = await start(one, LOOP.format(steps=10**6, end="if loss != loss: break"), 2)
    await eventually(lambda: reader.sample(0).step > 0)
    reader.inject("nan")
    assert (await one.ended(2)).code == 0
    assert one.out(2) == "done nan\n"
    reader.close()


async def two_ranks(one: Node) -> None:
    assert one.warm
    port = await one.warm.start_store("j", "127.0.0.1")
    assert await one.warm.start_store("j", "127.0.0.1") == port
    # The workers are clients of the store that runs outside of them, as under torchrun.
    env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    env["TORCHELASTIC_USE_AGENT_STORE"] = "True"
    readers = [await start(one, TWO_RANKS, rank, **env, RANK=str(rank - 10)) for rank in (10, 11)]
    for rank in (10, 11):
        assert (await one.ended(rank)).code == 0, one.err(rank)
        assert "passed on:" in one.out(rank)
    operations, ddp = one.out(10).splitlines()[-2:]
    expected = "'init_process_group', 'all_reduce', 'all_reduce', 'all_gather_object'"
    assert operations.startswith(f"[{expected}")
    assert operations.endswith("'send', 'barrier', 'all_reduce']")
    assert "'ddp:forward', '', 'ddp:backward', ''" in ddp
    for reader in readers:
        assert len(reader.new_steps()) == 2
        reader.close()


async def tearing_down_is_no_training(one: Node) -> None:
    """Teardown holds the interpreter lock while it waits for the peers: no steps are expected there."""
    assert one.warm
    port = await one.warm.start_store("j", "127.0.0.1")
    env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "1", "RANK": "0"}
    env["TORCHELASTIC_USE_AGENT_STORE"] = "True"
    code = (
        "import torch.distributed as dist, time\ndist.init_process_group('gloo')\n"
        "dist.barrier()\ndist.destroy_process_group()\ntime.sleep(60)"
    )
    reader = await start(one, code, 35, **env)
    await eventually(lambda: reader.sample(time.monotonic_ns()).phase is Phase.DONE)
    await one.warm.kill("j", 1, -1, signal.SIGKILL)
    await one.ended(35)
    reader.close()


async def a_hang_is_named(one: Node) -> None:
    assert one.warm
    port = (await one.warm.start_store("j", "127.0.0.1")) and (await one.warm.start_store("other", "127.0.0.1"))
    env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    env["TORCHELASTIC_USE_AGENT_STORE"] = "True"
    code = (
        "import torch, torch.distributed as dist, time\ndist.init_process_group('gloo')\n"
        "if dist.get_rank() == 0: dist.all_reduce(torch.ones(1))\ntime.sleep(60)"
    )
    readers = [await start(one, code, rank, **env, RANK=str(rank - 20)) for rank in (20, 21)]
    await eventually(lambda: readers[0].sample(time.monotonic_ns()).operation == "all_reduce")
    await eventually(lambda: readers[0].sample(time.monotonic_ns()).operation_age > 0.2)
    # It waits without the GIL: alive, however seldom a busy machine lets it run.
    await eventually(lambda: readers[0].sample(time.monotonic_ns()).tick_age < 0.5)
    await eventually(lambda: readers[1].sample(time.monotonic_ns()).operation == "")  # it may leave the set-up later
    await one.warm.kill("j", 1, -1, signal.SIGKILL)
    for rank in (20, 21):
        await one.ended(rank)
    for reader in readers:
        reader.close()
    assert await one.warm.stop_store("other")
    assert not await one.warm.stop_store("nobody")


SIZES = """
import torch, torch.distributed as dist, time
dist.init_process_group("gloo")
rank = dist.get_rank()
dist.all_reduce(torch.ones(4))
dist.all_reduce(torch.ones(4), async_op=True).wait()
if rank < 2:  # gloo lets the smaller one through where all come
    dist.all_reduce(torch.ones(1 << 22 if rank else 1 << 20))
time.sleep(60)
"""


async def another_size_is_named(one: Node) -> None:
    assert one.warm
    port = await one.warm.start_store("sizes", "127.0.0.1")
    env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "3"}
    env["TORCHELASTIC_USE_AGENT_STORE"] = "True"
    readers = [await start(one, SIZES, rank, **env, RANK=str(rank - 50)) for rank in (50, 51, 52)]

    def stands() -> list[PendingCollective]:
        samples = [reader.sample(time.monotonic_ns()) for reader in readers[:2]]
        return [s.pending for s in samples if s.operation == "all_reduce" and s.pending is not None]

    def sizes() -> list[str]:
        return [words(standing.size) for standing in stands()]

    # While the third starts, they may stand in the first one.
    await eventually(lambda: sizes() == ["1048576 x float32", "4194304 x float32"])
    reported = stands()
    world = Group("world", 0, (0, 1, 2))
    states = [
        WaitState(rank, True, "all_reduce", s.kind, world, s.number, s.is_handed, {world: 3}, size=s.size)
        for rank, s in enumerate(reported)
    ]
    verdict = judge(states)
    assert verdict is not None
    assert (verdict.reason, verdict.suspects) == (Reason.ORDER, (0, 1))
    await one.warm.kill("j", 1, -1, signal.SIGKILL)
    for rank in (50, 51, 52):
        await one.ended(rank)
    for reader in readers:
        reader.close()
    assert await one.warm.stop_store("sizes")


async def a_fresh_interpreter_is_hooked_and_computes_the_same(one: Node) -> None:
    code = "from safetensors.torch import save_file; import torch; torch.manual_seed(1)"
    code += LOOP.format(steps=3, end="save_file({'n': torch.ones(1)}, f'fresh{n}')")
    code += "print(torch.rand(1).item(), torch.get_num_threads())"
    bare, fresh = (Program(str(one.folder / f"script{rank}.py"), cwd=str(one.folder)) for rank in (30, 31))
    await one.start(code, 30, program=replace(bare, hooks=False))
    await one.start(code, 31, program=replace(fresh, warm=False), env={**one.spec("").env, "OMP_NUM_THREADS": "1"})
    for rank, steps in ((30, []), (31, [0, 1, 2])):
        assert (await one.ended(rank)).code == 0, one.err(rank)
        reader = ProbeReader(str(one.folder / f"probe{rank}"))
        assert [record.step for record in reader.new_steps()] == steps
        reader.close()
    assert one.out(30) == one.out(31)
    assert json.loads((one.folder / f"probe31{SAVED_SUFFIX}").read_text())["count"] == 3
    await one.start("import torch; print(torch.get_num_threads())", 32, env={"OMP_NUM_THREADS": "2"})
    await one.ended(32)
    assert one.out(32) == "2\n"


def test_a_store_without_torch_is_a_clear_refusal(tmp_path: Path) -> None:
    async def story() -> None:
        from holdfast.agent.forkserver.client import ForkServer
        from holdfast.base.errors import Unavailable

        (tmp_path / "torch.py").write_text("raise ImportError('no torch here')")
        env = {**os.environ, "PYTHONPATH": str(tmp_path)}
        warm = await ForkServer.open(tmp_path / "run", env=env, idle_exit=30.0)
        with pytest.raises(Unavailable, match="cannot start_store: no rendezvous endpoint without torch on this node"):
            await warm.start_store("j", "127.0.0.1")
        await warm.shutdown()

    asyncio.run(story())
