"""Many workers' stacks as one tree: calls from the outermost inwards, each with the ranks that are in it. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from holdfast.wire.rank_sets import compact


@dataclass(frozen=True, slots=True)
class Stack:
    """The frames of one thread, the outermost first, and the ranks at which it stands there."""

    ranks: tuple[int, ...]
    thread: str
    frames: tuple[str, ...]


@dataclass(slots=True)
class _Node:
    ranks: set[int] = field(default_factory=set)
    children: dict[str, "_Node"] = field(default_factory=dict)


Row = tuple[int, str, str]
"""Depth, ranks as text, frame."""


def merge(stacks: Iterable[Stack]) -> list[Row]:
    """The tree, row by row: each frame before those that it calls, of several the one of most ranks first.

    The first row of each kind of thread is its name. Calls with the same ranks, each from the one before it, keep
    their depth; it grows where ranks part.
    """
    top: dict[str, _Node] = {}
    for stack in stacks:
        node = top.setdefault(stack.thread, _Node())
        node.ranks.update(stack.ranks)
        for frame in stack.frames:
            node = node.children.setdefault(frame, _Node())
            node.ranks.update(stack.ranks)
    rows: list[Row] = []
    for name in sorted(top, key=lambda name: name != "main"):
        rows.append((0, compact(top[name].ranks), f"[{name} thread]"))
        _walk(top[name], 0, rows)
    return rows


def odd_ranks(stacks: Sequence[Stack], among: Iterable[int]) -> tuple[int, ...]:
    """Those whose main thread stands elsewhere than that of the majority of `among`; none without a majority."""
    wanted = set(among)
    places: dict[tuple[str, ...], set[int]] = {}
    for stack in stacks:
        if stack.thread == "main" and wanted & set(stack.ranks):
            places.setdefault(stack.frames, set()).update(wanted & set(stack.ranks))
    usual = max(places.values(), key=len, default=set())
    seen = set().union(*places.values())
    return tuple(sorted(seen - usual)) if 2 * len(usual) > len(wanted) else ()


def _walk(node: _Node, depth: int, rows: list[Row]) -> None:
    is_fork = len(node.children) > 1
    for frame, child in sorted(node.children.items(), key=lambda item: (-len(item[1].ranks), item[0])):
        inner = depth + (is_fork or child.ranks != node.ranks)
        rows.append((inner, compact(child.ranks), frame))
        _walk(child, inner, rows)
