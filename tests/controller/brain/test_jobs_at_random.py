"""Twenty small jobs on eight hosts, in virtual time: no node in two jobs, no job starved, faults stay in their job."""

import os
import random

import pytest

from holdfast.controller.state.events import StopRequested
from holdfast.controller.state.model import JobStatus
from tests.controller.support.virtual import Virtual

pytestmark = pytest.mark.aside

HOSTS, JOBS = 8, 20
STEPS = 12


def play(seed: int, storm: str = "") -> Virtual:
    """Jobs of one to four nodes come over half a minute, some with a priority, some of which preempt.

    `storm`: a job whose workers are killed again and again. Until the end the virtual cluster checks after each event
    that no node is in two jobs and no two generations of a job train.
    """
    rng = random.Random(seed)
    v = Virtual(nodes=HOSTS, slots=1)
    plans = [
        (
            rng.uniform(0, 20),
            f"j{n:02}",
            rng.choice([1, 1, 1, 2, 2, 3, 4]),
            rng.choice([0, 0, 0, 1]),
            rng.random() < 0.2,
        )
        for n in range(JOBS)
    ]
    v.last_step = STEPS
    began = v.now
    for at, name, nnodes, priority, preempts in sorted(plans):
        v.run(max(0.0, began + at - v.now))
        v.submit(nnodes=nnodes, nproc=1, id=name, priority=priority, preempt=preempts and priority > 0)
    killed_at = -1  # each attempt gets further than the one before: a job that does not is marked failed
    while any(not brain.c.job.state.ended for brain in v.brain.jobs.brains.values()):
        assert v.now < began + 600, {job: brain.c.job.state.value for job, brain in v.brain.jobs.brains.items()}
        v.run(1.0)
        running = [w for w in v.all_workers() if w.running and w.job == storm and w.step > killed_at]
        if running and killed_at < STEPS - 2:
            killed_at = running[0].step
            v.exit(rng.choice(running).rank, signal=9, job=storm)
    return v


def finished(v: Virtual) -> dict[str, list[int]]:
    """The steps that each job did."""
    assert {brain.c.job.state for brain in v.brain.jobs.brains.values()} == {JobStatus.FINISHED}
    return {job: sorted(brain.c.ledger.rows) for job, brain in v.brain.jobs.brains.items()}


@pytest.mark.parametrize("seed", range(4))
def test_every_job_gets_its_turn_and_does_all_its_steps(seed: int) -> None:
    assert set(map(len, finished(play(seed)).values())) == {STEPS + 1}


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_many_seeds() -> None:
    """HOLDFAST_SEEDS=1000 takes ten minutes of a core."""
    for seed in range(int(os.environ.get("HOLDFAST_SEEDS", "16"))):
        steps = finished(play(seed, storm=f"j{seed % JOBS:02}" if seed % 2 else ""))
        assert set(map(len, steps.values())) == {STEPS + 1}, seed


@pytest.mark.parametrize("seed", range(3))
def test_a_storm_in_one_job_leaves_all_decisions_about_others_as_they_are(seed: int) -> None:
    """Four jobs side by side with a fault in each but the first; then the same with a storm in the first."""

    def reported(storm: bool) -> dict[str, list[tuple[object, ...]]]:
        rng = random.Random(seed)
        v = Virtual(nodes=HOSTS, slots=1)
        for n in range(4):
            v.submit(nnodes=2, nproc=1, id=f"j{n}")
        v.run(4.0)
        faults = {n: rng.uniform(0.5, 8.0) for n in (1, 2, 3)}
        began = v.now
        while v.now < began + 14.0:
            v.run(0.1)
            for n, at in list(faults.items()):
                if v.now >= began + at:
                    del faults[n]
                    v.exit(n % 2, signal=9, job=f"j{n}")
            ready = [w for w in v.all_workers() if w.job == "j0" and w.running and w.step >= 0]
            if storm and len(ready) == 2:
                v.exit(rng.choice([0, 1]), signal=9, job="j0")
        for job in ("j1", "j2", "j3"):
            v.feed(StopRequested(0.0, job))
        v.run(1.0)
        assert not storm or v.brain.jobs.brains["j0"].c.job.generation >= 4
        return {
            job: [
                (round(i.opened - i.since, 6), round(i.since, 6), i.cause.kind, i.action, i.reason, i.generation_to)
                for i in v.incidents
                if i.job == job
            ]
            for job in ("j1", "j2", "j3")
        }

    calm = reported(storm=False)
    assert all(calm.values())
    assert reported(storm=True) == calm
