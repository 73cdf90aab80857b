"""Attention of a real GPU, FlashAttention and FlexAttention with a window, is that of the formula."""

from __future__ import annotations

import pytest

from tests.gpu.conftest import SCRIPTS, Start
from tests.gpu.jobs import answer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(100)]


def test_attention_is_that_of_the_formula(start: Start) -> None:
    found = answer(start(str(SCRIPTS / "attention_close.py")), 60)["cases"]
    for one in found:
        print(f"{one['dtype']:16} {one['heads']} query heads a key, window {one['window']:3}: forward within "
              f"{one['forward']:.1e}, backward {one['backward']:.1e}; first {one['first_s']:.1f} s, then "
              f"{one['again_ms']:.2f} ms; same bits: {one['same_bits']}")  # fmt: skip
    assert len(found) == 6
    for one in found:
        within = 1e-4 if "float32" in one["dtype"] else 1e-2
        assert max(one["forward"], one["backward"]) < within, one
        assert one["same_bits"], one
