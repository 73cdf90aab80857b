"""Clusters that do not exist: the real decisions, faults at random, and what must hold after every event."""

import pytest

from holdfast.controller.simulation import checks
from holdfast.controller.simulation.breaks import Breaks
from holdfast.controller.simulation.checks import BrokenInvariant
from holdfast.controller.simulation.faults import LLAMA3, RATES, How, SimulatedFault, draw
from holdfast.controller.simulation.hosts import ClusterShape
from holdfast.controller.simulation.run import baselines, simulate, spread
from holdfast.controller.simulation.world import World

SMALL = ClusterShape(nodes=6, spares=2, gpus=2, per_switch=3, step=2.0, start=5.0, restore=5.0, checkpoint=120.0)


def test_causes_are_those_that_were_published() -> None:
    assert sum(count for count, _ in LLAMA3.values()) == 419
    assert all(sum(shows.values()) == pytest.approx(1.0) for _, shows in LLAMA3.values())
    drawn = draw(7, 16_384, 2048, 54 * 86_400.0, 1.0)
    published = [fault for fault in drawn if fault.cause in LLAMA3]
    assert 340 < len(published) < 500
    assert drawn == draw(7, 16_384, 2048, 54 * 86_400.0, 1.0)


@pytest.mark.parametrize("seed", range(5))
def test_small_clusters_break_no_invariant(seed: int) -> None:
    found = simulate(SMALL, seed, days=0.15, rate=15_000.0, hurry=300.0)
    assert (found.wrong_evictions, found.wrong_ends) == (0, 0)
    assert sum(found.lost.values()) > 0


@pytest.mark.parametrize("seed", range(2))
def test_a_job_that_may_shrink_does_and_breaks_no_invariant(seed: int) -> None:
    shape = ClusterShape(
        nodes=6, gpus=2, per_switch=3, step=2.0, start=5.0, restore=5.0, checkpoint=120.0, shrinks=True
    )
    found = simulate(shape, 100 + seed, days=0.15, rate=8_000.0, hurry=300.0)
    assert (found.wrong_evictions, found.wrong_ends) == (0, 0)


def test_the_same_seed_is_the_same_run_and_progress_goes_up_to_its_end() -> None:
    shares: list[float] = []
    seen = simulate(SMALL, 3, days=0.05, rate=15_000.0, hurry=300.0, progress=shares.append)
    unseen = simulate(SMALL, 3, days=0.05, rate=15_000.0, hurry=300.0)
    assert shares == sorted(shares)
    assert 0 <= shares[0] < 0.1
    assert shares[-1] >= 1
    assert seen.recovered
    one, other = ((run.goodput, run.events, run.detected, run.recovered) for run in (seen, unseen))
    assert one == other


def after(how: How, seconds: float = 2400.0, shape: ClusterShape = SMALL) -> World:
    """A quiet cluster at which one thing happens."""
    world = World(shape, seed=1)
    breaks = Breaks(world)
    world.later(300.0, breaks.strike, SimulatedFault(300.0, "test", how, 0.4, 11))
    world.run(world.began + 300.0 + seconds)
    return world


@pytest.mark.parametrize("how", [how for how in How if how not in (How.LOG, How.SLOW)])
def test_after_every_fault_it_trains_again(how: How) -> None:
    world = after(how)
    assert world.life is not None
    assert world.done > 350
    assert not [node for node, faulty in world.evicted if not faulty]


def test_orphans_that_are_ended_stop_no_training() -> None:
    """A switch is back, and what still runs behind it is of an older generation than what trains."""
    shape = ClusterShape(nodes=6, spares=3, gpus=2, per_switch=3, step=2.0, start=5.0, restore=5.0)
    world = after(How.SWITCH, 2400.0, shape)
    assert world.life is not None
    assert world.done > 1000
    assert len(world.stops) == 1


def test_a_node_that_was_given_up_while_cut_off_ends_its_workers_before_others_begin() -> None:
    """All hosts are cut off in the middle of a stop; when they are back, one has been evicted and still trains."""
    shape = ClusterShape(nodes=6, spares=2, gpus=2, step=2.0, start=0.6, restore=0.6, checkpoint=600.0)
    found = simulate(shape, 2423, days=0.032, rate=15_000.0 * RATES["llama3"], hurry=15_000.0)
    assert found.state == "running"


def test_quiet_hours_are_jumped_over() -> None:
    world = World(SMALL, seed=1)
    world.run(world.began + 2 * 3_600.0)
    assert world.events < 600  # 400 of them while it starts
    assert world.brain.jobs.newest.c.time.ratio(world.instant.wall) == pytest.approx(1.0, abs=0.01)


def test_two_generations_at_once_are_seen() -> None:
    world = World(SMALL, seed=1)
    world.run(world.began + 60.0)
    host = world.job_hosts()[0]
    with pytest.raises(BrokenInvariant, match="generation 9 starts on n0 while n0 runs an older one"):
        checks.may_start(world, host, 9)


def test_silence_is_seen() -> None:
    world = World(SMALL, seed=1)
    world.run(world.began + 60.0)
    world.stopped_at = world.now - 4000.0
    with pytest.raises(BrokenInvariant, match="no alert was sent"):
        checks.not_in_silence(world)


def test_other_ways_of_running_a_job_lose_more() -> None:
    shape = ClusterShape(nodes=64, spares=4)
    ours = simulate(shape, 1, days=1.0, rate=16.0)
    others = baselines(shape, 1, days=1.0, rate=16.0)
    assert others.keys() == {"by hand", "torchrun-like"}
    assert all(0 < value < ours.goodput for value in others.values())


def test_a_spread_of_nothing_is_empty() -> None:
    assert spread([]) == {}
    assert spread([1.0, 2.0, 3.0]) == {"median": 2.0, "p90": 3.0, "p99": 3.0, "max": 3.0}
