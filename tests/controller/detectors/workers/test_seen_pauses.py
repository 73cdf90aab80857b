"""The hang detector on workers that stall without being dead themselves."""

import dataclasses
import math

import pytest

from holdfast.controller.detectors.workers.hang import HangDetector
from holdfast.controller.hang.pauses import PauseWatch
from holdfast.controller.state.ranks import RankState, RankTable
from holdfast.diagnostics.hang.stillness import Liveness
from holdfast.wire import types as t
from tests.controller.support.standstills import OPTIONS, QUICK, STEPS, at, frozen, job, seen


def test_a_rank_that_saves_while_others_wait_is_busy_and_named() -> None:
    ranks = frozen(18.0, mesh=False)
    ranks.activity[5], ranks.quiet[5] = seen(0.0, written=212e6), 0.0
    detector = HangDetector(OPTIONS)
    assert detector.observe(ranks, 1, STEPS, at(50.05)) == []
    found = detector.pause
    assert found is not None
    assert (found.life, found.ranks, len(found.waiting), found.still) == (Liveness.BUSY, (5,), 7, 18.0)
    assert found.text == "rank 5 writes 212 MB/s; 7 wait for it in world:all_reduce 4 of world (0-7)"


def at_gpus(other: t.Activity, mesh: bool = False) -> RankTable:
    """Seven hosts spin in a wait for their GPUs, outside of any operation; rank 5 does something else."""
    ranks = RankTable(8)
    for rank in range(8):
        ranks.mark(rank, RankState.RUNNING)
        activity = other
        if rank != 5:
            activity = seen(6.0, "R", cpu=1.0, has_gpu=True, gpu=t.GpuUse.WAITS, events_pending=2, waits_for="")
        ranks.update(
            t.WorkerSample(rank, 1, 1, step=9, phase=t.Phase.TRAIN, tick_age=0.05, progress_age=6.0, still_age=6.0,
                           coordinate=(0, rank, 0) if mesh else None, sizes=(1, 8, 1), activity=activity),
            50.0,
        )  # fmt: skip
    return ranks


def test_hosts_that_wait_for_gpus_that_wait_are_peers_of_the_one_that_does_not() -> None:
    detector = HangDetector(OPTIONS)
    assert detector.observe(at_gpus(seen(0.0, "R", cpu=1.0)), 1, STEPS, at(50.05)) == []
    found = detector.pause
    assert found is not None
    assert (found.life, found.ranks, len(found.waiting)) == (Liveness.BUSY, (5,), 7)
    assert found.text == "rank 5 computes (1.00 cores); 7 wait for it in work of their GPUs"
    assert HangDetector(OPTIONS).observe(at_gpus(seen(6.0)), 1, STEPS, at(50.05)) == []
    (finding,) = HangDetector(OPTIONS).observe(at_gpus(seen(6.0), mesh=True), 1, STEPS, at(50.05))
    assert (finding.rank, finding.evidence["reason"]) == (5, "outside")


def test_a_rank_that_waits_for_its_gpu_is_not_dead_where_idle_ranks_are() -> None:
    """All others are in an operation, it spins in a wait for its GPU, which waits: it did what they did."""
    ranks = frozen(6.0)
    idle = ranks.activity[5]
    assert idle is not None
    assert [one.rank for one in HangDetector(OPTIONS).observe(ranks, 1, STEPS, at(50.05))] == [5]
    ranks.activity[5] = dataclasses.replace(idle, has_gpu=True, gpu=t.GpuUse.WAITS, events_pending=1)
    assert HangDetector(OPTIONS).observe(ranks, 1, STEPS, at(50.05)) == []


def test_the_rank_behind_by_nccls_count_is_named_though_none_is_suspected() -> None:
    ranks = frozen(6.0)
    ranks.operation[5], ranks.pending[5] = ranks.operation[0], ranks.pending[0]  # all are in the same operation
    behind = "by NCCL's count it has begun 640 AllReduce operations as rank 6 of communicator 0xfa, and a peer 641"
    six = ranks.activity[6]
    assert six is not None
    ranks.activity[6] = dataclasses.replace(six, has_gpu=True, behind=behind)
    detector = HangDetector(OPTIONS)
    assert detector.observe(ranks, 1, STEPS, at(50.05)) == []
    found = detector.pause
    assert found is not None
    assert found.behind == ((6, behind),)
    assert behind in found.text
    hidden = dataclasses.replace(found, sights=found.sights[:1])
    assert hidden.text.endswith(f"; of rank 6: {behind}")
    watch = PauseWatch()
    alert = watch.look(dataclasses.replace(found, still=400.0), "", job(), QUICK, True, at(50.05)).alert
    assert alert is not None
    assert alert.evidence["behind"] == {"6": behind}
    assert behind in alert.text


def test_a_call_that_holds_the_interpreter_and_computes_is_busy() -> None:
    """`list.sort`, `json.loads`: the life thread is silent, and processor time grows."""
    ranks = frozen(8.0, mesh=False)
    ranks.activity[5], ranks.quiet[5] = seen(0.0, "R", cpu=1.0), 0.0
    ranks.tick_at[5] = ranks.progress_at[5]
    detector = HangDetector(OPTIONS)
    assert detector.observe(ranks, 1, STEPS, at(50.05)) == []
    assert detector.pause is not None
    assert (detector.pause.life, detector.pause.ranks) == (Liveness.BUSY, (5,))


def test_silence_of_which_nothing_was_measured_is_no_evidence() -> None:
    ranks = frozen(40.0)
    for rank in range(8):
        ranks.activity[rank], ranks.quiet[rank] = None, math.nan
    ranks.tick_at[5] = ranks.progress_at[5]
    detector = HangDetector(OPTIONS)
    assert detector.observe(ranks, 1, STEPS, at(50.05)) == []
    assert detector.pause is not None
    assert detector.pause.life is Liveness.UNKNOWN


def test_an_evaluation_on_all_ranks_is_one_pause_of_all() -> None:
    ranks = frozen(40.0, mesh=False)
    for rank in range(8):
        ranks.operation[rank], ranks.pending[rank] = "", None
        ranks.activity[rank], ranks.quiet[rank] = seen(0.0, "R", cpu=1.0), 0.0
    detector = HangDetector(OPTIONS)
    assert detector.observe(ranks, 1, STEPS, at(50.05)) == []
    assert detector.pause is not None
    assert detector.pause.text == "all 8 ranks, each: computes (1.00 cores)"


def test_before_any_step_a_pause_is_seen_too() -> None:
    ranks = frozen(5.0, mesh=False)
    detector = HangDetector(OPTIONS)
    assert detector.observe(ranks, 1, [], at(50.05)) == []
    assert detector.pause is not None
    assert detector.pause.life is Liveness.IDLE


@pytest.mark.parametrize("state", ["D"])
def test_a_disk_that_does_not_answer_is_not_dead_even_in_the_trainer(state: str) -> None:
    ranks = frozen(5.0)
    ranks.activity[5] = seen(5.0, state, waits_for="the disk")
    detector = HangDetector(OPTIONS)
    assert detector.observe(ranks, 1, STEPS, at(50.05)) == []
    assert detector.pause is not None
    assert detector.pause.text.startswith("rank 5 waits for the disk")


def ddp(inside: set[int], other: str = "broadcast") -> HangDetector:
    """Ranks in DDP's backward pass, whose all-reduce no hook sees, against ranks in another operation."""
    ranks = frozen(3.0, mesh=False)
    for rank in range(8):
        if rank in inside:
            ranks.operation[rank], ranks.pending[rank] = "ddp:backward", None
        else:
            group = t.GroupCount("world", 7, "0-7", 5)
            ranks.operation[rank] = other
            ranks.pending[rank] = t.PendingCollective("broadcast", 0, 4, True, (group,))
    detector = HangDetector(OPTIONS)
    detector.found = detector.observe(ranks, 1, STEPS, at(50.05))  # type: ignore[attr-defined]
    detector.table = ranks  # type: ignore[attr-defined]
    return detector


def test_one_rank_in_another_operation_than_ddp_is_named_and_not_those_in_ddp() -> None:
    (finding,) = ddp(set(range(1, 8))).found  # type: ignore[attr-defined]
    assert (finding.subject, finding.evidence["reason"]) == ("rank0", "order")
    assert "but ranks 0 wait in broadcast" in finding.text


def test_one_that_skipped_a_broadcast_is_named_and_not_its_root() -> None:
    """Rank 0 waits in broadcast 4, which all but rank 3 have done on their way into the backward pass."""
    ranks = ddp(set(range(1, 8))).table  # type: ignore[attr-defined]
    for rank in range(1, 8):
        ranks.pending[rank] = t.PendingCollective(groups=(t.GroupCount("world", 7, "0-7", 4 if rank == 3 else 5),))
    (finding,) = HangDetector(OPTIONS).observe(ranks, 1, STEPS, at(50.05))
    assert (finding.subject, finding.evidence["reason"]) == ("rank3", "order")
    assert "without the broadcast that ranks 1-2,4-7 did and that holds rank 0" in finding.text


def test_one_that_receives_what_no_rank_sends_is_named_and_not_its_peer() -> None:
    detector = ddp(set(range(1, 8)), "recv")
    ranks = detector.table  # type: ignore[attr-defined]
    group = t.GroupCount("world:1>0", 7, "0-1", 1)
    ranks.pending[0] = t.PendingCollective("recv", 0, 0, True, (group,))
    (finding,) = HangDetector(OPTIONS).observe(ranks, 1, STEPS, at(50.05))
    assert (finding.subject, finding.evidence["reason"]) == ("rank0", "order")


@pytest.mark.parametrize("operation", ["ddp:forward", "upload"])
def test_one_that_waits_quietly_in_a_forward_pass_is_not_taken_for_another_order(operation: str) -> None:
    detector = ddp(set(range(1, 8)), operation)
    ranks = detector.table  # type: ignore[attr-defined]
    ranks.pending[0] = t.PendingCollective()
    assert detector.observe(ranks, 1, STEPS, at(50.05)) == []
    assert detector.pause is not None
    assert detector.pause.life is Liveness.IDLE


def test_a_pass_that_waits_with_a_deadline_is_not_taken_for_another_order() -> None:
    """It waits for something of its own: an all-reduce of gloo has no deadline in the kernel."""
    detector = ddp(set(range(1, 8)))
    ranks = detector.table  # type: ignore[attr-defined]
    ranks.activity[3] = seen(3.0, ends_in=20.0)
    assert detector.observe(ranks, 1, STEPS, at(50.05)) == []


def moving(ranks: RankTable, rank: int, quiet: float = 0.0) -> RankTable:
    ranks.activity[rank], ranks.quiet[rank] = seen(quiet, "R" if not quiet else "S", cpu=1.0), quiet
    return ranks


def test_two_orders_of_which_one_side_still_works_are_no_verdict() -> None:
    """Two threads of one process can be in operations at once: the probe reports the newest."""

    def orders() -> RankTable:
        ranks = frozen(3.0)
        first, second = t.GroupCount("tp", 1, "0-1", 5), t.GroupCount("dp", 2, "0-1", 7)
        for rank in range(2, 8):
            ranks.mark(rank, RankState.DONE)
        ranks.pending[0] = t.PendingCollective("all_reduce", 0, 4, True, (first, second))
        counts = (dataclasses.replace(first, begun=4), dataclasses.replace(second, begun=8))
        ranks.pending[1] = t.PendingCollective("all_reduce", 1, 7, True, counts)
        return ranks

    assert len(HangDetector(OPTIONS).observe(orders(), 1, STEPS, at(50.05))) == 1
    assert HangDetector(OPTIONS).observe(moving(orders(), 1), 1, STEPS, at(50.05)) == []


@pytest.mark.parametrize(("number", "found"), [(0, 0), (4, 1)])
def test_an_idle_rank_at_the_door_of_a_first_operation_makes_its_communicator(number: int, found: int) -> None:
    ranks = frozen(3.0, mesh=False)
    for rank in range(8):
        begun = t.GroupCount("world", 7, "0-7", number + 1)
        ranks.operation[rank] = "world:all_reduce"
        ranks.pending[rank] = t.PendingCollective("all_reduce", 0, number, rank != 5, (begun,))
    assert len(HangDetector(OPTIONS).observe(ranks, 1, STEPS, at(50.05))) == found


@pytest.mark.parametrize(("quiet", "found"), [(11.0, 1), (3.0, 0)])
def test_a_complete_operation_in_which_anything_moved_lately_goes_on(quiet: float, found: int) -> None:
    ranks = frozen(12.0, mesh=False)
    ranks.operation[5], ranks.pending[5] = ranks.operation[0], ranks.pending[0]
    assert len(HangDetector(OPTIONS).observe(moving(ranks, 2, quiet), 1, STEPS, at(50.05))) == found


def test_a_rank_that_left_is_named_once_those_that_wait_for_it_are_idle() -> None:
    ranks = frozen(3.0)
    ranks.mark(5, RankState.DONE)
    assert HangDetector(OPTIONS).observe(moving(ranks, 2), 1, STEPS, at(50.05)) == []


def test_many_ranks_outside_of_operations_are_no_single_culprits() -> None:
    ranks = frozen(3.0)
    for rank in (3, 4, 5):
        ranks.operation[rank], ranks.pending[rank] = "", ranks.pending[5]
    detector = HangDetector(OPTIONS)
    assert detector.observe(ranks, 1, STEPS, at(50.05)) == []
    assert detector.pause is not None
    assert detector.pause.ranks == (3, 4, 5)


def test_half_and_half_names_the_job() -> None:
    (finding,) = ddp({0, 1, 2, 3}).found  # type: ignore[attr-defined]
    assert finding.subject == "job"


def test_a_backward_pass_that_computes_is_waited_for() -> None:
    detector = ddp(set(range(1, 8)))
    ranks = detector.table  # type: ignore[attr-defined]
    ranks.activity[3], ranks.quiet[3] = seen(0.0, "R", cpu=1.0), 0.0
    assert detector.observe(ranks, 1, STEPS, at(50.05)) == []
    assert detector.pause is not None
    assert detector.pause.ranks == (3,)
