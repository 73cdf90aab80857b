"""The picture of a timeline: boxes are where the simulator says, on the right row, with the right number."""

import re
from xml.etree import ElementTree

import pytest

from holdfast.cli.study.timeline_svg import COLOURS, LEFT, TOP, fill, svg
from holdfast.plan.plan import COMPUTE, Action, Layers, Mesh, Op, Plan
from holdfast.plan.schedules.table import SCHEDULES
from holdfast.plan.simulate import Timeline, durations, simulate
from holdfast.trainer.pipeline.comparison import Estimate, Pipeline, estimate

NAMESPACE = "{http://www.w3.org/2000/svg}"


def drawn(one: Estimate, title: str = "a title") -> ElementTree.Element:
    return ElementTree.fromstring(svg(one.plan, one.timeline, title, "forward 1"))


def boxes(picture: ElementTree.Element, kind: str = "box") -> list[ElementTree.Element]:
    return [rect for rect in picture.iter(f"{NAMESPACE}rect") if rect.get("class") == kind]


def number(element: ElementTree.Element, key: str) -> float:
    return float(element.get(key, "nan"))


@pytest.mark.parametrize("message", [0.0, 0.3])
@pytest.mark.parametrize("name", SCHEDULES)
def test_every_box_is_where_the_simulator_has_it(name: str, message: float) -> None:
    one = estimate(Pipeline(4, 8, forward=1.0, backward=3.0, message=message), SCHEDULES[name])
    picture = drawn(one)
    lanes = boxes(picture, "lane")
    assert len(lanes) == 4
    scale = number(lanes[0], "width") / one.makespan
    found = {box.get("data-action", ""): box for box in boxes(picture)}
    wanted = {action.id: (rank, action) for rank, action in one.plan.actions() if action.op in COMPUTE}
    assert found.keys() == wanted.keys()
    for action_id, (rank, action) in wanted.items():
        box = found[action_id]
        start, end = one.timeline.start[action_id], one.timeline.end[action_id]
        assert number(box, "x") == pytest.approx(LEFT + start * scale, abs=0.002)
        assert number(box, "width") == pytest.approx((end - start) * scale, abs=0.002)
        assert number(box, "y") == number(lanes[rank], "y")
        assert box.get("fill") == fill(one.plan, action)[0]


def test_numbers_of_8_ranks_and_16_micro_batches_stand_in_their_boxes() -> None:
    one = estimate(Pipeline(8, 16), SCHEDULES["zbv"])
    picture = drawn(one)
    texts = [text for text in picture.iter(f"{NAMESPACE}text") if text.get("class") == "n"]
    found = boxes(picture)
    assert len(texts) == len(found) == 8 * 16 * 2 * 3
    for text, box in zip(texts, found, strict=True):
        assert text.text == re.sub(r".*\D", "", box.get("data-action", ""))
        assert number(text, "x") == pytest.approx(number(box, "x") + number(box, "width") / 2, abs=0.01)
        assert number(box, "width") >= 6.6 * len(text.text)
    assert number(picture, "width") < 2400


def test_all_is_within_the_picture() -> None:
    for name in SCHEDULES:
        picture = drawn(estimate(Pipeline(2, 4), SCHEDULES[name]), "a title that is longer than the whole step")
        width, height = number(picture, "width"), number(picture, "height")
        for rect in (*boxes(picture), *boxes(picture, "lane"), *boxes(picture, "key")):
            assert TOP <= number(rect, "y") <= height - number(rect, "height")
            assert LEFT <= number(rect, "x") <= width - number(rect, "width")


def test_it_has_its_own_background_a_legend_and_an_axis() -> None:
    one = estimate(Pipeline(4, 8), SCHEDULES["interleaved"])
    picture = drawn(one)
    assert boxes(picture, "background")[0].get("fill") == "#ffffff"
    texts = [text.text for text in picture.iter(f"{NAMESPACE}text")]
    for expected in ("a title", "rank 0", "rank 3", "time", "forward 1", "idle"):
        assert expected in texts
    keys = [f"{op}, chunk {chunk}" for op in ("forward", "backward") for chunk in (0, 1)]
    assert [text for text in texts if text and "chunk" in text] == keys
    ticks = [float(text.text or "") for text in picture.iter(f"{NAMESPACE}text") if text.get("class") == "axis"]
    assert ticks[0] == 0
    assert one.makespan - (ticks[1] - ticks[0]) < ticks[-1] <= one.makespan


def test_text_is_escaped_and_no_script_or_link_is_in_it() -> None:
    text = svg(*_single(), "<b> & co")
    assert "&lt;b&gt; &amp; co" in text
    assert not re.search(r"<script|href|url\(", text)


def test_recomputation_has_a_colour_of_its_own() -> None:
    plan, line = _single()
    recompute = [box for box in boxes(ElementTree.fromstring(svg(plan, line, ""))) if box.get("data-action") == "0R0"]
    assert recompute[0].get("fill") == "#" + "".join(f"{part:02x}" for part in COLOURS[Op.RECOMPUTE])


def test_a_very_long_step_stays_a_picture() -> None:
    one = estimate(Pipeline(2, 2000), SCHEDULES["1f1b"])
    picture = drawn(one)
    assert number(picture, "width") < 25_000
    assert len(boxes(picture)) == 8000


def test_numbers_are_readable_on_every_colour() -> None:
    plan = Plan("x", Mesh.of(), tuple(Layers(i, i + 1, 0) for i in range(6)), 1, ((),))
    for op in COLOURS:
        for stage in range(6):
            ground, ink = fill(plan, Action(op, stage, 0))
            assert contrast(ground, ink) >= 4.5, (op, stage)


def contrast(one: str, other: str) -> float:
    """As WCAG defines it."""
    low, high = sorted(map(luminance, (one, other)))
    return (high + 0.05) / (low + 0.05)


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _single() -> tuple[Plan, Timeline]:
    order = (Action(Op.FORWARD, 0, 0), Action(Op.RECOMPUTE, 0, 0), Action(Op.BACKWARD, 0, 0))
    plan = Plan("x", Mesh.of(), (Layers(0, 1, 0),), 1, (order,))
    return plan, simulate(plan, durations(1, 2))
