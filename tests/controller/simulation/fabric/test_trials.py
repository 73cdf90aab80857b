"""Faults of links in a simulated cluster, and what looks like them: what the controller's own code makes of each."""

import math

import pytest

from holdfast.controller.simulation.fabric.faults import LinkFault
from holdfast.controller.simulation.fabric.honest import Honest
from holdfast.controller.simulation.fabric.links import Links
from holdfast.controller.simulation.fabric.trials import TrialWorld, trial
from holdfast.controller.simulation.hosts import ClusterShape, SimulatedGeneration
from holdfast.controller.simulation.run import simulate
from holdfast.controller.simulation.world import World
from holdfast.planner.network.retransmission import goes_on_after
from holdfast.wire.types import FindingKind as K

SHAPE = ClusterShape(nodes=4, spares=2, gpus=2, per_switch=2, step=1.0)


@pytest.mark.parametrize("event", Honest)
def test_nothing_is_found_in_what_is_no_fault(event: Honest) -> None:
    found = trial(event, 1, SHAPE, 50.0)
    assert found.acted == []
    assert found.found == []
    assert found.said["traffic-unplanned"] == 0


def test_a_slow_nic_is_found_where_it_is() -> None:
    """By notifications, as its traffic hardly changes: its ring's other NICs are as slow, other rails are not."""
    found = trial(LinkFault.SLOW_NIC, 1, SHAPE, 100.0)
    first = min(found.found, key=lambda one: one.after_s)
    assert first.kind is K.NETWORK_CONGESTION
    assert first.subject.startswith(f"{found.host}/")
    assert found.first(K.TRAFFIC_DECLINE) is None
    assert found.acted == []
    assert found.step_s > SHAPE.step


def test_a_cable_that_loses_packets_is_found_by_its_errors() -> None:
    found = trial(LinkFault.CABLE, 1, SHAPE, 20.0)
    assert found.first(K.NETWORK_ERRORS) is not None
    assert found.acted == []


def test_a_lost_leaf_stops_the_traffic_of_all() -> None:
    found = trial(LinkFault.LEAF, 1, SHAPE, 14.0)
    (stopped,) = [one for one in found.found if one.kind is K.TRAFFIC_STOPPED]
    assert (stopped.subject, stopped.after_s) == ("job", pytest.approx(10.0, abs=2.0))
    assert found.acted


def running(seconds: float = 10.0) -> TrialWorld:
    made = TrialWorld(SHAPE, 1)
    made.run(seconds)
    return made


def test_a_flap_holds_up_the_step_until_infiniband_sends_again() -> None:
    made = running()
    w = made.w
    assert w.life is not None
    before, first = w.newest(), w.life.first
    host = w.job_hosts()[0]
    made.breaks.links.port_down(host, 0, 3.0)
    w.report_steps()
    w.run(w.now + 2.9)
    assert made.links.down == {0}
    assert w.newest() == -1, "none ends"
    w.run(w.now + 20.1)
    assert made.links.down == set()
    back = goes_on_after(3.0, 20, 7)
    assert back is not None
    assert w.newest() == before + math.floor(23.0 - back + (w.now - 23.0 - first) % 1.0)
    counts = made.links.meter.counts
    assert (counts["link_downed"][0], counts["local_ack_timeout_err"][0]) == (1, 1)
    assert not w.brain.c.book.incidents


def test_a_port_that_is_down_for_too_long_ends_the_attempt() -> None:
    made = running()
    generation = made.w.job.generation if made.w.job is not None else -1
    made.breaks.links.port_down(made.w.job_hosts()[0], 0, 40.0)
    made.run(60.0)
    assert made.w.job is not None
    assert made.w.job.generation > generation
    assert made.w.life is not None, "and it trains again"


def test_a_flap_is_found_by_its_number() -> None:
    made = running()
    host = made.w.job_hosts()[1]
    nic = made.links.numbers[host.name] * 2
    for times in range(3):
        assert K.LINK_FLAP not in {one.kind for one in made.outcome(host.name, 0.0).found}, times
        made.breaks.links.port_down(host, nic, 1.0)
        made.run(12.0)
    flaps = [one for one in made.outcome(host.name, 0.0).found if one.kind is K.LINK_FLAP]
    assert [one.subject for one in flaps] == [f"{host.name}/mlx5_0"]


def test_frames_are_whole_only_while_somebody_looks() -> None:
    made = running()
    assert not made.links.frames() or made.links.is_looked_at
    made.w.run(made.w.now + 100.0)
    assert not made.links.is_looked_at
    assert made.links.frames() == {}


def test_of_a_large_job_some_hosts_send_whole_frames_those_of_the_fault_among_them() -> None:
    world = World(ClusterShape(nodes=40, gpus=1, per_switch=8), seed=1)
    world.run(world.now + 20.0)
    world.links = Links(world)
    world.links.look(10.0, ("n39",))
    names = world.links.frames().keys()
    assert len(names) == 8
    assert "n39" in names
    assert {"n00", "n33"} <= names, "from all of it"


def test_a_generation_that_changes_its_pace_keeps_the_step_that_runs() -> None:
    life = SimulatedGeneration(1, 5, first=10.0, step=2.0)
    slower = life.at_pace(now=13.0, step=3.0)  # step 6 began at 10... 5 ended at 10, 6 at 12, 7 runs since 12
    assert slower == SimulatedGeneration(1, 7, first=15.0, step=3.0)
    late = life.held_up(now=13.0, seconds=4.0)
    assert late == SimulatedGeneration(1, 7, first=18.0, step=2.0)
    assert late.newest(17.9) == -1
    assert late.newest(20.0) == 8


def test_a_run_with_faults_of_links_breaks_no_invariant_and_is_the_same_again() -> None:
    shape = ClusterShape(nodes=6, spares=2, gpus=2, per_switch=3, step=2.0, start=5.0, restore=5.0)
    one, other = (simulate(shape, 3, days=0.007, rate=500.0, links=3e6) for _ in range(2))
    assert (one.events, one.goodput, one.actions) == (other.events, other.goodput, other.actions)
    assert (one.wrong_evictions, one.wrong_ends) == (0, 0)
    without = simulate(shape, 3, days=0.007, rate=500.0)
    assert one.events > without.events


def test_a_neighbours_flows_are_of_others() -> None:
    made = running()
    flows = made.breaks.links.neighbours(0, 1e9)
    assert {flow.source // 2 for flow in flows} == {4, 5} == {flow.target // 2 for flow in flows}
    assert len(made.breaks.links.senders(0, 3, 1e9)) == 3


def test_what_was_lost_or_added_comes_back() -> None:
    made = running()
    faults, links = made.breaks.links, made.links
    calm = links.conditions
    faults.add(5.0, lossy=frozenset({(0, 1e-6)}), others=faults.senders(0, 2, 1e9))
    assert len(links.conditions.others) == 2
    faults.lose_leaf(1, 4.0)
    assert links.is_cut
    assert links.down == set(links.clos.links_of_leaf(1)[:2].tolist())
    assert made.w.job_hosts()[0].faulty
    made.run(6.0)
    assert links.conditions == calm
    assert links.down == set()
    assert not any(host.faulty for host in made.w.hosts.values())


def test_counters_up_to_a_change_are_of_the_network_before_it() -> None:
    made = running()
    links = made.links
    links.look(5.0)
    made.w.run(made.w.now + 0.2)
    assert links.meter.at < made.w.now, "between two frames"
    made.breaks.links.add(100.0, lossy=frozenset({(links.clos.nics, 1e-3)}))
    links.advance()
    assert not links.meter.counts["symbol_error"].any()
