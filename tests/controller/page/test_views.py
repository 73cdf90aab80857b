"""What each view of the page shows of a job with a slow rank, in a real browser."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import expect

from benchmarks.simulated_spans import Job
from holdfast.cli.study.timeline_svg import COLOURS
from holdfast.controller.simulation.step_spans import spans_of
from holdfast.plan.plan import Action, Op
from holdfast.wire.plans import encode_plan
from tests.browser import Watched
from tests.conftest import Until
from tests.controller.page.served import Served, open_page, pixels_of
from tests.controller.support.fake_spans import traced

pytestmark = [pytest.mark.slow, pytest.mark.calm]


def test_job_reports_what_it_is_and_where_its_steps_go(served: Served, watched: Watched) -> None:
    page = open_page(watched, served, "#/run")
    expect(page.locator("#facts")).to_contain_text("train.py --config demo.toml")
    expect(page.locator("#facts")).to_contain_text("1f1b, 1 micro-batches")
    expect(page.locator("#facts")).to_contain_text(re.compile(r"\d m?s, planned 250 ms \(.\d+%\)"))
    expect(page.locator("#facts")).to_contain_text(
        re.compile(r"slower than plannedsince \d\d:\d\d:\d\d: messages between stages 0 and 1")
    )
    expect(page.locator("#parts tbody tr")).to_have_count(5)
    expect(page.locator("#tokens-value")).to_have_text(re.compile(r"\d"))
    expect(page.locator("#ledger")).to_contain_text("saved steps")
    expect(page.locator("#ledger")).to_contain_text("repeating lost steps500 ms")
    page.locator("#facts").get_by_role("link", name="node1").click()
    expect(page.locator("#history-title")).to_contain_text("node1")


def test_layout_shows_who_sits_where_and_what_leaves_each_node(served: Served, watched: Watched) -> None:
    page = open_page(watched, served, "#/run")
    places = page.locator("#layout a.place")
    expect(places).to_have_count(len(served.facade.boxes()))
    expect(page.locator("#layout-about")).to_have_text("each box is a node, with its ranks")
    expect(places.nth(1)).to_have_attribute(
        "title", re.compile(r"node1: ranks 4.7, pipeline rank \d; sends 20 MB of a step out of it, counted 84 MB")
    )
    expect(page.locator("#layout .place.off")).to_have_count(1)
    expect(page.locator("#facts")).to_contain_text(re.compile(r"off its plansince [\d:]+: node1 sends 84 MB"))
    # The longest bar is what node1 was counted to send.
    wide = places.evaluate_all(
        "all => all.map((one) => [...one.querySelectorAll('.sent i')].map((i) => i.style.width))"
    )
    assert wide[1] == ["23.8095%", "100%"]
    assert page.locator("#layout .legend i").count() == served.facade.pp
    places.nth(1).click()
    expect(page.locator("#history-title")).to_contain_text("node1")


def test_curves_show_earlier_generations_and_another_job_behind_the_own(served: Served, watched: Watched) -> None:
    page = open_page(watched, served, "#/run")
    for name in ("loss", "norm", "time", "tokens", "mfu"):
        expect(page.locator(f"#{name}-value")).to_have_text(re.compile(r"\d"))
    expect(page.locator("#curves-behind")).to_be_empty()
    expect(page.locator("#curves-other")).to_be_hidden()
    served.do(lambda: served.facade.fault(3), served.facade.recover)
    expect(page.locator("#curves-behind")).to_have_text("faint: 1 earlier generation, done again since")
    assert page.evaluate("fetch('/api/v1/steps/superseded').then((a) => a.json()).then((s) => s.step.length)") == 3
    served.do(lambda: served.facade.add_job("other"))
    page.locator("#curves-job").select_option(label="demo")
    expect(page.locator("#curves-behind")).to_contain_text("dashed: demo")


def test_blame_names_the_slow_rank_and_what_it_costs(served: Served, watched: Watched) -> None:
    page = open_page(watched, served, "#/slow")
    culprit = page.locator("#culprits .culprit").first
    expect(culprit).to_contain_text("rank 6")
    expect(culprit).to_contain_text("slower than its 3 peers")
    expect(page.locator("#whatif")).to_contain_text("tokens/s")
    account = page.evaluate("fetch('/api/v1/blame').then((answer) => answer.json()).then((blame) => blame.account)")
    expect(page.locator("#culprits .account .big")).to_have_text(account["text"])
    expect(page.locator("#culprits .account .bar i")).to_have_count(len(account["parts"]))
    cost = next(part["figure"] for part in account["parts"] if part["culprit"] == 0)
    expect(culprit).to_contain_text(f"costs {cost} {account['unit']} a step")
    assert "waiting for rank 6" in account["text"]
    expect(page.locator("#culprits .course").first).to_contain_text(
        re.compile(r"since \d\d:\d\d:\d\d \(10 min .* of the step at most")
    )
    assert page.locator("#culprits .course polyline").first.get_attribute("points")
    expect(page.locator("#path li", has_text="rank 6").first).to_be_visible()
    starts = page.locator("#path li > span:first-child").all_inner_texts()
    assert starts[0].startswith("0"), "in the order of time"
    expect(page.locator("#shares tbody tr")).to_have_count(8)
    expect(page.locator("#shares tbody th").first).to_have_text("rank 6")
    page.get_by_role("radio", name="Waited", exact=True).click()
    expect(page.locator("#shares tbody th").first).not_to_have_text("rank 6")
    page.locator("#blame-step").fill("4")
    page.keyboard.press("Enter")
    expect(page.locator("#blame-about")).to_contain_text("step 4")
    assert page.url.endswith("#/slow?step=4")
    page.locator("#blame-step").fill("4000")
    page.keyboard.press("Enter")
    expect(page.locator("#culprits")).to_contain_text("no spans of steps 4000")
    watched.complaints[:] = [text for text in watched.complaints if "404 (Not Found)" not in text]


def test_heat_map_of_ranks_finds_the_worst_cell(served: Served, watched: Watched) -> None:
    page = open_page(watched, served, "#/slow")
    expect(page.locator("#heat-about")).to_contain_text("rank 6")
    page.locator("#heat").focus()
    page.keyboard.press("n")
    expect(page.locator("#detail-title")).to_have_text("Rank 6")
    expect(page.locator("#announce")).to_contain_text("median of its peers")
    assert page.url.endswith("#/slow?rank=6")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#detail-title")).to_have_text("Rank 7")
    page.keyboard.press("+")
    page.keyboard.press("0")
    expect(page.locator("#stepheat-about")).to_contain_text("slowest: node1")
    page.get_by_role("radio", name="Worst ranks").click()
    expect(page.locator("#stepheat-about")).to_contain_text("slowest: rank 6")
    page.locator("#stepheat").focus()
    page.keyboard.press("Home")
    expect(page.locator("#announce")).to_contain_text("rank 6, step")
    page.get_by_role("radio", name="Share of the step").click()
    expect(page.locator("#heat-high")).to_have_text("100%")


def test_timeline_is_walked_by_keys_and_saved_for_perfetto(served: Served, watched: Watched) -> None:
    page = open_page(watched, served, "#/slow?from=2&to=3&ranks=2,6")
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
    expect(page.locator("#timeline-table")).to_contain_text("of it waiting")
    expect(page.locator("#timeline-legend")).to_contain_text("waiting")
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


def test_a_steps_prediction_is_drawn_under_its_ranks_on_request(served: Served, watched: Watched) -> None:
    page = open_page(watched, served, "#/slow?from=2&to=3&ranks=2,6")
    switch = page.locator("#timeline-predicted")
    expect(switch).to_have_attribute("aria-pressed", "false")
    expect(page.locator("#predicted")).to_be_hidden()
    assert pixels_of(page, "plan-forward", "timeline") == 0, (
        "the measured colours are the page's own until a prediction is shown"
    )
    switch.click()
    expect(page.locator("#predicted-numbers")).to_contain_text("Step 3, 1f1b, with its own times: pipeline")
    expect(page.locator("#predicted-numbers")).to_contain_text("predicted.")
    expect(page.locator("#predicted-text")).to_contain_text("micro-batch")
    expect(page.locator("#predicted-ranks tbody tr")).to_have_count(2)
    expect(page.locator("#timeline-legend")).to_contain_text("input gradients")
    page.wait_for_function("() => document.getElementById('timeline').dataset.paired === '3'")
    assert min(pixels_of(page, "plan-forward", "timeline"), pixels_of(page, "plan-backward", "timeline")) > 100
    page.locator("#predicted-ranks button", has_text="rank 6").click()
    expect(page.locator("#announce")).to_contain_text("Rank 6:")
    page.locator("#predicted-times").fill("2")
    page.keyboard.press("Enter")
    expect(page.locator("#predicted-numbers")).to_contain_text("with the times of step 2")
    page.locator("#predicted-used summary").click()
    expect(page.locator("#predicted-used caption")).to_have_text("Times of step 2")
    page.locator("#timeline").focus()
    page.keyboard.press("Home")  # a span of step 2
    expect(page.locator("#predicted-numbers")).to_contain_text("Step 2, 1f1b")
    switch.click()
    expect(page.locator("#predicted")).to_be_hidden()
    expect(page.locator("#timeline-legend")).not_to_contain_text("input gradients")


def test_curvature_and_host_copies_have_colours_of_their_own(served: Served, watched: Watched, until: Until) -> None:
    _, shape = traced(served.facade)
    job = Job(served.facade.pp, served.facade.dp, served.facade.tp)
    plan = job.plan()
    more = (Op.FETCH, Op.FACTOR, Op.INVERT, Op.PRECOND, Op.EVICT)
    plan = replace(
        plan, orders=tuple((*order, *(Action(op, stage) for op in more)) for stage, order in enumerate(plan.orders))
    )
    served.facade.traced = spans_of(job, plan, [], 4, 1), replace(shape, plan=encode_plan(plan))
    page = open_page(watched, served, "#/slow?from=2&to=2&ranks=2,6")
    expect(page.locator("#timeline-about")).to_contain_text("step 2")
    legend = page.locator("#timeline-legend")
    for name in ("curvature", "host copies"):
        expect(legend.locator("span", has_text=re.compile(f"^{name}$"))).to_have_count(1)
    for name in ("span-curvature", "span-copies"):  # drawn in the frame after that text
        until(lambda name=name: pixels_of(page, name, "timeline") > 100, says=name)  # type: ignore[misc]
    page.locator("#timeline-predicted").click()
    page.wait_for_function("() => document.getElementById('timeline').dataset.paired === '2'")
    for name in ("plan-curvature", "plan-copies"):
        assert pixels_of(page, name, "timeline") > 100, name
    expect(legend).to_contain_text("curvature")
    expect(legend).to_contain_text("host copies")


def test_a_job_without_a_plan_has_no_switch_for_a_prediction(served: Served, watched: Watched) -> None:
    table, shape = traced(served.facade)
    served.facade.traced = table, replace(shape, plan=b"")
    page = open_page(watched, served, "#/slow?from=2&to=3&ranks=2,6")
    expect(page.locator("#timeline-about")).to_contain_text("steps 2 to 3")
    expect(page.locator("#timeline-predicted")).to_be_hidden()


def test_a_prediction_has_the_colours_of_a_drawn_schedule() -> None:
    css = (Path(__file__).parents[3] / "controller" / "page" / "views.css").read_text()
    names = {
        Op.FORWARD: "forward", Op.BACKWARD: "backward", Op.BACKWARD_INPUT: "input", Op.BACKWARD_WEIGHT: "weight",
        Op.RECOMPUTE: "recompute",
    }  # fmt: skip
    assert names.keys() == COLOURS.keys()
    for op, name in names.items():
        assert re.findall(rf"--plan-{name}: (#\w+);", css) == ["#" + "".join(f"{part:02x}" for part in COLOURS[op])]


def test_mesh_in_three_dimensions_reports_groups_and_blame(served: Served, watched: Watched) -> None:
    page = open_page(watched, served, "#/overview?mesh=3d&rank=6")
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
    expect(page.locator("#mesh3d-legend")).to_contain_text("healthy")
    relations.get_by_role("link", name="3", exact=True).first.click()
    expect(page.locator("#detail-title")).to_have_text("Rank 3")


def test_the_mesh_is_coloured_by_blame_or_by_state(served: Served, watched: Watched, until: Until) -> None:
    page = open_page(watched, served, "#/overview?mesh=3d")

    def is_drawn_in(*names: str) -> bool:
        """Whether the ranks have these colours and no others."""
        found = {name: pixels_of(page, name) for name in ("bad", "wait-cell", "ok-cell", "idle")}
        return {name for name, count in found.items() if count} == set(names)

    until(lambda: is_drawn_in("bad", "wait-cell"))  # one slow rank of eight
    bad = pixels_of(page, "bad")
    page.get_by_role("radio", name="State", exact=True).last.click()
    until(lambda: is_drawn_in("ok-cell"))
    page.get_by_role("radio", name="Blame", exact=True).last.click()
    until(lambda: is_drawn_in("bad", "wait-cell"))
    assert bad < pixels_of(page, "wait-cell")


def test_a_node_shows_its_verdicts_and_its_steps(served: Served, watched: Watched) -> None:
    served.facade.diagnosed.append({})
    page = open_page(watched, served, "#/nodes/node0")
    expect(page.locator("#history table")).to_contain_text("gemm")
    expect(page.locator("#history .pill")).to_have_text("fail")
    expect(page.locator("#traffic-period")).to_contain_text("repeats every")
    page.locator("#nodes").focus()
    page.keyboard.press("End")
    expect(page.locator("#history-title")).to_contain_text("node2")
    expect(page.locator("#history")).to_contain_text("Not diagnosed yet")


def test_several_jobs_have_a_list_and_each_its_own_page(served: Served, watched: Watched) -> None:
    other = served.facade.add_job("second", priority=3, pp=1, dp=1, tp=2)
    page = open_page(watched, served)
    jobs = page.locator("#jobs a")
    expect(jobs).to_have_count(2)
    expect(page.locator("#job-name")).to_have_text("second")  # the newest, where the address names none
    expect(page.locator("#jobs a[aria-current]")).to_contain_text("second running")
    expect(page.locator("#jobs a[aria-current]")).to_contain_text("priority 3")
    first = jobs.filter(has_not_text="second")
    first.click()
    expect(page.locator("#job-name")).not_to_have_text("second")
    assert "job=job-1" in page.url
    page.click("#views a[data-view=run]")
    assert "job=job-1" in page.url, "the job stays through the views"
    page.wait_for_function("document.querySelectorAll('#views a')[0].href.includes('job=job-1')")
    served.do(lambda: other.fault(0))
    served.tick(1)
    page.click("#views a[data-view=overview]")
    expect(page.locator("#health-sentence")).to_contain_text(
        "with 0 restarts"
    )  # what happens to the other is none of its incidents
    page.locator("#jobs a", has_text="second").click()
    expect(page.locator("#health-sentence")).to_contain_text("with 1 restart so far")
