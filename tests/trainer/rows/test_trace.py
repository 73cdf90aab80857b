"""Traces at random: shares and durations of their sources within three standard errors, and jobs that can run."""

from __future__ import annotations

import math

import pytest

from holdfast.trainer.rows.planner.trace import MEMORY, SIZES, World, trace

MANY = World(jobs=4000, sync=0.0)


def test_sizes_and_durations_are_those_of_the_sources() -> None:
    jobs, _ = trace(7, MANY)
    for roles, share in SIZES:
        found = sum(job.roles == roles for job in jobs) / len(jobs)
        assert abs(found - share) < 3 * math.sqrt(share * (1 - share) / len(jobs))
    # Of 80 % the logarithm is even from 1.5 to 3, of the others from 3 to 4. Iterations are rounded.
    minutes = [job.alone_s / 60 for job in jobs]
    for limit, share in ((10**2.25, 0.4), (1000.0, 0.8), (10**3.5, 0.9)):
        found = sum(value <= limit for value in minutes) / len(jobs)
        assert abs(found - share) < 3 * math.sqrt(share * (1 - share) / len(jobs)) + 0.01
    assert all(1.5 <= job.backward_s / job.forward_s <= 2.5 for job in jobs)


def test_load_memory_and_instants() -> None:
    world = World(load=2.0)
    jobs, until = trace(3, world)
    assert sum(job.alone_s * job.roles for job in jobs) == pytest.approx(2.0 * world.slots * until)
    assert all(0.0 <= job.submitted_s <= until for job in jobs)
    assert all(job.states_bytes + job.activation_bytes <= MEMORY for job in jobs)
    assert all(job.sync_s <= world.sync * job.full_s and bool(job.sync_s) == (job.roles > 1) for job in jobs)
    assert trace(3, world) == (jobs, until)
    assert trace(4, world)[0] != jobs
