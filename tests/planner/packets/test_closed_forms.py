"""A rack in slots, against what can be counted by hand. `D` is the slots of a hop, a quarter of the round trip."""

from dataclasses import replace

import numpy as np
import pytest

from holdfast.planner.network.congestion import MTU, Flags, NoControl
from holdfast.planner.network.incast import Build, Port
from holdfast.planner.packets.rack import ENDLESS, Flows, Ints, Rack
from holdfast.planner.packets.simulation import Simulation
from holdfast.planner.packets.wire import MARKED

PACKET = 4096 + 82
PORT = Port(pause_at=19.5 * PACKET)
D = round(8e-6 / 4 / (PACKET / 25e9))
MANY = 1 << 20


def free(flows: int, line: float, base: float) -> NoControl:
    return NoControl(flows, line)


def run(rack: Rack, *flows: tuple[int, ...], slots: int, build: Build = free, seed: int = 0) -> Simulation:
    made = Simulation(rack, Flows.of(*flows), build, seed)  # type: ignore[arg-type]
    made.run(slots)
    return made


def got(made: Simulation) -> list[int]:
    found: list[int] = made.receivers.expected.tolist()
    return found


@pytest.mark.parametrize("bytes_per_s", [25e9, 50e9, 1.25e9])
def test_one_flow_gets_the_line_less_headers(bytes_per_s: float) -> None:
    rack = Rack(2, replace(PORT, bytes_per_s=bytes_per_s))
    slot = PACKET / bytes_per_s
    hop = max(1, round(8e-6 / 4 / slot))
    made = run(rack, (0, 1, ENDLESS), slots=1000)
    assert got(made) == [1000 - 2 * hop]
    share = got(made)[0] * MTU / ((1000 - 2 * hop) * slot) / bytes_per_s
    assert share == pytest.approx(4096 / 4178)
    assert made.senders.round_trip[0] == pytest.approx(4 * hop * slot)


@pytest.mark.parametrize("window", [1, 7, 4 * D])
def test_a_window_sends_itself_once_in_a_round_trip(window: int) -> None:
    made = run(Rack(2, PORT, window=window), (0, 1, ENDLESS), slots=2 * D + 9 * 4 * D)
    assert got(made) == [9 * window]


@pytest.mark.parametrize(("senders", "burst"), [(2, 5), (8, 40), (31, 50)])
def test_a_burst_leaves_in_the_queue_what_was_not_drained(senders: int, burst: int) -> None:
    made = Simulation(
        Rack(senders + 1, PORT, pfc=False), Flows.of(*[(i, senders, burst) for i in range(senders)]), free
    )
    made.run(D)
    for came in range(1, senders * burst + 1):
        made.run(1)
        assert made.switch.length[senders] == min(came, burst) * senders - came
    assert made.switch.longest[senders] == (senders - 1) * burst
    made.run(D)
    assert got(made) == [burst] * senders
    assert made.receivers.done.max() == 2 * D + senders * burst - 1


@pytest.mark.parametrize(("senders", "places"), [(2, 10), (8, 100)])
def test_a_full_buffer_drops_what_it_can_not_hold(senders: int, places: int) -> None:
    """Packets that came are in the buffer (one place was just freed), have left or were dropped."""
    rack = Rack(senders + 1, PORT, pfc=False, buffer=places * PACKET, window=MANY)
    came = 150
    made = run(rack, *[(i, senders, ENDLESS) for i in range(senders)], slots=D + came)
    assert made.switch.dropped == senders * came - (places - 1) - came


@pytest.mark.parametrize("senders", [4, 32])
def test_pauses_lose_nothing_in_the_buffer_that_they_need(senders: int) -> None:
    rack = Rack(senders + 1, PORT)
    rack = replace(rack, buffer=rack.lossless_bytes)
    assert rack.buffer_packets == (senders + 1) * (19 + 2 * D)
    made = run(rack, *[(i, senders, 300) for i in range(senders)], slots=senders * 300 + 2 * D)
    assert made.switch.dropped == made.receivers.discarded == 0
    assert got(made) == [300] * senders
    assert made.switch.pauses.sum() >= senders
    dropped = run(replace(rack, pfc=False), *[(i, senders, 300) for i in range(senders)], slots=500)
    assert dropped.switch.dropped > 0


@pytest.mark.parametrize(("senders", "threshold"), [(32, 19), (48, 3), (64, 40)])
def test_a_pause_takes_a_hop_and_what_is_on_the_way_another(senders: int, threshold: int) -> None:
    """Of X packets and D slots: all but the X + 1 ports whose first packets have left cross X with packet X + 1, those
    with the one behind it. Each sends D - 1 slots more, and as many packets are on the way: n (X + 2 D) + X + 1
    come until slot X + 1 + 2 D, and one leaves in each slot.
    """
    rack = Rack(senders + 1, replace(PORT, pause_at=(threshold + 0.5) * PACKET))
    made = run(rack, *[(i, senders, ENDLESS) for i in range(senders)], slots=D + threshold + 1 + 2 * D + 5)
    assert made.switch.longest[senders] == senders * (threshold + 2 * D) - 2 * D
    assert made.switch.pauses.sum() == senders


def test_a_paused_port_resumes_at_the_lower_threshold() -> None:
    """Two ports that cross by turns; the queue never leaves what both thresholds allow once all have paused."""
    rack = Rack(3, PORT, resume_at=10 * PACKET)
    made = run(rack, (0, 2, ENDLESS), (1, 2, ENDLESS), slots=400)
    held = []
    for _ in range(1000):
        was = made.switch.pausing.copy()
        made.run(1)
        for port in range(2):
            if was[port] and not made.switch.pausing[port]:
                held.append(int(made.switch.held[port]))
    assert len(held) > 10
    assert set(held) == {9}  # 10 is not below 10
    lower = run(replace(rack, resume_at=0.0), (0, 2, ENDLESS), (1, 2, ENDLESS), slots=2400)
    assert 0 < lower.switch.pauses.sum() < made.switch.pauses.sum() or not lower.switch.pausing.all()


@pytest.mark.parametrize("senders", [4, 16])
def test_a_pause_holds_the_flow_to_an_idle_port_at_the_pace_of_the_busy_one(senders: int) -> None:
    """A NIC serves its two flows in turn, so a pause for one is a pause for both. Without pauses each has half."""
    flows = [(i, senders, ENDLESS) for i in range(senders)] + [(0, senders + 1, ENDLESS)]
    slots = 1500
    paused = run(Rack(senders + 2, PORT, window=MANY), *flows, slots=slots)
    hot, victim = int(paused.senders.next[0]), int(paused.senders.next[-1])
    assert abs(hot - victim) <= 1
    assert sum(got(paused)[:senders]) == slots - 2 * D
    assert got(paused)[-1] <= got(paused)[0] + 1 + 19 + 2 * D  # of the other's, so many may be in the queue
    assert got(paused)[-1] < slots / senders + 19 + 2 * D
    free_of_pauses = run(
        Rack(senders + 2, PORT, pfc=False, buffer=senders * slots * PACKET, window=MANY), *flows, slots=slots
    )
    assert got(free_of_pauses)[-1] == (slots - 2 * D) // 2


def test_an_uplink_moves_as_many_packets_as_it_is_faster() -> None:
    rack = Rack(8, PORT, uplinks=2, uplink_speed=3)
    up = run(rack, *[(i, 8, ENDLESS) for i in range(8)], slots=300)
    assert sum(got(up)) == 3 * (300 - 2 * D)
    down = run(rack, *[(9, i, ENDLESS) for i in range(6)], slots=2 * D + 100)
    assert got(down) == [50] * 6  # 3 in a slot to 6 hosts
    few = run(rack, (9, 0, ENDLESS), (9, 1, ENDLESS), (8, 2, ENDLESS), slots=100)
    assert got(few) == [100 - 2 * D] * 3
    assert up.receivers.discarded == down.receivers.discarded == 0, "lanes keep the order"


@pytest.mark.parametrize("window", [20, 32])
def test_marks_are_as_frequent_as_the_queue_says(window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows are in the queue but for the round trip, in which one packet a slot is under way."""
    senders, slots = 4, 2500
    queue = senders * window - 4 * D
    port = Port(mark_from=20.5 * PACKET, mark_all=120.5 * PACKET, mark_most=0.8, pause_at=1e9)
    made = run(Rack(senders + 1, port, window=window), *[(i, senders, ENDLESS) for i in range(senders)], slots=200)
    marks, release = [], made.switch.release

    def released(may: Flags) -> Ints:
        packets = release(may)
        marks.extend(packets[:, MARKED].tolist())
        return packets

    monkeypatch.setattr(made.switch, "release", released)
    for _ in range(slots):
        made.run(1)
        assert made.switch.length[senders] == queue
    assert len(marks) == slots
    chance = 0.8 * (queue - 20.5) / 100
    assert abs(sum(marks) / slots - chance) < 4 * np.sqrt(chance * (1 - chance) / slots)


def test_a_flow_that_begins_late_begins_then() -> None:
    made = run(Rack(3, PORT), (0, 2, 50), (1, 2, 50, 500), slots=1000)
    assert made.receivers.done.tolist() == [2 * D + 49, 500 + 2 * D + 49]
    assert made.is_over
    assert made.slot < 1000
