"""What recorded ranks take on links of their own: closed forms of messages and collectives, played."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from benchmarks.replayed import Event, Kind, collective, parsed, replay, usual

A1, B1, A2, B2 = 0.5, 0.25, 2.0, 1.0
"""Latency and seconds per byte in a node of two, and between nodes."""


def link(one: int, other: int) -> tuple[float, float]:
    return (A1, B1) if one // 2 == other // 2 else (A2, B2)


def near(one: int, other: int) -> tuple[float, float]:
    return A1, B1


def message(kind: Kind, computed: float, one: int, other: int, number: int, size: int = 0) -> Event:
    return Event(computed, kind, (one, other, number), size)


def pipeline() -> list[list[Event]]:
    """Two stages and two micro-batches, forwards of 1 s and backwards of 2 s; 1F1B."""
    first = [
        message(Kind.SEND, 1, 0, 1, 1), message(Kind.SEND, 1, 0, 1, 2),
        message(Kind.RECEIVE, 0, 1, 0, 1), message(Kind.RECEIVE, 2, 1, 0, 2), Event(2, Kind.END, (), 0),
    ]  # fmt: skip
    second = [
        message(Kind.RECEIVE, 0, 0, 1, 1), message(Kind.SEND, 3, 1, 0, 1),
        message(Kind.RECEIVE, 0, 0, 1, 2), message(Kind.SEND, 3, 1, 0, 2), Event(0, Kind.END, (), 0),
    ]  # fmt: skip
    return [first, second]


@pytest.mark.parametrize("latency", [0.0, 0.25])
def test_a_pipeline_takes_its_formula(latency: float) -> None:
    """(N + D - 1)(f + b), and the way there and back."""
    ends = replay(pipeline(), lambda one, other: (latency, 0.0), 2)
    assert max(ends) == (2 + 2 - 1) * 3 + 2 * latency


def test_a_link_sends_one_message_after_another() -> None:
    sender = [message(Kind.SEND, 1, 0, 1, n, 8) for n in (1, 2, 3)]
    sender = [sender[0], *(one._replace(computed=0) for one in sender[1:])]
    receiver = [message(Kind.RECEIVE, 0, 0, 1, n, 8) for n in (1, 2, 3)]
    assert replay([sender, receiver], near, 2) == [1, 1 + 3 * 8 * B1 + A1]


def of(op: str, members: Sequence[int], size: float, late: float = 0.0) -> dict[int, float]:
    return collective(op, size, {one: late * (one == members[0]) for one in members}, link, 2)


def test_collectives_within_a_node() -> None:
    assert of("all_reduce", [0, 1], 8) == dict.fromkeys([0, 1], 2 * (A1 + 4 * B1))
    assert of("reduce_scatter", [2, 3], 8) == dict.fromkeys([2, 3], A1 + 4 * B1)


def test_collectives_over_two_nodes() -> None:
    """Of 2 x 2 ranks: half of the array in the node, a quarter of it between nodes."""
    members = [0, 1, 2, 3]
    ring = (A1 + 4 * B1) + (A2 + 2 * B2)
    assert of("reduce_scatter", members, 8) == of("all_gather", members, 8) == dict.fromkeys(members, ring)
    assert of("all_reduce", members, 8) == dict.fromkeys(members, 2 * ring)
    assert of("all_gather", [1, 3], 8) == dict.fromkeys([1, 3], A2 + 4 * B2)


def test_a_ring_of_four() -> None:
    """(n - 1)(alpha + S / n beta)."""
    found = collective("reduce_scatter", 8, dict.fromkeys(range(4), 0.0), near, 4)
    assert found == dict.fromkeys(range(4), 3 * (A1 + 2 * B1))


@pytest.mark.parametrize("op", ["all_reduce", "reduce_scatter", "all_gather"])
def test_all_wait_for_who_is_late(op: str) -> None:
    members = [0, 1, 2, 3]
    usual = of(op, members, 8)
    late = of(op, members, 8, late=100.0)
    assert max(late.values()) == 100 + max(usual.values())
    assert min(late.values()) >= 100


def test_a_collective_goes_on_beside_computation() -> None:
    def rank(beside: float) -> list[Event]:
        key = ("all_reduce", (0, 1), 1)
        return [Event(1, Kind.BEGIN, key, 8), Event(beside, Kind.WAIT, key, 8), Event(2, Kind.END, (), 0)]

    took = 2 * (A1 + 4 * B1)
    assert replay([rank(0.5), rank(0.5)], near, 2) == [1 + took + 2] * 2
    assert replay([rank(10), rank(10)], near, 2) == [1 + 10 + 2] * 2


def test_a_groups_collectives_go_one_after_another() -> None:
    keys = [("all_reduce", (0, 1), n) for n in (1, 2)]
    rank = [Event(0, kind, key, 8) for kind in (Kind.BEGIN, Kind.WAIT) for key in keys]
    assert replay([rank, rank], near, 2) == [2 * 2 * (A1 + 4 * B1)] * 2


def test_the_median_of_steps() -> None:
    steps = [[Event(t, Kind.END, (), 0), Event(5 - t, Kind.END, (), 0)] for t in (1.0, 4.0, 2.0)]
    assert [one.computed for one in usual(steps)] == [2, 3]
    with pytest.raises(ValueError, match="the steps of a rank differ"):
        usual([steps[0], [steps[0][0], Event(0, Kind.SEND, (0, 1, 1), 4)]])


def test_what_never_ends() -> None:
    with pytest.raises(ValueError, match=r"ranks \[1\] wait for each other"):
        replay([[Event(1, Kind.END, (), 0)], [message(Kind.RECEIVE, 0, 0, 1, 1)]], near, 2)
    with pytest.raises(ValueError, match="no power of two"):
        collective("all_reduce", 8, dict.fromkeys(range(3), 0.0), near, 4)
    with pytest.raises(ValueError, match="not as many in each node"):
        collective("all_gather", 8, dict.fromkeys(range(3), 0.0), near, 2)


def test_a_file_has_the_same_events() -> None:
    rows = [[0.5, "begin", ["all_reduce", [0, 1], 1], 8]]
    assert parsed(rows) == [Event(0.5, Kind.BEGIN, ("all_reduce", (0, 1), 1), 8)]
