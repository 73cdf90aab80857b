"""The Logs view: any rank, search, level, and all ranks that said a line."""

import re

from playwright.sync_api import expect

from tests.browser import Watched
from tests.controller.page.served import Served, open_page


def say(served: Served, rank: int, text: str, generation: int = 1) -> None:
    line = {
        "at": served.facade.now, "node": f"node{rank // 4}", "rank": rank, "stream": "out", "text": text,
        "generation": generation, "dropped": 0, "unfinished": False,
    }  # fmt: skip
    served.facade.log.append(line)


def test_lines_come_as_they_are_printed_and_who_said_one_is_a_click_away(held: Served, watched: Watched) -> None:
    for rank in range(8):
        say(held, rank, f"step 1 of rank {rank}\nWARNING: slow read, {rank} s\n<b>not markup</b>")
    page = open_page(watched, held, "#/logs")
    expect(page.locator("#logs-about")).to_have_text("24 of 24 lines")
    say(held, 3, "ValueError: bad batch 7")
    last = page.locator(".log-row:visible", has_text="ValueError: bad batch 7")
    expect(last).to_have_attribute("data-level", "bad")
    page.locator(".log-row:visible", has_text="WARNING").first.click()
    expect(page.locator("#logs-same")).to_contain_text("8 ranks said this, 8 times")
    expect(page.locator("#logs-same")).to_contain_text(re.compile("ranks 0.7"))
    expect(page.locator("#logs-same")).to_contain_text("first rank 0 on node0")
    page.locator("#logs").focus()
    page.keyboard.press("End")
    expect(page.locator("#logs-same")).to_contain_text("1 rank said this")
    expect(page.locator("#announce")).to_contain_text("1 rank said this")


def test_rank_level_and_search_are_in_the_address(held: Served, watched: Watched) -> None:
    for rank in range(8):
        say(held, rank, f"hello from {rank}\nERROR: no route to host {rank}\n")
    page = open_page(watched, held, "#/logs")
    page.locator("#logs-rank").fill("2-3")
    page.keyboard.press("Enter")
    expect(page.locator("#logs-about")).to_have_text("4 of 4 lines")
    page.locator("#logs-grep").fill("error: .* 3$")
    page.keyboard.press("Enter")
    expect(page.locator("#logs-about")).to_have_text("1 of 4 lines")
    assert "rank=2-3" in page.url
    page.reload()
    expect(page.locator("#logs-about")).to_have_text("1 of 4 lines")
    page.locator("#logs-grep").fill("(")
    page.keyboard.press("Enter")
    expect(page.locator("#logs-problem")).to_contain_text("no regular expression")
    with page.expect_request(re.compile("/logs.*level=error")):
        page.locator("#logs-level").select_option("error")


def test_many_lines_are_few_elements_and_an_open_stream_is_only_of_the_view(held: Served, watched: Watched) -> None:
    for i in range(3000):
        say(held, i % 8, f"line {i}")
    page = open_page(watched, held, "#/logs")
    expect(page.locator("#logs-about")).to_have_text("3,000 of 3,000 lines")
    expect(page.locator(".log-row:visible", has_text="line 2999")).to_be_visible()
    assert page.locator(".log-row").count() < 120
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.get_by_role("link", name="Nodes", exact=True).click()
    expect(page.locator("#view-title")).to_have_text("Nodes")
    page.wait_for_timeout(500)
    assert not [url for url in asked if "/logs" in url]


def test_of_the_past_only_what_was_printed_by_then(held: Served, watched: Watched) -> None:
    say(held, 0, "early")
    early = held.facade.now
    held.tick(30)
    say(held, 0, "late")
    page = open_page(watched, held, f"#/logs?at={early + 5:.0f}")
    expect(page.locator(".log-row:visible")).to_have_count(1)
    expect(page.locator(".log-row:visible")).to_contain_text("early")
