"""No view of the page has a fault of accessibility that axe calls serious, in both themes."""

from typing import Literal

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from tests.browser import watching
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


def faults(page: Page) -> list[str]:
    found = Axe().run(page).response["violations"]
    return [
        f"{one['id']}: {node['target']} {node['failureSummary']}"
        for one in found if one["impact"] in GRAVE for node in one["nodes"]
    ]  # fmt: skip


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_no_view_has_a_serious_fault(served: Served, browser: Browser, theme: Literal["light", "dark"]) -> None:
    served.fault(3)
    past = f"#/overview?at={served.facade.now - LOST_S[0] + 60:.0f}"
    with watching(browser, theme=theme) as watched:
        page = watched.page
        for address, shown in {**VIEWS, past: "#lane-now"}.items():
            page.goto(served.url + address)
            expect(page.locator("#connection")).to_have_text("live")
            expect(page.locator(shown)).to_be_visible()
            page.wait_for_timeout(300)  # until what was asked for is drawn
            assert faults(page) == [], address
            if address == "#/slow":
                page.locator("#timeline-predicted").click()
                expect(page.locator("#predicted-ranks table")).to_be_visible()
                assert faults(page) == [], "with a prediction"
        page.goto("about:blank")
