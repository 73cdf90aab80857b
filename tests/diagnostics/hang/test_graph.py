"""The one at fault is named, whatever the mesh, the schedule and the moment; and no other."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.diagnostics.hang.graph import Group, Reason, WaitState, judge
from holdfast.plan.plan import Mesh
from holdfast.wire.operation_size import EXACT, TYPES, pack, words
from tests.diagnostics.support.frozen_jobs import SCHEDULES, Groups, How, Item, Victim, run, states, step_of

SIZES = [1, 2, 3]


@st.composite
def jobs(draw: st.DrawFn) -> tuple[dict[int, list[Item]], int]:
    """The programs of all ranks over three steps, and how many items one step of each has."""
    pp, dp, tp = (draw(st.sampled_from(SIZES)) for _ in range(3))
    if pp * dp * tp == 1:
        tp = 2
    schedule = draw(st.sampled_from(sorted(SCHEDULES)))
    groups = Groups(Mesh.of(pp=pp, dp=dp, tp=tp))
    count = pp * draw(st.integers(1, 2))
    overlap = draw(st.booleans())
    steps = {rank: step_of(rank, groups, schedule, count, overlap) for rank in range(pp * dp * tp)}
    return {rank: items * 3 for rank, items in steps.items()}, len(steps[0])


@settings(deadline=None, max_examples=120)
@given(st.data())
def test_the_suspect_is_the_victim(data: st.DataObject) -> None:
    programs, _ = data.draw(jobs())
    rank = data.draw(st.sampled_from(sorted(programs)))
    length = len(programs[rank]) // 3
    item = length + data.draw(st.integers(0, length - 1))
    victim = Victim(rank, item, data.draw(st.sampled_from(How)), data.draw(st.booleans()))
    verdict = judge(states(run(programs, victim), victim))
    assert verdict is not None
    assert verdict.suspects == (rank,), verdict.text


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_a_plan_without_a_victim_comes_to_its_end(data: st.DataObject) -> None:
    programs, _ = data.draw(jobs())
    assert all(worker.at == len(worker.items) for worker in run(programs))


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_without_sequence_numbers_a_silent_worker_is_still_named(data: st.DataObject) -> None:
    """The operation's name and the mesh alone: no hooks."""
    programs, _ = data.draw(jobs())
    rank = data.draw(st.sampled_from(sorted(programs)))
    length = len(programs[rank]) // 3
    item = length + data.draw(st.integers(0, length - 1))
    victim = Victim(rank, item, How.BEFORE, data.draw(st.booleans()))
    blind = [
        replace(s, group=None, number=-1, is_handed=False, begun={}, others=s.group.members if s.group else ())
        for s in states(run(programs, victim), victim)
    ]
    verdict = judge(blind)
    assert verdict is not None
    assert verdict.suspects == (rank,), verdict.text


def state(
    rank: int, group: Group | None = None, number: int = 0, kind: str = "all_reduce", **more: object
) -> WaitState:
    values: dict[str, object] = {"operation": f"x:{kind}" if group else "", "kind": kind, "is_handed": True, **more}
    begun = {group: number + 1} if group else {}
    return WaitState(rank, group=group, number=number, begun=begun, **values)  # type: ignore[arg-type]


TP, DP, WORLD = Group("tp", 1, (0, 1)), Group("dp", 2, (0, 1)), Group("world", 3, (0, 1, 2, 3))


def test_two_orders_of_the_same_operations_are_reported_with_both_ranks() -> None:
    verdict = judge([state(0, TP, 4), state(1, DP, 7)])
    assert verdict is not None
    assert (verdict.reason, verdict.suspects) == (Reason.ORDER, (0, 1))
    assert "x:all_reduce 4 of tp (0-1) (ranks 0)" in verdict.text
    assert "x:all_reduce 7 of dp (0-1) (ranks 1)" in verdict.text


def test_the_odd_one_of_a_larger_group_is_named() -> None:
    other = Group("other", 9, (0, 1, 2, 3))
    waiting = [replace(state(r, WORLD, 4), begun={WORLD: 5, other: 2}) for r in (0, 1, 3)]
    verdict = judge([*waiting, replace(state(2, other, 2), begun={WORLD: 4, other: 3})])
    assert verdict is not None
    assert (verdict.reason, verdict.suspects) == (Reason.ORDER, (2,))


@pytest.mark.parametrize(("odd", "suspects"), [((2,), (2,)), ((1, 2), (0, 1, 2, 3))])
def test_different_operations_under_one_number(odd: tuple[int, ...], suspects: tuple[int, ...]) -> None:
    verdict = judge([state(r, WORLD, 4, "broadcast" if r in odd else "all_reduce") for r in range(4)])
    assert verdict is not None
    assert (verdict.reason, verdict.suspects) == (Reason.ORDER, suspects)
    assert verdict.text.startswith("operation 4 of world (0-3) differs between ranks")


@pytest.mark.parametrize(("odd", "suspects"), [((3,), (3,)), ((0, 1), (0, 1, 2, 3))])
def test_one_operation_of_different_sizes(odd: tuple[int, ...], suspects: tuple[int, ...]) -> None:
    sizes = {rank: pack(999 if rank in odd else 1000, 1) for rank in range(4)}
    verdict = judge([replace(state(r, WORLD, 4), size=sizes[r]) for r in range(4)])
    assert verdict is not None
    assert (verdict.reason, verdict.suspects) == (Reason.ORDER, suspects)
    assert verdict.text.startswith("x:all_reduce 4 of world (0-3) differs in size between ranks: ")
    assert "999 x float32" in verdict.text
    if len(odd) == 1:
        assert verdict.text.endswith("1000 x float32 (ranks 0-2), 999 x float32 (ranks 3)")


def test_a_size_that_is_not_known_says_nothing() -> None:
    known = pack(1000, 1)
    states = [replace(state(r, WORLD, 4), size=known if r else 0) for r in range(4)]
    verdict = judge(states)
    assert verdict is not None
    assert verdict.reason is Reason.TRANSFER
    others = [replace(s, size=pack(7, 1)) if s.rank == 2 else s for s in states]
    assert judge([replace(s, group=None, number=-1, others=(0, 1, 2, 3)) for s in others]) == judge(
        [replace(s, group=None, number=-1, others=(0, 1, 2, 3), size=0) for s in others]
    )


def after(rank: int, sizes: int, begun: int = 5) -> WaitState:
    """In a pass with unseen operations, after some in a group whose sizes are known."""
    return WaitState(rank, True, "ddp:backward", begun={WORLD: begun}, others=(0, 1, 2, 3), sizes={WORLD: sizes})


@pytest.mark.parametrize(("odd", "suspects"), [((1,), (1,)), ((3,), (3,)), ((0, 1), (0, 1, 2, 3))])
def test_an_earlier_operation_of_another_size(odd: tuple[int, ...], suspects: tuple[int, ...]) -> None:
    verdict = judge([after(r, 77 if r in odd else 55) for r in range(4)])
    assert verdict is not None
    assert (verdict.reason, verdict.suspects) == (Reason.ORDER, suspects)
    assert "an earlier operation of world (0-3) had another size on" in verdict.text


def test_earlier_sizes_count_only_where_all_began_as_many_and_all_are_known() -> None:
    for frozen in (
        [after(r, 55) for r in range(4)],
        [after(r, 77 if r == 1 else 55, 6 if r == 1 else 5) for r in range(4)],
        [after(r, 0 if r == 1 else 55) for r in range(4)],
        [after(r, 55) for r in range(3)] + [WaitState(3, True, "ddp:backward", others=(0, 1, 2, 3))],
    ):
        verdict = judge(frozen)
        assert verdict is not None
        assert verdict.reason is Reason.TRANSFER


def test_a_missing_rank_comes_before_earlier_sizes() -> None:
    states = [after(r, 77 if r == 1 else 55) for r in range(4)]
    verdict = judge([replace(states[0], is_alive=False), *states[1:]])
    assert verdict is not None
    assert (verdict.reason, verdict.suspects) == (Reason.STOPPED, (0,))


def test_another_kind_comes_before_another_size() -> None:
    states = [replace(state(r, WORLD, 4, "reduce" if r == 1 else "all_reduce"), size=pack(r, 1)) for r in range(4)]
    verdict = judge(states)
    assert verdict is not None
    assert verdict.suspects == (1,)
    assert "differs between ranks" in verdict.text


@given(st.integers(0, 2**40), st.integers(0, 2**40), st.integers(1, len(TYPES) - 1), st.integers(1, len(TYPES) - 1))
def test_sizes_that_are_distinguished(one: int, two: int, first: int, second: int) -> None:
    a, b = pack(one, first), pack(two, second)
    assert 0 < a < 2**31
    assert (a == b) == (one == two and first == second) or (one >= EXACT and two >= EXACT)
    assert TYPES[first] in words(a)
    if one < EXACT:
        assert words(a).startswith(f"{one} x ")


def test_both_ends_of_a_message_are_one_operation() -> None:
    message = Group("pp:0>1", 5, (0, 1))
    verdict = judge([state(0, message, 3, "send"), state(1, message, 3, "recv")])
    assert verdict is not None
    assert (verdict.reason, verdict.suspects) == (Reason.TRANSFER, ())


def test_all_ranks_present_is_no_ranks_fault() -> None:
    verdict = judge([state(r, WORLD, 4) for r in range(4)])
    assert verdict is not None
    assert (verdict.reason, verdict.suspects) == (Reason.TRANSFER, ())
    assert verdict.text == "all ranks have entered x:all_reduce 4 of world (0-3), and it does not end"


def test_no_rank_in_an_operation_is_no_verdict() -> None:
    assert judge([state(0), state(1)]) is None
    assert judge([]) is None


def test_an_unknown_worker_that_others_lack_does_not_run() -> None:
    verdict = judge([state(0, WORLD), state(1, WORLD), state(3, WORLD)])
    assert verdict is not None
    assert (verdict.reason, verdict.suspects) == (Reason.STOPPED, (2,))


@pytest.mark.parametrize("is_inside", [True, False])
@pytest.mark.parametrize("begun", [4, 5, 9])
def test_a_dead_rank_has_not_come_whatever_it_had_begun(begun: int, is_inside: bool) -> None:
    """It may have died with its part half sent: its peers wait for it, and for no one else."""
    alive = [state(r, WORLD, 4) for r in (0, 1, 3)]
    last = replace(state(2, WORLD, 4) if is_inside else state(2), is_alive=False, begun={WORLD: begun})
    verdict = judge([*alive, last])
    assert verdict is not None
    assert (verdict.reason, verdict.suspects) == (Reason.STOPPED, (2,))
    assert str(verdict.waits[0]).endswith("ranks 0-1,3, without 2")


def test_of_several_outside_the_one_behind_its_peers_is_named() -> None:
    """Hosts that only hand work to their GPUs wait outside of operations."""
    found = judge([state(0, WORLD, 4), *(WaitState(r, begun={WORLD: 5 - (r == 2)}) for r in (1, 2, 3))])
    assert found is not None
    assert found.suspects == (2,)


def test_who_waits_for_a_gpu_that_waits_is_a_peer() -> None:
    """Hosts of the others have left the operation that their GPUs are in; what they have begun shows nothing here."""
    at_gpu = [WaitState(r, begun={WORLD: 4}, waits_for_gpu=True) for r in (1, 3)]
    found = judge([state(0, WORLD, 4), WaitState(2, begun={WORLD: 4}), *at_gpu])
    assert found is not None
    assert (found.reason, found.suspects) == (Reason.OUTSIDE, (2,))


def test_where_no_rank_is_in_an_operation_those_are_missed_whose_gpus_wait_for_none() -> None:
    waiting = [WaitState(r, waits_for_gpu=True) for r in (0, 1, 3)]
    found = judge([*waiting, WaitState(2)])
    assert found is not None
    assert (found.reason, found.suspects) == (Reason.OUTSIDE, (2,))
    assert found.text == "rank 2 does not wait for a GPU, and the GPUs of 3 wait for their peers'"
    assert str(found.waits[0]) == "work of their GPUs: ranks 0-1,3, without 2"
    assert judge(waiting) is None


def test_hosts_that_only_spin_are_taken_for_peers_by_a_guess() -> None:
    spinning = [WaitState(r, spins=True) for r in (0, 1)]
    found = judge([*spinning, WaitState(2), WaitState(3)])
    assert found is not None
    assert (found.reason, found.suspects, found.is_guess) == (Reason.OUTSIDE, (2, 3), True)
    assert judge([*spinning, *(WaitState(r) for r in (2, 3, 4))]) is None  # most do something else
    assert judge(spinning) is None
    sure = judge([*(WaitState(r, waits_for_gpu=True) for r in (0, 1)), WaitState(2), WaitState(3), WaitState(4)])
    assert sure is not None
    assert (sure.suspects, sure.is_guess) == ((2, 3, 4), False)


def test_one_behind_by_nccls_count_is_named_by_a_guess_where_all_wait_for_their_gpus() -> None:
    for how in ({"spins": True}, {"waits_for_gpu": True}):
        found = judge([WaitState(r, is_behind=r == 1, **how) for r in (0, 1, 2)])
        assert found is not None
        assert (found.suspects, found.is_guess) == ((1,), True)
        assert found.text == "rank 1 began fewer operations than 2 peers, by NCCL's count, and all wait for their GPUs"
        assert judge([WaitState(r, is_behind=True, **how) for r in (0, 1)]) is None


def test_one_in_a_pass_with_operations_of_its_own_is_named_when_others_miss_it() -> None:
    loose = WaitState(2, operation="ddp:backward", others=(0, 1, 2, 3), begun={WORLD: 4})
    found = judge([*(state(r, WORLD, 4) for r in (0, 1, 3)), loose])
    assert found is not None
    assert (found.reason, found.suspects) == (Reason.WITHIN, (2,))
