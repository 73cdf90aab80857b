"""Rows of dead_rows.py about groups and the threads in which their operations are."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from dead_rows_loop import (
    FOLDER,
    LONG_S,
    PLACES,
    RANK,
    SHORT_S,
    STEPS,
    WORLD,
    ddp,
    init,
    net,
    numbered,
    on,
    reads,
    row,
    train,
)
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


@row
def a_thread_coordinates_a_checkpoint() -> None:
    """In a group of its own: rank 0's thread waits for those of the others, which still write; main threads wait in
    their step for rank 1, which reads."""
    init()
    group = dist.new_group(list(range(WORLD)))

    def coordinate() -> None:
        time.sleep(SHORT_S + 1.0 if RANK else 1.0)
        dist.gather_object({"rank": RANK}, [None] * WORLD if RANK == 0 else None, group=group)
        dist.barrier(group=group)

    thread = threading.Thread(target=coordinate)

    def save() -> None:
        thread.start()
        if RANK == 1:
            reads(SHORT_S)

    PLACES["between"] = save
    train(DistributedDataParallel(net()))
    thread.join()


@row
def a_pair_goes_on_after_the_third_has_ended() -> None:
    init()
    pair = dist.new_group([0, 1])
    if RANK == 2:
        return
    PLACES["between"] = on(0, time.sleep, SHORT_S)
    train(DistributedDataParallel(net(), process_group=pair))


@row
def peers_come_late_to_a_new_group() -> None:
    """Rank 2 waits for them at the store; they wait at the same store, in no operation, for a key from elsewhere."""
    init()
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])

    def make() -> None:
        key = f"go-{os.environ.get('HOLDFAST_GENERATION', '1')}"
        if RANK == 0:
            code = (
                "import sys, time, torch.distributed as dist\n"
                f"time.sleep({LONG_S})\n"
                f"dist.TCPStore({host!r}, {port}, None, False).set({key!r}, 'x')\n"
            )
            subprocess.Popen([sys.executable, "-c", code])
        if RANK != 2:
            dist.TCPStore(host, port, None, False).wait([key])
        dist.barrier(group=dist.new_group(list(range(WORLD))))

    PLACES["between"] = make
    train(DistributedDataParallel(net()))


@row
def the_compiler_of_one_rank_waits_for_a_child() -> None:
    waits = [8.0] if RANK == 0 else []

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        if waits:
            subprocess.run(["sleep", str(waits.pop())], check=True)
        return graph.forward

    init()
    torch.manual_seed(0)
    train(DistributedDataParallel(torch.compile(nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 1)), backend=backend)))


@row
def one_of_the_world_is_from_elsewhere() -> None:
    """An inference engine, which joins late: this job's ranks wait for it in `init_process_group`."""
    store = dist.TCPStore("127.0.0.1", 0, 1, True, wait_for_workers=False) if RANK == 0 else None
    place = FOLDER / f"port-{os.environ.get('HOLDFAST_GENERATION', '1')}"
    if store is not None:
        place.with_suffix(".part").write_text(str(store.port))
        place.with_suffix(".part").rename(place)
        engine = ("import sys, time, torch, torch.distributed as dist\n"
                  f"time.sleep({LONG_S})\n"
                  f"dist.init_process_group('gloo', store=dist.TCPStore('127.0.0.1', {store.port}, 1, False), "
                  f"rank={WORLD}, world_size={WORLD + 1})\n"
                  f"for _ in range({STEPS}): dist.all_reduce(torch.ones(1))\n"
                  "dist.barrier()\n")  # fmt: skip
        foreign = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
        child = subprocess.Popen([sys.executable, "-c", engine], env=foreign)
    while not place.exists():
        time.sleep(0.05)
    store = store or dist.TCPStore("127.0.0.1", int(place.read_text()), 1, False)
    dist.init_process_group("gloo", store=store, rank=RANK, world_size=WORLD + 1)
    for _ in numbered(STEPS):
        dist.all_reduce(torch.ones(1))
    dist.barrier()
    if RANK == 0:
        assert child.wait() == 0


class _Slow:
    def __setstate__(self, state: Any) -> None:
        time.sleep(LONG_S)

    def __getstate__(self) -> dict[str, int]:
        return {"rank": RANK}


@row
def unpickles_within_a_collective() -> None:
    def gather() -> None:
        dist.all_gather_object([None] * WORLD, _Slow() if RANK == 0 else None)

    ddp(between=gather)


@row
def two_threads_leave_their_operations_out_of_order() -> None:
    """Then rank 0 sleeps outside of any."""
    init()
    first, second = dist.new_group(list(range(WORLD))), dist.new_group(list(range(WORLD)))

    def crossed(outer: dist.ProcessGroup, inner: dist.ProcessGroup) -> None:
        """A thread enters `outer`, then the main thread enters and leaves `inner`, then the thread leaves."""
        entered = threading.Event()

        def run() -> None:
            if RANK == 2:
                entered.wait()
            work = dist.all_reduce(torch.ones(1), group=outer)
            assert work is None

        thread = threading.Thread(target=run)
        thread.start()
        time.sleep(0.5)
        dist.all_reduce(torch.ones(1), group=inner)
        entered.set()
        thread.join()

    def both() -> None:
        crossed(first, second)
        crossed(second, first)
        if RANK == 0:
            time.sleep(SHORT_S)

    PLACES["between"] = both
    train(DistributedDataParallel(net()))


@row
def one_rank_fell_back_to_eager() -> None:
    """It counts collectives that its peers run in compiled code; then it pauses outside of any."""

    def reduced(x: Tensor) -> Tensor:
        dist.all_reduce(x)
        return x * 2

    init()
    compiled = reduced if RANK == 0 else torch.compile(reduced, backend="aot_eager")
    for number in numbered(STEPS):
        compiled(torch.ones(4))
        if (number, RANK) == (STEPS - 4, 0):
            time.sleep(LONG_S + 3.0)
        dist.all_reduce(torch.ones(4))


@row
def trains_for_long() -> None:
    """Until the file `end` is there, on all ranks: the test does something to their network meanwhile."""
    (FOLDER / f"begun-{RANK}").touch()
    init()
    model = DistributedDataParallel(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    is_over = torch.zeros(1)
    for _ in numbered(100_000):
        optimizer.zero_grad()
        model(torch.randn(8, 32)).square().mean().backward()
        optimizer.step()
        is_over.fill_(float((FOLDER / "end").exists()))
        dist.all_reduce(is_over)
        if is_over > 0:
            return
