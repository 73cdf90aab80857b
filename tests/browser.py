"""A real browser for tests, which fails on errors on the console and on requests to other hosts."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser, Page, Request, expect, sync_playwright

CHROMIUM = Path("/usr/bin/chromium")
ARGS = [
    "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
]  # fmt: skip
OWN = ("http://127.0.0.1:", "blob:http://127.0.0.1:")
PATIENCE_MS = 120_000
"""Of a busy machine, on which some runs have only what others leave of the processors; Playwright's is 5 or 30 s."""


@contextmanager
def chromium() -> Iterator[Browser]:
    if not CHROMIUM.exists() and not os.environ.get("CI"):
        pytest.skip(f"{CHROMIUM} is not there: apt-get install chromium")
    assert CHROMIUM.exists(), f"{CHROMIUM} is not there: apt-get install chromium"
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=ARGS, timeout=PATIENCE_MS)
        yield browser
        browser.close()


@dataclass
class Watched:
    """A page, with its console errors and its requests to other hosts."""

    page: Page
    complaints: list[str] = field(default_factory=list)
    outside: list[str] = field(default_factory=list)


@contextmanager
def watching(
    browser: Browser,
    width: int = 1440,
    height: int = 900,
    theme: Literal["light", "dark"] = "light",
    scale: float = 1.0,
) -> Iterator[Watched]:
    """A page of its own; at the end it must have logged no error and made no request to another host."""
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme=theme, device_scale_factor=scale
    )
    context.set_default_timeout(PATIENCE_MS)
    watched = Watched(context.new_page())
    watched.page.on(
        "console",
        lambda message: watched.complaints.append(message.text) if message.type in ("error", "warning") else None,
    )
    watched.page.on("pageerror", lambda error: watched.complaints.append(str(error)))

    # No other host is found, see ARGS: to stop each request until it is looked at would cost more than the page.
    def look(request: Request) -> None:
        if not request.url.startswith(OWN):
            watched.outside.append(request.url)

    context.on("request", look)
    yield watched
    context.close()
    assert not watched.outside, watched.outside
    assert not watched.complaints, watched.complaints
