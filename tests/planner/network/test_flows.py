import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.planner.network.flows import Change, Transfers, bytes_by_link, ends, fair_rates


def transfers(links: list[list[int]], size: list[float], part: float = 1.0) -> Transfers:
    owner = np.repeat(np.arange(len(links)), [len(one) for one in links])
    crossing = np.array([link for one in links for link in one], dtype=np.int64)
    return Transfers(owner, crossing, np.full(len(owner), part), np.array(size))


def by_the_book(links: list[list[int]], capacity: list[float]) -> list[float]:
    """Progressive filling, one bottleneck after the other."""
    rate: dict[int, float] = {}
    left = dict(enumerate(capacity))
    while open_ := [i for i in range(len(links)) if i not in rate]:
        users = {link: [i for i in open_ for one in links[i] if one == link] for link in left}
        shares = {link: left[link] / len(who) for link, who in users.items() if who}
        if not shares:
            rate |= {i: float("inf") for i in open_}
            break
        narrowest = min(shares, key=lambda link: shares[link])
        share = shares[narrowest]
        for i in set(users[narrowest]):
            rate[i] = share
            for link in links[i]:
                left[link] -= share
    return [rate[i] for i in range(len(links))]


@settings(deadline=None)
@given(st.data())
def test_rates_are_those_of_progressive_filling(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 6))
    capacity = data.draw(st.lists(st.integers(1, 9), min_size=count, max_size=count))
    links = data.draw(st.lists(st.lists(st.integers(0, count - 1), max_size=4), min_size=1, max_size=8))
    rate = fair_rates(transfers(links, [1.0] * len(links)), np.array(capacity, dtype=float))
    assert rate == pytest.approx(by_the_book(links, [float(c) for c in capacity]), rel=1e-6)
    used = np.zeros(count)
    for one, speed in zip(links, rate, strict=True):
        for link in one:
            used[link] += speed
    assert (used <= np.array(capacity) * (1 + 1e-6)).all()


def test_two_on_one_link_take_twice_as_long_and_the_longer_one_speeds_up() -> None:
    both = transfers([[0], [0]], [10.0, 30.0])
    assert ends(both, np.array([10.0])) == pytest.approx([2.0, 4.0])
    assert bytes_by_link(both, 1) == pytest.approx([40.0])


def test_a_transfer_of_several_messages_goes_at_the_pace_of_its_slowest() -> None:
    ring = transfers([[0, 1, 2], [3]], [12.0, 12.0])
    assert ends(ring, np.array([6.0, 2.0, 6.0, 6.0])) == pytest.approx([6.0, 2.0])


def test_half_of_the_bytes_on_a_way_take_half_the_time() -> None:
    assert ends(transfers([[0, 1]], [12.0], part=0.5), np.array([6.0, 3.0])) == pytest.approx([2.0])


def test_a_link_that_is_silent_for_a_while_costs_that_while() -> None:
    silent = [Change(0.5, np.array([0]), 0.0), Change(8.5, np.array([0]), 1.0)]
    assert ends(transfers([[0], [1]], [10.0, 10.0]), np.array([10.0, 10.0]), silent) == pytest.approx([9.0, 1.0])


def test_what_crosses_a_lost_link_never_ends_and_others_do() -> None:
    found = ends(transfers([[0], [1], [], [0]], [10.0, 10.0, 5.0, 0.0]), np.array([0.0, 10.0]))
    assert found.tolist() == [float("inf"), 1.0, 0.0, 0.0]


@settings(deadline=None)
@given(st.lists(st.floats(1.0, 100.0), min_size=1, max_size=8), st.floats(1.0, 20.0))
def test_a_link_is_never_idle_while_bytes_are_left(sizes: list[float], speed: float) -> None:
    found = ends(transfers([[0]] * len(sizes), sizes), np.array([speed]))
    assert found.max() == pytest.approx(sum(sizes) / speed, rel=1e-6)
    assert (np.diff(found[np.argsort(sizes)]) >= -1e-9 * found.max()).all(), "smaller ones end first, to rounding"
