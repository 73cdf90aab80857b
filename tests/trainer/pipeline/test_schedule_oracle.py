"""Our lists are torch's: the ones it executes for its own schedules, with and without what it adds to them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from plans import computations
from torch.distributed.pipelining import schedules as torch_schedules
from torch_runtime import lowered
from torch_stages import stages_without_ranks

from holdfast.plan.check import in_flight
from holdfast.plan.plan import Action, Op, Order, from_csv, to_csv
from holdfast.plan.schedules.table import SCHEDULES
from holdfast.plan.simulate import durations, simulate
from holdfast.trainer.pipeline.job_plan import job_plan
from holdfast.trainer.pipeline.sharding import add_reduce, add_unshard
from holdfast.trainer.pipeline.transfers import add_transfers
from holdfast.trainer.settings.layout import TrainerLayout

SIZES = [(2, 2), (2, 4), (4, 4), (4, 8), (8, 8), (8, 16)]


class Recorder:
    """Stands in for a stage and writes down what a schedule makes it do. No group, no tensor."""

    def __init__(self, stage: int, stages: int) -> None:
        self.stage_index, self.num_stages = stage, stages
        self.is_first, self.is_last = stage == 0, stage == stages - 1
        self.done: list[Action] = []

    def forward_one_chunk(self, micro_batch: int, *_: Any, **__: Any) -> None:
        self.done.append(Action(Op.FORWARD, self.stage_index, micro_batch))

    def backward_one_chunk(self, micro_batch: int, **_: Any) -> None:
        self.done.append(Action(Op.BACKWARD, self.stage_index, micro_batch))

    def perform_reduce_grad(self, factor: int) -> None:
        self.done.append(Action(Op.REDUCE_GRAD, self.stage_index))

    def no_transfers(self, micro_batch: int) -> list[Any]:
        return []

    get_fwd_recv_ops = get_fwd_send_ops = get_bwd_recv_ops = get_bwd_send_ops = no_transfers


def executed(kind: Any, ranks: int, count: int) -> list[Order]:
    """What torch's single-stage schedules do, by having them do it."""
    orders = []
    for rank in range(ranks):
        stage = Recorder(rank, ranks)
        schedule = kind(stage, count)
        schedule._initialize_stage = lambda *_: None
        schedule._step_microbatches()
        orders.append(tuple(stage.done))
    return orders


def written(schedule: Any, ranks: int) -> list[Order]:
    """The lists that a schedule of torch's has made, without their idle slots."""
    lists = [",".join(str(action or "") for action in schedule.pipeline_order[rank]) for rank in range(ranks)]
    return list(from_csv("\n".join(lists)))


@pytest.mark.parametrize(("ranks", "count"), SIZES)
@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
def test_single_stage_lists_are_those_that_torch_executes(name: str, ranks: int, count: int) -> None:
    # Its actual operations, not its `pipeline_order`: there, 1F1B's last rank begins with micro-batch 1 (torch 2.13).
    kind = {"gpipe": torch_schedules.ScheduleGPipe, "1f1b": torch_schedules.Schedule1F1B}[name]
    ours = [add_reduce(order, count) for order in computations(name, ranks, 1, count)]
    assert ours == executed(kind, ranks, count)


@pytest.mark.parametrize(("ranks", "count"), [*SIZES, (4, 10), (4, 3)])
@pytest.mark.parametrize("chunks", [1, 2, 3])
@pytest.mark.parametrize("name", ["interleaved", "bfs"])
def test_looped_lists_are_torch_s_before_and_after_lowering(name: str, chunks: int, ranks: int, count: int) -> None:
    looped = {"interleaved": torch_schedules.ScheduleInterleaved1F1B, "bfs": torch_schedules.ScheduleLoopedBFS}
    theirs = looped[name](stages_without_ranks(ranks, chunks), count)
    ours = computations(name, ranks, chunks, count)
    assert written(theirs, ranks) == ours
    # torch keeps up to three stages whole.
    ours = [add_reduce(add_unshard(order, live=3), count) for order in ours]
    ours = add_transfers(ours, [stage % ranks for stage in range(ranks * chunks)])
    assert ours == lowered(theirs)


@pytest.mark.parametrize(
    ("ranks", "count"), [*SIZES, (2, 1), (2, 3), (3, 5), (4, 3), (4, 10), (5, 20), (8, 3), (16, 48)]
)
@pytest.mark.parametrize(
    ("name", "kind", "chunks"),
    [
        ("zbv", torch_schedules.ScheduleZBVZeroBubble, 2),
        *(("interleaved-zero-bubble", torch_schedules.ScheduleInterleavedZeroBubble, chunks) for chunks in (1, 2, 3)),
    ],
)
def test_zero_bubble_lists_are_torch_s(name: str, kind: Any, chunks: int, ranks: int, count: int) -> None:
    if SCHEDULES[name].whole_rounds and count % max(1, count // ranks):
        with pytest.raises(ValueError, match="rounds evenly"):
            computations(name, ranks, chunks, count)
        return
    ours = computations(name, ranks, chunks, count)
    assert written(kind(stages_without_ranks(ranks, chunks), count), ranks) == ours


@pytest.mark.parametrize(("ranks", "count"), [(2, 4), (2, 5), (3, 6), (3, 8), (4, 8), (4, 13), (5, 20), (16, 48)])
def test_dualpipev_is_torch_s_with_what_it_overlaps_one_after_the_other(ranks: int, count: int) -> None:
    theirs = torch_schedules.ScheduleDualPipeV(stages_without_ranks(ranks, 2), count).pipeline_order
    apart = [[part for one in theirs[rank] if one for part in one.sub_actions or (one,)] for rank in range(ranks)]
    assert computations("dualpipev", ranks, 2, count) == list(from_csv("\n".join(",".join(map(str, a)) for a in apart)))


@pytest.mark.parametrize(("ranks", "count"), [(2, 3), (4, 7)])
def test_dualpipev_needs_a_micro_batch_for_each_stage(ranks: int, count: int) -> None:
    said = f"needs a micro-batch for each stage: {count} micro-batches for {2 * ranks} stages"
    assert SCHEDULES["dualpipev"].obstacle(ranks, count) == said
    assert SCHEDULES["dualpipev"].obstacle(ranks, 2 * ranks) is None
    with pytest.raises(ValueError, match="a micro-batch for each stage"):
        computations("dualpipev", ranks, 2, count)


@pytest.mark.parametrize(("ranks", "count"), [(2, 4), (2, 8), (4, 8), (4, 16), (8, 16), (8, 32)])
@pytest.mark.parametrize("name", ["zbv", "interleaved-zero-bubble"])
def test_zero_bubble_loses_what_it_cannot_fill(name: str, ranks: int, count: int) -> None:
    """With both halves of a backward as long as a forward, and micro-batches to fill the pipeline twice."""
    layout = TrainerLayout(ranks, 1, 1, 2, count, SCHEDULES[name].placement)
    plan = job_plan(layout, name, layout.stages, computations(name, ranks, 2, count), ahead=2)
    line = simulate(plan, durations(1, 2, chunks=2))
    assert line.bubble == pytest.approx([(ranks - 1) / (6 * count + ranks - 1)] * ranks)
    assert in_flight(plan) == (2 * ranks,) * ranks


def test_torch_reads_our_text(tmp_path: Any) -> None:
    orders = add_transfers(computations("interleaved", 4, 2, 8), [stage % 4 for stage in range(8)])
    path = tmp_path / "plan.csv"
    path.write_text(to_csv(orders))
    runtime = torch_schedules._PipelineScheduleRuntime(stages_without_ranks(4, 2), 8)
    runtime._load_csv(str(path), format="compute_comms")
    assert lowered(SimpleNamespace(pipeline_order_with_comms=runtime.pipeline_order_with_comms)) == orders
