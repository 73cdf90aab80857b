"""What is no rack, no flow and no question is refused in one line."""

from dataclasses import replace
from typing import Any

import pytest

from holdfast.planner.network.clos import Clos
from holdfast.planner.network.errors import NetworkError
from holdfast.planner.network.network import Network
from holdfast.planner.network.traffic import StepTraffic
from holdfast.planner.packets.incast import CONTROLS, incasts
from holdfast.planner.packets.questions import MOST_SENDERS, RackReply, ask
from holdfast.planner.packets.rack import RACK_PORT, Flap, Flows, Rack
from holdfast.planner.packets.simulation import Simulation
from tests.planner.packets.test_closed_forms import PORT

NONE = StepTraffic(1, 1, 1, 0.0, 0.0)


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        ({"hosts": 0}, "rack of 0 hosts: 1 to 1,024 are possible"),
        ({"hosts": 10**6}, "rack of 1,000,000 hosts: 1 to 1,024"),
        ({"uplinks": 10**6}, "1,000,000 uplinks as fast as 2 NICs: 0 to 1,024 of 1 to 16"),
        ({"uplink_speed": 0}, "0 uplinks as fast as 0 NICs"),
        ({"resume_at": 90e3, "port": replace(PORT, pause_at=80e3)}, "pauses above 80000 bytes and resumes at 90000"),
        ({"resume_at": -1.0}, "the second must be from 0 to the first"),
        ({"resume_at": float("nan")}, "the second must be from 0 to the first"),
        ({"buffer": 100.0}, "a buffer of 100 bytes holds no packet of 4178"),
        ({"buffer": float("inf")}, "a buffer of inf bytes"),
        ({"buffer": 1e12}, "a buffer of 1e.12 bytes: 8.76e.09 bytes are the most for so many ports"),
        ({"port": replace(PORT, bytes_per_s=float("inf"))}, "at inf bytes/s: 40,000 packets are the most"),
        ({"port": replace(PORT, base_s=1.0)}, "an empty round trip of 1 s at 2.5e.10 bytes/s: 40,000 packets"),
        ({"window": 0}, "a window of 0 packets"),
        ({"ib_timeout": 0}, "NCCL_IB_TIMEOUT is 1 to 31"),
        ({"ib_retries": 8}, "NCCL_IB_RETRY_CNT 0 to 7"),
    ],
)
def test_what_is_no_rack(wrong: dict[str, Any], line: str) -> None:
    with pytest.raises(NetworkError, match=line) as refused:
        Rack(**{"hosts": 4, "port": PORT, **wrong})
    assert "\n" not in str(refused.value)


def test_a_port_without_bandwidth_is_refused_before() -> None:
    with pytest.raises(NetworkError, match="no bandwidth"):
        Rack(4, replace(PORT, bytes_per_s=0.0))


@pytest.mark.parametrize(
    ("flow", "line"),
    [
        ((0, 4, 1), "flow 0 from port 0 to 4: there are 0 to 3"),
        ((-1, 2, 1), "flow 0 from port -1 to 2"),
        ((2, 2, 1), "flow 0 from port 2 to itself"),
        ((0, 1, 0), "flow 0 of 0 packets"),
        ((0, 1, 1, -5), "flow 0 of 1 packets from slot -5 on"),
    ],
)
def test_what_is_no_flow(flow: tuple[int, int, int], line: str) -> None:
    with pytest.raises(NetworkError, match=line):
        Simulation(Rack(4, PORT), Flows.of(flow), CONTROLS["none"])


def test_no_flows_flaps_of_no_port_and_too_many_senders() -> None:
    with pytest.raises(NetworkError, match="no flows"):
        Simulation(Rack(4, PORT), Flows.of(), CONTROLS["none"])
    for flap in (Flap(4, 0, 1), Flap(0, 5, 5), Flap(0, -1, 5)):
        with pytest.raises(NetworkError, match="there are ports 0 to 3, and the end comes after the beginning"):
            Simulation(Rack(4, PORT), Flows.of((0, 1, 1)), CONTROLS["none"], flaps=[flap])
    for senders in (0, 255):
        with pytest.raises(NetworkError, match=f"{senders} senders for 100 slots: 1 to 254"):
            incasts(senders, 100)


@pytest.mark.parametrize("word", ["0", "63", "x", "", "-1", "8:9", "٣", "9" * 30])
def test_what_can_not_be_asked_of_a_rack(word: str) -> None:
    with pytest.raises(NetworkError, match="write incast:SENDERS, with 1 to 62 NICs"):
        ask(f"incast:{word}", NONE, Network(Clos(512)), slots=0)


def test_as_many_senders_as_may_be_asked_fit_in_a_rack() -> None:
    rack = Rack(len(CONTROLS) * (MOST_SENDERS + 2), RACK_PORT)
    assert replace(rack, buffer=rack.lossless_bytes).buffer_packets == rack.hosts * (19 + 2 * 12)


def test_a_rack_is_asked_by_its_nics() -> None:
    assert ask("incast:62", NONE, Network(Clos(512)), slots=0).document()["controls"] == {}
    reply = ask("incast:2", NONE, Network(Clos(8, uplink_bytes_per_s=20e9)), slots=200)
    assert isinstance(reply, RackReply)
    slower = incasts(2, 200, port=replace(Rack(2).port, bytes_per_s=10e9))
    assert reply.meetings == slower != incasts(2, 200)
    assert [line.split(":")[0] for line in reply.lines()] == list(CONTROLS)
    assert ask("connections:4", NONE, Network(Clos(8)), slots=0).question == "connections:4"
