"""What a person sees of the steps, at a terminal and in a file."""

from __future__ import annotations

import io
import re
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.trainer.report.console import Console
from holdfast.wire.types import STEP_PARTS

CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def line(step: int, **more: Any) -> dict[str, Any]:
    parts = dict.fromkeys(STEP_PARTS, 0.05)
    return {
        "step": step, "loss": 3.0 - step / 10, "tokens_per_s": 12345.6, "seconds": 0.5, "mfu": None, "parts_s": parts,
        "memory_bytes": 3 << 29, **more,
    }  # fmt: skip


def test_a_file_gets_a_line_for_every_so_many_steps() -> None:
    out = io.StringIO()
    with Console(out, every=2, steps=4) as console:
        for step in range(4):
            console.step(line(step))
        console.skipped(4, float("nan"), [1, 3])
    assert out.getvalue().splitlines() == [
        "step 0 loss 3.000000 tokens/s 12346 seconds 0.500 mfu n/a",
        "step 2 loss 2.800000 tokens/s 12346 seconds 0.500 mfu n/a",
        "step 4 skipped: loss nan or a gradient is not finite, first seen on rank 1, 3",
    ]


def test_a_terminal_gets_one_table_that_ends_with_the_last_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "160")
    now = [100.0]
    monkeypatch.setattr("holdfast.trainer.report.console.time", SimpleNamespace(monotonic=lambda: now[0]))
    out = Terminal()
    with Console(out, every=10, steps=100) as console:
        for step in range(50):
            console.step(line(step, mfu=0.5))
            now[0] += 0.02
        console.skipped(50, float("inf"), [])
        console.step(line(51, mfu=0.5))
    text = out.getvalue()
    assert 5 <= text.count("loss") < 10  # fifty steps in a second are not drawn fifty times
    *_, header, row = (shown for shown in CONTROL.sub("", text).replace("\r", "\n").splitlines() if shown.strip())
    assert header.split() == ["step", "loss", "tokens/s", "seconds", "MFU", *STEP_PARTS, "memory"]
    assert row.split() == ["52", "of", "100", "-2.1000", "12,346", "0.500", "50.0%", *["10.0%"] * 5, "1.50", "GiB"]
    assert "step 50 skipped: loss inf or a gradient is not finite\n" in CONTROL.sub("", text)


def test_no_lines_were_asked_for() -> None:
    out = Terminal()
    with Console(out, every=0, steps=1) as console:
        console.step(line(0))
    assert out.getvalue() == ""
