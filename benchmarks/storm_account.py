"""The schedule of a storm of faults, and what it comes to: found, overtaken or missed. Pure."""

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

Json = dict[str, Any]

KINDS: dict[str, frozenset[str]] = {
    "worker-killed": frozenset({"worker-killed"}),
    "worker-segfault": frozenset({"worker-segfault"}),
    "worker-exit": frozenset({"worker-exit"}),
    "worker-exception": frozenset({"worker-exception"}),
    "worker-stopped": frozenset({"worker-stopped", "worker-hang"}),
    "worker-asleep": frozenset({"worker-hang"}),
    "gil-held": frozenset({"worker-hang"}),
    "agent-killed": frozenset({"agent-exit"}),
    "agent-stopped": frozenset({"node-silent"}),
}
"""Each fault, and the findings that report it."""
SPREAD_S = 1.0
"""Seconds within which faults of one gust follow each other."""
GUSTS = (1, 1, 1, 2, 2, 3)
"""How many faults there are at once: half of all gusts have one."""
OVERTAKEN_S, MISSED_S = 5.0, 20.0
"""Seconds after which a fault that is not found is overtaken (another of its gust ended the workers), or missed."""


@dataclass(frozen=True, slots=True)
class Fault:
    kind: str
    after_s: float
    """Since the gust began."""
    choice: float
    """Which of the targets that are there, from 0 to below 1."""

    @property
    def is_agents(self) -> bool:
        return self.kind.startswith("agent")


def gusts(seed: int, count: int) -> list[list[Fault]]:
    """Faults of all kinds as evenly as it goes, in an order and at moments that follow from the seed."""
    chance = random.Random(seed)
    sizes = [chance.choice(GUSTS) for _ in range(count)]
    kinds: list[str] = []
    while len(kinds) < sum(sizes):
        kinds += chance.sample(sorted(KINDS), len(KINDS))
    made = []
    for size in sizes:
        some, kinds = kinds[:size], kinds[size:]
        moments = sorted([0.0, *(chance.random() * SPREAD_S for _ in range(size - 1))])
        made.append([Fault(kind, at, chance.random()) for kind, at in zip(some, moments, strict=True)])
    return made


@dataclass(slots=True)
class Hit:
    """A fault that was made."""

    kind: str
    subject: str
    at: float
    """Wall time."""
    found: float | None = None
    """Seconds until the finding, or until the report of a pause."""
    state: str = "open"
    """open, found, overtaken (others ended the workers before it was seen) or missed."""


def resolve(hits: Sequence[Hit], findings: Iterable[Json], reports: Mapping[str, float], now: float) -> bool:
    """Settle what can be settled; whether nothing is open any more. `reports`: since when a subject's pause is
    reported."""
    found = list(findings)
    for hit in hits:
        if hit.state == "open":
            times = [one["at"] for one in found if _reports(hit, one)]
            if hit.kind == "worker-asleep" and reports.get(hit.subject, 0.0) >= hit.at:
                times.append(reports[hit.subject])
            if times:
                hit.found, hit.state = min(times) - hit.at, "found"
    others = any(hit.state == "found" for hit in hits)
    for hit in hits:
        if hit.state == "open" and now - hit.at > MISSED_S:
            hit.state = "missed"
        elif hit.state == "open" and others and not hit.kind.startswith("agent") and now - hit.at > OVERTAKEN_S:
            hit.state = "overtaken"
    return all(hit.state != "open" for hit in hits)


def _reports(hit: Hit, finding: Json) -> bool:
    return finding["at"] >= hit.at and finding["kind"] in KINDS[hit.kind] and finding["subject"] == hit.subject


@dataclass(slots=True)
class Account:
    """What came of one tree's faults, over rounds."""

    times: dict[str, list[float]] = field(default_factory=dict)
    missed: dict[str, int] = field(default_factory=dict)
    overtaken: dict[str, int] = field(default_factory=dict)
    beyond: int = 0
    """Incidents that name something that was not hit."""

    def add(self, hits: Iterable[Hit], beyond: int) -> None:
        self.beyond += beyond
        for hit in hits:
            if hit.found is not None:
                self.times.setdefault(hit.kind, []).append(hit.found)
            else:
                table = self.missed if hit.state == "missed" else self.overtaken
                table[hit.kind] = table.get(hit.kind, 0) + 1

    def merge(self, other: "Account") -> None:
        self.beyond += other.beyond
        for kind, times in other.times.items():
            self.times.setdefault(kind, []).extend(times)
        for mine, theirs in ((self.missed, other.missed), (self.overtaken, other.overtaken)):
            for kind, count in theirs.items():
                mine[kind] = mine.get(kind, 0) + count


HEAD = ("fault", "before: found", "missed", "median, ms", "longest, ms",
        "after: found", "missed", "median, ms", "longest, ms", "after / before")  # fmt: skip


def rows(before: Account, after: Account) -> list[tuple[object, ...]]:
    """One row a kind: both trees beside each other, and what the median changed by."""
    made: list[tuple[object, ...]] = []
    for kind in KINDS:
        cells: list[object] = [kind]
        medians = []
        for account in (before, after):
            times = account.times.get(kind, [])
            cells += [len(times), account.missed.get(kind, 0)]
            cells += [median(times) * 1e3, max(times) * 1e3] if times else ["-", "-"]
            medians.append(median(times) if times else None)
        first, second = medians
        made.append((*cells, second / first if first and second is not None else "-"))
    return made
