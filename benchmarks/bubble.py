"""The bubble of each pipeline schedule, measured: real processes, real messages over gloo, computation that sleeps.

python benchmarks/bubble.py [--ranks 2 4 8] [--unit-ms 80] [--repeats 5] [--message 0.5] [--ahead 2] [--late 0]
    [--virtual] [--json]

A stage takes one unit forward, or to recompute, and two backward for a micro-batch, without the processor, so that two
cores can run eight ranks. What the executor itself takes for an action, some tenths of a millisecond, shows as bubble,
and more of it on a busy machine: the longer the unit, the less. The bubble is 1 - computation / makespan; of so many
repeats after one to warm up, the median counts. `formula` is the simulator's figure for doubling, if the micro-batches
are no multiple of 2D, and for the zero-bubble schedules: their first stage does both halves of a backward in the second
one, as it has no input to give a gradient to. With `--message`, a message takes so many units from when it has been
sent and its receive posted; `formula` is then the simulator's: what it assumes about messages is what is measured.

With `--late X` each message is sent 0 to X units late, at random, and none overtakes another one of its link. `formula`
is then the mean of 30 simulated steps, and the mean of the repeats counts: `--schedules 1f1b axonn --late 3`.

With `--virtual` nothing sleeps: ranks and messages are as real, but time is virtual (see virtual_time.py), and the
figures are exact.
"""

import argparse
import multiprocessing
import os
import queue
import random
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import mean, median
from typing import TYPE_CHECKING, Any

import formulas
from common import finish, parser
from formulas import BACKWARD, FORWARD

from holdfast.plan.dynamic import jittered, simulate_ready
from holdfast.plan.plan import COMPUTE, Action, Op, Plan
from holdfast.plan.schedules.table import SCHEDULES
from holdfast.plan.simulate import durations, simulate
from holdfast.trainer.pipeline.job_plan import BubbleWork, job_plan
from holdfast.trainer.preload import preload
from holdfast.trainer.settings.layout import TrainerLayout

if TYPE_CHECKING:  # it imports torch
    from virtual_time import Clock, Turns

NAMES = tuple(SCHEDULES)
SEEDS = 30
INVERSIONS = 4
"""Matrices of a stage, each inverted by itself."""


@dataclass(frozen=True)
class Case:
    schedule: str
    ranks: int
    micro_batches: int
    message: float = 0.0
    """Units."""
    ahead: int = 2
    late: float = 0.0
    """Units by which a message is sent late at most."""
    units: tuple[float, ...] = ()
    """What a forward of each stage takes, in units; 1 each by default. Not in `formula`, nor in `work`."""
    fill: float = 0.0
    """Share of the least bubble of any rank that its second-order work takes, half of it inversions."""

    @property
    def layout(self) -> TrainerLayout:
        schedule = SCHEDULES[self.schedule]
        return TrainerLayout(self.ranks, 1, 1, schedule.chunks, self.micro_batches, schedule.placement)

    @cached_property
    def plan(self) -> Plan:
        orders = SCHEDULES[self.schedule].build(self.ranks, self.layout.chunks, self.micro_batches)
        job = (self.layout, self.schedule, self.layout.stages, orders)
        if not self.fill:
            return job_plan(*job, ahead=self.ahead)
        work = BubbleWork(self.duration, dict.fromkeys(range(self.layout.stages), INVERSIONS))
        return job_plan(*job, ahead=self.ahead, work=work)

    @cached_property
    def second_order(self) -> dict[Op, float]:
        """Units that an action of second-order work takes."""
        took = durations(FORWARD, BACKWARD)
        line = simulate(replace(self, fill=0.0).plan, took)
        work = self.fill * min(line.bubble) * line.makespan
        of_rank = self.layout.stages * self.layout.pipes // self.ranks
        factors = 2 * self.micro_batches * self.layout.stages / self.ranks
        return {Op.FACTOR: work / 2 / factors, Op.INVERT: work / 2 / (of_rank * INVERSIONS)}

    def duration(self, action: Action) -> float:
        """Units of a stage's forward."""
        found = self.second_order.get(action.op) if self.fill else None
        return durations(FORWARD, BACKWARD)(action) if found is None else found

    @cached_property
    def work(self) -> float:
        """Units that a rank computes, on average."""
        took = durations(FORWARD, BACKWARD)
        return sum(took(action) for _, action in self.plan.actions() if action.op in COMPUTE) / self.ranks

    @property
    def per_rank(self) -> int:
        """Stages that have a rank's share of the layers: with pipes, each of a rank's stages has as much."""
        return self.layout.stages // self.ranks

    @property
    def simulated(self) -> float:
        """The mean bubble where messages are up to `late` units late."""
        took = durations(FORWARD, BACKWARD, self.layout.chunks)
        makespans = []
        for seed in range(SEEDS):
            latency = jittered(0, self.late, seed)
            if SCHEDULES[self.schedule].is_message_driven:
                bare = SCHEDULES[self.schedule].plan(self.ranks, 1, self.micro_batches)
                makespans.append(simulate_ready(bare, took, 2 * self.ranks, latency).timeline.makespan)
            else:
                makespans.append(simulate(self.plan, took, latency).makespan)
        return 1 - self.work / self.layout.chunks / mean(makespans)

    @property
    def formula(self) -> float:
        chunks = self.layout.chunks
        if self.message:
            return 1 - self.work / simulate(self.plan, durations(FORWARD, BACKWARD), self.message).makespan
        makespan = formulas.makespan(self.schedule, self.ranks, chunks, self.micro_batches)
        if makespan is not None:
            return 1 - self.work / (makespan * self.per_rank)
        if not SCHEDULES[self.schedule].halves_backward:  # its formula is for other numbers
            return 1 - self.work / simulate(self.plan, durations(FORWARD, BACKWARD)).makespan
        usual = durations(FORWARD, BACKWARD, chunks)

        def took(action: Action) -> float:
            if action.stage == 0 and action.op in (Op.BACKWARD_INPUT, Op.BACKWARD_WEIGHT):
                return BACKWARD / chunks if action.op is Op.BACKWARD_WEIGHT else 0.0
            return usual(action)

        line = simulate(self.plan, took)
        return sum(line.bubble) / self.ranks


def measure(cases: Sequence[Case], unit_s: float, repeats: int, is_virtual: bool = False) -> list[list[float]]:
    """For each case the bubble of each repeat. All cases have as many ranks; each rank is a process of its own."""
    preload()
    from virtual_time import Turns

    forked = multiprocessing.get_context("fork")
    ranks = cases[0].ranks
    turns = Turns(ranks) if is_virtual else None
    for case in cases:
        _ = case.plan, case.work  # once, before ranks are forked
    reader, writer = forked.Pipe(duplex=False)
    with tempfile.TemporaryDirectory() as folder:
        work: Callable[..., None] = _rank
        processes = [
            forked.Process(target=work, args=(rank, cases, unit_s, repeats, f"{folder}/store", writer, turns))
            for rank in range(ranks)
        ]
        for process in processes:
            process.start()
        writer.close()
        try:
            found: list[list[float]] = reader.recv()
        finally:
            for process in processes:
                process.join(60)
                process.kill()
    return found


def _rank(
    rank: int, cases: Sequence[Case], unit_s: float, repeats: int, store: str, results: Any, turns: "Turns | None"
) -> None:
    import torch.distributed as dist

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", store=dist.FileStore(store, cases[0].ranks), rank=rank, world_size=cases[0].ranks)
    bubbles = [_bubbles(case, rank, unit_s, repeats, turns) for case in cases]
    if rank == 0:
        results.send(bubbles)
    dist.barrier()
    dist.destroy_process_group()


def _bubbles(case: Case, rank: int, unit_s: float, repeats: int, turns: "Turns | None") -> list[float]:
    """In virtual time if ranks take `turns`."""
    import torch
    import torch.distributed as dist
    from virtual_time import TurnTakingExecutor, VirtualClock, WallClock

    from holdfast.trainer.pipeline.executor import Executor
    from holdfast.trainer.pipeline.message_driven import MessageDrivenExecutor
    from holdfast.trainer.pipeline.shared_state import Sharing
    from holdfast.trainer.pipeline.stage import Stage

    alone = Sharing(dist.new_group([rank], use_local_synchronization=True), 0, ())  # no replicas
    cpu, layout, count = torch.device("cpu"), case.layout, case.micro_batches
    group = dist.group.WORLD
    assert group is not None
    like = torch.zeros(2, 4, dtype=torch.float64)
    clock: Clock = WallClock() if turns is None else VirtualClock()
    is_driven = SCHEDULES[case.schedule].is_message_driven
    late = Late(case.message * unit_s, clock, turns if is_driven else None)
    units = case.units or (1.0,) * layout.stages
    stages = [
        Stage(sleeping_stage(unit_s * units[s], clock=clock), s, layout.stages, cpu, alone, pipe)
        for s, pipe in layout.held_by(rank)
    ]
    job = (case.plan, rank, stages, difference, group, like)
    kind = MessageDrivenExecutor if turns is None else TurnTakingExecutor
    executor = kind(*job, 2 * case.ranks) if is_driven else Executor(*job)
    if isinstance(executor, TurnTakingExecutor):
        assert turns is not None
        executor.enter(turns, rank, clock, case.message * unit_s)
    rest = Rest(clock)
    executor.second_order = lambda action: rest(case.duration(action) * unit_s)
    if case.late:
        _delay(executor._messages, case.late * unit_s, random.Random(rank))
    inputs = torch.ones(2 * count, 4, dtype=like.dtype) if 0 in layout.stages_of(rank) else None
    target = torch.zeros(2 * count, 4, dtype=like.dtype) if layout.stages - 1 in layout.stages_of(rank) else None
    found = []
    warm_up = int(turns is None)
    for _ in range(warm_up + repeats):
        # All begin at one moment, which they read from the host's clock, or where virtual time begins.
        begin = torch.tensor([clock.now() + 0.05], dtype=torch.float64)
        dist.broadcast(begin, 0)
        if turns is not None:
            begin[0] = clock.reset()
            turns.begin(rank)
            dist.barrier()
        clock.wait_until(float(begin))
        with late:
            executor.step(inputs, target)
        makespan = torch.tensor([clock.now()], dtype=torch.float64) - begin
        dist.all_reduce(makespan, dist.ReduceOp.MAX)
        found.append(1 - case.work * unit_s / float(makespan))
    return found[warm_up:]


def _delay(messages: Any, most_s: float, rng: random.Random) -> None:
    """Hand each message over up to so much late, while the rank goes on; those of one direction stay in order."""
    send, finish_ = messages.send, messages.finish
    waiting: dict[Any, queue.Queue[Any]] = {}

    def deliver(letters: queue.Queue[Any]) -> None:
        while True:
            due, action, tensors = letters.get()
            time.sleep(max(0.0, due - time.monotonic()))
            send(action, tensors)
            letters.task_done()

    def later(action: Action, tensors: Any) -> None:
        if action.op not in waiting:
            waiting[action.op] = queue.Queue()
            threading.Thread(target=deliver, args=(waiting[action.op],), daemon=True).start()
        waiting[action.op].put((time.monotonic() + rng.uniform(0, most_s), action, tensors))

    def finish() -> None:
        for letters in waiting.values():
            letters.join()
        finish_()

    messages.send, messages.finish = later, finish


def difference(out: Any, target: Any, share: float) -> Any:
    return (out - target).sum()


class Late:
    """Within it, messages say when they were sent, and are there so long after that and after their receive was posted:
    all ranks read one host's clock, or virtual clocks. With `turns`, who waits for them sees to that."""

    def __init__(self, seconds: float, clock: "Clock", turns: "Turns | None" = None) -> None:
        self.seconds, self.clock, self.turns = seconds, clock, turns

    def __enter__(self) -> None:
        import torch.distributed as dist
        from virtual_time import stamp, stamped

        self.usual = dist.isend, dist.irecv
        send, receive = self.usual
        clock, turns = self.clock, self.turns
        if not self.seconds and not clock.is_virtual:
            return

        def isend(tensor: Any, **named: Any) -> Any:
            now = clock.now()
            work = send(stamped(tensor, now), **named)
            if turns is not None:
                turns.sent(named["group_dst"], now + self.seconds)
            return work

        def irecv(room: Any, **named: Any) -> Any:
            posted, work = clock.now(), receive(room, **named)

            class Arrival(dist.Work):
                def wait(_self, *args: Any) -> bool:
                    work.wait()
                    clock.wait_until(max(posted, stamp(room)) + self.seconds)
                    return True

            return Arrival()

        dist.isend = isend
        if turns is None:
            dist.irecv = irecv

    def __exit__(self, *error: object) -> None:
        import torch.distributed as dist

        dist.isend, dist.irecv = self.usual


class Rest:
    """Sleeps that are right on average: what one takes too long, because others had the processor, the next gives
    back. Else the more and shorter actions a schedule has, the more of the host's own load would count as bubble."""

    def __init__(self, clock: "Clock") -> None:
        self.clock, self.owed = clock, 0.0

    def __call__(self, seconds: float) -> None:
        began = self.clock.now()
        self.clock.sleep(max(0.0, seconds - self.owed))
        self.owed += self.clock.now() - began - seconds


def sleeping_stage(unit_s: float, width: int = 4, clock: "Clock | None" = None) -> Any:
    """A module that takes a unit forward, and backward one for its input and one for its weight. Its activations are
    (samples, width) in float64."""
    import torch
    from virtual_time import WallClock

    rest = Rest(clock or WallClock())

    class Sleep(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, forward_s: float, backward_s: float) -> torch.Tensor:
            ctx.backward_s = backward_s
            rest(forward_s)
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None, None]:
            rest(ctx.backward_s)
            return grads[0], None, None

    class Stage(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(width, dtype=torch.float64))

        def forward(self, x: torch.Tensor, micro_batch: int) -> torch.Tensor:
            # The input needs its half of the backward even where its gradient is not asked for.
            x = x if x.requires_grad else x.clone().requires_grad_()
            taken_s = unit_s * len(x) / 2  # of two samples a micro-batch
            weight = Sleep.apply(self.weight, 0.0, taken_s * BACKWARD / 2)
            seen = Sleep.apply(x, taken_s * FORWARD, taken_s * BACKWARD / 2)
            return seen * weight

    return Stage()


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8])
    made.add_argument("--schedules", nargs="+", choices=NAMES, default=NAMES)
    made.add_argument("--micro-batches", type=int, default=0, help="in a step; 0: two for each rank")
    made.add_argument("--unit-ms", type=float, default=80.0, help="of a stage's forward of a micro-batch")
    made.add_argument("--repeats", type=int, default=5)
    made.add_argument("--late", type=float, default=0.0, metavar="X", help="units by which messages are late at most")
    made.add_argument("--message", type=float, default=0.0, help="units that a message takes")
    made.add_argument("--ahead", type=int, default=2, help="computations by which receives are posted early")
    made.add_argument("--virtual", action="store_true", help="in virtual time: nothing sleeps, figures are exact")
    options: argparse.Namespace = made.parse_args()
    if options.virtual and options.late:
        made.error("--late is for the host's clock: leave --virtual out")
    rows, medians, formulas = [], {}, {}
    for ranks in options.ranks:
        count = options.micro_batches or 2 * ranks
        unit_s = options.unit_ms / 1000
        cases = [Case(name, ranks, count, options.message, options.ahead, options.late) for name in options.schedules]
        for case, bubbles in zip(cases, measure(cases, unit_s, options.repeats, options.virtual), strict=True):
            name = f"{case.schedule} D={ranks} V={case.layout.chunks} N={count}"
            medians[name] = mean(bubbles) if options.late else median(bubbles)
            formulas[name] = case.simulated if case.late else case.formula
            rows.append([name, formulas[name], medians[name], medians[name] - formulas[name]])
    result = {"medians_bubble": {"holdfast": medians, "formula": formulas}}
    finish(result, options.json, ["schedule", "formula", "measured", "apart"], rows)


if __name__ == "__main__":
    main()
