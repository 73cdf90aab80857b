"""A layout on a cluster as a picture: who sits where, and which links carry how much of a step. Pure.

Of a large cluster, what is drawn as one box is not a device but a node, a switch or a pod, so that no picture has more
than a few hundred shapes. The picture is self-contained, with a background of its own.
"""

from __future__ import annotations

import colorsys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from math import ceil

import numpy as np
import numpy.typing as npt

from holdfast.planner.cluster.cluster import Cluster, Ints, Level
from holdfast.planner.cost.groups import lines_of, replica_lines
from holdfast.planner.cost.layout import Layout
from holdfast.planner.cost.prediction import Wire

Floats = npt.NDArray[np.float64]

MOST_BOXES = 128
MOST_STRIPES = 256
"""Of all boxes together: the shares of several pipeline ranks in one."""
_BOX, _GAP, _FRAME, _TOP, _LEFT, _ROW = 46.0, 6.0, 10.0, 64.0, 20.0, 22.0
_WIDEST = 16
"""Boxes beside each other."""
_FONT = 11
_BACKGROUND, _INK, _FAINT, _IDLE, _LINE, _BAR = "#ffffff", "#1f2328", "#656d76", "#e4e7eb", "#afb8c1", "#1f5fbf"
_ENDS = {
    Level.NODE: "in nodes",
    Level.RAIL: "along rails",
    Level.SWITCH: "through a switch",
    Level.POD: "between switches",
    Level.CLUSTER: "between pods",
}


@dataclass(frozen=True, slots=True)
class Box:
    """Devices that are drawn as one."""

    name: str
    inside: str
    """Name of what it lies in; empty: of nothing that is drawn."""
    ranks: tuple[int, int]
    """First, and the one behind the last; equal where no rank sits here."""
    devices: int
    stages: tuple[tuple[int, float], ...]
    """Pipeline ranks with their share of the devices."""
    sent: float
    """Bytes of a step that leave it."""


def boxes(cluster: Cluster, layout: Layout, wire: Wire) -> tuple[str, list[Box]]:
    """What is drawn as one (device, node, switch, pod or pods), and all of them. Rank i sits on device i."""
    kind, of, names, parents = _division(cluster)
    sent = _sent(cluster, layout, wire, of)
    stage = np.arange(layout.world) // (layout.dp * layout.tp)
    first = np.searchsorted(of, np.arange(len(names) + 1))
    found = []
    for i, (name, parent) in enumerate(zip(names, parents, strict=True)):
        a, b = int(first[i]), int(first[i + 1])
        ranks = min(a, layout.world), min(b, layout.world)
        counts = np.unique(stage[ranks[0] : ranks[1]], return_counts=True)
        shares = tuple((int(s), int(n) / (b - a)) for s, n in zip(*counts, strict=True))
        found.append(Box(name, parent, ranks, b - a, shares, float(sent[i])))
    return kind, found


def svg(cluster: Cluster, layout: Layout, wire: Wire, title: str) -> str:
    """The picture. `wire`: of the layout's prediction on this cluster."""
    kind, found = boxes(cluster, layout, wire)
    placed, width, bottom = _placed(found)
    levels = [(level, wire.by_link[level]) for level in Level if wire.by_link.get(level)]
    width = max(width, _LEFT + 620.0, _LEFT + 9.0 * len(title))
    height = bottom + 62 + _ROW * (len(levels) + 1)
    text = f"each box is a {kind}" if kind != "pods" else "each box is some pods"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
            f'viewBox="0 0 {width:.0f} {height:.0f}" role="img">',
            f"<title>{escape(title)}</title>",
            f"<style>text {{ font: {_FONT}px system-ui, sans-serif; fill: {_INK} }} .n {{ text-anchor: middle; "
            f"pointer-events: none }} .faint {{ fill: {_FAINT} }}</style>",
            f'<rect class="background" width="100%" height="100%" fill="{_BACKGROUND}"/>',
            f'<text x="{_LEFT:g}" y="24" style="font-size: 13px; font-weight: 600">{escape(title)}</text>',
            f'<text class="faint" x="{_LEFT:g}" y="42">{escape(f"{text}; colours are pipeline ranks")}</text>',
            *placed,
            *_legend(layout.pp, bottom + 8),
            *_bars(levels, wire.total, bottom + 44),
            "</svg>",
            "",
        ]
    )


def _division(cluster: Cluster) -> tuple[str, Ints, list[str], list[str]]:
    """What is one box, the box of each device, the boxes' names, and the names of what they lie in."""
    nodes = cluster.nodes
    if cluster.world <= MOST_BOXES:
        places = cluster.place_of.tolist()
        holders = [nodes[i].name for i in cluster.node_of.tolist()]
        return "device", np.arange(cluster.world), [str(place) for place in places], holders
    keys: dict[str, list[tuple[str, ...]]] = {
        "node": [(node.pod, node.switch, node.name) for node in nodes],
        "switch": [(node.pod, node.switch) for node in nodes],
        "pod": [(node.pod,) for node in nodes],
    }
    for kind, by_node in keys.items():
        runs = [(key, sum(1 for _ in run)) for key, run in groupby(by_node)]
        if len(runs) <= MOST_BOXES:
            of = np.repeat(np.arange(len(runs)), [count for _, count in runs])
            names = [str(key[-1]) or kind for key, _ in runs]
            parents = [" ".join(filter(None, key[:-1])) for key, _ in runs]
            return kind, of[cluster.node_of], names, parents if len(set(parents)) > 1 else [""] * len(runs)
    # More pods than that, or nodes of a pod all over the file: as many nodes in each box.
    size = ceil(len(nodes) / MOST_BOXES)
    count = ceil(len(nodes) / size)
    names = [f"{nodes[i * size].name} ..." for i in range(count)]
    return "pods", cluster.node_of // size, names, [""] * count


def _sent(cluster: Cluster, layout: Layout, wire: Wire, of: Ints) -> Floats:
    """Bytes that leave each box: of rings from each rank to the next, of the pipeline half from either end."""
    pipes = layout.places
    lines = lines_of(layout.pp, layout.dp, layout.tp, "dp")
    replicas = replica_lines(layout.pp, layout.dp, layout.tp, pipes) if len(pipes) > 1 else lines
    found = np.zeros(int(of[-1]) + 1)
    for purpose, rows in (
        ("tensor", lines_of(layout.pp, layout.dp, layout.tp, "tp")),
        ("replicas", replicas),
        ("world", lines_of(layout.pp, layout.dp, layout.tp, "world")),
    ):
        ones, nexts = of[rows].ravel(), of[np.roll(rows, -1, axis=1)].ravel()
        np.add.at(found, ones[ones != nexts], wire.by_purpose.get(purpose, 0.0) / rows.size)
    rows = lines_of(layout.pp, layout.dp, layout.tp, "pp")
    ones, nexts = of[rows[:, :-1]].ravel(), of[rows[:, 1:]].ravel()
    if len(ones):
        half = wire.by_purpose.get("pipeline", 0.0) / len(ones) / 2
        for ends in (ones, nexts):
            np.add.at(found, ends[ones != nexts], half)
    return found


def _placed(found: Sequence[Box]) -> tuple[list[str], float, float]:
    """Shapes of all boxes in their frames, the width, and the height so far."""
    parts: list[str] = []
    most = max((box.sent for box in found), default=0.0)
    stripes = max(1, MOST_STRIPES // max(1, len(found)))
    x, y, high, width = _LEFT, _TOP, 0.0, 0.0
    for parent, run in groupby(found, key=lambda box: box.inside):
        group = list(run)
        columns = min(len(group), _WIDEST if not parent else 8)
        rows = ceil(len(group) / columns)
        wide = columns * (_BOX + _GAP) - _GAP + 2 * _FRAME
        tall = rows * (_BOX + _GAP) - _GAP + 2 * _FRAME + 14 * bool(parent)
        if x > _LEFT and x + wide > _LEFT + _WIDEST * (_BOX + _GAP) + 4 * _FRAME:
            x, y, high = _LEFT, y + high + _GAP, 0.0
        if parent:
            parts.append(
                f'<rect class="frame" x="{x:g}" y="{y:g}" width="{wide:g}" height="{tall:g}" rx="4" fill="none" '
                f'stroke="{_LINE}"/><text class="faint" x="{x + _FRAME:g}" y="{y + 15:g}">{escape(parent[:40])}</text>'
            )
        for i, box in enumerate(group):
            left = x + _FRAME + i % columns * (_BOX + _GAP)
            top = y + _FRAME + 14 * bool(parent) + i // columns * (_BOX + _GAP)
            parts += _drawn(box, left, top, most, stripes)
        x, high = x + wide + _GAP, max(high, tall)
        width = max(width, x)
    return parts, width + _LEFT, y + high


def _drawn(box: Box, x: float, y: float, most: float, stripes: int) -> Iterator[str]:
    first, stop = box.ranks
    who = f"ranks {first} to {stop - 1}" if stop - first > 1 else f"rank {first}" if stop > first else "no rank"
    held = [stage for stage, _ in box.stages]
    if held:
        who += f", pipeline rank {held[0]}" if len(held) == 1 else f", pipeline ranks {held[0]} to {held[-1]}"
    about = f"{box.inside} {box.name}: {who}; sends {_bytes(box.sent)} of a step out of it".strip()
    yield f'<g class="box"><title>{escape(about)}</title>'
    yield f'<rect x="{x:g}" y="{y:g}" width="{_BOX:g}" height="{_BOX:g}" fill="{_IDLE}"/>'
    shown = box.stages if len(box.stages) <= stripes else ((held[0], sum(share for _, share in box.stages)),)
    at = y
    for number, share in shown:
        yield f'<rect x="{x:g}" y="{at:.2f}" width="{_BOX:g}" height="{share * _BOX:.2f}" fill="{colour(number)}"/>'
        at += share * _BOX
    label = f"{first}" if stop - first == 1 else f"{first}-" if stop > first else "idle"
    yield f'<text class="n" x="{x + _BOX / 2:g}" y="{y + 20:g}">{label}</text>'
    if box.sent > 0 and most > 0:
        wide = max(1.0, (_BOX - 8) * box.sent / most)
        yield f'<rect class="sent" x="{x + 4:g}" y="{y + _BOX - 9:g}" width="{wide:.2f}" height="5" fill="{_BAR}"/>'
    yield "</g>"


def colour(stage: int) -> str:
    """Of a pipeline rank: pale, so that black is readable on it; neighbours differ."""
    hue = (stage * 0.381966) % 1.0  # the golden angle: no two of the first dozens are close
    parts = colorsys.hls_to_rgb(hue, 0.80, 0.65)
    return "#" + "".join(f"{round(255 * part):02x}" for part in parts)


def _legend(pp: int, y: float) -> Iterator[str]:
    shown = min(pp, 16)
    for number in range(shown):
        x = _LEFT + 34.0 * number
        yield f'<rect class="key" x="{x:g}" y="{y:g}" width="13" height="13" fill="{colour(number)}"/>'
        yield f'<text x="{x + 16:g}" y="{y + 10.5:g}">{number}</text>'
    if pp > shown:
        yield f'<text class="faint" x="{_LEFT + 34.0 * shown:g}" y="{y + 10.5:g}">... of {pp} pipeline ranks</text>'


def _bars(levels: Sequence[tuple[Level, float]], total: float, y: float) -> Iterator[str]:
    most = max((value for _, value in levels), default=0.0)
    said = f"Bytes of a step by the link that they cross: {_bytes(total)}. The bar in a box: what leaves it."
    yield f'<text x="{_LEFT:g}" y="{y:g}">{escape(said)}</text>'
    for i, (level, value) in enumerate(levels):
        top = y + 8 + i * _ROW
        yield f'<text x="{_LEFT:g}" y="{top + 12:g}">{_ENDS[level]}</text>'
        wide = 300 * value / most
        yield f'<rect class="level" x="{_LEFT + 120:g}" y="{top:g}" width="{wide:.2f}" height="15" fill="{_BAR}"/>'
        share = f"{_bytes(value)} ({value / total:.1%})"
        yield f'<text x="{_LEFT + 128 + wide:.2f}" y="{top + 12:g}">{share}</text>'


def _bytes(value: float) -> str:
    for size, unit in ((1e15, "PB"), (1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.0f} B"
