"""What each surface shows of a controller: its text, as a person or a receiver gets it."""

import contextlib
import io
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from holdfast.cli.common.client import Client
from holdfast.cli.main import main
from holdfast.dashboards.spec import health
from tests.browser import watching

SERIES = re.compile(r"^holdfast_job_health\{(.*)\} 1\.0$", re.M)
TERM = re.compile(r'condition="([^"]+)"\} == 1\) \* (\d+)')
"""Of the boards' expression: which number stands for which condition."""
BOARD = Path(__file__).parents[2] / "deploy/monitoring/grafana/dashboards/holdfast-job.json"
LOOKS: dict[str, tuple[int, int, Literal["light", "dark"], float]] = {
    "light": (1440, 900, "light", 1.0),
    "dark": (1440, 900, "dark", 1.0),
    "phone": (390, 844, "light", 1.0),
    "small": (1440, 900, "light", 0.5),
}
"""Width, height, theme, scale."""
PATIENCE_S = 120.0
"""For an answer of the controller, which has only what other runs leave of the processors."""


def terminal(url: str, columns: int, monkeypatch: pytest.MonkeyPatch) -> str:
    """What `holdfast status` prints at this width, on both outputs."""
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("LINES", "24")
    monkeypatch.setattr(Client.__init__, "__defaults__", (PATIENCE_S,))
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        main(["status", "--controller", url])
    return printed.getvalue()


def grafana(url: str, job: str) -> str:
    """The word that the boards show of a job: what the value mapping of the panel makes of the expression's number."""
    shown = panels(json.loads(BOARD.read_text()))
    panel = next(one for one in shown if one["targets"][0]["expr"] == health('job="$job"'))
    numbers = dict(TERM.findall(panel["targets"][0]["expr"]))
    words = panel["fieldConfig"]["defaults"]["mappings"][0]["options"]
    try:
        scraped = httpx.get(f"{url}/metrics", timeout=PATIENCE_S).text
    except httpx.TransportError:
        scraped = ""
    for labels in SERIES.findall(scraped):
        found = dict(re.findall(r'(\w+)="([^"]*)"', labels))
        if found["job"] == job:
            return str(words[numbers[found["condition"]]]["text"])
    return str(panel["fieldConfig"]["defaults"].get("noValue", "No data")).lower()


def panels(board: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for panel in board["panels"]:
        yield from panel.get("panels") or ([panel] if panel.get("targets") else [])


def page_texts(browser: Browser, url: str, looks: Sequence[str]) -> dict[str, str]:
    """By look, the health panel of one page that is given one look after the other."""
    found = {}
    with opened(browser, url, looks[0]) as page:
        for look in looks:
            width, height, theme, _ = LOOKS[look]
            page.set_viewport_size({"width": width, "height": height})
            page.emulate_media(color_scheme=theme)
            found[look] = page.locator("#health").inner_text()
    return found


def page_picture(browser: Browser, url: str, look: str, place: Path) -> None:
    """Of the whole first screen."""
    with opened(browser, url, look) as page:
        still(page)
        page.screenshot(path=str(place))


@contextlib.contextmanager
def opened(browser: Browser, url: str, look: str) -> Iterator[Page]:
    """The page, once it shows the job."""
    with watching(browser, *LOOKS[look]) as watched:
        page = watched.page
        page.goto(url)
        expect(page.locator("#connection")).to_have_text("live")
        expect(page.locator("#health-sentence")).not_to_have_text("Connecting…")
        expect(page.locator("#figures div").first).to_be_visible()
        yield page


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
