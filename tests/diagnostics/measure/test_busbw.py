"""Bus bandwidth against values worked out by hand from nccl-tests' PERFORMANCE.md."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.diagnostics.measure.busbw import Collective, algbw, busbw, factor


@pytest.mark.parametrize(
    ("collective", "ranks", "expected"),
    [
        ("all_reduce", 2, 1.0),
        ("all_reduce", 4, 1.5),
        ("all_reduce", 8, 1.75),
        ("all_reduce_in_network", 8, 7 / 9),
        ("reduce_scatter", 8, 0.875),
        ("all_gather", 8, 0.875),
        ("all_to_all", 4, 0.75),
        ("broadcast", 8, 1.0),
        ("reduce", 8, 1.0),
        ("send_recv", 2, 1.0),
    ],
)
def test_factors_in_closed_form(collective: str, ranks: int, expected: float) -> None:
    assert factor(Collective(collective), ranks) == pytest.approx(expected, rel=1e-12)


def test_an_all_reduce_of_eight_gpus_at_the_figure_that_people_quote() -> None:
    # 16 GiB in 65.3 ms on eight GPUs: 263 GB/s algorithm bandwidth, 460 GB/s on the bus.
    assert algbw(16 * 2**30, 0.0653) / 1e9 == pytest.approx(263.09, abs=0.01)
    assert busbw(Collective.ALL_REDUCE, 16 * 2**30, 0.0653, 8) / 1e9 == pytest.approx(460.41, abs=0.01)


def test_an_all_gather_counts_the_whole_array() -> None:
    # Each of 8 ranks holds 1 GB and receives 7 GB in 0.07 s: 100 GB/s cross each link.
    assert busbw(Collective.ALL_GATHER, 8e9, 0.07, 8) == pytest.approx(100e9)


@given(st.integers(2, 4096))
def test_a_ring_moves_what_busbw_says_whatever_the_number_of_ranks(ranks: int) -> None:
    """A ring all-reduce sends 2(n-1) pieces of S/n over each link: at a link of B it takes 2(n-1)/n S/B."""
    link, size = 50e9, 1e9
    seconds = 2 * (ranks - 1) / ranks * size / link
    assert busbw(Collective.ALL_REDUCE, size, seconds, ranks) == pytest.approx(link)


@pytest.mark.parametrize(("size", "seconds"), [(0, 1.0), (1.0, 0), (-1, 1.0)])
def test_nothing_in_no_time_is_no_bandwidth(size: float, seconds: float) -> None:
    with pytest.raises(ValueError, match="positive"):
        algbw(size, seconds)


def test_one_rank_uses_no_link() -> None:
    with pytest.raises(ValueError, match="2 ranks"):
        factor(Collective.ALL_REDUCE, 1)
