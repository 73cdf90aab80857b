"""Whatever flows, flaps and buffers there are: no packet is lost track of, and each flow's packets come in order."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.planner.network.incast import Build
from holdfast.planner.packets.incast import CONTROLS
from holdfast.planner.packets.rack import Flap, Flows, Rack
from holdfast.planner.packets.simulation import Simulation
from tests.planner.packets.test_closed_forms import PACKET, PORT, D

PORTS = 5


@st.composite
def racks(draw: st.DrawFn) -> Simulation:
    rack = Rack(
        3,
        PORT,
        uplinks=2,
        uplink_speed=draw(st.integers(1, 3)),
        buffer=draw(st.sampled_from([1, 3, 30, 1000])) * PACKET,
        pfc=draw(st.booleans()),
        window=draw(st.sampled_from([1, 20, 60])),
        ib_timeout=4,
        ib_retries=draw(st.integers(0, 7)),
    )
    ports = st.integers(0, PORTS - 1)
    ends = draw(st.lists(st.tuples(ports, ports).filter(lambda e: e[0] != e[1]), min_size=1, max_size=6))
    flows = [(*pair, draw(st.integers(1, 120)), draw(st.integers(0, 90))) for pair in ends]
    flap = st.builds(lambda port, at, long: Flap(port, at, at + long), ports, st.integers(0, 250), st.integers(1, 300))
    flaps = draw(st.lists(flap, max_size=2))
    build: Build = CONTROLS[draw(st.sampled_from(sorted(CONTROLS)))]
    return Simulation(rack, Flows.of(*flows), build, draw(st.integers(0, 3)), flaps)


@settings(deadline=None, max_examples=25)
@given(racks(), st.lists(st.integers(1, 150), min_size=1, max_size=3))
def test_what_was_sent_arrived_was_dropped_or_is_on_its_way(made: Simulation, stops: list[int]) -> None:
    senders, receivers, switch = made.senders, made.receivers, made.switch
    for slots in stops:
        made.run(slots)
        assert senders.sent == receivers.arrived + switch.dropped + made.lost + made.in_flight
        assert receivers.arrived == receivers.expected.sum() + receivers.discarded
        assert switch.held.sum() == switch.length.sum() == switch.occupied <= switch.capacity
        assert (senders.acked <= receivers.expected).all()
        assert (receivers.expected <= made.flows.packets).all()
        assert ((receivers.done >= 0) == (receivers.expected == made.flows.packets)).all()
        assert (senders.next - senders.acked <= made.rack.window).all()


@settings(deadline=None, max_examples=15)
@given(racks())
def test_no_flow_ends_before_the_busiest_of_its_ports_could_move_it(made: Simulation) -> None:
    made.run(400)
    speed = made.rack.speed
    for flow in np.flatnonzero(made.receivers.done >= 0):
        ends = made.flows.source[flow], made.flows.target[flow]
        # A sender's own NIC is as fast as a host's port, beyond the uplink too.
        least = -(-made.flows.packets[flow] // min(int(speed[end]) for end in ends))
        assert made.receivers.done[flow] >= made.flows.begin[flow] + 2 * D + least - 1


@settings(deadline=None, max_examples=8)
@given(st.integers(2, 5), st.integers(1, 60), st.sampled_from([5, 60]))
def test_all_arrives_once_and_only_once_without_losses(hosts: int, packets: int, window: int) -> None:
    """From each host to each other."""
    pairs = [(a, b, packets) for a in range(hosts) for b in range(hosts) if a != b]
    made = Simulation(Rack(hosts, PORT, window=window), Flows.of(*pairs), CONTROLS["none"])
    made.run(4 * D * (packets + 2) * hosts)
    assert made.is_over
    assert made.senders.sent == made.receivers.arrived == packets * len(pairs)
    assert made.in_flight == made.receivers.discarded == 0
