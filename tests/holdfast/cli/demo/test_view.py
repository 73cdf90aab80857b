"""The demo's live panel is whole on 80 columns."""

import io

import pytest
from rich.console import Console

from holdfast.base.config.client import DemoConfig
from holdfast.cli.common import output
from holdfast.cli.demo.plan import make_plan
from holdfast.cli.demo.view import View
from tests.holdfast.support.fake_controller import job_as, ranks_as

URL = "http://127.0.0.1:45678/"


@pytest.mark.parametrize(("width", "height"), [(80, 24), (80, 50), (200, 50)])
@pytest.mark.parametrize("world", [8, 64])
def test_the_panel_fits(monkeypatch: pytest.MonkeyPatch, width: int, height: int, world: int) -> None:
    console = Console(width=width, height=height, file=io.StringIO(), highlight=False)
    monkeypatch.setattr(output, "err", lambda: console)
    view = View(make_plan(DemoConfig(), []), URL)
    long = "all_reduce of 12 buckets over dp in the last backward, waiting for rank 3"
    ranks = ranks_as(world, ["node0", "node1"], operations=[long])
    console.print(view._panel(job_as("recovering", tokens_per_s=1234567.0, generation=12, loss=10.12345), ranks))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert len(lines) <= height
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    assert "step 8/60  loss 10.1235  1,234,567 tokens/s  recovering  generation 12" in " ".join(lines[:2])
    shown = [line for line in lines if line.lstrip().split(" ")[0].isdecimal()]
    if len(shown) < world:
        assert len(lines) == height
        assert f"… {world - len(shown)} more ranks" in lines
    else:
        assert "more ranks" not in text
    assert all(line.split()[:5:2] == [str(i), "running", "0.50"] for i, line in enumerate(shown))
    assert lines[-1] == URL
    assert (long in text) == (width == 200)
