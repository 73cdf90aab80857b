"""The page under a real job with a fault: every view shows something of it, without errors."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from holdfast.cli.local.cluster import LocalCluster
from tests.browser import Watched, chromium, watching
from tests.e2e.daemons import SMALL_MODEL, Commands, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
PATIENCE = 30_000  # ms that a view may take on a busy machine
# This test is about one death, not about heartbeats and steps that a busy machine delays.
CALM = "straggler.action=off,step-time-jump.action=off"
PATIENT = ("--hang-floor", "8s", "--silence-floor", "8s", "--detectors", CALM)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def watched(browser: Browser) -> Iterator[Watched]:
    with watching(browser) as watched:
        yield watched


def test_every_view_reports_a_real_job(holdfast: Commands, tmp_path: Path, watched: Watched) -> None:
    with LocalCluster(tmp_path / "cluster", nodes=2, slots=2, controller_flags=PATIENT) as cluster:
        argv = ("--nnodes", "2", "--nproc-per-node", "2", "--name", "watched", "-m", "holdfast.trainer")
        store = f"file://{tmp_path / 'store'}"
        mesh = (
            "--dp",
            "2",
            "--tp",
            "2",
            "--steps",
            "1000000",
            "--store",
            store,
            "--checkpoint-every",
            "5",
            *SMALL_MODEL,
        )
        run = holdfast.start("run", "--controller", cluster.http, *argv, *mesh)
        client = cluster.client

        def step() -> int:
            assert run.process.poll() is None, run.err[-3000:]
            job = client.job()
            return -1 if job is None or job["step"] is None else int(job["step"])

        wait_for(lambda: step() >= 10, 120)
        client.inject("kill:rank3")
        wait_for(
            lambda: any(one["kind"] == "worker-killed" and one["closed"] for one in client.incidents()),
            60,
            client.incidents,
        )
        after = step()
        wait_for(lambda: step() >= after + 12, 60)
        client.inject("slow:rank0/load+400")  # the processors are the browser's

        page = watched.page
        page.set_default_timeout(PATIENCE)
        expect.set_options(timeout=PATIENCE)

        def view(name: str) -> None:
            page.locator("#views").get_by_role("link", name=name, exact=True).click()

        page.goto(f"http://{cluster.http}/")
        expect(page.locator("#connection")).to_have_text("live")
        expect(page.locator("#job-name")).to_have_text("watched")
        expect(page.locator("#mesh-shape")).to_contain_text("4 ranks")
        expect(page.locator("#health-sentence")).to_contain_text("with 1 restart so far")
        expect(page.locator("#figures div")).to_have_count(6)
        expect(page.locator("#figures div", has_text="Goodput")).to_contain_text("%")
        view("Run")
        expect(page.locator("#ledger")).to_contain_text("restoring state")
        expect(page.locator("#norm-value")).to_have_text(re.compile(r"\d"))
        expect(page.locator("#parts tbody tr").first).to_be_visible()
        expect(page.locator("#facts")).to_contain_text("holdfast.trainer")
        view("Slow")
        expect(page.locator("#heat-about")).to_contain_text("steps")
        page.locator("#heat").focus()
        page.keyboard.press("n")
        expect(page.locator("#detail-title")).to_contain_text("Rank")
        expect(page.locator("#shares tbody tr")).to_have_count(4)
        expect(page.locator("#path li").first).to_contain_text("rank")
        expect(page.locator("#timeline-about")).to_contain_text("4 ranks")
        page.locator("#timeline").focus()
        page.keyboard.press("ArrowRight")
        expect(page.locator("#announce")).to_contain_text("took")
        view("Nodes")
        expect(page.locator("#nodes .node-row:visible")).to_have_count(2)
        page.locator("#nodes").focus()
        page.keyboard.press("Home")
        expect(page.locator("#traffic-node")).to_have_text(client.nodes()[0]["name"])
        expect(page.locator("#stepheat-about")).to_contain_text("slowest")
        view("Incidents")
        expect(page.locator("#story")).to_contain_text("Decided")
        expect(page.locator("#story")).to_contain_text("Closed")
        expect(page.locator("#around canvas")).to_have_attribute("aria-label", re.compile(r"Timeline of steps \d+ to"))
        page.get_by_role("button", name="Stacks").click()
        expect(page.locator("#stacks .tree")).to_contain_text("of 4:")
        view("Overview")
        page.locator("#mesh-3d").click()
        page.locator("#mesh3d").focus()
        page.keyboard.press("ArrowRight")
        expect(page.locator("#relations")).to_contain_text("tensor group")
        view("Run")
        page.get_by_role("button", name="Checkpoint now").click()
        page.get_by_role("button", name="Really checkpoint?").click()
        expect(page.locator("#job-answer")).to_contain_text("is requested")
        page.close()  # it would ask a controller that has ended
        client.stop(1.0)
        run.process.wait(30)  # else it looks for its controller for a while
