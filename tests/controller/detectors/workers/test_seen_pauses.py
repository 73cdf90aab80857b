"""The hang detector on workers that stall without being dead themselves."""

import dataclasses
import math

import pytest

from holdfast.controller.detectors.workers.hang import HangDetector
from holdfast.controller.hang.pauses import PauseWatch
from holdfast.controller.state.ranks import RankState, RankTable
from holdfast.diagnostics.hang.stillness import Liveness
from holdfast.wire import types as t
from holdfast.wire.operation_size import pack
from holdfast.wire.standing import PastOperation, StallFacts, ThreadSight, ThreadState
from tests.controller.support.standstills import (
    OPTIONS,
    QUICK,
    STEPS,
    at,
    frozen,
    in_a_lock,
    in_operation,
    job,
    outside,
    seen,
    standing,
)


def test_a_rank_that_saves_while_others_wait_is_busy_and_named() -> None:
    ranks = frozen(18.0, dead=False)
    ranks.activity[5], ranks.quiet[5] = seen(0.0, written=212e6), 0.0
    detector = HangDetector(OPTIONS)
    assert detector.observe(ranks, 1, STEPS, at(50.05)) == []
    found = detector.pause
    assert found is not None
    assert (found.life, found.ranks, len(found.waiting), found.still) == (Liveness.BUSY, (5,), 7, 18.0)
    assert found.text == "rank 5 writes 212 MB/s; 7 wait for it in all_reduce 4 of world (0-7)"


def at_gpus(other: t.Activity) -> RankTable:
    """Seven hosts spin in a wait for their GPUs, outside of any operation; rank 5 does something else."""
    ranks = RankTable(8)
    for rank in range(8):
        ranks.mark(rank, RankState.RUNNING)
        activity = other
        if rank != 5:
            activity = seen(6.0, "R", cpu=1.0, has_gpu=True, gpu=t.GpuUse.WAITS, events_pending=2, waits_for="")
        ranks.update(
            t.WorkerSample(rank, 1, 1, step=9, phase=t.Phase.TRAIN, tick_age=0.05, progress_age=6.0, still_age=6.0,
                           activity=activity),
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


def test_a_rank_that_waits_for_its_gpu_is_not_dead_where_idle_ranks_are() -> None:
    """All others are in an operation, it spins in a wait for its GPU, which waits: it did what they did."""
    ranks = frozen(6.0)
    idle = ranks.activity[5]
    assert idle is not None
    assert [one.rank for one in HangDetector(OPTIONS).observe(ranks, 1, STEPS, at(50.05))] == [5]
    ranks.activity[5] = dataclasses.replace(idle, has_gpu=True, gpu=t.GpuUse.WAITS, events_pending=1)
    ranks.standing[5] = StallFacts((ThreadSight(1, ThreadState.RUNS, 6.0),), is_complete=True)
    assert HangDetector(OPTIONS).observe(ranks, 1, STEPS, at(50.05)) == []


def test_the_rank_behind_by_nccls_count_is_named_though_none_is_suspected() -> None:
    ranks = frozen(6.0, dead=False)
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
    ranks = frozen(8.0, dead=False)
    ranks.activity[5], ranks.quiet[5] = seen(0.0, "R", cpu=1.0), 0.0
    ranks.tick_at[5] = ranks.progress_at[5]
    detector = HangDetector(OPTIONS)
    assert detector.observe(ranks, 1, STEPS, at(50.05)) == []
    assert detector.pause is not None
    assert (detector.pause.life, detector.pause.ranks) == (Liveness.BUSY, (5,))


def test_silence_of_which_nothing_was_measured_is_no_evidence() -> None:
    ranks = frozen(40.0)
    for rank in range(8):
        ranks.activity[rank], ranks.quiet[rank], ranks.standing[rank] = None, math.nan, None
    ranks.tick_at[5] = ranks.progress_at[5]
    detector = HangDetector(OPTIONS)
    assert detector.observe(ranks, 1, STEPS, at(50.05)) == []
    assert detector.pause is not None
    assert detector.pause.life is Liveness.UNKNOWN


def test_an_evaluation_on_all_ranks_is_one_pause_of_all() -> None:
    ranks = frozen(40.0, dead=False)
    for rank in range(8):
        ranks.operation[rank], ranks.pending[rank], ranks.standing[rank] = "", None, None
        ranks.activity[rank], ranks.quiet[rank] = seen(0.0, "R", cpu=1.0), 0.0
    detector = HangDetector(OPTIONS)
    assert detector.observe(ranks, 1, STEPS, at(50.05)) == []
    assert detector.pause is not None
    assert detector.pause.text == "all 8 ranks, each: computes (1.00 cores)"


def test_before_any_step_a_pause_is_seen_too() -> None:
    ranks = frozen(5.0, dead=False)
    detector = HangDetector(OPTIONS)
    assert detector.observe(ranks, 1, [], at(50.05)) == []
    assert detector.pause is not None
    assert detector.pause.life is Liveness.IDLE


@pytest.mark.parametrize("state", ["D"])
def test_a_disk_that_does_not_answer_is_not_dead_even_in_the_trainer(state: str) -> None:
    ranks = frozen(5.0, dead=False)
    ranks.activity[5] = seen(5.0, state, waits_for="the disk")
    detector = HangDetector(OPTIONS)
    assert detector.observe(ranks, 1, STEPS, at(50.05)) == []
    assert detector.pause is not None
    assert detector.pause.text.startswith("rank 5 waits for the disk")


def in_ddp(ranks: RankTable, rank: int, number: int = 4, size: int = 9) -> None:
    """At the end of its backward pass, in the wait for the all-reduces that DDP's reducer began."""
    ranks.operation[rank] = "ddp:backward"
    ranks.pending[rank] = t.PendingCollective(groups=(t.GroupCount("world", 7, "0-7", number + 1, is_exact=True),))
    ranks.standing[rank] = in_operation(3.0, number=number, size=size)


def elsewhere(ranks: RankTable, rank: int, kind: str = "broadcast", number: int = 4, root: int = 0) -> None:
    ranks.operation[rank], ranks.pending[rank] = kind, standing(kind, number=number, begun=number + 1)
    ranks.standing[rank] = in_operation(3.0, kind, number, root=root)


def test_one_rank_in_another_operation_than_ddp_is_named_and_not_those_in_ddp() -> None:
    ranks = frozen(3.0)
    for rank in range(8):
        in_ddp(ranks, rank) if rank != 3 else elsewhere(ranks, rank)
    (finding,) = HangDetector(OPTIONS).observe(ranks, 1, STEPS, at(50.05))
    assert (finding.subject, finding.evidence["reason"]) == ("rank3", "mismatch")
    assert "broadcast" in finding.text
    assert finding.evidence["proof"]


def test_one_that_means_another_root_is_named_though_the_others_have_left_that_broadcast() -> None:
    """Rank 0 expects rank 5's broadcast; all others received that of rank 4, which waits for rank 0 to receive it."""
    ranks = frozen(3.0)
    for rank in range(8):
        elsewhere(ranks, rank, root=4) if rank == 4 else elsewhere(ranks, rank, "all_reduce", 5, -1)
        left = (PastOperation("broadcast", 0, 4, 4), PastOperation("broadcast", 3, 4, 4))
        ranks.standing[rank] = dataclasses.replace(ranks.standing[rank], past=left)  # type: ignore[type-var]
    elsewhere(ranks, 0, root=5)
    (finding,) = HangDetector(OPTIONS).observe(ranks, 1, STEPS, at(50.05))
    assert (finding.subject, finding.evidence["reason"]) == ("rank0", "mismatch")
    assert "root 5 (rank 0), root 4 (ranks 1-7)" in finding.text


def test_one_whose_size_is_another_is_named_though_the_others_have_left_that_operation() -> None:
    ranks, four, five = frozen(3.0), pack(4, 1), pack(5, 1)
    for rank in range(8):
        elsewhere(ranks, rank, "all_reduce", 5, -1)
        left = (PastOperation("all_reduce", 0, 4, size=four), PastOperation("all_reduce", 3, 4, size=five))
        ranks.standing[rank] = dataclasses.replace(ranks.standing[rank], past=left)  # type: ignore[type-var]
    elsewhere(ranks, 3, "all_reduce", 4, -1)
    (one,) = ranks.standing[3].operations  # type: ignore[union-attr]
    odd = (dataclasses.replace(one, size=five),)
    ranks.standing[3] = dataclasses.replace(ranks.standing[3], operations=odd)  # type: ignore[type-var]
    (finding,) = HangDetector(OPTIONS).observe(ranks, 1, STEPS, at(50.05))
    assert (finding.subject, finding.evidence["reason"]) == ("rank3", "mismatch")
    assert "5 x float32 (rank 3), 4 x float32 (ranks 0-2,4-7)" in finding.text


def test_half_and_half_names_the_job() -> None:
    ranks = frozen(3.0)
    for rank in range(8):
        in_ddp(ranks, rank) if rank < 4 else elsewhere(ranks, rank)
    (finding,) = HangDetector(OPTIONS).observe(ranks, 1, STEPS, at(50.05))
    assert finding.subject == "job"


def test_one_that_receives_what_no_rank_sends_is_named_and_not_its_peer() -> None:
    ranks = frozen(3.0)
    for rank in range(1, 8):
        in_ddp(ranks, rank)
    world, channel = (
        t.GroupCount("world", 7, "0-7", 4, is_exact=True),
        t.GroupCount("world:1>0", 7, "0-1", 1, is_exact=True),
    )
    ranks.operation[0], ranks.pending[0] = "recv", t.PendingCollective("recv", 1, 0, True, (world, channel))
    ranks.standing[0] = in_operation(3.0, "recv", 0, 1)
    (finding,) = HangDetector(OPTIONS).observe(ranks, 1, STEPS, at(50.05))
    assert (finding.subject, finding.evidence["reason"]) == ("rank0", "order")


@pytest.mark.parametrize("operation", ["ddp:forward", "ddp:backward", "upload", "init_process_group"])
@pytest.mark.parametrize("rank", [0, 5])
def test_a_place_is_no_operation_and_needs_no_rank(operation: str, rank: int) -> None:
    """One waits for a reply inside of its forward pass: nobody is in a cycle with it."""
    ranks = frozen(3.0, dead=False)
    for one in range(8):
        in_ddp(ranks, one)
    ranks.operation[rank], ranks.standing[rank] = operation, outside(3.0)
    ranks.pending[rank] = standing("", -1, -1, False, begun=4)
    detector = HangDetector(OPTIONS)
    assert detector.observe(ranks, 1, STEPS, at(50.05)) == []
    assert detector.pause is not None
    assert (detector.pause.life, detector.pause.ranks) == (Liveness.IDLE, (rank,))


def test_operations_that_are_known_later_than_the_standstill_name_the_rank() -> None:
    ranks, detector = frozen(9.0, dead=False), HangDetector(OPTIONS)
    known = ranks.standing[:]
    for rank in range(8):
        ranks.standing[rank] = outside(9.0)
    assert detector.observe(ranks, 1, STEPS, at(50.05)) == []
    assert detector.pause is not None
    assert detector.pause.ranks == tuple(range(8))
    ranks.standing[:] = known
    assert detector.observe(ranks, 1, STEPS, at(50.1)) == []
    assert detector.pause.ranks == (5,)


def test_two_places_are_no_cycle() -> None:
    """A compiler waits for its child in the forward pass of one rank, and the others are in their backward pass."""
    ranks = frozen(3.0, dead=False)
    for rank in range(8):
        ranks.operation[rank], ranks.pending[rank] = "ddp:forward" if rank == 1 else "ddp:backward", None
        ranks.standing[rank] = outside(3.0, "its child cc1plus (pid 7)")
    assert HangDetector(OPTIONS).observe(ranks, 1, STEPS, at(50.05)) == []


def test_windows_that_are_not_whole_prove_nothing() -> None:
    ranks = frozen(9.0)
    ranks.standing[5] = in_a_lock(0.5)
    assert HangDetector(OPTIONS).observe(ranks, 1, STEPS, at(50.05)) == []
    ranks.standing[5] = in_a_lock(0.7)
    assert len(HangDetector(OPTIONS).observe(ranks, 1, STEPS, at(50.05))) == 1


def test_an_operation_that_no_record_shows_proves_nothing() -> None:
    ranks = frozen(9.0)
    for rank in range(8):
        one = ranks.standing[rank]
        assert one is not None
        ranks.standing[rank] = dataclasses.replace(one, is_complete=False)
    assert HangDetector(OPTIONS).observe(ranks, 1, STEPS, at(50.05)) == []


def test_a_group_that_a_member_does_not_know_is_of_another_world() -> None:
    """A trainer's group with inference engines: its rank numbers are not those of this job's ranks."""
    ranks = frozen(9.0, dead=False)
    for rank in range(8):
        ranks.standing[rank], ranks.pending[rank] = outside(9.0), standing("", -1, -1, False, begun=4)
    strange = t.GroupCount("engines", 99, "0-40", 2, is_exact=True)
    ranks.pending[0] = t.PendingCollective("broadcast", 0, 1, True, (strange,))
    ranks.standing[0] = in_operation(9.0, "broadcast", 1, root=40)
    for rank in (1, 2):
        ranks.standing[rank] = in_a_lock(0.1)
    assert HangDetector(OPTIONS).observe(ranks, 1, STEPS, at(50.05)) == []


def test_a_program_that_replaced_itself_is_not_missed() -> None:
    ranks = frozen(400.0, dead=False)
    ranks.left[5] = True
    detector = HangDetector(OPTIONS)
    assert detector.observe(ranks, 1, STEPS, at(50.05)) == []
    assert detector.pause is None


def moving(ranks: RankTable, rank: int, quiet: float = 0.0) -> RankTable:
    ranks.activity[rank], ranks.quiet[rank] = seen(quiet, "R" if not quiet else "S", cpu=1.0), quiet
    ranks.standing[rank] = StallFacts((ThreadSight(1, ThreadState.RUNS, 1.0),), is_complete=True)
    return ranks


def orders() -> RankTable:
    """Ranks 0 and 1 wait for each other in two groups, in another order."""
    ranks = frozen(3.0)
    first = t.GroupCount("tp", 1, "0-1", 5, is_exact=True)
    second = t.GroupCount("dp", 2, "0-1", 7, is_exact=True)
    for rank in range(2, 8):
        ranks.mark(rank, RankState.DONE)
    ranks.pending[0] = t.PendingCollective("all_reduce", 0, 4, True, (first, second))
    ranks.standing[0] = in_operation(3.0, number=4, group=0)
    counts = (dataclasses.replace(first, begun=4), dataclasses.replace(second, begun=8))
    ranks.pending[1] = t.PendingCollective("all_reduce", 1, 7, True, counts)
    ranks.standing[1] = in_operation(3.0, number=7, group=1)
    return ranks


def test_two_orders_of_which_one_side_still_works_are_no_verdict() -> None:
    (finding,) = HangDetector(OPTIONS).observe(orders(), 1, STEPS, at(50.05))
    assert (finding.subject, finding.signature) == ("job", "hang:order")
    assert HangDetector(OPTIONS).observe(moving(orders(), 1), 1, STEPS, at(50.05)) == []


def test_two_orders_are_no_verdict_while_a_thread_of_either_may_end_its_process() -> None:
    ranks = orders()
    one = ranks.standing[1]
    assert one is not None
    free = ThreadSight(9, ThreadState.OUTSIDE, 3.0, words="epoll")
    ranks.standing[1] = dataclasses.replace(one, threads=(*one.threads, free))
    assert HangDetector(OPTIONS).observe(ranks, 1, STEPS, at(50.05)) == []


def test_an_operation_in_which_all_ranks_are_is_the_networks_time() -> None:
    ranks = frozen(12.0)
    ranks.operation[5], ranks.pending[5], ranks.standing[5] = ranks.operation[0], ranks.pending[0], ranks.standing[0]
    detector = HangDetector(OPTIONS)
    assert detector.observe(ranks, 1, STEPS, at(50.05)) == []
    assert detector.pause is not None
    assert detector.pause.is_in_flight


def test_a_rank_that_left_is_the_reason_once_no_other_moves() -> None:
    """One that computes may end, and with it the operation of those that wait."""
    ranks = frozen(3.0, dead=False)
    ranks.mark(5, RankState.DONE)
    (finding,) = HangDetector(OPTIONS).observe(ranks, 1, STEPS, at(50.05))
    assert (finding.subject, finding.evidence["reason"]) == ("rank5", "gone")
    assert HangDetector(OPTIONS).observe(moving(ranks, 2), 1, STEPS, at(50.05)) == []


def test_what_was_seen_before_a_rank_left_proves_nothing() -> None:
    """Its peer catches the error of the closed connection, and trains on: it is looked at anew."""
    ranks, detector = frozen(3.0, dead=False), HangDetector(OPTIONS)
    assert detector.observe(ranks, 1, STEPS, at(50.0)) == []
    ranks.mark(5, RankState.DONE)
    assert detector.observe(ranks, 1, STEPS, at(50.05)) == []
    assert detector.observe(ranks, 1, STEPS, at(50.5)) == []
    assert len(detector.observe(ranks, 1, STEPS, at(50.7))) == 1


def test_a_dead_rank_is_ended_although_another_computes() -> None:
    (finding,) = HangDetector(OPTIONS).observe(moving(frozen(3.0), 2), 1, STEPS, at(50.05))
    assert finding.subject == "rank5"


def test_many_ranks_outside_of_operations_are_no_single_culprits() -> None:
    ranks = frozen(3.0, dead=False)
    for rank in (3, 4, 5):
        ranks.operation[rank], ranks.pending[rank], ranks.standing[rank] = "", ranks.pending[5], outside(3.0)
    detector = HangDetector(OPTIONS)
    assert detector.observe(ranks, 1, STEPS, at(50.05)) == []
    assert detector.pause is not None
    assert detector.pause.ranks == (3, 4, 5)


@pytest.mark.parametrize("ranks_held", [{5}, set(range(8))])
def test_held_ranks_are_reported_with_their_holder_and_are_not_dead(ranks_held: set[int]) -> None:
    """gdb attached to one; the whole node frozen by a batch system."""
    ranks = frozen(9.0)
    for rank in ranks_held:
        ranks.stopped[rank] = True
        ranks.activity[rank] = seen(9.0, "t")
        ranks.standing[rank] = StallFacts((ThreadSight(1, ThreadState.HELD, 9.0),), holder="gdb (pid 7) traces it")
    detector = HangDetector(OPTIONS)
    assert detector.observe(ranks, 1, STEPS, at(50.05)) == []
    assert detector.pause is not None
    assert detector.pause.life is Liveness.HELD
    assert "gdb (pid 7) traces it" in detector.pause.text


def test_ranks_stopped_together_were_stopped_by_what_lets_them_go_on() -> None:
    ranks = frozen(9.0)
    for rank in (2, 5):
        ranks.stopped[rank], ranks.activity[rank] = True, seen(9.0, "T")
        ranks.standing[rank] = StallFacts((ThreadSight(1, ThreadState.HELD, 9.0),))
    assert HangDetector(OPTIONS).observe(ranks, 1, STEPS, at(50.05)) == []
