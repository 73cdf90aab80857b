"""The lane of 24 hours, and the page at a time of the past: in a real browser."""

import re

from playwright.sync_api import Page, expect

from tests.browser import Watched
from tests.controller.page.served import Served, open_page
from tests.controller.support.fake_past import AWAY_S, LOST_S


def at_of(page: Page) -> float:
    value = page.evaluate("new URLSearchParams(location.hash.split('?')[1]).get('at')")
    return float(value)


def test_a_point_of_the_lane_sets_the_time_of_every_view(held: Served, watched: Watched) -> None:
    page = open_page(watched, held)
    lane = page.locator("#lane")
    expect(lane).to_have_attribute("aria-valuetext", re.compile("now: condition well, step 49,"))
    box = lane.bounding_box()
    assert box is not None
    lane.click(position={"x": box["width"] * (1 - (LOST_S[0] - 300) / 86400), "y": 10})
    expect(page.locator("#health-sentence")).to_have_text("Recovering: rank 3 was killed.")
    expect(page.locator("#health")).to_have_attribute("data-condition", "recovering")
    expect(page.locator("#lane-shown")).to_contain_text("Shown: ")
    assert abs(held.facade.now - LOST_S[0] + 300 - at_of(page)) < 200
    for view in ("Incidents", "Slow", "Nodes", "Run", "Overview"):
        page.get_by_role("link", name=view, exact=True).click()
        expect(page.locator("#view-title")).to_have_text(view)
        expect(page.locator("#health-sentence")).to_have_text("Recovering: rank 3 was killed.")
    page.reload()  # the address is enough
    expect(page.locator("#health-sentence")).to_have_text("Recovering: rank 3 was killed.")
    page.get_by_role("button", name="Back to now").click()
    expect(page.locator("#health-sentence")).to_contain_text("Training normally, at step 49")
    expect(page.locator("#lane-shown")).to_have_text("")
    assert "at=" not in page.url


def test_the_overview_of_then_names_who_was_at_fault(held: Served, watched: Watched) -> None:
    page = open_page(watched, held, f"#/overview?at={held.facade.now - LOST_S[0] + 60:.0f}")
    expect(page.locator("#figures div", has_text="Step").first).to_contain_text("0of 5,000")
    expect(page.locator("#needs")).to_contain_text("node0 is lost")
    expect(page.locator("#health-button a")).to_have_count(0)
    page.locator("#mesh-canvas").focus()
    page.goto(page.url.replace("overview", "nodes"))
    expect(page.locator("#nodes .node-row").first).to_contain_text("node0")
    expect(page.locator("#nodes .node-row").first).to_contain_text("lost")


def test_incidents_that_came_later_are_not_there(held: Served, watched: Watched) -> None:
    page = open_page(watched, held)
    held.fault(3)
    page.goto(f"{held.url}#/incidents")
    expect(page.locator("#incidents article")).to_have_count(1)
    page.goto(f"{held.url}#/incidents?at={held.facade.now - 3600:.0f}")
    expect(page.locator("#incidents")).to_contain_text("No incident until then.")


def test_the_keyboard_moves_it_and_end_is_now(held: Served, watched: Watched) -> None:
    page = open_page(watched, held)
    lane = page.locator("#lane")
    expect(lane).to_have_attribute("aria-valuetext", re.compile("now: condition well, step 49,"))
    lane.focus()
    page.keyboard.press("PageUp")
    expect(page.locator("#lane-shown")).to_contain_text("Shown: ")
    first = at_of(page)
    page.keyboard.press("ArrowLeft")
    page.wait_for_function("at => location.hash.includes('at=') && !location.hash.includes(at)", arg=f"{first:.0f}")
    assert abs(first - at_of(page) - 300) < 2
    expect(page.locator("#announce")).not_to_be_empty()
    page.keyboard.press("End")
    expect(page.locator("#lane-shown")).to_have_text("")


def test_of_a_time_without_a_controller_nothing_is_made_up(held: Served, watched: Watched) -> None:
    middle = held.facade.now - sum(AWAY_S) / 2
    page = open_page(watched, held, f"#/overview?at={middle:.0f}")
    expect(page.locator("#lane")).to_have_attribute("aria-valuetext", re.compile("condition nothing kept"))
    page.goto(f"{held.url}#/overview?at=1000")
    expect(page.locator("#health-sentence")).to_contain_text("nothing is kept of that time")
    watched.complaints[:] = [text for text in watched.complaints if "409" not in text]


def test_the_lane_may_be_pressed_before_its_day_is_there(held: Served, watched: Watched) -> None:
    watched.page.route("**/api/v1/job/day*", lambda route: None)  # never answered
    page = open_page(watched, held)
    page.locator("#lane").hover()
    page.mouse.down()
    page.mouse.move(700, 100)
    page.mouse.move(720, 100)
    page.mouse.up()
    expect(page.locator("#lane-shown")).to_have_text("")
    assert "at=" not in page.url
