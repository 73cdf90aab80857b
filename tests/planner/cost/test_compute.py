"""COMET's roofline: its limits, and traffic by hand."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.planner.cluster.gpus import need
from holdfast.planner.cost.compute import Engine, Product, hybrid, traffic


def test_limits_of_the_roofline() -> None:
    engine = Engine(flops=100.0, bytes_per_s=10.0, cache_bytes=0.0)
    assert engine.seconds(1000.0, 0.0) == 10.0  # intensity without end: the peak
    assert engine.seconds(0.0, 50.0) == 5.0
    assert engine.seconds(1000.0, 100.0) == 10.0  # the ridge: both bounds meet
    assert engine.seconds(1000.0, 200.0) == 20.0  # intensity 5, half of the ridge: half the peak


def test_hybrid_memory() -> None:
    assert hybrid(10.0, 1.0, 0.0) == 10.0
    assert hybrid(10.0, 1.0, 1.0) == 1.0
    assert hybrid(10.0, 1.0, 0.5) == pytest.approx(1 / 0.55)
    with pytest.raises(ValueError, match="no share"):
        hybrid(10.0, 1.0, 1.5)
    gpu = need("A100")
    assert Engine.of(gpu, 0.25, 1e11).bytes_per_s == pytest.approx(1 / (0.75 / 2.039e12 + 0.25 / 1e11))


def test_traffic_by_hand() -> None:
    """u = 8 x 4, v = 4 x 16, w = 8 x 16 numbers of 2 bytes: 64, 128, 256."""
    assert traffic(8, 4, 16, 2, 1000) == 64 + 128 + 256
    assert traffic(8, 4, 16, 2, 0) == 64 + 128 + 256
    # A buffer of 50: u in 2 pieces reads v twice, 2 x 128 + 64; v in 3 reads u three times, 3 x 64 + 128.
    assert traffic(8, 4, 16, 2, 50) == min(2 * 128 + 64, 3 * 64 + 128) + 256
    # Of 30: u in 3 pieces, 3 x 128 + 64 = 448; v in 5, 5 x 64 + 128 = 448. Of 100: one piece of u suffices.
    assert traffic(8, 4, 16, 2, 100) == 128 + 64 + 256


@settings(deadline=None)
@given(*[st.integers(1, 5000)] * 3, st.floats(1e3, 1e8))
def test_traffic_never_less_than_each_once(m: int, k: int, n: int, cache: float) -> None:
    once = 2.0 * (m * k + k * n + m * n)
    assert traffic(m, k, n, 2, cache) >= once
    assert traffic(m, k, n, 2, 2 * cache) <= traffic(m, k, n, 2, cache)


def test_product_of_large_sizes_reaches_the_speed() -> None:
    gpu = need("H100 SXM")
    engine, one = Engine.of(gpu), Product(8192, 8192, 8192)
    assert one.forward(engine, 2) == pytest.approx(2 * 8192**3 / (989.4e12 * 0.7))
    assert sum(one.backward(engine, 2)) == pytest.approx(2 * one.forward(engine, 2))
    thin = Product(1, 8192, 8192)  # a vector: the weights are read once
    assert thin.forward(engine, 2) == pytest.approx(2 * (8192**2 + 2 * 8192) / 3.35e12)
