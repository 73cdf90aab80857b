"""The pictures of README.md and docs/page.md, from a demo in which rank 3 is killed and rank 6 becomes slow:
`make pictures`.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx
from playwright.sync_api import Page, expect

from tests.browser import chromium, watching
from tests.gallery.surfaces import still

DEMO = (
    "demo",
    "--steps",
    "2000",
    "--fault",
    "kill@15:rank3",
    "--fault",
    "slow@40:rank6/forward+60",
    "--http-port",
    "0",
)
PATIENCE_S = 180.0


def main(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as state:
        log = Path(state) / "out"
        command = [sys.executable, "-m", "holdfast", *DEMO, "--state-dir", f"{state}/demo"]
        with log.open("w") as out:
            demo = subprocess.Popen(command, stdout=out, stderr=out)
        try:
            url = _address(Path(state) / "demo")
            _until_slow(url)
            with chromium() as browser:
                for theme in ("light", "dark"):
                    with watching(browser, theme=theme) as watched:
                        _shoot(watched.page, url, "#/overview", folder / f"page-{theme}.png")
                with watching(browser) as watched:
                    page = watched.page
                    _shoot(page, url, "#/slow", folder / "page-blame.png")
                    _shoot(page, url, "#/overview?mesh=3d&rank=6", folder / "page-mesh.png")
                    _shoot(page, url, "#/incidents/i1", folder / "page-incident.png")
                    page.goto(f"{url}#/slow")
                    expect(page.locator("#timeline-about")).to_contain_text("spans")
                    panel = page.locator(".timeline")
                    panel.scroll_into_view_if_needed()
                    panel.screenshot(path=str(folder / "page-timeline.png"))
        finally:
            demo.terminate()
            demo.wait(60)


def _address(state: Path) -> str:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        out = state / "logs" / "controller.out"
        lines = out.read_text().splitlines() if out.exists() else []
        if lines and "http" in (found := json.loads(lines[0])):
            return f"http://{found['http']}/"
        time.sleep(0.2)
    raise TimeoutError("the demo's controller did not start")


def _until_slow(url: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        job = httpx.get(f"{url}api/v1/job").json()
        if job and job["health"]["condition"] == "slow" and job["health"]["rank"] == 6:
            return
        time.sleep(1.0)
    raise TimeoutError("rank 6 was not found to be slow")


def _shoot(page: Page, url: str, address: str, place: Path) -> None:
    page.goto(url + address)
    expect(page.locator("#connection")).to_have_text("live")
    expect(page.locator("#health-sentence")).to_contain_text("Rank 6")
    page.wait_for_timeout(1500)  # what was asked for is drawn; figures go on changing
    still(page)
    page.screenshot(path=str(place))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
