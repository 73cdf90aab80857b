"""Unmodified DDP on a host that is busy or not: a twentieth of a step in every step, or much in a few of them."""

import numpy as np
import pytest

from holdfast.controller.simulation.ddp_spans import DdpJob, Extra, spans_of
from holdfast.diagnostics.blame.blame import Blame
from holdfast.diagnostics.blame.model import Slowness
from holdfast.diagnostics.blame.report import blame_of, report
from holdfast.diagnostics.steps.job_shape import JobShape

SHAPE = JobShape("j1", "train", ("n0",), 3)


def blame(job: DdpJob, *extras: Extra, seed: int = 1) -> Blame:
    found = blame_of(spans_of(job, extras, seed), SHAPE)
    assert found is not None
    return found


@pytest.mark.parametrize("load", [0.0, 0.02])
@pytest.mark.parametrize("part", ["forward", "backward", "optimizer"])
@pytest.mark.parametrize("computes", [False, True])
def test_5_ms_of_90_are_named_with_their_place(load: float, part: str, computes: bool) -> None:
    (culprit,) = blame(DdpJob(load=load), Extra(2, part, 0.005, computes=computes)).culprits
    kind = Slowness.COMPUTE if computes else Slowness.WAIT
    assert (culprit.kind, culprit.rank, culprit.what) == (kind, 2, part)
    # More work also waits longer for a busy processor.
    assert culprit.self_s == pytest.approx(0.005, abs=0.002 if load else 0.001)


def test_what_they_cost_is_what_the_step_is_longer() -> None:
    slow, fast = blame(DdpJob(), Extra(1, "forward", 0.005)), blame(DdpJob())
    (culprit,) = slow.culprits
    assert slow.step_s - fast.step_s == pytest.approx(0.005, abs=0.0005)
    assert culprit.cost_s == pytest.approx(0.005, abs=0.001)


@pytest.mark.parametrize(
    ("part", "where"),
    [
        ("backward optimizer", "between backward and optimizer"),
        ("optimizer forward", "between optimizer and forward"),
    ],
)
@pytest.mark.parametrize("every", [1, 10])
def test_outside_of_spans_it_is_between_two(part: str, where: str, every: int) -> None:
    (culprit,) = blame(DdpJob(), Extra(1, part, 0.02 * every, every)).culprits
    assert (culprit.kind, culprit.rank, culprit.what, culprit.where) == (Slowness.WAIT, 1, "other", where)
    assert f"in the time {where}" in culprit.text


@pytest.mark.parametrize("part", ["forward", "backward", "optimizer"])
@pytest.mark.parametrize("computes", [False, True])
def test_200_ms_in_each_tenth_step_are_bursts(part: str, computes: bool) -> None:
    found = blame(DdpJob(), Extra(2, part, 0.2, every=10, computes=computes))
    (culprit,) = found.culprits
    kind = Slowness.COMPUTE if computes else Slowness.WAIT
    assert (culprit.kind, culprit.rank, culprit.what, culprit.every) == (kind, 2, part, 10.0)
    assert culprit.burst_s == pytest.approx(0.2, rel=0.02)
    assert culprit.self_s == pytest.approx(0.02, rel=0.02), "on average"
    assert culprit.cost_s == pytest.approx(found.step_s - blame(DdpJob()).step_s, rel=0.05)
    assert "more than its 2 peers in one of 10 steps" in culprit.text
    assert f"in {part}; cost the job 20 ms of" in culprit.text


def test_bursts_have_their_own_fields_in_what_is_sent() -> None:
    (sent,) = report(spans_of(DdpJob(), (Extra(2, "forward", 0.2, every=10),)), SHAPE)["culprits"]
    assert (sent["rank"], sent["every"], sent["ratio"]) == (2, 10.0, None)


@pytest.mark.parametrize("counts_delay", [True, False])
@pytest.mark.parametrize("load", [0.0, 0.02, 0.06])
def test_a_busy_host_names_nobody(load: float, counts_delay: bool) -> None:
    """`benchmarks/blame_quiet.py` has more of them."""
    job = DdpJob(load=load, counts_delay=counts_delay, computes=0.3)
    assert [seed for seed in range(4) if blame(job, seed=100 + seed).culprits] == []


def test_kept_from_running_in_bursts_is_not_the_ranks() -> None:
    """Another program on one rank's processor, each tenth step."""
    table = spans_of(DdpJob(), (Extra(2, "forward", 0.2, every=10),), 1)
    rows = table.is_of("thread") & (table.rank == 2) & (table.step % 10 == 9)
    table.bytes[rows] += 200_000_000
    found = blame_of(table, SHAPE)
    assert found is not None
    assert found.culprits == []


def test_all_lengths_together_are_the_time() -> None:
    """A rank that is slow at the end of its steps begins the next ones late."""
    job = DdpJob()
    table = spans_of(job, (Extra(1, "optimizer", 0.05),), 1)
    found = blame_of(table, SHAPE)
    assert found is not None
    assert found.step_s * job.steps == pytest.approx(float(table.end.max() - table.start.min()) * 1e-9, rel=0.01)
    assert np.isfinite(found.step_s)
