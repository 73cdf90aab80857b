"""A layout with what is predicted of it, and what makes it better than another."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

from holdfast.planner.cost.layout import Layout
from holdfast.planner.cost.prediction import Breakdown, Prediction

Goal = Literal["time", "memory"]

_WORDS = {
    "compute": "computation",
    "recompute": "recompute",
    "tensor": "tensor collectives",
    "bubble": "bubble",
    "replicas": "sums over replicas",
    "optimizer": "optimizer",
    "host": "copies to host memory",
}


@dataclass(frozen=True, slots=True)
class Ranked:
    layout: Layout
    prediction: Prediction

    def key(self, goal: Goal) -> tuple[float, ...]:
        """Smaller is better; equal ones in a fixed order."""
        step, held = self.prediction.step_s, self.prediction.fullest.total
        layout = self.layout
        first = (step, held) if goal == "time" else (held, step)
        return (*first, layout.pp, layout.tp, layout.zero, layout.stages_per_rank, layout.micro_batch_size,
                layout.activation_blocks, layout.reduce_pieces, layout.sub_batches)  # fmt: skip


def is_as_without(layout: Layout, prediction: Prediction) -> bool:
    """Whether activations may be in host memory and never are: another layout is the same without it."""
    return layout.activation_blocks > 0 and not prediction.moved_bytes


def why(one: Ranked, best: Ranked) -> str:
    """In a few words: what a step spends on besides computation; of another than the best, what makes it slower."""
    if one is best:
        own, rest = one.prediction.breakdown, []
        for name in ("bubble", "replicas", "tensor", "recompute", "host"):
            share = getattr(own, name) / own.total
            if share >= 0.01:
                rest.append((share, f"{_WORDS[name]} {share:.0%}"))
        return ", ".join(text for _, text in sorted(rest, reverse=True)) or "computation alone"
    slower = one.prediction.step_s / best.prediction.step_s - 1
    name, seconds = _largest(one.prediction.breakdown, best.prediction.breakdown)
    if seconds <= 0 or slower < 0.0005:
        return "as fast" if abs(slower) < 0.0005 else f"{slower:+.1%}"
    return f"{slower:+.1%}: {_WORDS[name]} takes {_seconds(seconds)} more"


def _largest(one: Breakdown, best: Breakdown) -> tuple[str, float]:
    found = [(getattr(one, part.name) - getattr(best, part.name), part.name) for part in fields(Breakdown)]
    seconds, name = max(found)
    return name, seconds


def _seconds(value: float) -> str:
    return f"{value:.2f} s" if value >= 1 else f"{value * 1e3:.3g} ms"
