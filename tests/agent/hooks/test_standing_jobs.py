"""Operations open in each thread of real ranks that stand still on purpose, and how far each group is."""

import asyncio
import signal
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from holdfast.agent.probe_file.reader import ProbeReader
from holdfast.wire.messages import Program
from holdfast.wire.operation_size import words
from holdfast.wire.types import WorkerSample
from tests.agent.support.warm_node import Node, eventually, node

pytestmark = [pytest.mark.skipif(find_spec("torch") is None, reason="needs torch"), pytest.mark.slow]

HEAD = """
import datetime, threading, time, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
rank, x = dist.get_rank(), torch.ones(4)
def stand():
    time.sleep(1000)
def ddp(**given):
    return DistributedDataParallel(torch.nn.Linear(4, 2), **given)
def step(model, before=lambda: None):
    out = model(torch.ones(2, 4)).sum()
    before()
    out.backward()
"""
Open = tuple[str, str, int, str]
"""An operation: who waits for it, "kind label", number, and what else is known of it."""


def opened(sample: WorkerSample) -> list[Open]:
    assert sample.standing is not None
    assert sample.pending is not None
    found = []
    for one in sample.standing.operations:
        who = "main" if one.thread == sample.pid else "other" if one.thread else "nobody"
        known = [words(one.size)] if one.size else []
        known += [f"root {one.root}"] if one.root >= 0 else []
        known += ["timed"] if one.is_timed else []
        label = sample.pending.groups[one.group].label
        found.append((who, f"{one.kind} {label}", one.number, ", ".join(known)))
    return sorted(found)


def past(sample: WorkerSample) -> list[tuple[str, int, int, str]]:
    """ "kind label", number, root and size of operations that it began lately."""
    assert sample.standing is not None
    assert sample.pending is not None
    groups = sample.pending.groups
    return sorted(
        (f"{one.kind} {groups[one.group].label}", one.number, one.root, words(one.size) if one.size else "")
        for one in sample.standing.past
    )


def begun(sample: WorkerSample) -> dict[str, tuple[int, bool]]:
    """By label: how many operations, and whether that is exact."""
    assert sample.pending is not None
    return {group.label: (group.begun, group.is_exact) for group in sample.pending.groups}


class Job:
    def __init__(self, one: Node) -> None:
        self._one, self._next = one, 100

    async def stands(self, code: str, expected: list[list[Open]], ranks: int = 2) -> list[WorkerSample]:
        """Run it until all of its ranks stand in what is expected, and torch's record says that this is all."""
        one = self._one
        assert one.warm is not None
        first, self._next = self._next, self._next + ranks
        port = await one.warm.start_store(f"store{first}", "127.0.0.1")
        env = {**one.spec("").env, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks)}
        env |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "OMP_NUM_THREADS": "1"}
        readers = []
        for rank in range(ranks):
            name = first + rank
            (one.folder / f"script{name}.py").write_text(HEAD + code)
            program = Program(str(one.folder / f"script{name}.py"), cwd=str(one.folder))
            await one.start(HEAD + code, name, program=program, env={**env, "RANK": str(rank)})
            path = one.folder / f"probe{name}"
            await eventually(path.exists)
            readers.append(ProbeReader(str(path)))
        samples: list[WorkerSample] = []

        def is_so() -> bool:
            samples[:] = [reader.sample(time.monotonic_ns()) for reader in readers]
            if any(sample.standing is None or not sample.standing.is_complete for sample in samples):
                return False
            return [opened(sample) for sample in samples] == expected

        try:
            await eventually(is_so, 120.0)
        except TimeoutError:
            for rank, sample in enumerate(samples):
                print(rank, sample, one.err(first + rank)[-2000:], sep="\n")
            raise
        finally:
            await one.warm.kill("j", 1, -1, signal.SIGKILL)
            for rank in range(ranks):
                await one.ended(first + rank)
            for reader in readers:
                reader.close()
            await one.warm.stop_store(f"store{first}")
        return samples


def test_what_is_open_in_ranks_that_stand(tmp_path: Path) -> None:
    async def story() -> None:
        async with node(tmp_path, "torch", "holdfast.trainer.preload", "torch._dynamo") as one:
            job = Job(one)
            await a_rank_that_misses_backward(job)
            await backward_is_over_when_it_ends(job)
            await a_callback_that_sleeps_at_the_end_of_backward(job)
            await operations_that_do_not_match(job)
            await sizes_of_what_was_left(job)
            await messages_and_their_tags(job)
            await around_a_monitored_barrier(job)
            await a_group_that_one_makes_alone(job)
            await threads_that_leave_out_of_order(job)
            await between_the_parts_of_an_object_collective(job)
            await what_only_torch_sees(job)
            await what_has_a_time_limit(job)

    asyncio.run(story())


async def a_rank_that_misses_backward(job: Job) -> None:
    code = """
model = ddp()
for n in range(3):
    step(model, stand if n == 2 and rank == 1 else lambda: None)
"""
    reduced = ("main", "all_reduce world", 7, "10 x float32")
    waits, sleeps = await job.stands(code, [[reduced], []])
    assert waits.operation == "ddp:backward"
    assert sleeps.operation == ""
    assert begun(waits) == {"world": (8, True)}
    assert begun(sleeps) == {"world": (7, True)}


async def backward_is_over_when_it_ends(job: Job) -> None:
    """Idle for the next micro-batch, or before an update of its own, it is in no operation and in no backward."""
    code = """
model = ddp()
for n in range(2):
    with model.no_sync():
        step(model)
    stand() if n == 1 and rank == 0 else step(model)
    stand() if n == 1 else None
"""
    reduced = ("main", "all_reduce world", 6, "10 x float32")
    idle, waits = await job.stands(code, [[], [reduced]])
    assert idle.operation == ""
    assert waits.operation == "ddp:backward"
    for sample in await job.stands("model = ddp()\nstep(model)\nstand()", [[], []]):
        assert sample.operation == ""


async def a_callback_that_sleeps_at_the_end_of_backward(job: Job) -> None:
    code = """
model = ddp()
queue = torch.autograd.Variable._execution_engine.queue_callback
if rank == 0:
    next(model.parameters()).register_post_accumulate_grad_hook(lambda _: queue(stand))
step(model)
stand()
"""
    samples = await job.stands(code, [[], []])
    assert [sample.operation for sample in samples] == ["ddp:backward", ""]


async def operations_that_do_not_match(job: Job) -> None:
    kinds = "dist.all_reduce(x)\ndist.all_reduce(x) if rank else dist.broadcast(x, 0)\ndist.barrier()"
    four = "4 x float32"
    await job.stands(
        kinds, [[("main", "broadcast world", 1, f"{four}, root 0")], [("main", "all_reduce world", 1, four)]]
    )
    roots = [("main", "broadcast world", 0, f"{four}, root {root}") for root in (1, 2)]
    samples = await job.stands(
        "dist.broadcast(x, 2 if rank else 1)\ndist.barrier()",
        [[roots[0]], [("main", "barrier world", 1, "")], [roots[1]]],
        3,
    )
    # Rank 1 alone has left it.
    assert [past(sample) for sample in samples] == [
        [("broadcast world", 0, root, four if rank == 1 else "")] for rank, root in enumerate((1, 2, 2))
    ]
    # Numbers that another thread may have taken meanwhile are not certain where messages are counted with them.
    code = """
pair, quiet = dist.new_group([0, 1]), dist.new_group([0, 1], group_desc="quiet")
dist.send(x, 1, group=pair) if rank == 0 else dist.recv(x, 0, group=pair)
for group in (None, pair):
    dist.reduce(x, 1, group=group)
for group in (pair, quiet):
    aside = threading.Thread(target=lambda: dist.broadcast(x, 0, group=group))
    aside.start()
    aside.join()
    dist.broadcast(x, 0, group=group)
dist.broadcast(x, 1)
stand()
"""
    for sample in await job.stands(code, [[], []]):
        assert past(sample) == [
            ("broadcast group", 1, -1, four),
            ("broadcast group", 2, -1, four),
            ("broadcast quiet", 0, 0, four),
            ("broadcast quiet", 1, 0, four),
            ("broadcast world", 1, 1, four),
            ("reduce group", 0, 1, four),
            ("reduce world", 0, 1, four),
        ]


async def sizes_of_what_was_left(job: Job) -> None:
    """Gloo lets ranks 0 and 1 go on, since all that they wanted has come. No hook sees the first all-reduce."""
    code = """
import torch.distributed._functional_collectives as functional
functional.wait_tensor(functional.all_reduce(torch.ones(2), "sum", dist.group.WORLD))
dist.all_reduce(torch.ones(5 if rank == 2 else 4))
dist.barrier()
"""
    after, before = [("main", "barrier world", 2, "")], ("all_reduce world", 0, -1, "2 x float32")
    *others, odd = await job.stands(code, [after, after, [("main", "all_reduce world", 1, "5 x float32")]], 3)
    assert past(odd) == [before]
    for sample in others:
        assert past(sample) == [before, ("all_reduce world", 1, -1, "4 x float32")]


async def messages_and_their_tags(job: Job) -> None:
    code = """
dist.send(x, 1) if rank == 0 else dist.recv(x, 0)
dist.all_reduce(x)
dist.send(x, 1, tag=3) if rank == 0 else dist.recv(x, 0, tag=4)
stand()
"""
    send, receive = await job.stands(
        code, [[("main", "send world:0>1#3", 0, "")], [("main", "recv world:0>1#4", 0, "")]]
    )
    # gloo's own number counts messages: what is left without them is confirmed by its record.
    assert begun(send) == {"world": (1, True), "world:0>1": (1, True), "world:0>1#3": (1, True)}
    assert begun(receive)["world"] == (1, True)
    any_source = "dist.recv(x, 0) if rank else dist.send(x, 1)\ndist.recv(x) if rank else stand()"
    _, receive = await job.stands(any_source, [[], [("main", " world", 0, "")]])
    assert begun(receive)["world:0>1"] == (1, False)  # the next one may have been any rank's


async def around_a_monitored_barrier(job: Job) -> None:
    """Its first rank moves more messages than the others, and gloo counts each of them."""
    code = """
dist.monitored_barrier()
dist.broadcast(x, 0)
dist.all_reduce(x) if rank == 0 else stand()
"""
    samples = await job.stands(code, [[("main", "all_reduce world", 3, "4 x float32")], [], []], 3)
    assert [begun(sample)["world"] for sample in samples] == [(4, True), (3, True), (3, True)]
    for sample in samples:
        assert ("broadcast world", 2, 0, "4 x float32") in past(sample)
    code = "dist.monitored_barrier() if rank != 2 else stand()"
    inside = [("main", "monitored_barrier world:monitored", 0, "")]
    samples = await job.stands(code, [inside, inside, []], 3)
    assert [begun(sample)["world"] for sample in samples] == [(0, True)] * 3  # what it began before the barrier
    again = [("main", "monitored_barrier world:monitored", 1, "")]
    samples = await job.stands(f"dist.monitored_barrier()\ndist.barrier()\n{code}", [again, again, []], 3)
    assert [begun(sample)["world"] for sample in samples] == [(3, True)] * 3


async def a_group_that_one_makes_alone(job: Job) -> None:
    inside = [("main", "new_group world:new_group", 0, "")]
    await job.stands("dist.new_group([0, 1]) if rank else stand()", [[], inside])
    both = "pair = dist.new_group([0, 1])\ndist.new_group([1, 0]) if rank else stand()"
    await job.stands(both, [[], [("main", "new_group world:new_group", 1, "")]])


async def threads_that_leave_out_of_order(job: Job) -> None:
    code = """
here, there = dist.new_group([0, 1], group_desc="here"), dist.new_group([0, 1], group_desc="there")
def side():
    dist.all_reduce(torch.ones(2), group=there)
for n in range(2):
    if n and rank == 0:
        stand()
    thread = threading.Thread(target=side)
    thread.start()
    dist.all_reduce(x, group=here)
    thread.join()
"""
    both = [("main", "all_reduce here", 1, "4 x float32"), ("other", "all_reduce there", 1, "2 x float32")]
    sleeps, waits = await job.stands(code, [[], both])
    assert (sleeps.operation, waits.operation) == ("", "all_reduce")
    new = ("world:new_group", (2, True))
    assert begun(sleeps) == dict([("world", (0, True)), new, ("here", (1, True)), ("there", (1, True))])
    assert begun(waits)["there"] == (2, True)


async def between_the_parts_of_an_object_collective(job: Job) -> None:
    code = """
class Slow:
    def __reduce__(self):
        return stand, ()
found = [None, None]
dist.all_gather_object(found, Slow() if rank else 1)
"""
    for sample in await job.stands(code, [[], []]):
        assert sample.operation == "all_gather_object"
        assert sample.pending is not None
        assert (sample.pending.kind, sample.pending.number) == ("", -1)
        assert begun(sample) == {"world": (2, True)}


async def what_only_torch_sees(job: Job) -> None:
    code = """
import torch.distributed._functional_collectives as functional
functional.all_reduce(x, "sum", dist.group.WORLD) + 1
functional.all_reduce(x, "sum", dist.group.WORLD) + 1 if rank else stand()
"""
    alone, waits = await job.stands(code, [[], [("nobody", "all_reduce world", 1, "4 x float32")]])
    assert begun(alone) == {"world": (1, True)}
    assert begun(waits) == {"world": (2, True)}
    await job.stands("ddp() if rank else stand()", [[], [("main", "all_gather world", 0, "2 x int64")]])


async def what_has_a_time_limit(job: Job) -> None:
    code = """
short = datetime.timedelta(seconds=600)
group = dist.new_group([0, 1], timeout=short, group_desc="short")
if rank == 0:
    dist.all_reduce(x, group=group)
elif rank == 1:
    dist.monitored_barrier(timeout=short)
else:
    dist.all_reduce(x, async_op=True).wait(short)
"""
    expected: list[list[Open]] = [
        [("main", "all_reduce short", 0, "4 x float32, timed")],
        [("main", "monitored_barrier world:monitored", 0, "timed")],
        [("main", "all_reduce world", 0, "4 x float32, timed")],
    ]
    await job.stands(code, expected, 3)
