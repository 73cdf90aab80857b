"""The account of a step as entries with their words and rounded figures: every view prints these, and they add up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from holdfast.diagnostics.blame.account import JobAccount
from holdfast.diagnostics.blame.model import Culprit, Slowness

_NAMES = {
    "compute": "compute",
    "other": "input, checkpoints and host",
    "communication": "communication that nothing hides",
    "imbalance": "uneven stages",
    "jitter": "jitter",
}


@dataclass(frozen=True, slots=True)
class Entry:
    """One part of the account."""

    kind: str
    """compute, other, communication, imbalance, waiting (for one culprit) or jitter."""
    name: str
    """In words."""
    seconds: float
    figure: str
    """Rounded so that the figures of all entries add up to that of the step; "" for less than the last digit."""
    culprit: int = -1
    """Its place among the culprits."""


@dataclass(frozen=True, slots=True)
class Entries:
    """Of all that takes any time, in the order of the line."""

    step: str
    """Figure of the whole step."""
    unit: str
    entries: tuple[Entry, ...]

    @property
    def line(self) -> str:
        """ "727 ms = 452 compute + 110 communication that nothing hides + 5 waiting for rank 6 + 160 jitter"."""
        parts = [f"{entry.figure} {entry.name}" for entry in self.entries if entry.figure]
        return f"{self.step} {self.unit} = {' + '.join(parts)}" if parts else f"{self.step} {self.unit}"

    def cost(self, culprit: int) -> str:
        """What this culprit costs, with its unit."""
        for entry in self.entries:
            if entry.culprit == culprit:
                return f"{entry.figure} {self.unit}" if entry.figure else f"less than {self._least()} {self.unit}"
        return f"0 {self.unit}"

    def _least(self) -> str:
        _, point, digits = self.step.partition(".")
        return f"{10.0 ** -len(digits):.{len(digits)}f}" if point else "1"


def entries(account: JobAccount, culprits: Sequence[Culprit]) -> Entries:
    """`culprits`: in the order of the account's, an imbalance after them."""
    found: list[tuple[str, str, float, int]] = [
        ("compute", _NAMES["compute"], account.compute_s, -1),
        ("other", _NAMES["other"], account.other_s, -1),
        ("communication", _NAMES["communication"], account.communication_s, -1),
    ]
    waits = iter(account.culprits_s.tolist())
    named = [c.rank for c in culprits]
    for n, culprit in enumerate(culprits):
        if culprit.kind is Slowness.IMBALANCE:
            found.append(("imbalance", _NAMES["imbalance"], account.imbalance_s, n))
            continue
        whom = awaited(culprit)
        more = f" ({culprit.kind.value})" if named.count(culprit.rank) > 1 else ""
        found.append(("waiting", f"waiting for {whom}{more}", next(waits), n))
    found.append(("jitter", _NAMES["jitter"], account.jitter_s, -1))
    found = [one for one in found if one[2] > 0]
    scale, digits, unit = _resolution(account.step_s)
    step = round(account.step_s * scale)
    figures = _whole([seconds * scale for _, _, seconds, _ in found], step)

    def text(value: int) -> str:
        return f"{value / 10**digits:,.{digits}f}"

    return Entries(
        text(step),
        unit,
        tuple(
            Entry(kind, name, seconds, text(value) if value else "", culprit)
            for (kind, name, seconds, culprit), value in zip(found, figures, strict=True)
        ),
    )


def awaited(culprit: Culprit) -> str:
    """Who or what is waited for."""
    if culprit.kind is not Slowness.LINK:
        return f"rank {culprit.rank}"
    if culprit.peer >= 0:
        return f"the link of ranks {culprit.rank} and {culprit.peer}"
    return f"the links of rank {culprit.rank}"


def _resolution(step_s: float) -> tuple[float, int, str]:
    """Last digits per second, digits after the point, unit: three digits of the step, and no fraction of 1000."""
    unit, per_second = ("s", 1.0) if step_s >= 1 else ("ms", 1e3) if step_s >= 1e-3 else ("µs", 1e6)
    value = step_s * per_second
    digits = 0 if value >= 100 else 1 if value >= 10 else 2
    return per_second * 10**digits, digits, unit


def _whole(values: Sequence[float], total: int) -> list[int]:
    """Whole numbers near the values whose sum is the total (largest remainder)."""
    exact = np.array(values, float)
    found = np.floor(exact + 1e-9).astype(int)
    missing = total - int(found.sum())
    for place in np.argsort(found - exact, kind="stable")[: max(missing, 0)]:
        found[place] += 1
    return [int(value) for value in found]
