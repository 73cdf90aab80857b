"""What a link that loses packets still carries."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.planner.network.retransmission import sent_per_delivered


@settings(deadline=None)
@given(st.floats(0, 0.5), st.integers(1, 1000))
def test_it_is_the_inverse_of_go_back_ns_efficiency(lost: float, window: int) -> None:
    assert sent_per_delivered(lost, window) == pytest.approx((1 - lost + window * lost) / (1 - lost))


def test_limits() -> None:
    assert sent_per_delivered(0.0, 100) == 1.0
    assert sent_per_delivered(0.5, 1) == 2.0, "stop and wait: each is sent twice"
    for lost, window in ((1.0, 1.0), (-0.1, 1.0), (0.1, 0.5)):
        with pytest.raises(ValueError, match="0 to below 1, and 1 or more"):
            sent_per_delivered(lost, window)
