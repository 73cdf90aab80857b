"""The steps of a job as rows."""

import math

from holdfast.controller.state.ledger import Ledger, StepRow
from holdfast.wire.types import NAN, Meters, StepRecord


def test_the_loss_is_that_of_the_newest_step_that_has_one() -> None:
    ledger = Ledger()
    assert math.isnan(ledger.loss)
    ledger.add(StepRecord(7, 1, 0, 10**9, 0.3, loss=2.5))
    ledger.add(StepRecord(0, 1, 1, 2 * 10**9, 0.3, loss=NAN))  # the rank with the loss has not reported yet
    assert ledger.loss == 2.5
    ledger.add(StepRecord(7, 1, 1, 2 * 10**9, 0.3, loss=2.25))
    assert ledger.loss == 2.25


def record(step: int, generation: int, loss: float = 1.0, rank: int = 0) -> StepRecord:
    return StepRecord(rank, generation, step, 10**9 * (step + 1), 0.25, loss=loss)


def test_a_job_that_began_again_is_where_it_is_and_not_where_it_was() -> None:
    ledger = Ledger()
    for step in range(57):
        ledger.add(record(step, 1, loss=float(step)))
    for step in range(3):
        ledger.add(record(step, 2, loss=100.0 + step))
    assert ledger.last is not None
    assert (ledger.last.step, ledger.last.generation, ledger.loss) == (2, 2, 102.0)
    assert [row.step for row in ledger.sorted_rows()] == [0, 1, 2]
    earlier = ledger.earlier_rows()
    assert [(row.generation, row.step, row.loss) for row in earlier] == [(1, n, float(n)) for n in range(57)]
    for step in range(3, 60):
        ledger.add(record(step, 2))
    assert [row.step for row in ledger.sorted_rows(54)] == [55, 56, 57, 58, 59]
    assert len(ledger.earlier_rows()) == 57


def test_each_generation_that_was_superseded_is_kept_and_written_once() -> None:
    ledger = Ledger()
    for generation in (1, 2, 3):
        for step in range(2):
            ledger.add(record(step, generation, loss=float(generation)))
    assert [(row.generation, row.step) for row in ledger.earlier_rows()] == [(1, 0), (1, 1), (2, 0), (2, 1)]
    taken, rows = ledger.take_superseded(), ledger.take_dirty()
    assert len(taken) == 4
    assert ledger.take_superseded() == []
    ledger.not_written(rows, taken)
    assert ledger.take_superseded() == taken
    assert ledger.take_dirty() == rows


def test_meters_belong_to_their_step_whether_they_come_before_or_after_its_record() -> None:
    ledger = Ledger()
    ledger.measure(1, 0, Meters(mfu=0.4, grad_norm=2.0))
    ledger.add(record(0, 1))
    ledger.add(record(1, 1))
    ledger.take_dirty()
    ledger.measure(1, 1, Meters(mfu=0.5))
    ledger.measure(1, 1, Meters(mfu=0.9))  # another rank's: all say the same of a step
    ledger.measure(1, 2, Meters(mfu=0.6))
    ledger.add(record(2, 2))  # of another generation
    rows = ledger.sorted_rows()
    assert [(row.mfu, row.grad_norm) for row in rows[:1]] == [(0.4, 2.0)]
    assert rows[1].mfu == 0.5
    assert math.isnan(rows[2].mfu)
    assert [row.step for row in ledger.take_dirty()] == [1, 2]


def test_what_the_journal_had_comes_back() -> None:
    ledger = Ledger()
    ledger.restore([StepRow(0, 1.0, 0.1, 1, 1.0, 2), StepRow(1, 1.0, 0.1, 1, 1.0, 1), StepRow(2, 1.0, 0.1, 1, 1.0, 1)])
    ledger.restore_superseded([StepRow(0, 5.0, 0.1, 1, 0.5, 1)])
    assert ledger.last is not None
    assert ledger.last.step == 0
    assert [(row.generation, row.step) for row in ledger.earlier_rows()] == [(1, 0), (1, 1), (1, 2)]
