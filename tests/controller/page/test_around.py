"""What stands beside an incident's story."""

import re

from playwright.sync_api import expect

from tests.browser import Watched
from tests.controller.page.served import Served, open_page
from tests.controller.page.test_logs import say


def test_the_last_lines_the_runbook_and_what_was_earlier(held: Served, watched: Watched) -> None:
    for i in range(50):
        say(held, 3, f"line {i}", 2)
    say(held, 3, "Traceback (most recent call last):\nValueError: bad batch 7", 2)
    say(held, 2, "of another rank")
    held.fault(2)
    held.tick(6)
    held.fault(3)
    page = open_page(watched, held, "#/incidents/i2")
    around = page.locator("#around")
    expect(around).to_contain_text("Last lines of rank 3")
    expect(around).to_contain_text("ValueError: bad batch 7")
    expect(around).not_to_contain_text("of another rank")
    expect(around).not_to_contain_text("line 10\n")
    expect(around.locator("[data-level=bad]")).to_have_count(2)
    expect(around).to_contain_text("What you can do")
    expect(around.locator("li", has_text="i1")).to_contain_text("worker killed on rank2 same node")


def test_it_is_copied_as_markdown_and_the_node_can_be_tested(held: Served, watched: Watched) -> None:
    page = open_page(watched, held)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    held.fault(3)
    page.goto(f"{held.url}#/incidents/i1")
    page.get_by_role("button", name="Copy as Markdown").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    text = page.evaluate("navigator.clipboard.readText()")
    assert text.startswith("# i1: worker-killed on rank3 of job job-1\n")
    assert "## Phases" in text
    assert "## Findings" in text
    assert f"{held.url}#/incidents/i1" in text
    page.get_by_role("button", name="Test node0").click()
    page.get_by_role("button", name="Really?").click()
    expect(page.locator("#around-said")).to_have_text("Test node0: requested")
    assert held.facade.diagnosed[-1]["nodes"] == ["node0"]


def test_the_timeline_around_it_is_drawn_where_its_spans_are_kept(held: Served, watched: Watched) -> None:
    page = open_page(watched, held)
    held.fault(2)
    held.tick(6)
    held.do(lambda: setattr(held.facade, "step", 3), lambda: held.facade.fault(3))
    page.goto(f"{held.url}#/incidents/i1")
    expect(page.locator("#around")).to_contain_text("Runbook")
    expect(page.locator("#around canvas")).to_have_count(0)
    page.goto(f"{held.url}#/incidents/i2")
    canvas = page.locator("#around canvas")
    expect(canvas).to_have_attribute("aria-label", re.compile(r"Timeline of steps 1 to 5, ranks 1.3, 7"))
    # Read from a copy, which may be read often: of a canvas itself Chromium complains from the second time on.
    colours = """canvas => {
      const copy = Object.assign(document.createElement("canvas"), { width: canvas.width, height: canvas.height });
      const context = copy.getContext("2d", { willReadFrequently: true });
      context.drawImage(canvas, 0, 0);
      return new Set(new Uint32Array(context.getImageData(0, 0, copy.width, copy.height).data.buffer)).size;
    }"""
    page.wait_for_function(f"canvas => ({colours})(canvas) > 20", arg=canvas.element_handle())
    page.get_by_role("link", name="Timeline of steps 1 to 5").last.click()
    expect(page.locator("#view-title")).to_have_text("Slow")
    assert "from=1" in page.url
