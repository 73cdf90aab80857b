from dataclasses import replace

import numpy as np
import pytest

from holdfast.planner.network.clos import Clos
from holdfast.planner.network.errors import NetworkError
from holdfast.planner.network.network import Network
from holdfast.planner.network.retransmission import goes_on_after, ib_tolerance_s
from holdfast.planner.network.traffic import BEST, ORDERS, StepTraffic, edges_above, places, sums
from holdfast.planner.network.what_if import answer, flap

JOB = StepTraffic(pp=8, dp=16, tp=8, sums=3.75e9, messages=50e6)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("sizes", [(2, 3, 4), (8, 16, 8), (4, 128, 8)])
def test_each_rank_has_a_nic_and_edges_take_the_links_that_their_places_say(
    order: str, sizes: tuple[int, int, int]
) -> None:
    job = StepTraffic(*sizes, sums=1.0, messages=1.0)
    clos = Clos(max(job.world, 8))
    place = places(job, order)
    assert sorted(place.ravel()) == list(range(job.world))
    transfers = sums(job, place, Network(clos))
    above, between = edges_above(clos, place)
    tiers = np.array([clos.tier_of(int(link)) for link in transfers.crossing])
    assert ((tiers == 1).sum(), (tiers == 2).sum()) == (2 * above, 2 * between)


def test_replicas_before_stages_keep_rings_below_one_switch() -> None:
    """64 servers are a set: with tp 8 inside servers, rings of up to 64 replicas need nothing above it."""
    clos = Clos(JOB.world)
    assert edges_above(clos, places(JOB, BEST)) == (0, 0)
    best = answer(JOB, Network(clos))
    assert best.sums_s == pytest.approx(JOB.sums / clos.nic_bytes_per_s)
    assert best.sums_s < answer(JOB, Network(clos), "dp-tp-pp").sums_s
    assert best.tier_bytes[0] > 0 == best.tier_bytes[2]


def test_a_middle_switch_lost_costs_little_and_a_lowest_one_cuts_ranks_off() -> None:
    clos = Clos(JOB.world)
    assert answer(JOB, Network(clos).without_middle(0, 3)).cut_off == 0
    lost = answer(JOB, Network(clos).without_leaf(3))
    assert lost.cut_off > 0
    assert lost.sums_s == float("inf")


def test_oversubscription_makes_what_crosses_the_pods_slower() -> None:
    job = StepTraffic(pp=1, dp=256, tp=8, sums=1e9, messages=0.0)
    full = answer(job, Network(Clos(job.world), connections=8), "dp-tp-pp")
    assert answer(job, Network(Clos(job.world, oversubscription=8), connections=8), "dp-tp-pp").sums_s > full.sums_s


def test_more_connections_meet_less_often() -> None:
    """One long ring over all rails: every edge crosses the tiers above."""
    clos = Clos(JOB.world)
    one, four = (answer(JOB, Network(clos, connections=n), "dp-tp-pp") for n in (1, 8))
    assert four.sums_s < one.sums_s


@pytest.mark.parametrize(
    ("seconds", "exponent", "after"),
    [
        (3.0, 14, None),  # 0.47 s of retries
        (8.0, 18, None),  # 7.5 s
        (8.0, 20, 2 * 4.096e-6 * 2**20),
        (3.0, 18, 3 * 4.096e-6 * 2**18),
        (0.0, 14, 0.0),
    ],
)
def test_a_flap_ends_with_the_first_packet_sent_after_it(seconds: float, exponent: int, after: float | None) -> None:
    assert goes_on_after(seconds, exponent, 7) == (after if after is None else pytest.approx(after))
    sooner = goes_on_after(seconds, exponent, 7, adaptive=True)
    assert (sooner is None) == (after is None)
    assert sooner is None or after is None or seconds <= sooner <= after + 1e-9


def test_a_flap_in_a_step() -> None:
    network = Network(Clos(JOB.world))
    job = replace(JOB, messages=0.0)
    survived = flap(job, network, 5, 8.0, 20, 7)
    calm = JOB.sums / network.clos.nic_bytes_per_s
    assert survived.calm_s == pytest.approx(calm)
    assert survived.ends_s == pytest.approx(2 * 4.096e-6 * 2**20 + calm)
    only_messages = flap(replace(JOB, sums=0.0), network, 5, 8.0, 20, 7)
    assert only_messages.ends_s == pytest.approx(2 * 4.096e-6 * 2**20 + only_messages.calm_s, rel=1e-3)
    assert flap(JOB, network, 5, 8.0, 14, 7).ends_s is None
    assert flap(JOB, network, 5, 8.0, 14, 7).tolerance_s == ib_tolerance_s(14, 7)


def test_what_can_not_be_asked() -> None:
    with pytest.raises(NetworkError, match="1,024 ranks on 512 NICs"):
        answer(JOB, Network(Clos(512)))
    with pytest.raises(NetworkError, match="order of ranks 'tp'"):
        places(JOB, "tp")
    with pytest.raises(NetworkError, match="lowest switch 99: there are 0 to 15"):
        Network(Clos(JOB.world)).without_leaf(99)
    with pytest.raises(NetworkError, match="NIC 5000"):
        flap(JOB, Network(Clos(JOB.world)), 5000, 8.0, 20, 7)
    with pytest.raises(NetworkError, match="0 connections"):
        Network(Clos(8), connections=0)
