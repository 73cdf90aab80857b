"""What each surface shows of a controller: its text, as a person or a receiver gets it."""

import contextlib
import io
import re
from pathlib import Path
from typing import Literal

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from holdfast.cli.main import main
from holdfast.dashboards.spec import CONDITIONS
from tests.browser import watching

SERIES = re.compile(r"^holdfast_job_health\{(.*)\} 1\.0$", re.M)
LOOKS: dict[str, tuple[int, int, Literal["light", "dark"], float]] = {
    "light": (1440, 900, "light", 1.0),
    "dark": (1440, 900, "dark", 1.0),
    "phone": (390, 844, "light", 1.0),
    "small": (1440, 900, "light", 0.5),
}
"""Width, height, theme, scale."""


def terminal(url: str, columns: int, monkeypatch: pytest.MonkeyPatch) -> str:
    """What `holdfast status` prints at this width, on both outputs."""
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("LINES", "24")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        main(["status", "--controller", url])
    return printed.getvalue()


def grafana(url: str, job: str) -> str:
    """The word that the boards show of a job: what their value mapping makes of the metric."""
    for labels in SERIES.findall(httpx.get(f"{url}/metrics").text):
        found = dict(re.findall(r'(\w+)="([^"]*)"', labels))
        if found["job"] == job:
            return next(name for name, _ in CONDITIONS if name == found["condition"])
    return "no data"


def page_of(browser: Browser, url: str, look: str, picture: Path | None) -> str:
    """The health panel of the page; a picture of the whole first screen where one is wanted."""
    with watching(browser, *LOOKS[look]) as watched:
        page = watched.page
        page.goto(url)
        expect(page.locator("#connection")).to_have_text("live")
        expect(page.locator("#health-sentence")).not_to_have_text("Connecting…")
        expect(page.locator("#figures div").first).to_be_visible()
        if picture is not None:
            still(page)
            page.screenshot(path=str(picture))
        return page.locator("#health").inner_text()


def still(page: Page) -> None:
    """Until two frames in a row look the same: everything that was asked for has come and is drawn."""
    before = b""
    for _ in range(40):
        now = page.screenshot()
        if now == before:
            return
        before = now
        page.wait_for_timeout(100)


def plain(text: str) -> str:
    """Words only: lines are broken at each width elsewhere, and the page shows no backquotes."""
    return " ".join(text.replace("`", "").split())
