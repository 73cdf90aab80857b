"""Rows of the table of techniques, from what turns and counters found. Pure.

Bytes on the wire come from the counters of a network namespace in which one system at a time sends. The kernel counts
whole packets: 66 bytes of each, acknowledgements too, are headers of Ethernet, IP and TCP.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median, quantiles

HEADERS = 66
KINDS = ("weights", "gradients", "optimizer", "activations", "gathered")
HEAD = (
    "system", "step ms", "quartiles", "CPU ms", "next to", "resident MB", *(f"{kind} MB" for kind in KINDS), "host MB",
    "wire MB", "formula MB", "loss",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Figures:
    """What was found of one system."""

    steps_s: Sequence[float]
    """Of a step in each turn, in the order of turns, which is that of all systems of its run."""
    cpu_s: Sequence[float]
    """Of a step in each turn, over all ranks."""
    resident: int | None
    """Most bytes beyond those before the model was made, of the fullest rank in the last turn."""
    kinds: Mapping[str, int] | None
    """Most bytes of each kind on the device, of the fullest rank kind by kind; and `host`. None: not counted."""
    wire: float | None
    """Bytes that all ranks together send in a step. None: there was no network of its own."""
    formula: int | None
    """The same as the trainer's formula has it; None of plain PyTorch."""
    loss: float
    """Of the last step; all systems of a run have done as many."""


def payload(text: str, interface: str = "lo") -> int:
    """Bytes that were sent over an interface so far, without headers. `text`: of /proc/net/dev."""
    for line in text.splitlines():
        name, colon, rest = line.partition(":")
        if colon and name.strip() == interface:
            sent = rest.split()
            return int(sent[8]) - HEADERS * int(sent[9])
    raise ValueError(f"/proc/net/dev has no {interface}")


def fullest(ranks: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """The most of each kind over the ranks of a system."""
    return {kind: max(rank.get(kind, 0) for rank in ranks) for kind in sorted({k for rank in ranks for k in rank})}


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The median of the ratios of turn to turn: what slows down a round of turns slows down both."""
    return median(a / b for a, b in zip(ours, theirs, strict=True))


def rows(found: Mapping[str, Figures], peers: Mapping[str, str]) -> list[list[object]]:
    """The table's lines, in the order of `found`. `peers`: next to which other system a system is put."""
    return [_row(name, figures, peers.get(name), found) for name, figures in found.items()]


def _row(name: str, one: Figures, peer: str | None, found: Mapping[str, Figures]) -> list[object]:
    beside = ""
    if peer in found:
        beside = f"{ratio(one.steps_s, found[peer].steps_s):.2f} {peer}"
    kinds = one.kinds
    return [
        name, f"{1e3 * median(one.steps_s):.0f}", spread(one.steps_s), f"{1e3 * median(one.cpu_s):.0f}", beside,
        megabytes(one.resident), *(megabytes(None if kinds is None else kinds.get(kind, 0)) for kind in KINDS),
        megabytes(None if kinds is None else kinds.get("host", 0)), megabytes(one.wire), megabytes(one.formula),
        f"{one.loss:.3f}",
    ]  # fmt: skip


def spread(seconds: Sequence[float]) -> str:
    """Quartiles in ms; of one value, that value."""
    low, _, high = quantiles(seconds, n=4, method="inclusive") if len(seconds) > 1 else (seconds[0],) * 3
    return f"{1e3 * low:.0f} to {1e3 * high:.0f}"


def megabytes(count: float | None) -> str:
    """Millions of bytes; a dash where nothing was counted, nothing where there are none."""
    if count is None:
        return "-"
    return f"{count / 1e6:.2f}" if count else ""
