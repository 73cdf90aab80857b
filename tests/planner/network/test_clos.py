import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.planner.network.clos import Clos
from holdfast.planner.network.errors import NetworkError
from holdfast.planner.network.network import Network


@pytest.mark.parametrize(
    ("nics", "switches"),
    [
        (64, (8, 32, 0)),  # a set of servers has eight rails, however few its servers
        (512, (8, 32, 0)),
        (2048, (32, 32, 0)),
        (12_288, (192, 6 * 32, 1024)),
        (131_072, (2048, 2048, 1024)),  # 64^3 / 4 ports, each split in two: 5 k^2 / 4 switches
    ],
)
def test_switches_of_a_network_with_64_ports(nics: int, switches: tuple[int, int, int]) -> None:
    assert Clos(nics).switches == switches


def test_a_full_network_takes_nobodys_bandwidth() -> None:
    full = Clos(131_072)
    up = full.leaves * full.uplinks * full.uplink_bytes_per_s
    assert up == full.nics * full.nic_bytes_per_s
    assert full.bisection_bytes_per_s == full.nics * full.nic_bytes_per_s / 2
    assert Clos(512, oversubscription=4).uplinks == 8


@settings(deadline=None)
@given(st.data())
def test_a_path_goes_up_and_down_over_switches_that_hang_together(data: st.DataObject) -> None:
    clos = Clos(
        data.draw(st.integers(1, 4 * 4 * 4 // 4 * 2)),
        ports=4,
        rails=data.draw(st.sampled_from([1, 2])),
        oversubscription=data.draw(st.sampled_from([1.0, 2.0])),
    )
    ends = data.draw(st.lists(st.tuples(*[st.integers(0, clos.nics - 1)] * 2), min_size=1, max_size=30))
    source, target = np.array(ends).T
    choice = np.array(
        data.draw(st.lists(st.integers(0, 2**63), min_size=len(ends), max_size=len(ends))), dtype=np.uint64
    )
    where: dict[int, list[tuple[str | int, ...]]] = {}
    for leaf in range(clos.leaves):
        for link in clos.links_of_leaf(leaf):
            where.setdefault(int(link), []).append(("leaf", leaf))
    for pod in range(clos.pods):
        for switch in range(clos.uplinks):
            for link in clos.links_of_middle(pod, switch):
                where.setdefault(int(link), []).append(("middle", pod, switch))
    for a, b, path in zip(source, target, clos.paths(source, target, choice), strict=True):
        links = [int(link) for link in path if link >= 0]
        if a == b:
            assert not links
            continue
        leaves = [int(clos.leaf_of(np.array(end))) for end in (a, b)]
        same_pod = leaves[0] // clos.down == leaves[1] // clos.down
        assert len(links) == (2 if leaves[0] == leaves[1] else 4 if same_pod else 6)
        assert links[0] == a
        assert links[-1] == clos.nics + b
        for one, other in itertools.pairwise(links):
            if clos.tier_of(one) == clos.tier_of(other) == 2:
                first = 2 * (clos.nics + clos.leaves * clos.uplinks)
                assert (one - first) % clos.down == (other - first) % clos.down  # one switch of the highest tier
            else:
                assert set(where[one]) & set(where[other])


@settings(deadline=None)
@given(st.integers(1, 128), st.integers(0, 3))
def test_no_switch_has_more_links_than_ports(nics: int, seed: int) -> None:
    clos = Clos(nics, ports=8, rails=2)
    below = np.bincount(clos.leaf_of(np.arange(nics)), minlength=clos.leaves)
    assert below.max() <= clos.below_a_leaf
    assert below.sum() == nics
    for leaf in range(clos.leaves):
        assert len(clos.links_of_leaf(leaf)) == 2 * (below[leaf] + clos.uplinks)


def test_hashes_spread_around_a_lost_switch_and_nobody_goes_over_it() -> None:
    clos = Clos(512)
    source, target = np.arange(512), np.roll(np.arange(512), 1)
    lost = Network(clos).without_middle(0, 3)
    assert (lost.gone[Network(clos).paths(source, target)]).any()
    paths = lost.paths(source, target)
    assert not lost.gone[paths[paths >= 0]].any()
    up = Network(clos).paths(source, target)
    kept = ~(lost.gone[up] & (up >= 0)).any(axis=1)
    assert (paths[kept] == up[kept]).all()  # whose way is whole keeps it


def test_a_message_takes_every_way_that_there_is_equally_often() -> None:
    """The second switch's choice must not follow from the first's: its traffic would leave by one port."""
    clos = Clos(4096)
    source, target = np.arange(2048), np.arange(2048) + 2048
    up = Network(clos, connections=8)
    taken = np.concatenate([up.paths(source, target, pair)[:, 2] for pair in range(8)])
    counts = np.unique(taken, return_counts=True)[1]
    ways = clos.uplinks * clos.down
    assert len(counts) == ways
    mean = len(taken) / ways
    chi_squared = ((counts - mean) ** 2).sum() / mean
    assert chi_squared < ways + 4 * (2 * ways) ** 0.5


def test_a_lost_leaf_takes_its_nics_from_the_network() -> None:
    lost = Network(Clos(512)).without_leaf(2)
    assert sorted(np.flatnonzero(lost.capacity()[:512] == 0)) == list(range(2, 512, 8))


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        ({"nics": 0}, "network of 0 NICs: 1 to 1,000,000 are possible"),
        ({"nics": 10**6 + 1}, "1 to 1,000,000"),
        ({"nics": 200_000}, "200,000 NICs: three tiers of switches with 64 ports, split by 2, connect 131,072 at most"),
        ({"nics": 8, "ports": 7}, "switches of 7 ports: an even number"),
        ({"nics": 8, "uplink_bytes_per_s": 0.0}, "links of 0 bytes/s carry nothing"),
        ({"nics": 8, "uplink_bytes_per_s": float("nan")}, "links of nan bytes/s carry nothing"),
        ({"nics": 8, "oversubscription": 64.0}, "oversubscription 64: 1 to 32"),
        ({"nics": 8, "rails": 0}, "0 rails"),
    ],
)
def test_what_is_no_network_is_refused_in_one_line(wrong: dict[str, float], line: str) -> None:
    with pytest.raises(NetworkError, match=line):
        Clos(**wrong)  # type: ignore[arg-type]
