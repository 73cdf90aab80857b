"""Jobs that share slots by roles (JigSaw): what two alike jobs gain, by formula, and what a trace's jobs do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate, pairwise

from holdfast.planner.sharing.jobs import SharedJob
from holdfast.planner.sharing.simulate import Outcome, simulate
from holdfast.trainer.rows.planner.trace import MEMORY, World, trace
from holdfast.trainer.rows.row import Row

F, B = 1.0, 2.0
N = 50
SEEDS = 3


def jigsaw() -> Iterator[Row]:
    """Two alike jobs fill each other's slots: a pair of iterations takes 2f + (k + 1)/k b, not 2(f + b)."""
    for k in (2, 4, 8):
        pair = [SharedJob(name, k, F, B, N) for name in ("a", "b")]
        together = simulate(pair, k)
        yield Row(f"makespan of two jobs of {N} iterations, f {F:g}, b {B:g}, k {k}", N * (2 * F + (k + 1) / k * B),
                  together.makespan_s)  # fmt: skip
        gained = 2 * (F + B) / (2 * F + (k + 1) / k * B)
        yield Row(f"efficiency over that of gangs, k {k}", gained, together.efficiency / gangs(pair, k).efficiency)
        yield Row(f"seconds of one job alone, k {k}: no gain", N * (F + B), simulate(pair[:1], k).makespan_s)
    world = World()
    jobs_of = [trace(seed, world)[0] for seed in range(SEEDS)]
    outcomes = [simulate(jobs, world.slots, MEMORY, keep_tasks=True) for jobs in jobs_of]
    where = f"{SEEDS} traces of {world.jobs} jobs"
    yield Row(f"jobs that end, {where}", SEEDS * world.jobs, sum(map(_ended, outcomes)))
    yield Row(f"slots on which memory is exceeded, {where}", 0, sum(map(_over_memory, outcomes)))
    yield Row(f"iterations that begin before the last one is averaged, {where}", 0, sum(map(_out_of_order, outcomes)))


def gangs(jobs: list[SharedJob], slots: int) -> Outcome:
    """The baseline: full backwards, each job with its slots for itself, in the order of submission."""
    return simulate([replace(job, is_partial=False) for job in jobs], slots, MEMORY, is_shared=False)


def _ended(outcome: Outcome) -> int:
    """Jobs that had all of their iterations."""
    return sum(len(stay.iteration_ends_s) == stay.job.iterations for stay in outcome.stays.values())


def _over_memory(outcome: Outcome) -> int:
    """Slots on which states and activations were more than their memory at any instant."""
    held: dict[int, list[tuple[float, float]]] = {slot: [] for slot in range(outcome.slots)}
    for stay in outcome.stays.values():
        for slot in stay.slots:
            held[slot] += [(stay.began_s, stay.job.states_bytes), (stay.ended_s, -stay.job.states_bytes)]
    for task in outcome.tasks:
        size = outcome.stays[task.job].job.activations(task.role)
        held[task.slot] += [(task.began_s, size), (task.ended_s, -size)]
    # Of one instant, what goes before what comes. A byte is what sums of floats may be off.
    return sum(max(accumulate(size for _, size in sorted(each)), default=0.0) > MEMORY + 1 for each in held.values())


def _out_of_order(outcome: Outcome) -> int:
    """Iterations with a role before the end of the last one, or whose end does not follow from its last role."""
    began: dict[tuple[str, int], float] = {}
    ended: dict[tuple[str, int], float] = {}
    for task in outcome.tasks:
        key = task.job, task.iteration
        began[key] = min(began.get(key, task.began_s), task.began_s)
        ended[key] = max(ended.get(key, 0.0), task.ended_s)
    wrong = 0
    for name, stay in outcome.stays.items():
        ends = [ended[name, number] + stay.job.sync_s for number in range(stay.job.iterations)]
        wrong += sum(abs(end - at) > 1e-6 for end, at in zip(ends, stay.iteration_ends_s, strict=True))
        begins = [began[name, number] for number in range(stay.job.iterations)]
        wrong += sum(later < end for (_, later), end in zip(pairwise(begins), stay.iteration_ends_s, strict=False))
    return wrong
