"""All schedules side by side: what a step of each takes, in time, memory and messages. Pure; needs no torch.

Every figure comes from the plan that a job would execute and from its simulation, not from a formula.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from holdfast.plan.dynamic import simulate_ready
from holdfast.plan.memory import live
from holdfast.plan.plan import COMPUTE, SENDS, Plan
from holdfast.plan.schedules.axonn import default_limit
from holdfast.plan.schedules.table import SCHEDULES, Schedule
from holdfast.plan.simulate import Timeline, durations, simulate
from holdfast.trainer.pipeline.job_plan import job_plan
from holdfast.trainer.pipeline.transfers import ONE_AT_A_TIME, POSTED_AHEAD
from holdfast.trainer.settings.layout import TrainerLayout


@dataclass(frozen=True, slots=True)
class Pipeline:
    """What all schedules have to cope with. Times are in any unit, for all layers of one rank and one micro-batch."""

    ranks: int
    micro_batches: int
    """In a step of one replica."""
    chunks: int = 0
    """Stages on each rank, for schedules that leave the choice; 0: each one's default."""
    forward: float = 1.0
    backward: float = 2.0
    message: float = 0.0
    """What a message takes between two ranks, while both may compute."""
    device: str = "cuda"
    """Decides how early receives are posted, as in a job: see `POSTED_AHEAD`."""

    def chunks_of(self, schedule: Schedule) -> int:
        return self.chunks if self.chunks and schedule.takes_chunks else schedule.chunks


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of one rank's layers, where every layer is held once."""

    activations: int
    """Kept of one micro-batch from its forward to its backward."""
    weights: int
    """Of parameters, with their gradients and the optimizer's state."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A step under one schedule. Tuples are by pipeline rank."""

    schedule: Schedule
    plan: Plan
    timeline: Timeline
    held: tuple[float, ...]
    """Activations that are kept for backwards to come, at the most: in those of one micro-batch on one stage."""
    copies: tuple[float, ...]
    """Weights, in units of the model's share of a rank: 1, or more where stages are on several ranks."""
    messages: tuple[int, ...]
    """Sent in a step."""

    @property
    def ranks(self) -> int:
        return len(self.plan.orders)

    @property
    def chunks(self) -> int:
        """Stages that make up the layers of one rank."""
        return len(self.plan.stages) // self.ranks

    @property
    def makespan(self) -> float:
        return self.timeline.makespan

    @property
    def bubble(self) -> float:
        """Share of all ranks' time in which nothing is computed."""
        return 1 - sum(self.timeline.busy) / (self.ranks * self.makespan)

    def activation_bytes(self, memory: Memory) -> tuple[float, ...]:
        return tuple(held * memory.activations / self.chunks for held in self.held)

    def weight_bytes(self, memory: Memory) -> tuple[float, ...]:
        return tuple(copies * memory.weights for copies in self.copies)

    def needs(self, memory: Memory) -> float:
        """Bytes on the rank that needs the most."""
        return max(map(sum, zip(self.activation_bytes(memory), self.weight_bytes(memory), strict=True)))


@dataclass(frozen=True, slots=True)
class Comparison:
    """Estimates, the fastest first, and why the other schedules cannot be used here, by name."""

    estimates: tuple[Estimate, ...]
    impossible: dict[str, str]

    def best(self, memory: Memory, limit: int) -> Estimate | None:
        """The fastest that needs no more than the limit on any rank, None if none does."""
        return next((one for one in self.estimates if one.needs(memory) <= limit), None)


def compare(
    pipeline: Pipeline,
    names: Collection[str] = tuple(SCHEDULES),
    report: Callable[[int, int], None] = lambda done, total: None,
) -> Comparison:
    """Plan and simulate a step under each schedule. `report` is called with how many are done of how many.

    Of equally fast ones, those that hold less and send less come first.
    """
    found: list[Estimate] = []
    impossible: dict[str, str] = {}
    for done, name in enumerate(names):
        report(done, len(names))
        try:
            found.append(estimate(pipeline, SCHEDULES[name]))
        except ValueError as error:
            impossible[name] = str(error)
    return Comparison(tuple(sorted(found, key=_rank)), impossible)


def estimate(pipeline: Pipeline, schedule: Schedule) -> Estimate:
    """Plan and simulate a step under one schedule. ValueError says why it is impossible for these numbers."""
    chunks = pipeline.chunks_of(schedule)
    if (obstacle := schedule.obstacle(pipeline.ranks, pipeline.micro_batches)) is not None:
        raise ValueError(obstacle)
    layout = TrainerLayout(pipeline.ranks, 1, 1, chunks, pipeline.micro_batches, schedule.placement)
    computations = schedule.build(pipeline.ranks, chunks, pipeline.micro_batches)
    took = durations(pipeline.forward, pipeline.backward, layout.stages // pipeline.ranks)
    timeline = None
    if schedule.is_message_driven:
        found = simulate_ready(
            schedule.plan(pipeline.ranks, chunks, pipeline.micro_batches),
            took,
            default_limit(pipeline.ranks),
            pipeline.message,
        )
        computations, timeline = list(found.plan.orders), found.timeline
    plan = job_plan(layout, schedule.name, layout.stages, computations, ahead=POSTED_AHEAD[pipeline.device])
    timeline = timeline or simulate(plan, took, pipeline.message, one_at_a_time=ONE_AT_A_TIME[pipeline.device])
    stages = [{action.stage for action in order if action.op in COMPUTE} for order in plan.orders]
    return Estimate(
        schedule,
        plan,
        timeline,
        live(plan),
        tuple(len(own) * pipeline.ranks / len(plan.stages) for own in stages),
        tuple(sum(action.op in SENDS for action in order) for order in plan.orders),
    )


def actions(pipeline: Pipeline, names: Sequence[str] = tuple(SCHEDULES)) -> int:
    """Computations in the largest of the plans, about: what a comparison costs grows with it."""
    chunks = max(pipeline.chunks_of(SCHEDULES[name]) for name in names)
    return 3 * pipeline.ranks * pipeline.micro_batches * chunks


def _rank(one: Estimate) -> tuple[float, float, int]:
    """Sums of times differ in their last digits where the times are the same."""
    return float(f"{one.makespan:.9g}"), max(one.held) / one.chunks, sum(one.messages)
