"""A job's step on a network: by formula where it is whole, and what each fault changes of it."""

import numpy as np
import pytest

from holdfast.controller.simulation.fabric.conditions import Conditions, Flow
from holdfast.controller.simulation.fabric.congested import overloads
from holdfast.controller.simulation.fabric.layout import NIC_BYTES_PER_S as LINE
from holdfast.controller.simulation.fabric.layout import clos_for, layout_of, mesh_for
from holdfast.controller.simulation.fabric.solved import WINDOW, solve
from holdfast.controller.simulation.hosts import ClusterShape

SHAPE = ClusterShape(nodes=8, spares=4, gpus=4, per_switch=4, step=2.0)
LAYOUT = layout_of(SHAPE, range(8))
CLOS = LAYOUT.clos
SUMS, MESSAGES = 0.12 * 2.0 * LINE, 0.03 * 2.0 * LINE
NIC = 1
"""Rail 1 of host 0, whose ring is that of hosts 0 to 3: the first stage."""
RING = [1, 5, 9, 13]


def test_the_network_is_that_of_the_shape() -> None:
    assert (CLOS.nics, CLOS.below_a_leaf, CLOS.rails, CLOS.nic_bytes_per_s) == (48, 4, 4, LINE)
    assert clos_for(ClusterShape(1536, 16)).most_nics >= 1552 * 8
    assert [mesh_for(nodes, 8) for nodes in (2, 3, 4, 6, 7)] == [
        (1, 2, 8), (1, 3, 8), (2, 2, 8), (2, 3, 8), (1, 7, 8)
    ]  # fmt: skip
    assert LAYOUT.traffic.sums == pytest.approx(SUMS)


def test_a_whole_network_takes_what_its_nics_take() -> None:
    """Rings stay below one lowest switch of a rail; messages cross uplinks, and are hidden."""
    calm = solve(LAYOUT, Conditions())
    own, rest = slice(0, 32), slice(32, 48)
    assert calm.sums_s[own] == pytest.approx(np.full(32, SUMS / LINE))
    assert calm.sums[:, own] == pytest.approx(np.full((2, 32), SUMS))
    assert calm.messages[:, own] == pytest.approx(np.full((2, 32), MESSAGES))
    assert (calm.messages_s[own] >= MESSAGES / LINE - 1e-9).all()
    assert not calm.sums[:, rest].any()
    assert calm.exposed_s(2.0) == pytest.approx(SUMS / LINE), "messages are hidden"
    assert not calm.cut_off.any()


def test_a_slow_nic_slows_its_ring_and_marks_who_sends_to_it() -> None:
    share = 0.25
    calm = solve(LAYOUT, Conditions())
    slow = solve(LAYOUT, Conditions(slower=frozenset({(NIC, share), (CLOS.nics + NIC, share)})))
    assert slow.sums_s[RING] == pytest.approx(np.full(4, SUMS / LINE / share))
    others = [nic for nic in range(32) if nic not in RING]
    assert slow.sums_s[others] == pytest.approx(calm.sums_s[others])
    assert slow.sums == pytest.approx(calm.sums), "bytes are the same"
    more = {name: slow.counted[name] - calm.counted[name] for name in slow.counted}
    # One notification in 50 us at most, for the share that does not fit, as long as the transfers last.
    per_s = (1 - share) / 50e-6
    notified = per_s * (SUMS + MESSAGES) / (LINE * share)
    assert slow.counted["np_cnp_sent"][NIC] == pytest.approx(notified)
    assert {nic for nic in RING if more["np_cnp_sent"][nic] > 1} == {NIC}
    assert {nic for nic in RING if more["rp_cnp_handled"][nic] > 1} == {13}, "its predecessor in the ring"
    assert more["rx_pause"][13] > 0, "at the same switch"
    assert more["rx_pause"][NIC] <= 0
    assert not slow.counted["out_of_sequence"].any()


@pytest.mark.parametrize("inward", [True, False])
def test_a_bad_cable_sends_again_what_was_under_way(inward: bool) -> None:
    lost = 1e-3
    again = 1 + WINDOW * lost / (1 - lost)
    bad = solve(LAYOUT, Conditions(lossy=frozenset({(CLOS.nics + NIC if inward else NIC, lost)})))
    sender, receiver = (13, NIC) if inward else (NIC, 5)
    assert bad.sums_s[RING] == pytest.approx(np.full(4, again * SUMS / LINE))
    assert bad.sums[0, sender] == pytest.approx(again * SUMS)
    assert bad.sums[1, receiver] == pytest.approx(again * SUMS * (1 - lost))
    ring, message = (again * size / 4096 * lost for size in (SUMS, MESSAGES))
    assert bad.counted["packet_seq_err"][sender] == pytest.approx(ring + (0 if inward else message))
    assert bad.counted["out_of_sequence"][receiver] == pytest.approx(ring + (message if inward else 0))
    symbols = bad.counted["symbol_error"]
    assert set(np.flatnonzero(symbols)) == ({NIC} if inward else set()), "only of what comes in"


def test_a_lost_leaf_cuts_off_its_rings_and_their_messages() -> None:
    cut = solve(LAYOUT, Conditions().losing(CLOS.links_of_leaf(1).tolist()))
    assert set(np.flatnonzero(cut.cut_off)) == {*RING, *(nic + 16 for nic in RING)}
    assert cut.exposed_s(2.0) == pytest.approx(SUMS / LINE), "of what can end"


def test_a_lost_uplink_is_gone_around() -> None:
    """With three of four uplinks of a lowest switch lost, the four messages of its NICs share the fourth."""
    up = 2 * CLOS.nics + 1 * CLOS.uplinks + np.arange(1, CLOS.uplinks)
    lost = solve(LAYOUT, Conditions().losing([*up.tolist(), *(up + CLOS.leaves * CLOS.uplinks).tolist()]))
    assert CLOS.uplinks == 4
    assert not lost.cut_off.any()
    assert lost.messages_s[RING] == pytest.approx(np.full(4, 4 * MESSAGES / LINE))


def test_an_incast_takes_its_part_of_the_nic_and_of_its_ring() -> None:
    """Two senders of 40 and the ring share 50 GB/s; beside computation both send all that fits."""
    flows = tuple(Flow(nic, NIC, 40e9) for nic in (33, 37))
    some = solve(LAYOUT, Conditions(others=flows))
    assert some.sums_s[RING] == pytest.approx(np.full(4, SUMS / (LINE / 3)))
    assert some.others_busy[1, NIC] == pytest.approx(2 * LINE / 3)
    assert some.others_calm[1, NIC] == pytest.approx(LINE)
    assert some.others_calm[0, [33, 37]] == pytest.approx([LINE / 2] * 2)
    # Beside computation 80 GB/s are offered to 50: the share that does not fit, of one notification in 50 us.
    alone = (1 - 50 / 80) / 50e-6 * (2.0 - SUMS / (LINE / 3))
    assert some.counted["rp_cnp_handled"][33] == pytest.approx(alone)
    assert some.counted["np_cnp_sent"][NIC] > 2 * alone


def test_a_sender_that_is_slow_by_itself_is_marked_by_nobody() -> None:
    paths = np.array([[0, -1, 1], [2, -1, 1]])
    capacity = np.array([1.0, 10.0, 1.0])
    one, rate = np.ones(2), np.ones(2)
    assert not overloads(paths, one, rate, one, capacity).any()
    narrow = np.array([1.0, 1.5, 1.0])
    found = overloads(paths, one, np.full(2, 0.75), one, narrow)
    assert found[:, 2] == pytest.approx([2 / 1.5] * 2)
    assert not found[:, :2].any()
    unequal = overloads(paths, one, np.array([0.5, 1.0]), one, narrow)
    assert unequal[:, 2] == pytest.approx([0.0, 1.0]), "who is slower than others is held back elsewhere"
