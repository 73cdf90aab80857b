"""The page in a real browser against a real server: what an on-call person does with it, and that it stays offline."""

import asyncio
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Route, expect, sync_playwright

from holdfast.controller.auth import Auth
from holdfast.controller.http import create_app
from holdfast.controller.serve import serving
from tests.controller.fake_facade import FakeFacade, llm_175b

pytestmark = pytest.mark.slow

CHROMIUM = Path("/usr/bin/chromium")
ARGS = [
    "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if not CHROMIUM.exists() and not os.environ.get("CI"):
        pytest.skip(f"{CHROMIUM} is not there: apt-get install chromium")
    assert CHROMIUM.exists(), f"{CHROMIUM} is not there: apt-get install chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=ARGS)
        yield browser
        browser.close()


class Served:
    """A controller with a page, in a thread of its own. `do` changes its state between two events of its loop."""

    def __init__(self, facade: FakeFacade, auth: Auth, port: int = 0, live: bool = True) -> None:
        self.facade, self.auth, self.port, self.live = facade, auth, port, live
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self._thread.start()
        assert self._ready.wait(10)

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        async with serving(create_app(self.facade, self.auth), port=self.port) as self.port:
            ticking = asyncio.create_task(self.facade.live(0.1)) if self.live else None
            self._ready.set()
            await self._stop.wait()
            if ticking is not None:
                ticking.cancel()

    def fault(self, rank: int) -> None:
        self._loop.call_soon_threadsafe(self.facade.fault, rank)

    def stop(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"


@dataclass
class Watched:
    """A page, and all that must not happen on it."""

    page: Page
    complaints: list[str] = field(default_factory=list)
    outside: list[str] = field(default_factory=list)


@pytest.fixture
def served() -> Iterator[Served]:
    facade = FakeFacade()
    facade.warm_up(50)
    served = Served(facade, Auth())
    yield served
    served.stop()


@pytest.fixture
def watched(browser: Browser) -> Iterator[Watched]:
    context = browser.new_context(viewport={"width": 1440, "height": 900}, color_scheme="light")
    watched = Watched(context.new_page())
    watched.page.on(
        "console",
        lambda message: watched.complaints.append(message.text) if message.type in ("error", "warning") else None,
    )
    watched.page.on("pageerror", lambda error: watched.complaints.append(str(error)))

    def gate(route: Route) -> None:
        url = route.request.url
        if url.startswith("http://127.0.0.1:"):
            route.continue_()
        else:
            watched.outside.append(url)
            route.abort()

    context.route("**/*", gate)
    yield watched
    context.close()
    assert watched.outside == []
    assert watched.complaints == []


def open_page(watched: Watched, served: Served, hash_: str = "") -> Page:
    page = watched.page
    page.goto(served.url + hash_)
    expect(page.locator("#mesh-shape")).to_contain_text("ranks")
    expect(page.locator("#connection")).to_have_text("live")
    return page


def test_says_that_the_job_is_fine_and_moves_on(served: Served, watched: Watched) -> None:
    page = open_page(watched, served)
    expect(page.locator("#verdict-text")).to_have_text("Training normally")
    expect(page.locator("#job-name")).to_have_text("demo")
    expect(page.locator("#mesh-shape")).to_contain_text("8 ranks")
    expect(page.locator("#alarm")).to_be_hidden()
    step = page.locator("#tiles div", has_text="Step").first
    before = step.inner_text()
    expect(step).not_to_have_text(before, timeout=3000)


def test_mesh_answers_to_click_and_keys(served: Served, watched: Watched) -> None:
    page = open_page(watched, served)
    mesh = page.locator("#mesh-canvas")
    mesh.focus()
    page.keyboard.press("Home")
    expect(page.locator("#detail-title")).to_have_text("Rank 0")
    page.keyboard.press("ArrowDown")
    expect(page.locator("#detail-title")).to_have_text("Rank 1")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#detail-title")).to_have_text("Rank 3")
    page.keyboard.press("End")
    expect(page.locator("#detail-title")).to_have_text("Rank 7")
    expect(page.locator("#traffic-node")).to_have_text("node1")
    expect(page.locator("#announce")).to_contain_text("Rank 7: node node1")
    assert page.url.endswith("#rank=7")
    page.keyboard.press("Escape")
    expect(page.locator("#detail-title")).to_have_text("Selection")
    box = mesh.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + box["height"] * 0.3)
    expect(page.locator("#mesh-tip")).to_contain_text("step time")
    page.mouse.down()
    page.mouse.up()
    expect(page.locator("#detail-title")).to_contain_text("Rank")


def test_an_incident_appears_live_and_ends(served: Served, watched: Watched) -> None:
    page = open_page(watched, served)
    served.fault(3)
    alarm = page.locator("#alarm")
    expect(alarm).to_be_visible(timeout=2000)
    expect(alarm).to_contain_text("worker killed")
    expect(page.locator("#verdict-text")).to_have_text("Recovering")
    expect(page.locator("#announce")).to_contain_text("Recovering")
    expect(alarm.locator(".phases")).to_contain_text("restore", timeout=8000)
    card = page.locator("#incidents .incident").first
    expect(card.locator("pre")).to_contain_text("<b>not markup</b>")  # as text
    expect(alarm).to_be_hidden(timeout=8000)
    expect(page.locator("#verdict-text")).to_have_text("Training normally")
    expect(card).to_contain_text("state from memory")
    expect(page.locator("#tiles")).to_contain_text("1 restart")


def test_links_lead_to_what_they_name(served: Served, watched: Watched) -> None:
    served.fault(2)
    page = open_page(watched, served, "#incident=i1")
    expect(page.locator("[data-selected]")).to_contain_text("rank 2 on node0")
    page.goto(served.url + "#node=node1")
    expect(page.locator("#traffic-node")).to_have_text("node1")
    page.goto("about:blank")
    page.goto(served.url + "#rank=6")
    expect(page.locator("#detail-title")).to_have_text("Rank 6")
    expect(page.locator("#detail")).to_contain_text("Node node1")


def test_dark_is_dark_and_the_toggle_is_kept(served: Served, watched: Watched) -> None:
    page = open_page(watched, served)
    colour = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(colour)
    page.emulate_media(color_scheme="dark")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    assert page.evaluate(colour) != light
    page.locator("#theme").click()  # automatic -> light
    expect(page.locator("html")).to_have_attribute("data-theme", "light")
    page.reload()
    expect(page.locator("html")).to_have_attribute("data-theme", "light")


def test_a_node_can_be_cordoned_after_a_second_click(served: Served, watched: Watched) -> None:
    page = open_page(watched, served, "#node=node1")
    page.get_by_role("button", name="Cordon").click()
    page.get_by_role("button", name="Really cordon node1?").click()
    expect(page.locator("#nodes .node-row", has_text="node1")).to_contain_text("cordoned", timeout=6000)
    expect(page.get_by_role("button", name="Uncordon")).to_be_visible()


def test_asks_for_the_token_once(browser: Browser, watched: Watched) -> None:
    served = Served(FakeFacade(), Auth("s3cret"))
    try:
        page = watched.page
        page.goto(served.url)
        page.locator("#token-input").fill("wrong")
        page.keyboard.press("Enter")
        expect(page.locator("#token-why")).to_contain_text("did not accept")
        page.locator("#token-input").fill("s3cret")
        page.keyboard.press("Enter")
        expect(page.locator("#connection")).to_have_text("live")
        page.reload()
        expect(page.locator("#connection")).to_have_text("live")
        expect(page.locator("#token-dialog")).to_be_hidden()
    finally:
        served.stop()
    # The browser itself notes every refused request.
    watched.complaints[:] = [text for text in watched.complaints if "401" not in text and "ERR_" not in text]


def test_shows_a_lost_controller_and_finds_it_again(served: Served, watched: Watched) -> None:
    page = open_page(watched, served)
    served.stop()
    expect(page.locator("#lost")).to_be_visible(timeout=5000)
    expect(page.locator("#lost")).to_contain_text("Connection to the controller lost")
    expect(page.locator("#connection")).to_have_text("connection lost")
    again = Served(served.facade, Auth(), served.port)
    try:
        expect(page.locator("#connection")).to_have_text("live", timeout=15_000)
        expect(page.locator("#lost")).to_be_hidden()
    finally:
        again.stop()
    watched.complaints[:] = [text for text in watched.complaints if "ERR_" not in text]


def test_the_policy_holds_against_markup_from_within(served: Served, watched: Watched) -> None:
    page = open_page(watched, served)
    script = "const s = document.createElement('script'); s.textContent = 'window.owned = 1'; document.head.append(s)"
    page.evaluate(script)
    assert page.evaluate("window.owned") is None
    assert any("Content Security Policy" in text for text in watched.complaints)
    watched.complaints.clear()


def test_12288_ranks_are_drawn_within_a_frame(watched: Watched) -> None:
    facade = llm_175b()
    facade.warm_up(300)
    served = Served(facade, Auth(), live=False)  # measures the page, not two processes on one core
    try:
        page = open_page(watched, served)
        expect(page.locator("#mesh-shape")).to_contain_text("12,288 ranks")
        assert page.locator("body *").count() < 1500
        mesh = page.locator("#mesh-canvas")
        mesh.focus()
        for key in ["+", "-", "ArrowRight", "0"] * 15:
            page.keyboard.press(key)
            page.wait_for_timeout(20)
        times = sorted(page.evaluate("holdfast.timings.slice(5)"))
        paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
        median, p95 = times[len(times) // 2], times[int(len(times) * 0.95)]
        print(f"{len(times)} frames: median {median:.1f} ms, p95 {p95:.1f} ms; first paint {paint:.0f} ms")
        assert len(times) > 20
        assert median < 8
        page.keyboard.press("End")
        expect(page.locator("#detail-title")).to_have_text("Rank 12287")
        served.fault(5003)
        expect(page.locator("#next-problem")).to_have_text("1 problem: show", timeout=4000)
        page.locator("#next-problem").click()
        expect(page.locator("#detail-title")).to_have_text("Rank 5003")
    finally:
        served.stop()
