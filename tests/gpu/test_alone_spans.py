"""Spans of a real GPU's work: they fill the step, and show which part of it is slower."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gpu.conftest import SCRIPTS, Start
from tests.gpu.jobs import answer, settings

pytestmark = [pytest.mark.slow, pytest.mark.timeout(90)]


def test_spans_fill_the_step_and_show_what_is_slower(start: Start, tmp_path: Path) -> None:
    argv = settings(
        tmp_path, model__layers=4, model__d_model=1024, data__seq_len=1024, train__micro_batches=4,
        train__micro_batch_size=8, train__dtype="bfloat16",
    )  # fmt: skip
    found = answer(start(str(SCRIPTS / "trainer_spans.py"), str(tmp_path), *argv), 60)
    plain, slowed = found["ms"]["plain"], found["ms"]["slowed"]
    walls = found["wall_ms"]
    print(
        f"steps of {walls['plain']:.1f} ms, forwards slowed by {found['sleep_ms']:.2f} ms each: "
        f"{walls['slowed']:.1f} ms; covered by spans {min(found['covered']):.3f} to {max(found['covered']):.3f}"
    )
    for kind in plain:
        print(f"  {kind:20} {plain[kind]:8.3f} ms a step, slowed {slowed.get(kind, 0):8.3f}")
    cost = found["small_on_ms"] - found["small_off_ms"]
    print(f"a step of launches: {found['small_off_ms']:.3f} ms without spans, {found['small_on_ms']:.3f} with "
          f"{found['small_spans_a_step']}: {cost / max(found['small_off_ms'], 1e-9):+.2%}")  # fmt: skip
    assert min(found["covered"]) > 0.9
    longer = {kind: slowed[kind] - plain[kind] for kind in ("forward", "backward")}
    assert 0.6 < longer["forward"] / (4 * found["sleep_ms"]) < 1.6
    assert longer["forward"] > 3 * abs(longer["backward"])
