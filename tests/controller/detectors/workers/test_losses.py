"""A loss that leaps once, or stays far above all before: an alert that ends nothing, once for all ranks."""

import pytest

from holdfast.controller.detectors.base.table import Tuning
from holdfast.controller.detectors.workers.losses import LossDetector
from holdfast.controller.state.events import EventSeen, FrameSeen
from holdfast.controller.state.incidents import Finding
from holdfast.controller.state.model import Instant
from holdfast.wire import types as t
from tests.controller.support.virtual import Virtual

NOW = Instant(0.0, 1e9)


def reported(losses: list[float], detector: LossDetector | None = None, generation: int = 1) -> list[Finding]:
    """As two ranks report each step."""
    detector = detector or LossDetector(Tuning())
    return [
        finding
        for step, loss in enumerate(losses)
        for rank in (0, 1)
        for finding in detector.observe(t.StepRecord(rank, generation, step, 0, 0.1, loss), NOW)
    ]


def printed(rule: str, rank: int, generation: int) -> t.LogMatched:
    line = "the loss leapt to 1e+05 at step 40; the median before was 2.3; it printed: loss 100000"
    return t.LogMatched("", generation, rank, 0, rule, "numeric", t.Severity.WARNING, line)


def test_one_loss_far_above_all_before_is_reported_once() -> None:
    (finding,) = reported([2.0] * 40 + [2e4] + [2.0] * 40)
    assert (finding.kind, finding.severity, finding.subject) == ("loss-spike", t.Severity.WARNING, "job")
    assert finding.evidence == {"step": 40, "value": 2e4, "usual": 2.0}


def test_losses_that_leap_and_stay_are_a_leap_and_a_divergence() -> None:
    found = reported([2.0] * 40 + [2e4] * 40)
    assert [finding.signature for finding in found] == ["loss-leap@40", "loss-divergence@40"]


def test_a_learning_rate_that_is_far_too_high_is_a_divergence() -> None:
    (finding,) = reported([2.3] + [9e3, 8e3, 7e3] * 20)
    assert finding.text == "training diverges since step 1: the loss is 8000; it was 2.3"


def test_a_new_generation_is_compared_with_nothing_of_the_last() -> None:
    detector = LossDetector(Tuning())
    assert not reported([0.001] * 40, detector)
    assert not reported([9.0] * 40, detector, generation=2)


def test_what_is_printed_counts_where_no_loss_is_reported() -> None:
    detector = LossDetector(Tuning())
    (finding,) = detector.printed(printed("loss-leap", 0, 1), 41, NOW)
    assert (finding.kind, finding.evidence["step"]) == ("loss-spike", 41)
    reported([2.0] * 3, detector)
    assert detector.printed(printed("loss-leap", 0, 1), 41, NOW) == []
    assert len(detector.printed(printed("loss-leap", 0, 2), 41, NOW)) == 1, "another attempt, which reports none"


@pytest.mark.parametrize("rule", ["loss-leap", "loss-divergence"])
def test_the_controller_alerts_once_for_all_ranks_and_ends_nothing(rule: str) -> None:
    v = Virtual()
    v.counts_from_zero = True  # an unmodified script: no loss is reported
    v.submit()
    v.run(20.0)
    job = v.job.spec.id
    for rank in range(2):
        event = printed(rule, rank, v.job.generation)
        v.feed(
            EventSeen(
                "node0", t.LogMatched(job, event.generation, rank, 0, rule, "numeric", event.severity, event.line)
            )
        )
    stale = t.LogMatched(job, 0, 0, 0, rule, "numeric", t.Severity.WARNING, "of an earlier attempt")
    v.feed(EventSeen("node0", stale))
    assert [(i.cause.kind, i.action) for i in v.incidents] == [("loss-spike", "alert")]
    assert v.job.generation == 1


def test_reported_losses_reach_it() -> None:
    v = Virtual()
    v.submit()
    v.run(20.0)
    steps = tuple(
        t.StepRecord(0, v.job.generation, 10_000 + n, int(v.instant.wall * 1e9), 0.1, 2.0 if n != 40 else 1e5)
        for n in range(60)
    )
    v.feed(FrameSeen("node0", t.Frame(10**6, 1, 1, steps=steps)))
    assert [(i.cause.kind, i.cause.evidence["step"]) for i in v.incidents] == [("loss-spike", 10_040)]
