"""Losses, gradient norms and step times: 10^5 healthy steps report nothing, and each problem is reported by itself."""

import math
from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.controller.detectors.base.table import Tuning
from holdfast.controller.detectors.workers.pace import PaceDetector
from holdfast.controller.detectors.workers.spikes import SpikeDetector
from holdfast.controller.state.events import FrameSeen
from holdfast.controller.state.incidents import Finding
from holdfast.controller.state.model import Instant
from holdfast.wire import types as t
from tests.controller.support.virtual import Virtual

NOW = Instant(0.0, 1e9)
SEEDS = st.integers(0, 2**32)


def losses(kind: t.FindingKind = t.FindingKind.LOSS_SPIKE) -> SpikeDetector:
    return SpikeDetector(Tuning(), kind, "loss")


def reported(detector: SpikeDetector, values: Iterable[float], first: int = 0) -> list[Finding]:
    return [f for step, value in enumerate(values, first) for f in detector.observe(step, float(value), NOW)]


def curve(steps: int, rng: np.random.Generator) -> np.ndarray:
    """A loss that falls, with noise, and now and then a batch that is far off."""
    loss = 2.0 + 8.0 * np.exp(-np.arange(steps) / 500) + rng.normal(0, 0.05, steps)
    odd = rng.random(steps) < 0.005
    loss[odd] *= rng.uniform(1.5, 6, int(odd.sum()))
    return loss


@pytest.mark.slow
@pytest.mark.aside
def test_a_hundred_thousand_healthy_losses_say_nothing() -> None:
    assert not reported(losses(), curve(100_000, np.random.default_rng(1)))


@settings(max_examples=20, deadline=None, derandomize=True)
@given(SEEDS)
def test_a_loss_that_leaps_and_stays_is_reported_once(seed: int) -> None:
    rng = np.random.default_rng(seed)
    values = curve(600, rng)
    values[500:] *= 3
    (finding,) = reported(losses(), values)
    assert (finding.kind, finding.subject) == ("loss-spike", "job")
    step = finding.evidence["step"]
    assert 500 <= step <= 506


def test_what_is_not_reported_and_what_is_not_finite_says_nothing() -> None:
    assert not reported(losses(), [float("nan"), float("inf")] * 200)


def test_every_rank_may_report_the_same_step() -> None:
    detector = losses()
    for step in range(100):
        for _ in range(8):
            assert not detector.observe(step, 2.0 + step % 3 * 0.01, NOW)
    for step in (100, 101):
        for _ in range(8):
            assert not detector.observe(step, 50.0, NOW)
    assert len([f for _ in range(8) for f in detector.observe(102, 50.0, NOW)]) == 1


def test_a_gradient_norm_must_leap_further() -> None:
    detector = losses(t.FindingKind.GRADIENT_SPIKE)
    rng = np.random.default_rng(2)
    assert not reported(detector, rng.lognormal(0, 0.3, 20_000))
    assert len(reported(detector, rng.lognormal(0, 0.1, 10) * 20, first=20_000)) == 1


def test_a_norm_after_going_back_to_the_start_is_compared_with_nothing_of_later_steps() -> None:
    """At the start a gradient is many times what it is after a hundred steps: that is no spike."""
    rng = np.random.default_rng(4)
    early, late = rng.lognormal(3, 0.1, 60), rng.lognormal(0, 0.1, 140)
    detector = losses(t.FindingKind.GRADIENT_SPIKE)
    assert not reported(detector, [*early, *late])
    assert not reported(detector, [*early, *late]), "from step 0 again"
    assert not reported(detector, late[60:], first=120), "from a checkpoint at step 120"
    assert len(reported(detector, [30.0] * 5, first=200)) == 1, "the baseline before the checkpoint was kept"


def test_a_rank_that_reports_its_step_late_leaves_the_baseline_as_it_is() -> None:
    detector = losses()
    for step in range(100):
        assert not detector.observe(step + 1, 2.0, NOW)
        assert not detector.observe(step, 2.0, NOW)
    assert len(reported(detector, [50.0] * 5, first=101)) == 1


# --- pace --------------------------------------------------------------------------------------------------------


def pace(seconds: Iterable[float], detector: PaceDetector | None = None, generation: int = 1) -> list[Finding]:
    detector = detector or PaceDetector(Tuning())
    return [
        finding
        for step, value in enumerate(seconds)
        for finding in detector.observe(t.StepRecord(0, generation, step, 0, float(value)), NOW)
    ]


def jittery(steps: int, rng: np.random.Generator, spread: float = 0.5) -> np.ndarray:
    """Heavy jitter, and a checkpoint's pause every hundred steps."""
    seconds = 0.3 * rng.lognormal(0, spread, steps)
    seconds[::100] += 5.0
    return seconds


@pytest.mark.slow
@pytest.mark.aside
@pytest.mark.parametrize("spread", [0.01, 0.1, 0.5, 1.0])
def test_a_hundred_thousand_healthy_steps_say_nothing(spread: float) -> None:
    assert not pace(jittery(100_000, np.random.default_rng(3), spread))


@pytest.mark.parametrize("memory", [20, 100, 400])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_pace_that_wanders_by_itself_says_nothing(seed: int, memory: float) -> None:
    """A shared host: what slows it comes and goes over so many steps, a tenth up or down."""
    assert not pace(jittery(20_000, np.random.default_rng(seed), 0.05) * wandering(20_000, seed, memory, 0.1))


def test_a_jump_beyond_what_a_pace_wanders_by_is_reported() -> None:
    seconds = jittery(3000, np.random.default_rng(4), 0.05) * wandering(3000, 4, 100, 0.05)
    seconds[2000:] *= 1.6
    assert [(f.kind, 2000 <= f.evidence["step"] < 2080) for f in pace(seconds)] == [("step-time-jump", True)]


def wandering(steps: int, seed: int, memory: float, spread: float) -> np.ndarray:
    """Factors around 1: an autoregressive walk that forgets over `memory` steps."""
    rng = np.random.default_rng(seed + 100)
    keep = math.exp(-1 / memory)
    walk, value = [], 0.0
    for pull in rng.normal(0, spread * math.sqrt(1 - keep**2), steps):
        value = keep * value + pull
        walk.append(value)
    return np.exp(np.array(walk))


@settings(max_examples=20, deadline=None, derandomize=True)
@given(SEEDS, st.floats(1.3, 5.0))
def test_a_jump_is_reported_once_within_two_blocks(seed: int, factor: float) -> None:
    seconds = jittery(1000, np.random.default_rng(seed), 0.05)
    seconds[600:] *= factor
    (finding,) = pace(seconds)
    assert (finding.kind, finding.subject) == ("step-time-jump", "job")
    assert 639 <= finding.evidence["step"] <= 660


@pytest.mark.slow
@pytest.mark.aside
@settings(max_examples=20, deadline=None, derandomize=True)
@given(SEEDS, st.floats(1.3, 3.0))
def test_a_slow_drift_is_reported_once(seed: int, factor: float) -> None:
    seconds = jittery(20_000, np.random.default_rng(seed), 0.1) * np.linspace(1.0, factor, 20_000)
    assert [finding.kind for finding in pace(seconds)] == ["step-time-drift"]


def test_a_new_generation_has_its_own_pace() -> None:
    detector = PaceDetector(Tuning())
    rng = np.random.default_rng(5)
    assert not pace(jittery(2000, rng, 0.05), detector)
    assert not pace(3 * jittery(2000, rng, 0.05), detector, generation=2)


def test_the_controller_reports_and_lets_training_go_on() -> None:
    v = Virtual()
    v.submit()
    v.run(20.0)
    for step in range(1000, 1060):
        norm = 1.0 if step < 1050 else 100.0
        meters = t.Meters(grad_norm=norm)
        sample = t.WorkerSample(0, 1, 1, step=step, phase=t.Phase.TRAIN, meters=meters)
        v.feed(FrameSeen("node0", t.Frame(1, 1, 1, workers=(sample,))))
    assert [(i.cause.kind, i.action) for i in v.incidents] == [("gradient-spike", "alert")]
    assert v.job.generation == 1
