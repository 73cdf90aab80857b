"""A rank is dead if and only if no path of the model leads out of its main thread's wait; and the model sees mistakes.

`make model` explores all that `standing_space` holds as long as it may; here a sample of it is explored.
"""

import math
import os
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.diagnostics.hang import can_move, passed
from holdfast.diagnostics.hang.can_move import CanMove
from holdfast.diagnostics.hang.closure import judge
from holdfast.diagnostics.hang.facts import OpenAt, Past, RankFacts
from holdfast.diagnostics.hang.group import Group
from holdfast.diagnostics.hang.operations import Role, differ, needed, role_of
from holdfast.diagnostics.hang.passed import Passed
from holdfast.wire.operation_size import other_bytes, pack
from holdfast.wire.standing import ThreadSight, ThreadState
from tests.diagnostics.support.dead_model import Model
from tests.diagnostics.support.standing_space import LONGEST, SIZE, TWISTS, broadcasting, drawn, sized, standing

SAMPLE = 6000
WHOLE = "HOLDFAST_MODEL_SECONDS"
"""For so long the whole space is explored."""
Job = tuple[RankFacts, ...]


@dataclass
class Explored:
    job: Job
    dead: set[int]
    states: int


def explore(job: Job) -> Explored:
    model = Model(job, LONGEST)
    return Explored(job, model.dead(), model.states)


def dead_of(job: Job) -> set[int]:
    proof = judge(job, longest_s=LONGEST)
    return set(proof.dead) if proof is not None else set()


def by_closure(job: Job) -> set[int]:
    return {rank for rank, process in CanMove(job, LONGEST).ranks.items() if process.is_dead}


@cache
def sample() -> tuple[Explored, ...]:
    rng = random.Random(1)
    space = (broadcasting, sized, *[drawn] * 4)
    return tuple(explore(space[n % len(space)](rng)) for n in range(SAMPLE))


def test_the_judge_says_what_the_model_finds() -> None:
    wrong = [one for one in sample() if dead_of(one.job) != one.dead]
    assert not wrong, wrong[0]
    alive = sum(not one.dead for one in sample())
    assert SAMPLE / 4 < alive < SAMPLE * 9 / 10  # both are common


def test_free_threads_that_do_less_than_they_may_lead_no_dead_rank_out() -> None:
    """In full these are millions of states each: the first thousands."""
    for one in [one for one in sample() if one.dead][:40]:
        assert one.dead <= Model(one.job, LONGEST, is_rich=True).dead(most=1500)


@pytest.mark.timeout(0)
@pytest.mark.skipif(not os.environ.get(WHOLE), reason="make model")
def test_the_whole_space() -> None:
    """In an order of its own, so that a run which is cut short begins with other states; in each fourth round what is
    drawn at random, too."""
    start, rng = time.process_time(), random.Random(int(os.environ.get("HOLDFAST_MODEL_SEED", "0")))
    end = start + float(os.environ[WHOLE])
    offset, jobs, others, states, dead = rng.randrange(SIZE), 0, 0, 0, 0
    stride = 1_299_709  # a prime that does not divide SIZE: all are met once
    while time.process_time() < end and jobs < SIZE:
        index = (offset + jobs * stride) % SIZE
        one = explore(standing(index))
        assert dead_of(one.job) == one.dead, (index, one)
        jobs, states, dead = jobs + 1, states + one.states, dead + bool(one.dead)
        if jobs % 4 == 0:
            twisted = standing(rng.randrange(SIZE), rng.randrange(len(TWISTS) ** 3))
            for other in map(explore, (twisted, broadcasting(rng), sized(rng), drawn(rng))):
                assert dead_of(other.job) == other.dead, other
                others, states = others + 1, states + other.states
        if one.dead and jobs % 997 == 0:
            rich = Model(one.job, LONGEST, is_rich=True)
            assert one.dead <= rich.dead(most=50_000), (index, one)
            states += rich.states
        if jobs % 20_000 == 0 or jobs == SIZE:
            print(
                f"{jobs} of {SIZE} jobs, {dead} of them dead, and {others} at random; {states} states, no difference",
                flush=True,
            )


def _all_in_main(facts: RankFacts) -> can_move.Process:
    held = [replace(one, thread=facts.threads[0].tid if facts.threads else one.thread) for one in facts.operations]
    return _PROCESS(replace(facts, operations=tuple(held)))


def _counts_hold(operation: OpenAt, role: Role, facts: RankFacts) -> bool:
    return operation.is_timed or role in (Role.NOBODY, Role.UNKNOWN)


def _without_errors(self: CanMove, facts: Iterable[RankFacts], longest_s: float) -> None:
    _INIT(self, facts, longest_s, by_error=False)


def _all_roles(operation: OpenAt, rank: int, members: frozenset[int]) -> Role:
    role = _ROLE(operation, rank, members)
    return Role.ALL if role in (Role.NOBODY, Role.ROOT) else role


def _buffered(operation: OpenAt, rank: int, members: frozenset[int]) -> Role:
    return Role.NOBODY if operation.kind in ("gather", "scatter") else _ROLE(operation, rank, members)


def _bare(operation: OpenAt) -> OpenAt:
    return replace(operation, size=0, root=-1)


def _holds(state: ThreadState) -> Callable[..., can_move.Wait]:
    """A thread in this state counts as one that waits for its process."""

    def wait_of(self: CanMove, sight: ThreadSight, facts: RankFacts, is_inside: bool) -> can_move.Wait:
        held = replace(sight, state=ThreadState.OWN, ends_in=math.nan) if sight.state is state else sight
        return _WAIT(self, held, facts, is_inside)

    return wait_of


_PROCESS, _ROLE, _WAIT, _INIT = can_move._process, role_of, CanMove._wait_of, CanMove.__init__
_NEEDED, _DIFFER, _ANOTHER = needed, differ, Passed.is_another


def _left_with_another_root(self: Passed, operation: OpenAt, passed: int, source: int, target: int) -> bool:
    done = self.at.get((operation.group, operation.number), {}).get(passed)
    return done is not None and done.kind == "broadcast" and done.root != operation.root


def _has_left(self: Passed, operation: OpenAt, member: int) -> bool:
    return member in self.at.get((operation.group, operation.number), {})


def _by_size(self: Passed, operation: OpenAt, member: int) -> bool:
    done = self.at.get((operation.group, operation.number), {}).get(member)
    return _ANOTHER(self, operation, member) or (done is not None and other_bytes(operation.size, done.size))


def _by_size_alone(self: Passed, operation: OpenAt, member: int) -> bool:
    done = self.at.get((operation.group, operation.number), {}).get(member)
    return _ANOTHER(self, operation, member) and done is not None and done.kind == operation.kind


def _of_the_root(self: Passed, operation: OpenAt, rank: int) -> int | None:
    return operation.root if self._is_lost(operation, operation.root, operation.root, rank) else None


_MUTANTS: dict[str, tuple[object, str, object]] = {
    "a process does not wait for its threads": (CanMove, "_wake", lambda self, rank: None),
    "one window is enough": (can_move, "KNOWN_AFTER", 0.3),
    "operations are the main thread's": (can_move, "_process", _all_in_main),
    "a member is not needed": (can_move, "needed", lambda *of: _NEEDED(*of)[:-1]),
    "all members are needed": (can_move, "role_of", _all_roles),
    "gathers and scatters end in a buffer": (can_move, "role_of", _buffered),
    "operations end without an error": (CanMove, "__init__", _without_errors),
    "operations do not differ": (can_move, "differ", lambda one, other: False),
    "the kind alone differs": (can_move, "differ", lambda one, other: _DIFFER(_bare(one), _bare(other))),
    "records are complete": (RankFacts, "is_alone", property(lambda self: True)),
    "a held lock proves nothing": (RankFacts, "is_alone", property(lambda self: self.is_complete)),
    "own counts are exact": (can_move, "_may_end", _counts_hold),
    "no operation ends by itself": (can_move, "_may_end", lambda one, role, facts: one.group not in facts.exact),
    "what is held never goes on": (CanMove, "_wait_of", _holds(ThreadState.HELD)),
    "a late deadline is none": (CanMove, "_wait_of", _holds(ThreadState.TIMED)),
    "what was left was the same": (Passed, "_is_lost", lambda *of: False),
    "nothing was sent under another root": (Passed, "_is_lost", _left_with_another_root),
    "a broadcast is one hop": (Passed, "lost_sender", _of_the_root),
    "a root needs no child that has left": (Passed, "is_lost", lambda *of: False),
    "what was left was of the same size": (passed, "other_bytes", lambda one, two: False),
    "an unknown size is another one": (passed, "other_bytes", lambda one, two: one != two),
    "types make a size another one": (passed, "other_bytes", lambda one, two: 0 not in (one, two) and one != two),
    "whatever was left was another one": (Passed, "is_another", _has_left),
    "a broadcast's size matters": (Passed, "is_another", _by_size),
    "what was left was of the same kind": (Passed, "is_another", _by_size_alone),
}  # fmt: skip


@pytest.mark.parametrize("mutant", _MUTANTS)
def test_the_model_sees_each_mistake(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    explored = sample()
    monkeypatch.setattr(*_MUTANTS[mutant])
    assert any(by_closure(one.job) != one.dead for one in explored)


KINDS = ("all_reduce", "new_group", "monitored_barrier", "broadcast", "scatter", "reduce", "gather", "odd", "")
PASTS, SIZES = ("all_reduce", "broadcast", "reduce", "odd", ""), (0, 0, pack(4, 1), pack(4, 1), pack(2, 4), pack(8, 1))
STATES = (*ThreadState, *[ThreadState.OWN] * 8, *[ThreadState.TIMED] * 2)


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    """Up to five ranks with up to three threads, in random groups and channels."""
    size = draw(st.integers(2, 5))
    ranks = st.lists(st.integers(0, size - 1), min_size=2, unique=True)
    groups = [Group(f"group{n}", n, tuple(draw(ranks))) for n in range(draw(st.integers(1, 3)))]
    ends = draw(st.lists(st.permutations(range(size)), max_size=2, unique_by=lambda one: tuple(one[:2])))
    channels = [Group(f"{source}>{target}", 9, (source, target)) for source, target, *_ in ends]
    return tuple(draw(one_rank(rank, groups, channels)) for rank in range(size) if draw(st.integers(0, 9)))


@st.composite
def one_rank(draw: st.DrawFn, rank: int, groups: list[Group], channels: list[Group]) -> RankFacts:
    own = [group for group in groups if rank in group.members]
    ways = [channel for channel in channels if rank in channel.members]
    begun = {group: draw(st.integers(0, 2)) for group in (*own, *ways) if draw(st.integers(0, 3))}
    threads, operations, taken = [], [], set()
    for tid in range(1, draw(st.integers(1, 3)) + 1):
        seconds, ends_in = (
            draw(st.sampled_from([0.3, 1.0, 1.0, 1.0])),
            draw(st.sampled_from([math.nan, math.nan, 5.0, 9000.0])),
        )
        threads.append(ThreadSight(tid, draw(st.sampled_from(STATES)), seconds, ends_in))
        for _ in range(draw(st.integers(0, 2)) if own or ways else 0):
            group, number = draw(st.sampled_from([*own, *ways])), draw(st.integers(0, 2))
            if (group, number) in taken:
                continue
            taken.add((group, number))
            kind = draw(st.sampled_from(KINDS)) if group in own else "send" if group.members[0] == rank else "recv"
            root = draw(st.sampled_from([-1, *group.members])) if kind in KINDS[3:7] else -1
            waits = draw(st.sampled_from([tid, tid, tid, tid, 0, 77]))
            is_timed = draw(st.integers(0, 7)) == 0
            operations.append(OpenAt(waits, group, kind, number, draw(st.sampled_from(SIZES)), root, is_timed))
            begun[group] = max(begun.get(group, 0), number + 1)
    exact = frozenset(group for group in begun if draw(st.integers(0, 5)))
    counts = [(group, number) for group, count in begun.items() if group in own for number in range(count)]
    roots = {key: draw(st.sampled_from([-1, *key[0].members, 77])) for key in counts}
    past = {
        key: Past(draw(st.sampled_from(PASTS)), root, draw(st.sampled_from(SIZES)))
        for key, root in roots.items()
        if draw(st.integers(0, 3))
    }
    is_gone, is_complete, lock_held = draw(st.integers(0, 5)) == 0, draw(st.integers(0, 4)) > 0, draw(st.booleans())
    return RankFacts(
        rank,
        is_gone,
        "",
        tuple(threads),
        tuple(operations),
        begun,
        exact,
        is_complete,
        "",
        draw(st.booleans()),
        lock_held,
        past,
    )


@settings(max_examples=150)
@given(jobs())
def test_bigger_jobs(job: Job) -> None:
    model = Model(job, LONGEST)
    found = model.dead(most=4000)
    dead = dead_of(job)
    assert dead <= found
    if model.states < 4000:
        assert dead == found
