"""No view of the page has a fault of accessibility that axe calls serious, in both themes."""

from typing import Literal

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from tests.browser import Watched
from tests.controller.page.served import Served
from tests.controller.support.fake_past import LOST_S

VIEWS = {
    "#/overview": "#mesh-shape",
    "#/overview?mesh=3d&rank=3": "#relations",
    "#/incidents/i1": "#story",
    "#/slow": "#culprits",
    "#/nodes/node1": "#nodes",
    "#/run": "#curves-title",
    "#/logs": "#logs-title",
    "#/runbook/worker-killed": "#runbook-title",
}
GRAVE = ("serious", "critical")


COLOURS = ("color-contrast", "link-in-text-block")
"""The rules for which a theme makes a difference: it sets colours, and nothing else (style.css)."""


def faults(page: Page, within: str, rules: tuple[str, ...] = ()) -> list[str]:
    """By these rules; by all without any. `within`: a selector; empty: the whole page, and how its parts are named."""
    options = {"resultTypes": ["violations"], **({"runOnly": {"type": "rule", "values": rules}} if rules else {})}
    found = page.evaluate("([part, options]) => axe.run(part || document, options)", [within, options])
    return [
        f"{one['id']}: {node['target']} {node['failureSummary']}"
        for one in found["violations"] if one["impact"] in GRAVE for node in one["nodes"]
    ]  # fmt: skip


def check(page: Page, where: str, within: str = "main") -> None:
    """What is shown, in both themes."""
    assert faults(page, within) == [], where
    show(page, "dark")
    assert faults(page, within, COLOURS) == [], f"{where}, dark"
    show(page, "light")


def show(page: Page, theme: Literal["light", "dark"]) -> None:
    page.emulate_media(color_scheme=theme)
    expect(page.locator("html")).to_have_attribute("data-theme", theme)


def test_no_view_has_a_serious_fault(held: Served, watched: Watched) -> None:
    held.fault(3)
    past = f"#/overview?at={held.facade.now - LOST_S[0] + 60:.0f}"
    page = watched.page
    page.goto(held.url)
    page.evaluate(Axe().axe_script)  # views are changed within the document
    for address, shown in {**VIEWS, past: "#lane-now"}.items():
        page.goto(held.url + address)
        expect(page.locator("#connection")).to_have_text("live")
        expect(page.locator(shown)).to_be_visible()
        page.wait_for_timeout(300)  # until what was asked for is drawn
        # What is around the view is the same in all, but for the time that is shown.
        check(page, address, "" if address in ("#/overview", past) else "main")
        if address == "#/slow":
            page.locator("#timeline-predicted").click()
            expect(page.locator("#predicted-ranks table")).to_be_visible()
            check(page, "with a prediction")
    page.goto("about:blank")
