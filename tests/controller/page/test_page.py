"""The page in a real browser against a real server: what an on-call person does with it, and that it stays offline."""

import re
import time

import pytest
from playwright.sync_api import Browser, Page, expect

from holdfast.controller.http.auth import Auth
from tests.browser import Watched
from tests.conftest import Until
from tests.controller.page.served import Served, open_page, pixels_of
from tests.controller.support.fake_facade import FakeFacade

pytestmark = [pytest.mark.slow, pytest.mark.calm]


def test_says_that_the_job_is_fine_and_moves_on(served: Served, watched: Watched) -> None:
    page = open_page(watched, served)
    expect(page.locator("#health-sentence")).to_contain_text("Training normally, at step ")
    expect(page.locator("#job-name")).to_have_text("demo")
    expect(page.locator("#mesh-shape")).to_contain_text("8 ranks")
    expect(page.locator("#needs")).to_have_text("Nothing.")
    step = page.locator("#figures div", has_text="Step").first
    before = step.inner_text()
    expect(step).not_to_have_text(before)


def test_mesh_answers_to_click_and_keys(served: Served, watched: Watched) -> None:
    page = open_page(watched, served)
    mesh = page.locator("#mesh-canvas")
    mesh.focus()
    page.keyboard.press("Home")
    expect(page.locator("#detail-title")).to_have_text("Rank 0")
    page.keyboard.press("ArrowDown")  # the tensor group stands on end where there is room, else it lies
    expect(page.locator("#detail-title")).to_have_text(re.compile("Rank [14]"))
    page.keyboard.press("ArrowRight")
    expect(page.locator("#detail-title")).to_have_text(re.compile("Rank [35]"))
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
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + box["height"] * 0.3)  # a drag selects no rank
    page.mouse.up()
    expect(page.locator("#detail-title")).to_have_text("Selection")


def test_an_incident_appears_live_and_ends(held: Served, watched: Watched) -> None:
    page = open_page(watched, held)
    held.fault(3)
    sentence = page.locator("#health-sentence")
    expect(sentence).to_contain_text("Recovering for 0 s: rank 3 on node0 was ended by SIGKILL")
    expect(page.locator("#announce")).to_contain_text("Recovering")
    expect(page).to_have_title(re.compile("^recovering · step"))
    needed = page.locator("#needs li")
    expect(needed).to_contain_text("worker killed")
    held.tick(2)
    expect(page.locator("#health-doing")).to_have_text("restart the workers in place: start")
    expect(needed).to_have_count(0)  # it is dealt with
    page.get_by_role("link", name="Open incident i1").click()
    card = page.locator("#incidents .incident").first
    held.tick(1)
    expect(card.locator(".phases")).to_contain_text("restore")
    expect(card.locator("pre")).to_contain_text("<b>not markup</b>")  # as text
    held.tick(3)
    expect(sentence).to_contain_text("Training normally")
    expect(sentence).to_contain_text("with 1 restart so far")
    expect(card).to_contain_text("state from memory")


@pytest.mark.parametrize("numbers_steps", [True, False])
def test_where_training_went_on_is_reported_or_unknown(held: Served, watched: Watched, numbers_steps: bool) -> None:
    held.facade.numbers_steps = numbers_steps
    page = open_page(watched, held, "#/incidents/i1")
    held.fault(3)
    story, step = page.locator("#story"), held.facade.step
    expect(story).to_contain_text("worker killed")
    expect(story).not_to_contain_text("training resumed from")
    held.tick(6)
    went_on = f"{step - 3}" if numbers_steps else "unknown"
    expect(story.locator("dt:has-text('training resumed from') + dd")).to_have_text(went_on)
    expect(story).to_contain_text(f"step {step} → {went_on}")
    page.goto(f"{held.url}#/run")
    again = page.locator("#ledger dt:has-text('repeating lost steps') + dd")
    expect(again).to_contain_text("500 ms" if numbers_steps else "unknown")


def test_links_lead_to_what_they_name(served: Served, watched: Watched) -> None:
    served.fault(2)
    page = open_page(watched, served, "#/incidents/i1")
    expect(page.locator("#incidents [data-selected]")).to_contain_text("rank 2 on node0")
    expect(page.locator("#story-title")).to_have_text("Incident i1")
    page.goto(served.url + "#/nodes/node1")
    expect(page.locator("#traffic-node")).to_have_text("node1")
    page.goto("about:blank")
    page.goto(served.url + "#/overview?rank=6")
    expect(page.locator("#detail-title")).to_have_text("Rank 6")
    expect(page.locator("#detail")).to_contain_text("Node node1")
    page.goto("about:blank")
    page.goto(served.url + "#rank=5")  # as earlier versions wrote it
    expect(page.locator("#detail-title")).to_have_text("Rank 5")
    expect(page.locator("#views [aria-current]")).to_have_text("Overview")
    page.goto("about:blank")
    page.goto(served.url + "#/mesh3d?rank=3")
    expect(page.locator("#mesh3d")).to_be_visible()
    expect(page.locator("#detail-title")).to_have_text("Rank 3")
    page.locator("#mesh-flat").click()
    expect(page.locator("#mesh3d")).to_be_hidden()
    expect(page.locator("#mesh-canvas")).to_be_visible()
    page.goto("about:blank")
    page.goto(served.url + "#/timeline?from=2&to=3&ranks=2,6")
    expect(page.locator("#timeline-about")).to_contain_text("steps 2 to 3, 2 of 8 ranks")


def test_every_view_is_reached_by_keyboard_and_says_where_it_is(served: Served, watched: Watched) -> None:
    page = open_page(watched, served)
    links = page.locator("#views a")
    names = links.all_inner_texts()
    assert names == ["Overview", "Incidents", "Slow", "Nodes", "Run", "Logs"]
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


def test_actions_ask_twice_and_say_what_came_of_it(served: Served, watched: Watched) -> None:
    page = open_page(watched, served, "#/nodes/node1")
    page.locator("#do-nodes").fill("node1")
    answer = page.locator("#do-answer")
    page.get_by_role("button", name="Diagnose", exact=True).click()
    assert served.facade.diagnosed == []
    page.get_by_role("button", name="Really diagnose node1?").click()
    expect(answer).to_have_text("diagnosis d1 started")
    assert served.facade.diagnosed == [{"nodes": ["node1"], "suite": "quick", "tests": [], "busy": False, "passes": 0}]
    expect(page.locator("#diagnoses")).to_contain_text("node0 failed")
    page.locator("#diagnoses summary").first.click()
    expect(page.locator("#diagnoses table")).to_contain_text("gemm")
    page.locator("#do-nodes").fill("ghost")
    page.get_by_role("button", name="Diagnose", exact=True).click()
    page.get_by_role("button", name="Really diagnose ghost?").click()
    expect(answer).to_contain_text("no node is called 'ghost'")
    page.get_by_role("button", name="Evict").click()
    page.get_by_role("button", name="Really evict node1? The job restarts").click()
    expect(page.locator("#announce")).to_have_text("node1 is being evicted")
    page.goto(served.url + "#/nodes/node2")  # it has no rank
    expect(page.get_by_role("button", name="Evict")).to_be_disabled()
    expect(page.get_by_role("button", name="Evict")).to_have_attribute("title", "the node has no rank")
    page.goto(served.url + "#/run")
    page.get_by_role("button", name="Checkpoint now").click()
    page.get_by_role("button", name="Really checkpoint?").click()
    expect(page.locator("#job-answer")).to_contain_text("is requested")
    assert served.facade.checkpoints == 1
    page.goto(served.url + "#/incidents")
    page.get_by_role("button", name="Stacks").click()
    expect(page.locator("#stacks")).to_contain_text("train.py:12 wait")
    watched.complaints[:] = [text for text in watched.complaints if "404 (Not Found)" not in text]


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
    expect(page.locator("#nodes .node-row", has_text="node1")).to_contain_text("cordoned")
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


def test_shows_a_lost_controller_and_finds_it_again(watched: Watched, free_port: int) -> None:
    facade = FakeFacade()
    facade.warm_up(50)
    served = Served(facade, Auth(), free_port)  # nobody else is given it in the meantime
    try:
        page = open_page(watched, served)
    finally:
        served.stop()
    expect(page.locator("#lost")).to_be_visible()
    expect(page.locator("#lost")).to_contain_text("Controller lost: it does not answer.")
    expect(page.locator("#connection")).to_have_text("controller lost")
    again = Served(facade, Auth(), free_port)
    try:
        expect(page.locator("#connection")).to_have_text("live")
        expect(page.locator("#lost")).to_be_hidden()
        page.goto("about:blank")  # it asks nobody who is gone, after what is left out here
    finally:
        again.stop()
    watched.complaints[:] = [text for text in watched.complaints if "ERR_" not in text]


def ask_on(page: Page, asked: list[str], many: int) -> None:
    """Until the page has made so many requests."""
    deadline = time.monotonic() + 60
    while len(asked) < many:
        assert time.monotonic() < deadline, asked
        page.wait_for_timeout(100)


def until_silent(page: Page, asked: list[str]) -> None:
    """Until the page has made no request for three seconds: what was under way ends when the machine lets it."""
    deadline = time.monotonic() + 60
    asked.append("")
    while asked:
        assert time.monotonic() < deadline, asked
        asked.clear()
        page.wait_for_timeout(3000)


def test_nothing_is_asked_for_that_nobody_looks_at(served: Served, watched: Watched) -> None:
    page = open_page(watched, served)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url.removeprefix(served.url)))

    ask_on(page, asked, 2)  # what else was under way when the page was live
    asked.clear()
    ask_on(page, asked, 4)
    of_the_overview = ("api/v1/ranks?columns=", "api/v1/job/hour", "api/v1/blame/newest")
    assert [path for path in asked if not path.startswith(of_the_overview)] == []
    assert [path for path in asked if "part_seconds" in path] == []
    page.goto(f"{served.url}#/incidents")
    until_silent(page, asked)
    hide = """(hidden) => {
      Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
      document.dispatchEvent(new Event("visibilitychange"));
    }"""
    page.goto(f"{served.url}#/overview")
    step = page.locator("#figures div", has_text="Step").first
    page.evaluate(hide, True)
    expect(page).to_have_title("Holdfast")  # no state that would grow old
    until_silent(page, asked)
    before = step.inner_text()
    page.wait_for_timeout(3000)
    assert (asked, step.inner_text()) == ([], before)
    page.evaluate(hide, False)
    expect(step).not_to_have_text(before)
    expect(page).to_have_title(re.compile("^well · step"))


def test_the_policy_holds_against_markup_from_within(served: Served, watched: Watched) -> None:
    page = open_page(watched, served)
    script = "const s = document.createElement('script'); s.textContent = 'window.owned = 1'; document.head.append(s)"
    with page.expect_console_message(lambda message: "Content Security Policy" in message.text):
        page.evaluate(script)
    assert page.evaluate("window.owned") is None
    assert any("Content Security Policy" in text for text in watched.complaints)
    watched.complaints.clear()


PURE = """async () => {
  const [router, period, shares, near, grid, curves] = await Promise.all(
    ["base/router", "nodes/period", "slow/blame_shares", "drawing/mesh_groups", "drawing/grid", "run/curves"].map(
      (name) => import(`/static/${name}.js`)));
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
    rates: curves.line({ step: [1, 2, 3], tokens: [8, null, 6], seconds: [2, 1, 0] }, "tokens", 0, 3).y,
    cells: [grid.cell([[1, null]], 0, 1), grid.cell({ width: 2, flat: Float64Array.of(1, 2, 3, 4) }, 1, 0)].map(String),
  };
}"""


def test_what_the_page_computes(served: Served, watched: Watched) -> None:
    found = open_page(watched, served).evaluate(PURE)
    assert found["parsed"] == {"view": "nodes", "id": "a/b", "query": {"x": "1", "y": ""}}
    assert found["odd"] == ["overview", "overview", "overview", "overview"]
    assert found["back"] == "#/nodes/a%2Fb?x=1"
    assert found["periods"] == [170, None]
    assert found["worst"] == [2, 0]
    assert found["groups"] == {"tp": [2], "dp": [2, 3], "pp": [0, 2]}
    assert found["flow"] == {"from": [0], "to": []}
    assert found["rates"] == [4, None, None]  # not 0 where the tokens are unknown
    assert found["cells"] == ["NaN", "3"]


COUNTED = """window.calls = 0;
for (const name of ["clearRect", "drawImage", "fill", "fillRect", "fillText", "putImageData", "stroke", "strokeRect"]) {
  const of = CanvasRenderingContext2D.prototype, usual = of[name];
  of[name] = function (...args) { window.calls += 1; return usual.apply(this, args); };
}"""


def test_3072_ranks_are_drawn_at_once(watched: Watched, until: Until) -> None:
    """Not one by one, neither as elements nor on the canvas. `benchmarks/page.py` measures frames of 12,288."""
    facade = FakeFacade(pp=8, dp=48, tp=8, per_node=8)
    facade.warm_up(50)
    served = Served(facade, Auth(), live=False)
    watched.page.add_init_script(COUNTED)
    try:
        page = open_page(watched, served)
        expect(page.locator("#mesh-shape")).to_contain_text("3,072 ranks")
        assert page.locator("body *").count() < 1000
        mesh = page.locator("#mesh-canvas")
        mesh.focus()
        page.evaluate("holdfast.timings.length = calls = 0")
        began = time.monotonic()
        for number, key in enumerate(["+", "-", "ArrowRight", "0"] * 2):
            page.keyboard.press(key)
            until(lambda number=number: page.evaluate("holdfast.timings.length") > number)  # type: ignore[misc]
        frames, calls = page.evaluate("[holdfast.timings.length, calls]")
        assert frames < 30 + 2 * (time.monotonic() - began)  # news of the ranks are drawn as they come
        assert calls / frames < 1000
        page.keyboard.press("End")
        expect(page.locator("#detail-title")).to_have_text("Rank 3071")
        # Large answers come through the worker, as columns.
        page.goto(served.url + "#/slow")
        expect(page.locator("#heat-about")).to_contain_text("most against its peers: rank 3070")
        page.locator("#heat").focus()
        page.keyboard.press("n")
        expect(page.locator("#detail-title")).to_have_text("Rank 3070")
        page.goto(served.url + "#/overview?mesh=3d&rank=3070")
        expect(page.locator("#relations")).to_contain_text("slower than its 383 peers")
        until(lambda: pixels_of(page, "wait-cell") > 9)  # of its groups; others are paler
        page.goto(served.url + "#/timeline")
        expect(page.locator("#timeline-about")).to_contain_text("16 of 3,072 ranks")
        page.goto(served.url + "#/overview")
        served.fault(1003)
        expect(page.locator("#next-problem")).to_have_text("1 problem: show")
        page.locator("#next-problem").click()
        expect(page.locator("#detail-title")).to_have_text("Rank 1003")
    finally:
        served.end()
