"""Where a list of operations is cut: against all possible cuts of small lists, and rule by rule."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.trainer.modules.cuts import SLACK, CannotCut, Operation, cut, live


def line(costs: list[float], num_bytes: int = 8) -> list[Operation]:
    """Each operation reads the one before it and a parameter of its own."""
    return [
        Operation(cost, place + 1, num_bytes, has_gradient=True, parameters=frozenset({f"w{place}"}))
        for place, cost in enumerate(costs)
    ]


@st.composite
def lists(draw: st.DrawFn) -> list[Operation]:
    count = draw(st.integers(2, 9))
    names = st.frozensets(st.sampled_from("abcdef"), max_size=2)
    found = []
    for place in range(count):
        found.append(
            Operation(
                cost=draw(st.integers(0, 9)),
                last_use=draw(st.integers(place + 1, count)),
                num_bytes=draw(st.integers(1, 50)),
                can_cross=draw(st.integers(0, 4)) > 0,
                has_gradient=draw(st.booleans()),
                changed_until=draw(st.sampled_from([-1, -1, -1, min(place + 2, count - 1)])),
                parameters=draw(names),
            )
        )
    return found


def may(operations: list[Operation], places: tuple[int, ...], tied: str | None) -> bool:
    """The rules, one by one, of all cuts together."""
    stages = [range(a, b) for a, b in pairwise([0, *places, len(operations)])]
    for place in places:
        crossing = [operations[v] for v in live(operations, place)]
        if not all(one.can_cross for one in crossing) or not any(one.has_gradient for one in crossing):
            return False
        if any(one.changed_until >= place for one in operations[:place]):
            return False
    read = [set().union(*(operations[v].parameters for v in stage)) for stage in stages]
    if not all(read):
        return False
    for name in set().union(*read):
        holders = [number for number, names in enumerate(read) if name in names]
        if len(holders) > 1 and not (name == tied and holders == [0, len(stages) - 1]):
            return False
    return True


def largest(operations: list[Operation], places: tuple[int, ...]) -> float:
    return max(sum(one.cost for one in operations[a:b]) for a, b in pairwise([0, *places, len(operations)]))


def message_bytes(operations: list[Operation], places: tuple[int, ...]) -> int:
    return sum(operations[v].num_bytes for place in places for v in live(operations, place))


@given(lists(), st.integers(2, 4))
@settings(deadline=None, max_examples=400)
def test_cuts_are_the_best_that_the_rules_allow(operations: list[Operation], stages: int) -> None:
    every = list(combinations(range(1, len(operations)), stages - 1))
    allowed = [places for places in every if may(operations, places, None)]
    try:
        found = cut(operations, 0, stages)
    except CannotCut:
        assert not allowed
        return
    assert may(operations, found.places, found.tied)
    if not allowed:
        assert found.tied is not None
        return
    assert found.places in allowed
    best = min(largest(operations, places) for places in allowed)
    near = [places for places in allowed if largest(operations, places) <= best * (1 + SLACK) * (1 + 1e-5)]
    assert largest(operations, found.places) <= best * (1 + SLACK) * (1 + 1e-5)
    strict = [p for p in near if largest(operations, p) <= best * (1 + SLACK) * (1 - 1e-5)] or [found.places]
    assert message_bytes(operations, found.places) <= min(message_bytes(operations, places) for places in strict)


def test_stages_are_balanced() -> None:
    assert cut(line([1, 1, 1, 3, 2, 4]), 0, 3).places == (3, 5)


def test_a_smaller_message_is_worth_a_tenth_of_balance() -> None:
    operations = line([10, 10, 10, 10.5, 10, 10], num_bytes=64)
    operations[1] = replace(operations[1], num_bytes=8)
    assert cut(operations, 0, 2).places == (3,)  # 40.5 of 60.5 on one side would be more than a tenth
    operations = line([30, 0.5, 30], num_bytes=64)
    operations[0] = replace(operations[0], num_bytes=8)
    assert cut(operations, 0, 2).places == (1,)


def test_what_is_far_behind_pays_for_every_cut_between() -> None:
    operations = line([1] * 6)
    operations[0] = replace(operations[0], last_use=5)
    assert [live(operations, place) for place in range(1, 6)] == [[0], [0, 1], [0, 2], [0, 3], [0, 4]]


def test_inputs_are_in_the_first_stage() -> None:
    operations = [Operation(0, 3, 8, has_gradient=False), Operation(0, 1, 8), *line([1, 1])]
    operations[2] = replace(operations[2], last_use=3)
    operations[3] = replace(operations[3], last_use=4)
    assert cut(operations, 2, 2).places == (3,)


def test_one_parameter_may_be_at_both_ends() -> None:
    operations = line([1, 1, 1, 1])
    operations[0] = replace(operations[0], parameters=frozenset({"table"}))
    operations[3] = replace(operations[3], parameters=frozenset({"table"}))
    found = cut(operations, 0, 2)
    assert (found.places, found.tied) == ((2,), "table")
    assert cut(operations, 0, 4).tied == "table"


def test_a_parameter_that_all_layers_share_is_named() -> None:
    operations = [replace(one, parameters=frozenset({"layer.weight"})) for one in line([1, 1, 1, 1])]
    with pytest.raises(CannotCut, match=r"^it can be cut into 2 stages, not into 3; layer.weight is read in many"):
        cut(operations, 0, 3)


def test_no_cut_goes_between_a_value_and_what_changes_it() -> None:
    operations = line([1, 1, 1, 1])
    operations[0] = replace(operations[0], changed_until=2)
    assert cut(operations, 0, 2).places == (3,)


def test_every_stage_has_something_to_train() -> None:
    operations = line([1, 5, 5, 1])
    operations[1:3] = [replace(one, parameters=frozenset()) for one in operations[1:3]]
    assert cut(operations, 0, 2).places == (2,)
    with pytest.raises(CannotCut, match="it can be cut into 2 stages, not into 3"):
        cut(operations, 0, 3)


def test_a_long_list_is_cut_fast_enough_to_wait_for() -> None:
    operations = line([1.0] * 1000)
    assert cut(operations, 0, 4).places == (250, 500, 750)


def test_something_with_a_gradient_goes_through_every_cut() -> None:
    operations = line([1, 1, 1])
    operations[0] = replace(operations[0], can_cross=False)
    operations[1] = replace(operations[1], has_gradient=False, parameters=frozenset())
    with pytest.raises(CannotCut, match="it can be cut into 1 stage, not into 2"):
        cut(operations, 0, 2)
    operations[1] = replace(operations[1], has_gradient=True)
    assert cut(operations, 0, 2).places == (2,)
