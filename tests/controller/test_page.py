"""The page in a real browser against a real server: what an on-call person does with it, and that it stays offline."""

import asyncio
import json
import re
import threading
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from holdfast.controller.auth import Auth
from holdfast.controller.http import create_app
from holdfast.controller.serve import serving
from tests.browser import Watched, chromium, watching
from tests.controller.fake_facade import FakeFacade, llm_175b

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def watched(browser: Browser) -> Iterator[Watched]:
    with watching(browser) as watched:
        yield watched


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


@pytest.fixture
def served() -> Iterator[Served]:
    facade = FakeFacade()
    facade.warm_up(50)
    served = Served(facade, Auth())
    yield served
    served.stop()


def open_page(watched: Watched, served: Served, hash_: str = "") -> Page:
    page = watched.page
    page.goto(served.url + hash_)
    expect(page.locator("#mesh-shape")).to_contain_text("ranks", timeout=10_000)
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
    expect(page.locator("#detail")).to_contain_text("Node node1")
    expect(page.locator("#announce")).to_contain_text("Rank 7: node node1")
    assert page.url.endswith("#/overview?rank=7")
    page.keyboard.press("Escape")
    expect(page.locator("#detail-title")).to_have_text("Selection")
    box = mesh.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + box["height"] * 0.3)
    expect(page.locator("#mesh-tip")).to_contain_text("step time")
    page.mouse.down()
    page.mouse.up()
    expect(page.locator("#detail-title")).to_contain_text("Rank")
    page.keyboard.press("Escape")
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + box["height"] * 0.3)  # a drag chooses nobody
    page.mouse.up()
    expect(page.locator("#detail-title")).to_have_text("Selection")


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
    page = open_page(watched, served, "#/incidents/i1")
    expect(page.locator("#incidents [data-selected]")).to_contain_text("rank 2 on node0")
    expect(page.locator("#story-title")).to_have_text("Incident i1")
    page.goto(served.url + "#/nodes/node1")
    expect(page.locator("#traffic-node")).to_have_text("node1")
    page.goto("about:blank")
    page.goto(served.url + "#/ranks/6")
    expect(page.locator("#detail-title")).to_have_text("Rank 6")
    expect(page.locator("#detail")).to_contain_text("Node node1")
    page.goto("about:blank")
    page.goto(served.url + "#rank=5")  # as earlier versions wrote it
    expect(page.locator("#detail-title")).to_have_text("Rank 5")
    expect(page.locator("#views [aria-current]")).to_have_text("Ranks")


def test_every_view_is_reached_by_keyboard_and_says_where_it_is(served: Served, watched: Watched) -> None:
    page = open_page(watched, served)
    links = page.locator("#views a")
    names = links.all_inner_texts()
    assert len(names) == 9
    for i, name in enumerate(names):
        links.nth(i).focus()
        page.keyboard.press("Enter")
        expect(page.locator("#views [aria-current]")).to_have_text(name)
        expect(page).to_have_title(re.compile(rf"· {page.locator('#view-title').inner_text()} · Holdfast$"))
        if i:
            assert page.evaluate("document.activeElement.id") == "view-title"
        panels = page.locator("main .grid > section:visible")
        assert panels.count() > 0
        for panel in panels.all():
            title = panel.get_attribute("aria-labelledby")
            assert page.locator(f"#{title}").inner_text()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), name
    page.go_back()
    expect(page.locator("#views [aria-current]")).to_have_text(names[-2])
    expect(page.locator("canvas:not([aria-label])")).to_have_count(0)


def test_overview_answers_who_and_what(served: Served, watched: Watched) -> None:
    page = open_page(watched, served)
    expect(page.locator("#fault")).to_contain_text("rank 6 (node node1, GPU 2)")  # slow in the fake's spans
    expect(page.locator("#doing")).to_contain_text("Nothing")
    expect(page.locator("#doing")).to_contain_text("the whole job")
    expect(page.locator("#ledger")).to_contain_text("steps that are safe")
    served.fault(3)
    expect(page.locator("#fault .big")).to_have_text("rank3 worker killed")
    expect(page.locator("#doing .big")).to_have_text("restart the workers in place", timeout=4000)
    page.locator("#fault").get_by_role("link", name="story").click()
    expect(page.locator("#story")).to_contain_text("Decided: restart the workers in place")
    expect(page.locator("#story pre").first).to_contain_text("<b>not markup</b>")
    expect(page.locator("#story")).to_contain_text("Closed", timeout=8000)


def test_job_tells_what_it_is_and_where_its_steps_go(served: Served, watched: Watched) -> None:
    page = open_page(watched, served, "#/job")
    expect(page.locator("#facts")).to_contain_text("train.py --config demo.toml")
    expect(page.locator("#facts")).to_contain_text("1f1b, 1 micro-batches")
    expect(page.locator("#parts tbody tr")).to_have_count(5)
    expect(page.locator("#tokens-value")).to_have_text(re.compile(r"\d"))
    page.locator("#facts").get_by_role("link", name="node1").click()
    expect(page.locator("#history-title")).to_contain_text("node1")


def test_blame_names_the_slow_rank_and_what_it_costs(served: Served, watched: Watched) -> None:
    page = open_page(watched, served, "#/blame")
    culprit = page.locator("#culprits .culprit").first
    expect(culprit).to_contain_text("rank 6")
    expect(culprit).to_contain_text("slower than its 3 peers")
    expect(page.locator("#whatif")).to_contain_text("tokens/s")
    expect(page.locator("#path li").first).to_contain_text("rank 6")
    expect(page.locator("#shares tbody tr")).to_have_count(8)
    expect(page.locator("#shares tbody th").first).to_have_text("rank 6")
    page.get_by_role("radio", name="Waited", exact=True).click()
    expect(page.locator("#shares tbody th").first).not_to_have_text("rank 6")
    page.locator("#blame-step").fill("4")
    page.keyboard.press("Enter")
    expect(page.locator("#blame-about")).to_contain_text("step 4")
    assert page.url.endswith("#/blame?step=4")
    page.locator("#blame-step").fill("4000")
    page.keyboard.press("Enter")
    expect(page.locator("#culprits")).to_contain_text("no spans of steps 4000")
    watched.complaints[:] = [text for text in watched.complaints if "400 (Bad Request)" not in text]


def test_heat_map_of_ranks_finds_the_worst_cell(served: Served, watched: Watched) -> None:
    page = open_page(watched, served, "#/ranks")
    expect(page.locator("#heat-about")).to_contain_text("rank 6")
    page.locator("#heat").focus()
    page.keyboard.press("n")
    expect(page.locator("#detail-title")).to_have_text("Rank 6")
    expect(page.locator("#announce")).to_contain_text("median of its peers")
    assert page.url.endswith("#/ranks/6")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#detail-title")).to_have_text("Rank 7")
    page.keyboard.press("+")
    page.keyboard.press("0")
    page.get_by_role("radio", name="Share of the step").click()
    expect(page.locator("#heat-high")).to_have_text("100%")


def test_timeline_is_walked_by_keys_and_saved_for_perfetto(served: Served, watched: Watched) -> None:
    page = open_page(watched, served, "#/timeline?from=2&to=3&ranks=2,6")
    expect(page.locator("#timeline-about")).to_contain_text("steps 2 to 3, 2 of 8 ranks")
    page.locator("#timeline").focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#announce")).to_contain_text("Rank 2: load")
    for key in ("ArrowRight", "+", "d", "a", "-", "0"):
        page.keyboard.press(key)
    page.keyboard.press("ArrowDown")
    expect(page.locator("#announce")).to_contain_text("Rank 6:")
    page.locator("#timeline-table summary").click()
    expect(page.locator("#timeline-table caption")).to_have_text("Rank 6")
    page.locator("#timeline-arrows").click()
    expect(page.locator("#timeline-arrows")).to_have_attribute("aria-pressed", "false")
    with page.expect_download() as download:
        page.locator("#timeline-save").click()
    events = json.loads(download.value.path().read_text())["traceEvents"]
    assert {event["args"]["step"] for event in events if event["ph"] == "X"} == {2, 3}
    page.locator("#timeline-ranks").fill("nobody")
    page.keyboard.press("Enter")
    expect(page.locator("#timeline-empty")).to_contain_text("neither a rank nor a range")
    watched.complaints[:] = [text for text in watched.complaints if "400 (Bad Request)" not in text]


def test_mesh_in_three_dimensions_tells_groups_and_blame(served: Served, watched: Watched) -> None:
    page = open_page(watched, served, "#/mesh3d?rank=6")
    relations = page.locator("#relations")
    expect(relations).to_contain_text("tensor group")
    expect(relations).to_contain_text("slower than its 3 peers")
    expect(relations.locator("dd").nth(3)).to_have_text("2")  # gets its activations from rank 2, one stage before
    page.locator("#mesh3d").focus()
    page.keyboard.press("PageUp")
    expect(page.locator("#detail-title")).to_have_text("Rank 2")
    for key in ("a", "w", "+", "-", "0"):
        page.keyboard.press(key)
    page.get_by_role("radio", name="State", exact=True).last.click()
    expect(page.locator("#mesh3d-legend")).to_contain_text("well")
    relations.get_by_role("link", name="3", exact=True).first.click()
    expect(page.locator("#detail-title")).to_have_text("Rank 3")


def test_actions_ask_twice_and_say_what_came_of_it(served: Served, watched: Watched) -> None:
    page = open_page(watched, served, "#/actions?node=node1")
    expect(page.locator("#do-nodes")).to_have_value("node1")
    answer = page.locator("#do-answer")
    page.get_by_role("button", name="Diagnose", exact=True).click()
    assert served.facade.diagnosed == []
    page.get_by_role("button", name="Really diagnose node1?").click()
    expect(answer).to_have_text("diagnosis d1 began")
    assert served.facade.diagnosed == [{"nodes": ["node1"], "suite": "quick", "tests": [], "busy": False}]
    expect(page.locator("#diagnoses")).to_contain_text("node0 failed", timeout=4000)
    page.locator("#diagnoses summary").first.click()
    expect(page.locator("#diagnoses table")).to_contain_text("gemm")
    page.get_by_role("button", name="Checkpoint now").click()
    page.get_by_role("button", name="Really checkpoint?").click()
    expect(answer).to_contain_text("was asked for")
    assert served.facade.checkpoints == 1
    page.get_by_role("button", name="Stacks").click()
    expect(page.locator("#stacks pre")).to_contain_text("train.py:12 wait")
    page.get_by_role("button", name="Cordon", exact=True).click()
    page.get_by_role("button", name="Really cordon node1?").click()
    expect(answer).to_have_text("cordon node1: done")
    page.locator("#do-nodes").fill("ghost")
    page.get_by_role("button", name="Evict").click()
    page.get_by_role("button", name="Really evict ghost? The job restarts").click()
    expect(answer).to_contain_text("no node is called 'ghost'")
    watched.complaints[:] = [text for text in watched.complaints if "404 (Not Found)" not in text]


def test_a_node_shows_its_verdicts_and_its_steps(served: Served, watched: Watched) -> None:
    served.facade.diagnosed.append({})
    page = open_page(watched, served, "#/nodes/node0")
    expect(page.locator("#history table")).to_contain_text("gemm")
    expect(page.locator("#history .pill")).to_have_text("fail")
    expect(page.locator("#nodeheat-about")).to_contain_text("slowest: node1")
    expect(page.locator("#traffic-period")).to_contain_text("repeats every")
    page.locator("#nodes").focus()
    page.keyboard.press("End")
    expect(page.locator("#history-title")).to_contain_text("node2")
    expect(page.locator("#history")).to_contain_text("Not diagnosed yet")


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
    page = open_page(watched, served, "#/nodes/node1")
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


PURE = """async () => {
  const [router, period, shares, near, grid] = await Promise.all(
    ["router", "period", "blame_shares", "neighbours", "grid"].map((name) => import(`/static/${name}.js`)));
  const nic = { t: [], tx: [], rx: [] };
  for (let ms = 0; ms < 2000; ms++) { nic.t.push(ms); nic.tx.push(ms % 170 < 60 ? 5000 : 10); nic.rx.push(0); }
  const flat = { ...nic, tx: nic.tx.map(() => 7) };
  const ranks = { sizes: [2, 2, 1], rank: [0, 1, 2, 3], pp: [0, 0, 1, 1], dp: [0, 1, 0, 1], tp: [0, 0, 0, 0] };
  return {
    parsed: router.parse("#/nodes/a%2Fb?x=1&y="),
    odd: ["#", "", "#/nosuch/5", "#/ranks/%E0%A4%A"].map((hash) => router.parse(hash).view),
    back: router.link("nodes", "a/b", { x: 1, y: null, z: "" }),
    periods: [period.periodOf(nic, 2000), period.periodOf(flat, 2000)],
    worst: shares.ordered({ rank: [0, 1, 2, 3], self_s: [0.1, null, 0.5, 0.1] }, "self_s", 2),
    groups: near.groupsOf(ranks, 2),
    flow: near.flowOf(ranks, 2, null),
    cells: [grid.cell([[1, null]], 0, 1), grid.cell({ width: 2, flat: Float64Array.of(1, 2, 3, 4) }, 1, 0)].map(String),
  };
}"""


def test_what_the_page_computes(served: Served, watched: Watched) -> None:
    found = open_page(watched, served).evaluate(PURE)
    assert found["parsed"] == {"view": "nodes", "id": "a/b", "query": {"x": "1", "y": ""}}
    assert found["odd"] == ["overview", "overview", "overview", "ranks"]
    assert found["back"] == "#/nodes/a%2Fb?x=1"
    assert found["periods"] == [170, None]
    assert found["worst"] == [2, 0]
    assert found["groups"] == {"tp": [2], "dp": [2, 3], "pp": [0, 2]}
    assert found["flow"] == {"from": [0], "to": []}
    assert found["cells"] == ["NaN", "3"]


def test_12288_ranks_are_drawn_within_a_frame(watched: Watched) -> None:
    facade = llm_175b()
    facade.warm_up(300)
    served = Served(facade, Auth(), live=False)  # measures the page, not two processes on one core
    try:
        page = open_page(watched, served)
        expect(page.locator("#mesh-shape")).to_contain_text("12,288 ranks")
        assert page.locator("body *").count() < 1000
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
        # Large answers come through the worker, as columns.
        page.goto(served.url + "#/ranks")
        expect(page.locator("#heat-about")).to_contain_text("most against its peers: rank 12286", timeout=20_000)
        page.locator("#heat").focus()
        page.keyboard.press("n")
        expect(page.locator("#detail-title")).to_have_text("Rank 12286")
        page.goto(served.url + "#/mesh3d?rank=12286")
        expect(page.locator("#relations")).to_contain_text("slower than its 1535 peers", timeout=20_000)
        page.goto(served.url + "#/timeline")
        expect(page.locator("#timeline-about")).to_contain_text("15 of 12,288 ranks", timeout=20_000)
        page.goto(served.url + "#/overview")
        served.fault(5003)
        expect(page.locator("#next-problem")).to_have_text("1 problem: show", timeout=4000)
        page.locator("#next-problem").click()
        expect(page.locator("#detail-title")).to_have_text("Rank 5003")
    finally:
        served.stop()
