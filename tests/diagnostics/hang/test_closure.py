"""Each rule by which a rank is dead, and each by which it is not."""

import math
from dataclasses import replace

import pytest

from holdfast.diagnostics.hang.can_move import CanMove
from holdfast.diagnostics.hang.closure import judge
from holdfast.diagnostics.hang.facts import OpenAt, RankFacts
from holdfast.diagnostics.hang.group import Group
from holdfast.diagnostics.hang.operations import children_of
from holdfast.diagnostics.hang.proof import Cause, End, Link, Proof
from holdfast.wire.operation_size import pack
from holdfast.wire.standing import KNOWN_AFTER, ThreadSight, ThreadState
from tests.diagnostics.support.standing_ranks import (
    LEFT,
    MAIN,
    OTHER,
    RIGHT,
    WORLD,
    channel,
    gone,
    inside,
    rank,
    thread,
    without,
)

LONGEST = 1800.0
FREE = (ThreadState.UNKNOWN, ThreadState.RUNS, ThreadState.TIMED, ThreadState.OUTSIDE, ThreadState.HELD)


def dead(*facts: RankFacts) -> tuple[int, ...]:
    proof = judge(facts, longest_s=LONGEST)
    return proof.dead if proof is not None else ()


def proof_of(*facts: RankFacts) -> Proof:
    proof = judge(facts, longest_s=LONGEST)
    assert proof is not None
    return proof


def locked(number: int = 1, **more: object) -> RankFacts:
    return rank(number, begun={WORLD: 41}, **more)  # type: ignore[arg-type]


def peers(*numbers: int) -> list[RankFacts]:
    return [rank(number, inside(WORLD, 41)) for number in numbers]


def test_a_lock_that_no_thread_can_release_is_dead_and_so_are_those_that_wait_for_it() -> None:
    proof = proof_of(locked(), *peers(0, 2))
    assert proof.dead == (0, 1, 2)
    assert (proof.cause, proof.reasons) == (Cause.LOCK, (1,))
    assert proof.text == (
        "rank 1's main thread waits for a lock that no thread of its process can release; "
        "ranks 0,2 wait for it in all_reduce 41 of world (0-2)"
    )
    assert [link.rank for link in proof.chain] == [1]
    assert proof.lines[0].startswith("rank 1, main thread: waits for its own process, for 1.0 s; no other thread")


@pytest.mark.parametrize("state", FREE)
def test_a_thread_that_may_act_keeps_its_process_and_all_who_wait_for_it_alive(state: ThreadState) -> None:
    assert dead(locked(threads=(thread(), thread(state, OTHER))), *peers(0, 2)) == ()
    assert dead(locked(threads=(thread(state),)), *peers(0, 2)) == ()


def test_a_state_is_known_after_two_windows_only() -> None:
    assert dead(locked(threads=(thread(seconds=KNOWN_AFTER),)))
    assert not dead(locked(threads=(thread(seconds=KNOWN_AFTER - 0.01),)))
    assert not dead(locked(threads=(thread(), thread(tid=OTHER, seconds=0.3))))


def test_threads_that_wait_for_each_other_are_a_lock() -> None:
    several = ThreadSight(0, ThreadState.OWN, 3.0, count=12)
    assert dead(locked(threads=(thread(), several))) == (1,)
    assert dead(locked(threads=(thread(), thread(ThreadState.GONE, OTHER, 0.0)))) == (1,)


def test_operations_that_may_be_missing_from_the_record_keep_a_lock_alive() -> None:
    assert dead(locked(is_complete=False)) == ()
    assert dead(locked(is_complete=False, lock_held=True)) == (1,)


def test_an_open_operation_speaks_against_a_held_interpreter_lock() -> None:
    begun = inside(WORLD, 40, tid=0)
    held = rank(1, begun, threads=(thread(),), is_complete=False, lock_held=True)
    assert dead(held, rank(0, begun={WORLD: 40}, threads=())) == ()


@pytest.mark.parametrize(("ends_in", "expected"), [(math.nan, (1,)), (30.0, ()), (LONGEST, ()), (LONGEST + 1, (1,))])
def test_a_deadline_counts_unless_it_is_after_the_pause_limit_with_the_lock_held(
    ends_in: float, expected: tuple[int, ...]
) -> None:
    assert dead(locked(threads=(thread(ends_in=ends_in),), lock_held=True)) == expected
    assert dead(locked(threads=(thread(ends_in=ends_in),))) == (expected if math.isnan(ends_in) else ())
    assert dead(locked(threads=(thread(ThreadState.TIMED, ends_in=ends_in),))) == ()  # a reply or a signal may end it


def test_a_deadline_after_the_pause_limit_is_the_reason() -> None:
    proof = proof_of(locked(threads=(thread(ends_in=90000.0),), lock_held=True), *peers(0, 2))
    assert (proof.cause, proof.reasons) == (Cause.DEADLINE, (1,))
    assert "rank 1: the main thread's deadline is after the pause limit of 1800 s" in proof.text


def test_a_wait_inside_an_operation_has_no_deadline_of_its_own_unless_the_script_set_one() -> None:
    threads = (thread(ThreadState.TIMED, ends_in=30.0),)
    left = gone(1, {LEFT: 3})
    assert dead(rank(0, inside(LEFT, 3), threads=threads), left) == (0,)
    assert dead(rank(0, inside(LEFT, 3, is_timed=True), threads=threads), left) == ()
    assert dead(rank(0, inside(LEFT, 3), threads=(thread(ThreadState.OUTSIDE),)), left) == ()


def test_a_rank_that_is_gone_never_comes() -> None:
    proof = proof_of(gone(2, {WORLD: 41}), *peers(0, 1))
    assert (proof.dead, proof.cause, proof.reasons) == ((0, 1), Cause.GONE, (2,))
    assert proof.text == (
        "rank 2 is gone (ended with exit code 0); ranks 0-1 wait for it in all_reduce 41 of world (0-2)"
    )
    assert [link.rank for link in proof.chain] == [0, 2]


def test_what_a_rank_began_before_it_went_is_in_flight() -> None:
    assert dead(gone(2, {WORLD: 42}), *peers(0, 1)) == ()


def test_a_group_without_the_rank_that_is_gone_goes_on() -> None:
    assert dead(gone(2, {WORLD: 1}), rank(0, inside(LEFT, 3)), rank(1, begun={LEFT: 3}, threads=())) == ()


def test_all_have_come_is_in_flight() -> None:
    assert dead(*peers(0, 1, 2)) == ()
    assert dead(*peers(0, 1), rank(2, begun={WORLD: 42}, threads=())) == ()  # its own is over


def test_members_of_which_nothing_is_known_may_come() -> None:
    assert dead(*peers(0, 1)) == ()
    assert dead(*peers(0, 1), rank(2, begun={WORLD: 41}, threads=())) == ()
    assert dead(rank(0, inside(Group("elsewhere", 5, (0, 77)), 0))) == ()
    assert dead(rank(0, inside(Group("too many to name", 5, ()), 0)), gone(1, {})) == ()


def test_counts_that_are_not_exact_prove_nothing() -> None:
    job = [gone(2, {WORLD: 41}), *peers(0, 1)]
    assert dead(*without(job, 2, exact=frozenset())) == ()
    # What rank 0 waits for is not known, so it may go on, end, and with its process end the operation of rank 1.
    assert dead(*without(job, 0, exact=frozenset())) == ()


def test_a_kind_that_is_not_known_proves_nothing() -> None:
    for kind in ("", "all_to_all_of_a_later_version"):
        assert dead(rank(0, inside(LEFT, 3, kind)), gone(1, {LEFT: 3})) == ()


@pytest.mark.parametrize("kind", ["broadcast", "scatter", "gather"])
def test_who_gets_from_a_root_or_gives_to_it_needs_the_root_only(kind: str) -> None:
    def job(root: int) -> tuple[RankFacts, ...]:
        return rank(0, inside(WORLD, 41, kind, root=root)), rank(1, inside(WORLD, 41, kind, root=root)), away

    away = gone(2, {WORLD: 41})
    assert dead(*job(2)) == (0, 1)
    assert dead(*job(0)) == ()
    assert dead(*job(-1)) == ()


def test_the_root_of_a_broadcast_needs_those_to_which_it_sends() -> None:
    six = (10, 11, 12, 13, 14, 15)
    assert [children_of(root, six) for root in (10, 14)] == [(11, 12, 14), (15, 10, 12)]
    assert children_of(10, (10,)) == ()
    left = [gone(number, {WORLD: 41}) for number in (1, 2)]
    assert dead(rank(0, inside(WORLD, 41, "broadcast", root=0)), *left) == (0,)  # it waits until they have received it


def test_two_roots_of_one_broadcast_wait_for_each_other() -> None:
    """A third one has left it, and is in the next operation."""
    one, two = (rank(number, inside(WORLD, 41, "broadcast", root=number)) for number in (0, 1))
    proof = proof_of(one, two, rank(2, inside(WORLD, 42)))
    assert (proof.dead, proof.cause, proof.reasons) == ((0, 1, 2), Cause.MISMATCH, ())
    assert "root 0 (rank 0), root 1 (rank 1)" in proof.text


@pytest.mark.parametrize("kind", ["gather", "reduce", "scatter"])
def test_the_root_of_what_goes_to_or_comes_from_all_needs_them(kind: str) -> None:
    last = gone(2, {WORLD: 41})
    assert dead(rank(0, inside(WORLD, 41, kind, root=0)), gone(1, {WORLD: 42}), last) == (0,)


def test_a_monitored_barrier_left_out_has_no_row_on_its_rank() -> None:
    watched = Group("world:monitored", 8, (0, 1, 2))
    peers = [rank(number, inside(watched, 0, "monitored_barrier"), begun={WORLD: 41}) for number in (0, 1)]
    proof = proof_of(*peers, rank(2, inside(WORLD, 41)))
    assert (proof.dead, proof.cause, proof.reasons) == ((0, 1, 2), Cause.ORDER, (2,))
    assert dead(*peers, replace(rank(2, inside(WORLD, 41)), lists_all=False)) == ()
    assert dead(*(replace(one, exact=frozenset({watched})) for one in peers), rank(2, inside(WORLD, 41))) == ()


def test_whom_the_other_ranks_of_a_reduce_need_depends_on_its_bytes() -> None:
    left = [gone(number, {WORLD: 41}) for number in (1, 2)]
    assert dead(rank(0, inside(WORLD, 41, "reduce", root=1)), *left) == ()


def test_the_root_that_leaves_a_gather_out_is_the_reason() -> None:
    peers = [rank(number, inside(WORLD, 41, "gather", root=0)) for number in (1, 2)]
    proof = proof_of(rank(0, inside(WORLD, 41)), *peers)
    assert (proof.dead, proof.cause, proof.reasons) == ((0, 1, 2), Cause.MISMATCH, (0,))


def test_both_sides_of_a_channel_count_their_own_messages() -> None:
    way = channel(0, 1)
    sends, receives = inside(way, 5, "send"), inside(way, 5, "recv")
    assert dead(rank(0, sends), rank(1, receives)) == ()
    assert dead(rank(0, sends), gone(1, {way: 5})) == (0,)
    assert dead(gone(0, {way: 5}), rank(1, receives)) == (1,)
    assert dead(gone(0, {}), rank(1, inside(way, 0, "recv"))) == (1,)  # it has never sent any
    assert dead(replace(gone(0, {}), lists_all=False), rank(1, inside(way, 0, "recv"))) == ()
    assert dead(gone(0, {}), rank(1, inside(LEFT, 0, "new_group"))) == (1,)
    assert dead(gone(0, {}), rank(1, inside(LEFT, 0))) == ()  # torch counts these: no row says nothing
    assert dead(replace(gone(0, {way: 5}), exact=frozenset()), rank(1, receives)) == ()


def test_two_ranks_that_send_to_each_other_are_the_job() -> None:
    one, other = channel(0, 1), channel(1, 0)
    proof = proof_of(
        rank(0, inside(one, 2, "send"), begun={other: 2}), rank(1, inside(other, 2, "send"), begun={one: 2})
    )
    assert (proof.dead, proof.cause, proof.reasons) == ((0, 1), Cause.ORDER, ())
    assert "in a cycle: send 2 of world:0>1 (0-1) (rank 0), send 2 of world:1>0 (0-1) (rank 1)" in proof.text
    assert len(proof.chain) == 2


def test_groups_in_different_orders_are_a_cycle_of_which_the_smaller_side_is_the_reason() -> None:
    four = Group("four", 4, (0, 1, 2, 3))
    both = {WORLD: 4, four: 9}
    job = [rank(number, inside(four, 9), begun={WORLD: 4}) for number in (0, 1, 3)]
    job.append(rank(2, inside(WORLD, 4), begun={four: 9}))
    proof = proof_of(*job)
    assert (proof.dead, proof.cause, proof.reasons) == ((0, 1, 2, 3), Cause.ORDER, (2,))
    assert dead(*job[:3], rank(2, begun=both, threads=(thread(ThreadState.RUNS),))) == ()


def test_the_one_that_makes_a_group_alone_is_the_reason_where_each_peer_waits_for_a_single_rank() -> None:
    here, there = channel(0, 1), channel(1, 2)
    proof = proof_of(
        rank(0, inside(here, 39, "send"), begun={there: 0}),
        rank(1, inside(WORLD, 0, "new_group"), begun={here: 39, there: 39}),
        rank(2, inside(there, 39, "recv"), begun={here: 0}),
    )
    assert (proof.cause, proof.reasons) == (Cause.ORDER, (1,))


def test_who_is_missing_where_most_have_come_is_the_reason() -> None:
    """Rank 1 has left the gather, which rank 2 has left out; both receive from the next in a pipeline."""
    first, second = channel(0, 1), channel(1, 2)
    proof = proof_of(
        rank(0, inside(WORLD, 1, "gather", root=0), begun={first: 63}),
        rank(1, inside(first, 63, "recv"), begun={WORLD: 2, second: 63}),
        rank(2, inside(second, 63, "recv"), begun={WORLD: 1}),
    )
    assert (proof.dead, proof.cause, proof.reasons) == ((0, 1, 2), Cause.ORDER, (2,))


def test_the_only_message_of_a_channel_that_was_never_used_is_the_reason() -> None:
    new = channel(2, 1)
    proof = proof_of(
        rank(0, inside(LEFT, 9), begun={WORLD: 16}),
        rank(1, inside(new, 0, "recv"), begun={WORLD: 16, LEFT: 9}),
        rank(2, inside(WORLD, 16), begun={}),
    )
    assert (proof.cause, proof.reasons) == (Cause.ORDER, (1,))


@pytest.mark.parametrize(
    ("odd", "said"),
    [
        (inside(WORLD, 41, "barrier"), "all_reduce (ranks 0,2), barrier (rank 1)"),
        (inside(WORLD, 41, size=pack(8, 1)), "4 x float32 (ranks 0,2), 8 x float32 (rank 1)"),
    ],
)
def test_different_operations_under_one_number_name_the_minority(odd: OpenAt, said: str) -> None:
    usual = inside(WORLD, 41, size=pack(4, 1))
    proof = proof_of(rank(0, usual), rank(1, odd), rank(2, usual))
    assert (proof.dead, proof.cause, proof.reasons) == ((0, 1, 2), Cause.MISMATCH, (1,))
    assert said in proof.text


def test_different_roots_are_different_operations() -> None:
    one, two = inside(WORLD, 41, "reduce", root=0), inside(WORLD, 41, "reduce", root=1)
    proof = proof_of(rank(0, one), rank(1, two), gone(2, {WORLD: 42}))
    assert (proof.dead, proof.cause, proof.reasons) == ((0, 1), Cause.MISMATCH, ())


def test_of_equal_sides_the_one_is_named_whose_operation_others_are_in_later() -> None:
    """Rank 1 has left the gather out: its root waits for it, and rank 2 is in the all-reduce after it."""
    root = rank(0, inside(WORLD, 41, "gather", root=0))
    proof = proof_of(root, rank(1, inside(WORLD, 41)), rank(2, inside(WORLD, 42)))
    assert (proof.dead, proof.cause, proof.reasons) == ((0, 1, 2), Cause.MISMATCH, (1,))


def test_where_as_many_are_in_each_the_job_is_the_reason() -> None:
    proof = proof_of(rank(0, inside(LEFT, 3)), rank(1, inside(LEFT, 3, "barrier")))
    assert (proof.dead, proof.cause, proof.reasons) == ((0, 1), Cause.MISMATCH, ())


def test_another_operation_that_may_be_left_may_be_followed_by_the_right_one() -> None:
    odd = rank(1, inside(WORLD, 41, "barrier", is_timed=True))
    assert dead(*peers(0, 2), odd) == ()
    assert dead(*peers(0, 2), rank(1, inside(WORLD, 41, "barrier"), threads=(thread(ThreadState.HELD),))) == ()


def test_a_process_that_may_end_may_end_the_operations_of_its_groups() -> None:
    """A thread that sleeps may end its process, or destroy the group: the others get an error, and may go on."""
    job = [rank(0, inside(LEFT, 3)), rank(1, inside(RIGHT, 2), begun={LEFT: 3}), gone(2, {RIGHT: 2})]
    assert dead(*job) == (0, 1)
    for state in FREE:
        assert dead(*without(job, 1, threads=(thread(), thread(state, OTHER)))) == ()
    assert dead(*without(job, 0, threads=(thread(), thread(ThreadState.RUNS, OTHER)))) == (1,)
    assert dead(*job[:2]) == ()  # nothing is known of rank 2


def test_a_thread_that_waits_in_a_group_of_its_own_does_not_hide_the_main_one() -> None:
    """A checkpoint is coordinated by a thread of rank 0 while rank 1 reads quietly."""
    saver, training = inside(LEFT, 3, tid=OTHER), inside(WORLD, 41)
    zero = rank(0, saver, training, threads=(thread(), thread(tid=OTHER)))
    one = rank(1, begun={LEFT: 3, WORLD: 41}, threads=(thread(ThreadState.OUTSIDE),))
    assert dead(zero, one, rank(2, training)) == ()


def test_an_operation_in_flight_that_no_thread_waits_for_may_end_a_wait() -> None:
    """Compiled code waits in C++."""
    under_way = inside(WORLD, 41, tid=0)
    assert dead(*(rank(number, under_way) for number in range(3))) == ()
    proof = proof_of(rank(0, under_way), rank(1, under_way), gone(2, {WORLD: 41}))
    assert (proof.dead, proof.reasons) == ((0, 1), (2,))


def test_an_operation_of_a_thread_that_is_not_listed_may_end_anything() -> None:
    assert dead(rank(0, inside(LEFT, 3, tid=99)), gone(1, {LEFT: 3})) == ()


def test_a_thread_with_several_operations_may_wait_for_any() -> None:
    away = gone(2, {WORLD: 41, RIGHT: 3})
    first, second = inside(WORLD, 41), inside(LEFT, 7)
    assert dead(rank(0, first, second), rank(1, inside(LEFT, 7)), away) == ()
    assert dead(rank(0, first), rank(1, first, inside(RIGHT, 3)), away) == (0, 1)


def test_a_wait_for_a_thread_that_waits_for_a_rank_ends_in_that_rank() -> None:
    joined = rank(0, inside(LEFT, 3, tid=OTHER), threads=(thread(), thread(tid=OTHER)))
    proof = proof_of(joined, gone(1, {LEFT: 3}))
    assert (proof.dead, proof.cause, proof.reasons) == ((0,), Cause.GONE, (1,))
    assert [(link.rank, link.thread) for link in proof.chain] == [(0, "main thread"), (0, "thread 8"), (1, "")]


def test_several_reasons_are_all_named() -> None:
    proof = proof_of(locked(), rank(0, inside(WORLD, 41)), gone(2, {WORLD: 41}))
    assert proof.reasons == (1, 2)
    assert [end.cause for end in proof.ends] == [Cause.GONE, Cause.LOCK]


def test_a_proof_without_a_chain_cannot_be_built() -> None:
    end = End(Cause.LOCK, (1,), "rank 1")
    link = Link(1, "main thread", "waits", (1,), "no other", "the kernel", 1.0, ())
    with pytest.raises(ValueError, match="chain"):
        Proof((1,), (end,), ())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="rank 1, which is not among the dead"):
        Proof((2,), (end,), (link,))
    assert Proof((1,), (end,), (link,)).lines == ("rank 1, main thread: waits, for 1.0 s; no other [the kernel]",)


def test_a_big_job_has_a_short_proof() -> None:
    everyone = Group("world", 1, tuple(range(12288)))
    job = [rank(number, inside(everyone, 41)) for number in range(12288) if number != 77]
    proof = proof_of(*job, rank(77, begun={everyone: 41}))
    assert len(proof.dead) == 12288
    assert proof.reasons == (77,)
    assert proof.text.endswith("ranks 0-76,78-12287 wait for it in all_reduce 41 of world (0-12287)")
    assert len(proof.chain) == 1


def test_in_a_big_job_that_may_go_on_each_operation_ends_once(monkeypatch: pytest.MonkeyPatch) -> None:
    moves, move = [], CanMove._move
    monkeypatch.setattr(CanMove, "_move", lambda self, place: (moves.append(place), move(self, place)))
    everyone = Group("world", 1, tuple(range(500)))
    assert dead(*(rank(number, inside(everyone, 41)) for number in range(1, 500))) == ()
    assert len(moves) < 2 * 500


def test_mains_that_are_gone_are_not_dead_once_more() -> None:
    assert MAIN != OTHER
    assert dead(rank(0, threads=(thread(ThreadState.GONE),))) == ()


def test_a_broadcast_from_four_ranks_on_may_be_fed_by_a_parent_that_means_another_root() -> None:
    """In gloo's tree rank 3 receives from rank 1 where the root is 0, and where it is 1: the message is the same."""
    four = Group("four", 4, (0, 1, 2, 3))
    waits = rank(3, inside(four, 5, "broadcast", root=0), begun={four: 6})
    stuck = [rank(0, begun={four: 5}), rank(2, begun={four: 5})]
    for root, is_dead in ((1, False), (2, True), (0, True)):
        parent = rank(1, inside(four, 5, "broadcast", root=root), begun={four: 6})
        assert (3 in dead(*stuck, parent, waits)) is is_dead, root
    assert 3 not in dead(*stuck, rank(1, begun={four: 6}), waits)  # it has left the number, under a root not known


def test_a_roots_message_may_be_taken_for_that_of_another_root() -> None:
    """Rank 2 receives from rank 0 where the root is 0, and where it is 3."""
    four = Group("four", 4, (0, 1, 2, 3))
    root = rank(0, inside(four, 5, "broadcast", root=0), begun={four: 6})
    stuck = [rank(1, begun={four: 5}), rank(3, begun={four: 5})]
    for other, is_dead in ((3, False), (1, True)):
        child = rank(2, inside(four, 5, "broadcast", root=other), begun={four: 6})
        assert (0 in dead(root, *stuck, child)) is is_dead, other
