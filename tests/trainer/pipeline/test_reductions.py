"""A stage's gradients are summed over its replicas while the rank goes on to compute, and awaited by the optimizer."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from forked import Zygote
from programs import figures

from holdfast.plan.plan import LAST_BACKWARDS, Op
from holdfast.plan.schedules.table import SCHEDULES
from holdfast.plan.simulate import durations, simulate
from holdfast.trainer.mesh import collectives
from holdfast.trainer.pipeline.beside import Beside
from holdfast.trainer.pipeline.job_plan import job_plan
from holdfast.trainer.settings.layout import TrainerLayout

CASES = {
    "zero 1": ["zero=1", "schedule=interleaved"],
    "zero 2": ["zero=2", "schedule=interleaved"],
    "bfs zero 3": ["zero=3", "zero_unit=stage", "schedule=bfs"],
    "bfs zero 3 live 2": ["zero=3", "zero_unit=stage", "zero_live=2", "schedule=bfs"],
    "interleaved zero 3 live 2": ["zero=3", "zero_unit=stage", "zero_live=2", "chunks=3", "schedule=interleaved"],
    "zbv zero 2 bfloat16": ["zero=2", "schedule=zbv", "train.dtype=bfloat16"],
    "pipes zero 1": ["zero=1", "schedule=chimera"],
    "pipes zero 1 eager": ["zero=1", "schedule=chimera", "replica_sync=eager"],
    "pipes zero 1 eager-opt": ["zero=1", "schedule=chimera", "replica_sync=eager-opt"],
    "pipes zero 2": ["zero=2", "schedule=chimera"],
    "pipes zero 2 bfloat16": ["zero=2", "schedule=chimera-halving", "train.dtype=bfloat16", "train.micro_batch_size=2"],
}
GATHERED = {"zero 1": 2, "zero 2": 2, "bfs zero 3": 2 * 2 - 1, "bfs zero 3 live 2": 2 * 2 - 2}
"""By a rank with V = 2 stages in a step; with zero_live = 2 both stay whole between forward and backward."""
GATHERED |= dict.fromkeys((case for case in CASES if case.startswith("pipes")), 2)
EARLY = {"pipes zero 1": 0, "pipes zero 1 eager": 1, "pipes zero 1 eager-opt": 0, "pipes zero 2": 3}
"""Sums of a step that begin before the rank's last computation. Two ranks of two pipes have no bubble, so `eager-opt`
finds no stage for which that is free. With ZeRO 2 two micro-batches of two stages are summed, one of them last."""
FAST = ("zero 1", "bfs zero 3 live 2", "pipes zero 1 eager")


def words(named: list[str]) -> list[str]:
    return [w for one in named for w in ("--set", one if one.partition("=")[0].count(".") else f"parallel.{one}")]


@pytest.mark.parametrize(
    "case", [pytest.param(c, marks=[] if c in FAST else [pytest.mark.slow, pytest.mark.aside]) for c in CASES]
)
def test_sums_that_arrive_late_hold_up_no_computation_and_change_no_bit(
    zygote: Zygote, tiny: list[str], tmp_path: Path, case: str
) -> None:
    """No sum arrives before the rank has gone on: were one awaited before, none of them would ever come."""
    argv = [*tiny, *words(["pp=2", "dp=2", "train.micro_batches=8", *CASES[case]])]
    done = {
        task: zygote.run(f"reductions:{task}", 4, tmp_path / task, args={"argv": argv, "steps": 3})
        for task in ("late", "usual")
    }
    assert [one["exits"] for one in done.values()] == [[0] * 4] * 2
    for late, usual in zip(done["late"]["results"], done["usual"]["results"], strict=True):
        assert late["losses"] == usual["losses"]
        assert late["sums"] > 0
        assert late["stuck"] == 0
        # Waiting for one stage's sum must not drop the gathering of another use of it, which would begin anew.
        assert late["gathered"] == late["planned"]
        if case in EARLY:
            assert late["early"] == 3 * EARLY[case]
        if case in GATHERED:
            assert late["planned"] == 3 * GATHERED[case]


@pytest.mark.parametrize("zero", [1, 2])
def test_on_a_gpu_no_computation_is_behind_a_wait_for_sums(
    zygote: Zygote, tiny: list[str], tmp_path: Path, zero: int
) -> None:
    argv = [*tiny, *words(["pp=2", "dp=2", "chunks=2", "train.micro_batches=4", f"zero={zero}", "schedule=bfs"])]
    done = zygote.run("reductions:on_streams", 4, tmp_path, args={"argv": argv})
    assert done["exits"] == [0] * 4
    for rank in done["results"]:
        count, stages, micro_batches = rank["count"], 2, 2
        assert count == 2 * stages * micro_batches
        first = (
            stages * micro_batches + micro_batches
        )  # all forwards, and the backwards of the stage that is done first
        if zero == 1:
            assert rank["reductions"] == [first, count]
            assert rank["waits"] == [count] * stages
        else:
            # What a stage adds to must be there: only the next of its own is behind the one before.
            assert rank["reductions"] == [first - 1, first, count - 1, count]
            assert rank["waits"] == [first, count, count, count]


@pytest.mark.parametrize("live", [1, 2, 3, 4])
def test_a_stage_is_reduced_behind_its_last_backward_however_long_it_stays_whole(live: int) -> None:
    pp, chunks, count = 2, 4, 4
    layout = TrainerLayout(pp, 2, 1, chunks, count, SCHEDULES["bfs"].placement)
    plan = job_plan(layout, "bfs", layout.stages, SCHEDULES["bfs"].build(pp, chunks, count), zero=3, live=live)
    for order in plan.orders:
        places = [i for i, action in enumerate(order) if action.op is Op.REDUCE_GRAD]
        assert len(places) == chunks
        for place in places:
            backwards = [a for a in order[:place] if a.op in LAST_BACKWARDS and a.stage == order[place].stage]
            assert len(backwards) == count
            between = order[order.index(backwards[-1]) + 1 : place]
            assert all(action.op in (Op.SEND_BACKWARD, Op.RECV_BACKWARD) for action in between)


def test_a_reduction_goes_on_beside_its_caller() -> None:
    go = threading.Event()
    done: list[str] = []

    def work() -> None:
        collectives._local.begun(8)
        assert go.wait(20)
        done.append("work")

    beside = Beside(work)
    assert (beside.num_bytes, done) == (8, [])
    go.set()
    beside.finish()
    assert done == ["work"]


@pytest.mark.parametrize("has_begun", [False, True])
def test_what_a_reduction_raises_is_raised_where_it_is_awaited(has_begun: bool) -> None:
    def work() -> None:
        if has_begun:
            collectives._local.begun(8)
        raise RuntimeError("a peer is gone")

    beside = Beside(work)
    with pytest.raises(RuntimeError, match="a peer is gone"):
        beside.finish()


@pytest.mark.parametrize("case", [("interleaved", 1, 0), ("bfs", 3, 2)], ids="{0[0]} zero {0[1]}".format)
def test_of_four_stages_only_the_last_one_s_sum_is_exposed(case: tuple[str, int, int]) -> None:
    """RS / V (MegaScale, 3.2), where a backward takes 1.5 times as long as its stage's sum. That a rank goes on while
    its sums are under way is shown above, so sums have a lane of their own."""
    name, zero, live = case
    schedule, pp, chunks, count = SCHEDULES[name], 2, 4, 4
    layout = TrainerLayout(pp, 2, 1, chunks, count, schedule.placement)
    orders = schedule.build(pp, chunks, count)
    plan = job_plan(layout, name, layout.stages, orders, zero=zero, live=live)
    work = durations(0.75, 1.5)

    def makespan(of_a_sum: float) -> float:
        return simulate(plan, lambda a: of_a_sum if a.op is Op.REDUCE_GRAD else work(a), by_resource=True).makespan

    assert makespan(1.0) - makespan(0.0) == 1.0
    # Longer than what is computed meanwhile, four backwards: more than the last one is exposed.
    assert makespan(9.0) - makespan(0.0) > 9.0


def test_what_is_exposed_is_measured(zygote: Zygote, tmp_path: Path) -> None:
    """How much is in benchmarks/RESULTS.md: no test says what a busy machine takes."""
    words = ("--cases", "bfs zero 3 live 2", "--chunks", "2", "--ms", "8", "--steps", "1")
    (found,) = figures(zygote, tmp_path, "reductions.py", *words)["ms"].values()
    assert found["same_losses"]
    # The first stage, whose backward comes last, has the embedding too: more than its share of the link's time.
    assert 8 / 2 <= found["last"] < 8
    # Each of two stages is summed once, and gathered twice but for the one that stays whole.
    assert found["link"] == pytest.approx(8 + 2 * 8, rel=0.5)
