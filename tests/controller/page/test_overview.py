"""The overview: the health of a job in the words of the API, its figures, what waits for a person, on one screen."""

import re
from dataclasses import replace

import pytest
from playwright.sync_api import Page, expect

from holdfast.controller.health.facts import Facts, Fault, Pause, Slow
from holdfast.controller.health.judge import Condition, judge
from holdfast.controller.state.model import JobStatus
from tests.browser import Watched
from tests.controller.page.served import Served, open_page

pytestmark = [pytest.mark.slow, pytest.mark.calm]
NOW = 1_790_000_000.0
WELL = Facts(NOW, JobStatus.RUNNING, since=NOW - 500, step=892, stepped_at=NOW - 1, step_seconds=2.0, world=8, nodes=2,
             safe=880)  # fmt: skip
KILL = Fault("i7", "worker-killed", "rank3", "received SIGKILL", NOW - 4, "node0", "restart", "restore", NOW - 2)
SLOW = Slow(6, -1, "node1", 0.07, "rank 6 (node1): compute is 12% slower than that of its 3 peers")
STORIES = {
    Condition.FAILED: replace(WELL, state=JobStatus.FAILED, ended=replace(KILL, text="ValueError: <b>bad</b> shape")),
    Condition.STOPPED: replace(WELL, state=JobStatus.STOPPED, reason="stopped by hand"),
    Condition.NO_PROGRESS: replace(WELL, stepped_at=NOW - 60, slow=(SLOW,), doubtful=(("node1", "lost"),)),
    Condition.RECOVERING: replace(WELL, state=JobStatus.RECOVERING, live=KILL, usual_recovery=12.0),
    Condition.SLOW: replace(WELL, slow=(SLOW,)),
    Condition.PAUSED: replace(WELL, pause=Pause("busy", "rank 0 writes 212 MB/s", NOW - 18, 1800.0, 16.0)),
    Condition.AT_RISK: replace(WELL, at_risk=2 * 3600.0),
    Condition.WAITING: replace(WELL, state=JobStatus.PENDING, reason="waiting for nodes: 2 nodes are wanted"),
    Condition.STARTING: replace(WELL, state=JobStatus.STARTING),
    Condition.WELL: WELL,
    Condition.FINISHED: replace(WELL, state=JobStatus.FINISHED, restarts=1),
}
BUTTONS = {
    Condition.FAILED: "Open incident i7",
    Condition.NO_PROGRESS: "Stacks",
    Condition.RECOVERING: "Open incident i7",
    Condition.SLOW: "Diagnose node1",
    Condition.AT_RISK: "Checkpoint now",
    Condition.WAITING: "Nodes",
}


def shows(held: Served, facts: Facts) -> None:
    held.facade.facts = facts
    held.tick(1)


def test_every_condition_is_printed_in_the_words_of_the_api(held: Served, watched: Watched) -> None:
    assert set(STORIES) == set(Condition)
    page = open_page(watched, held)
    for condition, facts in STORIES.items():
        found = judge(facts)
        shows(held, facts)
        expect(page.locator("#health")).to_have_attribute("data-condition", condition.value)
        expect(page.locator("#health-sentence")).to_have_text(found.lead.sentence)
        expect(page.locator("#health-action")).to_have_text(found.lead.action.replace("`", ""))
        doing = [found.lead.doing] if found.lead.doing else []
        expect(page.locator("#health-doing")).to_contain_text("".join(doing))
        expect(page.locator("#health-others li")).to_have_count(len(found.others))
        for at, other in enumerate(found.others):
            row = page.locator("#health-others li").nth(at)
            expect(row).to_have_text(f"{other.condition.value} {other.sentence}")
        assert page.locator("#health-basis li").all_text_contents() == list(found.lead.basis)
        expect(page.locator("#health-button > *")).to_have_text([BUTTONS[condition]] if condition in BUTTONS else [])
        fits(page)


def test_the_usual_time_stands_with_what_is_being_done(held: Served, watched: Watched) -> None:
    page = open_page(watched, held)
    shows(held, STORIES[Condition.RECOVERING])
    expect(page.locator("#health-doing")).to_have_text("restart: restore (usually takes 12.0 s)")


def test_a_diagnosis_is_asked_for_twice(held: Served, watched: Watched) -> None:
    page = open_page(watched, held)
    shows(held, STORIES[Condition.SLOW])
    page.get_by_role("button", name="Diagnose node1").click()
    page.get_by_role("button", name="Really? The job is slower meanwhile").click()
    expect(page.locator("#health-answer")).to_have_text("diagnosis d1 of node1 started: see Nodes")
    assert held.facade.diagnosed == [{"nodes": ["node1"], "suite": "quick", "tests": [], "busy": True, "passes": 0}]


def test_stacks_are_one_click_away(held: Served, watched: Watched) -> None:
    page = open_page(watched, held)
    shows(held, STORIES[Condition.NO_PROGRESS])
    page.locator("#health-button").get_by_role("link", name="Stacks").click()
    leaves = page.locator("#stacks .leaf")
    expect(leaves.first).to_contain_text(re.compile("3 1 of 8:.*train.py:30 read.*data.py:7 open", re.DOTALL))
    expect(leaves.first).to_have_attribute("data-ranks", "few")
    expect(leaves.nth(1)).to_contain_text("train.py:12 wait")
    expect(page.locator("#stacks")).to_contain_text("node1 did not answer: away")
    page.locator("#stacks summary").click()
    expect(leaves.first).to_be_hidden()
    assert page.url.endswith("#/incidents")


def test_six_figures_have_their_last_hour(held: Served, watched: Watched) -> None:
    page = open_page(watched, held)
    tiles = page.locator("#figures div")
    expect(tiles.locator("dt")).to_have_text(["Step", "Tokens/s", "MFU", "Goodput", "Work at risk", "Spares"])
    for at in range(6):
        line = tiles.nth(at).locator("polyline")
        expect(line).to_have_attribute("points", re.compile(r"\d,"))
        points = [tuple(map(float, point.split(","))) for point in (line.get_attribute("points") or "").split()]
        assert len(points) >= 2
        assert all(0 <= x <= 200 and 0 <= y <= 30 for x, y in points)
    expect(tiles.nth(3)).to_contain_text("97.1%")
    expect(tiles.nth(4)).to_contain_text("node: 1.60 s, job: 42.0 s")


def test_what_needs_a_person_has_five_rows_and_a_runbook(held: Served, watched: Watched) -> None:
    page = open_page(watched, held)
    for rank in range(7):
        held.do(lambda rank=rank: held.facade.fault(rank).update(state="failed"))  # type: ignore[misc]
    held.do(lambda: held.facade.fault(1, "worker-oom"))
    held.tick(1)
    rows = page.locator("#needs li")
    expect(rows).to_have_count(5)
    expect(page.locator("#needs-count")).to_have_text("the worst 5 of 8")
    fits(page)
    rows.first.get_by_role("link", name="runbook").click()
    expect(page.locator("#runbook-title")).to_have_text("Runbook: worker-killed")
    expect(page.locator("#runbook")).to_contain_text("A worker received SIGKILL, but not from the OOM killer.")


def test_a_lost_node_needs_a_person_even_without_an_incident(held: Served, watched: Watched) -> None:
    page = open_page(watched, held)
    held.facade.node_rows[1]["state"] = "lost"
    held.tick(1)
    row = page.locator("#needs li")
    expect(row).to_contain_text("node1 is lost")
    expect(row.get_by_role("link", name="runbook")).to_have_attribute("href", "#/runbook/agent-exit")


def test_what_the_health_says_needs_a_person_is_listed_and_what_it_bears_is_not(held: Served, watched: Watched) -> None:
    facade = held.facade
    facade.facts = replace(WELL, safe=None, repeated=57)
    held.do(lambda: facade.fault(2, "straggler"))
    page = open_page(watched, held)
    rows = page.locator("#needs li")
    expect(rows).to_have_count(2)
    expect(rows.first).to_contain_text("at risk")
    expect(rows.first).to_contain_text("The restart lost all 57 steps: no checkpoint is configured.")
    facade.facts = replace(WELL, slow=(SLOW,))
    held.tick(1)
    expect(page.locator("#health")).to_have_attribute("data-condition", "slow")
    expect(page.locator("#needs")).to_contain_text("Nothing.")


def fits(page: Page) -> None:
    """Nothing scrolls: neither the page nor a panel of it."""
    found = page.evaluate("""() => [document.scrollingElement, ...document.querySelectorAll("main, main *")]
      .filter((each) => each.checkVisibility() && each.scrollHeight > each.clientHeight + 1 && each.clientHeight > 0
        && (each === document.scrollingElement || /auto|scroll/.test(getComputedStyle(each).overflowY)))
      .map((each) => each.id || each.className || each.tagName)""")
    assert found == []
    assert page.viewport_size == {"width": 1440, "height": 900}
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    lowest = page.evaluate(
        "Math.max(...[...document.querySelectorAll('main section')].map((e) => e.getBoundingClientRect().bottom))"
    )
    assert lowest <= 900


def test_the_mesh_is_arranged_by_node_or_switch_and_the_address_says_so(served: Served, watched: Watched) -> None:
    page = open_page(watched, served, "#/overview?rank=5")
    expect(page.locator("#mesh-shape")).to_have_text(re.compile("pp 2 . dp 2 . tp 2 . 8 ranks"))
    page.get_by_role("radio", name="Node", exact=True).click()
    expect(page.locator("#mesh-shape")).to_have_text("2 nodes · 8 ranks")
    assert "mesh=node" in page.url
    assert "rank=5" in page.url
    page.get_by_role("radio", name="Switch", exact=True).click()
    expect(page.locator("#mesh-shape")).to_have_text("1 switch · 8 ranks")
    page.reload()
    expect(page.locator("#mesh-shape")).to_have_text("1 switch · 8 ranks")
    expect(page.get_by_role("radio", name="Switch", exact=True)).to_have_attribute("aria-checked", "true")
    expect(page.locator("#legend")).to_contain_text("running")  # it is drawn
    page.locator("#mesh-canvas").focus()
    page.keyboard.press("Home")
    expect(page.locator("#announce")).to_contain_text("switch tor-0")
    page.get_by_role("radio", name="Mesh", exact=True).click()
    expect(page.locator("#mesh-shape")).to_contain_text("pp 2")
    assert "mesh=" not in page.url
