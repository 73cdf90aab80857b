"""The steps of a job as rows."""

import math

from holdfast.controller.state.ledger import Ledger
from holdfast.wire.types import NAN, StepRecord


def test_the_loss_is_that_of_the_newest_step_that_has_one() -> None:
    ledger = Ledger()
    assert math.isnan(ledger.loss)
    ledger.add(StepRecord(7, 1, 0, 10**9, 0.3, loss=2.5))
    ledger.add(StepRecord(0, 1, 1, 2 * 10**9, 0.3, loss=NAN))  # the rank with the loss has not reported yet
    assert ledger.loss == 2.5
    ledger.add(StepRecord(7, 1, 1, 2 * 10**9, 0.3, loss=2.25))
    assert ledger.loss == 2.25
