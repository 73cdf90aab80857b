"""A simulated step as papers draw it: a row for each rank, a box for each computation, empty where it is idle. Pure.

The picture is self-contained, with a background of its own, so that it is readable on a light and on a dark page.
"""

import math
from collections.abc import Iterator
from xml.sax.saxutils import escape

from holdfast.plan.plan import COMPUTE, SPANS, Action, Op, Plan
from holdfast.plan.simulate import Timeline

ROW, GAP = 26.0, 5.0
LEFT, TOP, RIGHT, BOTTOM = 66.0, 40.0, 20.0, 66.0
FONT = 11
NARROWEST = 17.0
"""Pixels of the shortest computation: room for two digits."""
WIDEST = 24_000.0
"""Of a whole step. In a longer one, numbers that do not fit are left out."""
_DIGIT = 0.6 * FONT
_BACKGROUND, _LANE, _INK, _FAINT = "#ffffff", "#eceff3", "#1f2328", "#656d76"
COLOURS: dict[Op, tuple[int, int, int]] = {
    Op.FORWARD: (31, 95, 191),
    Op.BACKWARD: (26, 115, 55),
    Op.BACKWARD_INPUT: (14, 105, 120),
    Op.BACKWARD_WEIGHT: (140, 60, 160),
    Op.RECOMPUTE: (150, 84, 0),
}
"""Of the first stage on a rank; later ones are paler."""
_PALEST = 0.62


def svg(plan: Plan, line: Timeline, title: str, unit: str = "") -> str:
    """The timeline of a plan. `unit` is what times are given in, beside the axis."""
    scale = _scale(plan, line)
    ranks = len(plan.orders)
    legend = _legend(plan)
    inner = max(line.makespan * scale, len(title) * 8.0, legend[1])
    width, height = LEFT + inner + RIGHT, TOP + ranks * (ROW + GAP) + BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" role="img">',
        f"<title>{escape(title)}</title>",
        f"<style>text {{ font: {FONT}px system-ui, sans-serif; fill: {_INK} }} .n {{ text-anchor: middle; "
        f"pointer-events: none }} .axis {{ fill: {_FAINT}; text-anchor: middle }}</style>",
        f'<rect class="background" width="100%" height="100%" fill="{_BACKGROUND}"/>',
        f'<text x="{LEFT:g}" y="24" style="font-size: 13px; font-weight: 600">{escape(title)}</text>',
    ]
    for rank, order in enumerate(plan.orders):
        y = TOP + rank * (ROW + GAP)
        parts.append(f'<text x="{LEFT - 8:g}" y="{y + ROW / 2 + 4:g}" text-anchor="end">rank {rank}</text>')
        lane = f'<rect class="lane" x="{LEFT:g}" y="{y:g}" width="{line.makespan * scale:.3f}" height="{ROW:g}" '
        parts.append(f'{lane}fill="{_LANE}"/>')
        for action in order:
            if action.op in COMPUTE:
                parts += _box(plan, line, action, rank, y, scale)
    bottom = TOP + ranks * (ROW + GAP)
    parts += [*_axis(line.makespan, scale, bottom, unit), *_placed(legend[0], bottom + 46), "</svg>"]
    return "\n".join(parts) + "\n"


def fill(plan: Plan, action: Action) -> tuple[str, str]:
    """Colours of a computation's box and of the number in it."""
    ranks = len(plan.orders)
    return _shade(action.op, action.pipe + action.stage // ranks, _rounds(plan))


def _rounds(plan: Plan) -> int:
    """How often stages are dealt out over the ranks: chunks of one pipe, or pipes."""
    return max(len(plan.stages) // len(plan.orders), 1 + len(plan.replicas))


def _shade(op: Op, round_: int, rounds: int) -> tuple[str, str]:
    share = _PALEST * round_ / max(rounds - 1, 1)
    colour = [round(part + (255 - part) * share) for part in COLOURS[op]]
    # Numbers are white on what is darker than the middle between white and black, as eyes see it.
    return "#" + "".join(f"{part:02x}" for part in colour), "#ffffff" if _luminance(colour) < 0.179 else "#000000"


def _luminance(colour: list[int]) -> float:
    """As WCAG defines it, 0 to 1."""
    parts = [c / 255 / 12.92 if c <= 10 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in colour]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


def _scale(plan: Plan, line: Timeline) -> float:
    """Pixels in a unit of time."""
    took = [line.end[a.id] - line.start[a.id] for _, a in plan.actions() if a.op in COMPUTE]
    shortest = min((time for time in took if time > 0), default=1.0)
    digits = len(str(plan.micro_batches - 1))
    return min(max(NARROWEST, (digits + 0.8) * _DIGIT) / shortest, WIDEST / max(line.makespan, shortest))


def _box(plan: Plan, line: Timeline, action: Action, rank: int, y: float, scale: float) -> Iterator[str]:
    start, end = line.start[action.id], line.end[action.id]
    x, width = LEFT + start * scale, (end - start) * scale
    colour, ink = fill(plan, action)
    number = "+".join(str(m) for m in (action.micro_batch, *action.also))
    tooltip = f"{action.id} on rank {rank}: {_name(action.op)} of micro-batch {number}"
    tooltip += f" on stage {action.stage}, {start:.6g} to {end:.6g}"
    yield (
        f'<rect class="box" data-action="{action.id}" x="{x:.3f}" y="{y:g}" width="{width:.3f}" height="{ROW:g}" '
        f'fill="{colour}" stroke="{_BACKGROUND}"><title>{tooltip}</title></rect>'
    )
    if width >= len(number) * _DIGIT:
        yield f'<text class="n" x="{x + width / 2:.3f}" y="{y + ROW / 2 + 4:g}" style="fill: {ink}">{number}</text>'


def _axis(makespan: float, scale: float, y: float, unit: str) -> Iterator[str]:
    step = _nice(70 / scale)
    yield f'<path d="M{LEFT:g} {y:g}h{makespan * scale:.3f}" stroke="{_FAINT}"/>'
    for i in range(math.floor(makespan / step + 1e-9) + 1):
        x = LEFT + i * step * scale
        yield f'<path d="M{x:.3f} {y:g}v5" stroke="{_FAINT}"/>'
        yield f'<text class="axis" x="{x:.3f}" y="{y + 17:g}">{i * step:g}</text>'
    yield f'<text x="{LEFT - 8:g}" y="{y + 17:g}" text-anchor="end" style="fill: {_FAINT}">time</text>'
    if unit:
        yield f'<text x="{LEFT:g}" y="{y + 32:g}" style="fill: {_FAINT}">{escape(unit)}</text>'


def _nice(least: float) -> float:
    """1, 2 or 5 times a power of ten, at least so much."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= least * (1 - 1e-9))


def _legend(plan: Plan) -> tuple[list[tuple[float, str, str]], float]:
    """Place, colour and text of each entry, and the width of all."""
    used = {action.op for _, action in plan.actions()}
    rounds, part = _rounds(plan), "pipe" if plan.replicas else "chunk"
    entries = []
    x = 0.0
    for op in COLOURS:
        for round_ in range(rounds if op in used else 0):
            text = _name(op) + (f", {part} {round_}" if rounds > 1 else "")
            entries.append((x, _shade(op, round_, rounds)[0], text))
            x += 30 + len(text) * _DIGIT
    entries.append((x, _LANE, "idle"))
    return entries, x + 30 + 4 * _DIGIT


def _placed(entries: list[tuple[float, str, str]], y: float) -> Iterator[str]:
    for x, colour, text in entries:
        yield f'<rect class="key" x="{LEFT + x:.1f}" y="{y:g}" width="13" height="13" fill="{colour}"/>'
        yield f'<text x="{LEFT + x + 18:.1f}" y="{y + 10.5:g}">{text}</text>'


def _name(op: Op) -> str:
    return {Op.BACKWARD_INPUT: "input gradients", Op.BACKWARD_WEIGHT: "weight gradients"}.get(op, SPANS[op])
