"""The packet level, the flow level and the fluid incast say the same of a rack where all of them hold."""

import numpy as np
import pytest

from holdfast.planner.network.clos import Clos
from holdfast.planner.network.congestion import Dcqcn, Hybrid, Swift
from holdfast.planner.network.flows import Transfers, ends
from holdfast.planner.network.incast import Outcome
from holdfast.planner.network.incast import incast as fluid
from holdfast.planner.network.network import Network
from holdfast.planner.packets.incast import CONTROLS, Beside, Meeting, incasts
from holdfast.planner.packets.rack import RACK_PORT, Flows, Rack
from holdfast.planner.packets.simulation import Simulation
from tests.planner.packets.test_closed_forms import PACKET, PORT, D

SENDERS, SLOTS = 8, 12_000
WINDOW = 4 * D


@pytest.mark.parametrize(
    "flows",
    [
        [(0, 1, 600), (1, 2, 500), (2, 0, 700)],
        [(0, 3, 400), (1, 3, 400), (2, 3, 400)],
        [(0, 3, 300), (1, 3, 600), (2, 3, 900)],
        [(0, 1, 800), (0, 2, 400)],
        [(0, 3, 500), (1, 3, 500), (2, 4, 900), (2, 3, 300)],
    ],
)
def test_flows_end_when_fair_shares_say(flows: list[tuple[int, int, int]]) -> None:
    """Within a hop there and one on, and a window of each flow: so many packets may stand before one of another."""
    source, target, packets = np.array(flows).T
    clos = Clos(5, rails=1, uplink_bytes_per_s=50e9)
    assert clos.leaf_of(np.arange(5)).tolist() == [0] * 5
    network = Network(clos)
    paths = Transfers.of_paths(network.paths(source, target), np.arange(len(flows)), packets * float(PACKET))
    fair = ends(paths, network.capacity()) / (PACKET / 25e9)
    made = Simulation(Rack(5, PORT, pfc=False, window=WINDOW), Flows.of(*flows), CONTROLS["none"])
    made.run(4000)
    ended = made.receivers.done + 1 - 2 * D
    assert ended.min() > 0
    meet = len(flows) > len(set(source.tolist())) or len(flows) > len(set(target.tolist()))
    assert np.abs(ended - fair).max() <= (WINDOW * (len(flows) - 1) if meet else 1e-6)
    # What leaves a port that is never idle ends when all of it has passed.
    assert ended.max() == pytest.approx(fair.max(), abs=0.5 if len(set(target.tolist())) == 1 else WINDOW)


@pytest.fixture(scope="module")
def both() -> dict[str, tuple[Meeting, Outcome]]:
    """Of each control: packets, and the fluid for as long."""
    seconds = SLOTS * PACKET / 25e9
    found = incasts(SENDERS, SLOTS, seed=1)
    return {name: (found[name], fluid(build, RACK_PORT, SENDERS, seconds, 1)) for name, build in CONTROLS.items()}


def test_the_fluid_incast_is_as_the_packets_have_it(both: dict[str, tuple[Meeting, Outcome]]) -> None:
    """The fluid has pauses without delay: packets that are under way then are what queues differ by."""
    under_way = 2 * D * PACKET
    meeting, outcome = both["none"]
    assert meeting.outcome.goodput == pytest.approx(outcome.goodput, abs=1e-3)
    assert outcome.longest_queue < meeting.outcome.longest_queue <= outcome.longest_queue + SENDERS * under_way
    for name in ("swift", "both"):
        meeting, outcome = both[name]
        assert meeting.outcome.goodput == pytest.approx(outcome.goodput, abs=0.05)
        assert meeting.outcome.fairness == pytest.approx(outcome.fairness, abs=0.05)
        assert meeting.outcome.longest_queue < RACK_PORT.mark_all
        assert outcome.longest_queue < RACK_PORT.mark_all


def test_congestion_control_lets_a_flow_to_an_idle_nic_pass(both: dict[str, tuple[Meeting, Outcome]]) -> None:
    assert both["none"][0].victim < 2 / SENDERS
    assert both["both"][0].victim > 0.8
    assert both["both"][0].outcome.pauses < both["none"][0].outcome.pauses / 4


def test_controls_side_by_side_do_as_they_do_alone() -> None:
    line, base = 25e9, 8e-6
    alone = [Dcqcn(3, line), Swift(3, line, base), Hybrid(3, line, base)]
    beside = Beside([Dcqcn(3, line), Swift(3, line, base), Hybrid(3, line, base)])
    random = np.random.default_rng(4)
    for step in range(200):
        marked, trip = random.random(9) < 0.2, base * (1 + 3 * random.random(9))
        beside.step(step * 1e-5, 1e-5, marked, trip)
        for number, control in enumerate(alone):
            mine = slice(3 * number, 3 * number + 3)
            control.step(step * 1e-5, 1e-5, marked[mine], trip[mine])
            assert (beside.rate[mine] == control.rate).all()
    assert len(set(beside.rate.tolist())) > 3
