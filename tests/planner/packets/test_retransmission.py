"""Links that are silent for a while, against what timers and round trips say."""

from dataclasses import replace
from math import ceil

import pytest

from holdfast.planner.network.retransmission import goes_on_after
from holdfast.planner.packets.rack import ENDLESS, Flap, Flows, Rack
from holdfast.planner.packets.simulation import Simulation
from tests.planner.packets.test_closed_forms import PACKET, PORT, D, free, got

SLOT = PACKET / 25e9
AT = 500


def timer(exponent: int) -> int:
    return ceil(4.096e-6 * 2**exponent / SLOT)


def flapped(rack: Rack, length: int, slots: int, port: int = 0) -> Simulation:
    made = Simulation(rack, Flows.of((0, 1, ENDLESS)), free, flaps=[Flap(port, AT, AT + length)])
    made.run(slots)
    return made


@pytest.mark.parametrize("length", [700, 1500, 3300, 5000])
@pytest.mark.parametrize("adaptive", [False, True])
def test_a_flow_goes_on_at_the_first_timeout_behind_a_flap(length: int, adaptive: bool) -> None:
    """The last answer came over the link in slot AT - 1, and a hop later to the sender: its timer starts there. Three
    hops of packets had arrived whose answers were lost, and are sent once more.
    """
    exponent = 5 if not adaptive else 9
    rack = Rack(2, PORT, window=5 * D, ib_timeout=exponent, adaptive=adaptive)
    last = AT - 1 + D
    waits = [
        ceil(4.096e-6 * 2**exponent / 2 ** max(0, 6 - n) / SLOT) if adaptive else timer(exponent) for n in range(9)
    ]
    again = last
    for wait in waits:
        again += wait
        if again >= AT + length:
            break
    after = 1000
    made = flapped(rack, length, again + 2 * D + 3 * D + after)
    assert got(made) == [AT + after]
    assert made.receivers.discarded == 3 * D
    expected = goes_on_after((AT + length - last) * SLOT, exponent, 7, adaptive)
    assert expected is not None
    assert (again - last) * SLOT == pytest.approx(expected, abs=len(waits) * SLOT)  # whole slots


def test_a_flap_of_the_receivers_link_is_no_different_but_for_where_answers_were() -> None:
    """Packets behind the switch and answers on the link are lost, others are not."""
    exponent, length = 5, 1500
    rack = Rack(2, PORT, window=5 * D, ib_timeout=exponent)
    last = AT - 1 + 2 * D  # an answer entered the link in AT - 1
    again = last + timer(exponent) * ceil((AT + length - D - last) / timer(exponent))
    made = flapped(rack, length, again + 3 * D + 1000, port=1)
    # Sent up to AT - 1 - D, these had reached the switch before AT; the last D of them arrived without an answer.
    assert got(made) == [AT - D + 1000]
    assert made.receivers.discarded == D


def test_a_short_flap_is_asked_for_by_the_receiver() -> None:
    """The first packet behind the gap is answered a round trip after it was sent: no timer."""
    length, after = 20, 300
    made = flapped(Rack(2, PORT, window=8 * D), length, AT + length + 4 * D + 2 * D + after)
    assert got(made) == [AT + after]
    assert made.senders.timeouts == 0
    assert made.lost == length


@pytest.mark.parametrize("retries", [0, 1, 2])
def test_a_connection_is_given_up_behind_its_last_retry(retries: int) -> None:
    exponent = 4
    wait, last, survives = timer(exponent), AT - 1 + D, max(1, retries)
    rack = Rack(2, PORT, window=5 * D, ib_timeout=exponent, ib_retries=retries)
    kept = last + survives * wait - AT  # silent until just before the last attempt
    made = flapped(rack, kept, last + (survives + 1) * wait + 5 * D + 10)
    assert not made.senders.given_up.any()
    assert got(made)[0] > AT
    # An attempt sends a whole window again: any packet of it that arrives is answered.
    revived = flapped(rack, kept + 5 * D - 1, last + (survives + 1) * wait + 5 * D + 10)
    assert not revived.senders.given_up.any()
    assert got(revived)[0] > AT
    lost = flapped(rack, kept + 5 * D, last + (survives + 1) * wait + 1)
    assert lost.senders.given_up.all()
    assert lost.is_over
    assert lost.senders.timeouts == survives + 1
    before = flapped(rack, kept + 5 * D, last + (survives + 1) * wait)
    assert not before.senders.given_up.any()
    sent = lost.senders.sent
    lost.run(500)
    assert lost.senders.sent == sent


def test_packets_dropped_by_a_full_buffer_arrive_in_the_end() -> None:
    rack = replace(Rack(9, PORT, pfc=False, buffer=40 * PACKET, window=64, ib_timeout=5))
    made = Simulation(rack, Flows.of(*[(i, 8, 200) for i in range(8)]), free)
    made.run(60_000)
    assert made.switch.dropped > 0
    assert got(made) == [200] * 8
