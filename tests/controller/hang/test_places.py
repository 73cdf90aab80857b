"""The place of a pause is the same in every attempt, whatever is known of it at the time."""

import pytest

from holdfast.controller.hang.places import Places, has_stepped
from holdfast.controller.state.ledger import Ledger
from holdfast.diagnostics.hang.stack_tree import Stack
from holdfast.wire import types as t

SIGNAL = [Stack((0, 1), "main", ("bootstrap.py:9 main", "train.py:40 <module>", "train.py:31 main", "loss.py:7 wait",
                                 "torch/_tensor.py:630 backward")),
          Stack((0, 1), "other", ("train.py:3 beat",))]  # fmt: skip
SPY = [Stack((0, 1), "main", ("train.py:40 <module>", "train.py:30 main", "loss.py:7 wait"))]
PLACE = "train.py:40 <module> > train.py:31 main > loss.py:7 wait"


def test_the_outermost_calls_of_the_script_are_the_place() -> None:
    assert Places().of(1, SIGNAL, "ddp:backward") == PLACE


def test_it_stays_while_stacks_are_asked_for_again_and_read_in_another_way() -> None:
    """Else the limit of the operation's name, which no restart has doubled, would hold for that moment."""
    places = Places()
    reported = [places.of(0, stacks, "ddp:backward") for stacks in (SIGNAL, [], SPY, [])]
    assert reported == [PLACE] * 4
    assert places.of(5, SIGNAL, "") == "outside of operations"
    places.begin()
    assert places.of(0, [], "ddp:backward") == "in ddp:backward"


def test_stacks_that_come_late_are_the_place_from_then_on() -> None:
    places = Places()
    assert [places.of(0, [], "ddp:backward"), places.of(0, SIGNAL), places.of(0, [])] == [
        "in ddp:backward", PLACE, PLACE,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("operation", "awaited", "place"),
    [("all_reduce", "barrier 3", "in all_reduce"), ("", "barrier 3 of world", "before barrier"),
     ("", "", "outside of operations")],
)  # fmt: skip
def test_without_stacks_it_is_an_operation(operation: str, awaited: str, place: str) -> None:
    only_loaders = [Stack((0,), "main", ("bootstrap.py:9 main", "<frozen runpy>:1 run"))]
    assert Places().of(0, only_loaders, operation, awaited) == place


def test_steps_of_another_generation_and_restored_ones_are_no_steps_of_this_one() -> None:
    ledger = Ledger()
    assert not has_stepped(ledger, 0)
    assert not has_stepped(ledger, 1)
    ledger.add(t.StepRecord(0, 1, 7, 1, 0.3))
    assert has_stepped(ledger, 1)
    assert not has_stepped(ledger, 2)
    ledger.add(t.StepRecord(0, 2, 3, 1, 0.3))
    assert has_stepped(ledger, 2)
