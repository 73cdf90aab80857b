"""From figures to verdicts: against a fixed bar, against peers (median and MAD), against the node's own past."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

FEWEST = 3
"""With fewer values there is nothing to compare with."""
SIGMAS = 4.0
"""How far from the others a figure must lie, in robust standard deviations, besides being so much worse."""
_MAD_TO_SIGMA = 1.4826
_LEAST_SPREAD = 0.01
"""Of the median: peers that agree to the last digit must not fail one that differs minimally."""


class Grade(StrEnum):
    PASS = "pass"
    DEGRADED = "degraded"
    FAIL = "fail"
    UNABLE = "unable"


_ORDER = (Grade.PASS, Grade.UNABLE, Grade.DEGRADED, Grade.FAIL)
SEVERITY = {
    Grade.PASS: "info", Grade.UNABLE: "info", Grade.DEGRADED: "warning", Grade.FAIL: "critical",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Metric:
    """How to judge one figure. `degraded`, `fail`: shares of the median of the peers (of 1/value where less is
    better) below which it is that. `bar`: an absolute limit; NaN: none."""

    name: str
    unit: str
    is_more_better: bool
    degraded: float = math.nan
    fail: float = math.nan
    bar: float = math.nan
    bar_grade: Grade = Grade.FAIL


@dataclass(frozen=True, slots=True)
class Baseline:
    """What a figure is compared with. `since`: Unix seconds of the oldest value, 0: of this session."""

    median: float
    mad: float
    n: int
    since: float = 0.0

    @classmethod
    def of(cls, values: Sequence[float], since: float = 0.0) -> "Baseline | None":
        """None below `FEWEST` values."""
        known = [v for v in values if math.isfinite(v)]
        if len(known) < FEWEST:
            return None
        median = statistics.median(known)
        return cls(median, statistics.median(abs(v - median) for v in known), len(known), since)

    @property
    def sigma(self) -> float:
        return max(_MAD_TO_SIGMA * self.mad, _LEAST_SPREAD * abs(self.median))


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one check says of one node, with the figure and what it was compared with.

    `against`: "bar", "peers" or "past", whichever decided; empty when nothing could. `baseline`, `baseline_n`,
    `baseline_since`: the median that stands for it, of how many values, the oldest of when (0: this session).
    """

    node: str
    check: str
    grade: Grade
    metric: str = ""
    component: str = ""
    value: float = math.nan
    unit: str = ""
    bar: float = math.nan
    against: str = ""
    baseline: float = math.nan
    baseline_n: int = 0
    baseline_since: float = 0.0
    text: str = ""
    action: str = ""
    evidence: dict[str, Any] = field(default_factory=dict)

    @property
    def severity(self) -> str:
        return SEVERITY[self.grade]

    def to_doc(self) -> dict[str, Any]:
        """For JSON: numbers that are not known are None; what passed needs no evidence."""
        doc = asdict(self) | {"grade": str(self.grade), "severity": self.severity}
        if self.grade is Grade.PASS:
            doc["evidence"] = {}
        return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in doc.items()}


def worst(grades: Sequence[Grade]) -> Grade:
    """The worst verdict; UNABLE only where there is no other."""
    said = [g for g in grades if g is not Grade.UNABLE]
    return max(said, key=_ORDER.index) if said else Grade.UNABLE


def is_worse(metric: Metric, value: float, than: float) -> bool:
    return value < than if metric.is_more_better else value > than


def best(metric: Metric, values: Sequence[float]) -> float:
    """The best of several attempts; NaN of none."""
    known = [v for v in values if math.isfinite(v)]
    if not known:
        return math.nan
    return max(known) if metric.is_more_better else min(known)


def share(metric: Metric, value: float, of: float) -> float:
    """Value over median, turned so that less than 1 is worse."""
    above, below = (value, of) if metric.is_more_better else (of, value)
    return above / below if below > 0 else math.inf


def compare(metric: Metric, value: float, baseline: Baseline) -> Grade:
    """Both far worse than the median and an outlier: noise alone causes neither."""
    distance = (baseline.median - value) * (1 if metric.is_more_better else -1)
    if distance < SIGMAS * baseline.sigma:
        return Grade.PASS
    ratio = share(metric, value, baseline.median)
    if ratio < metric.fail:
        return Grade.FAIL
    return Grade.DEGRADED if ratio < metric.degraded else Grade.PASS


def judge(
    node: str,
    check: str,
    metric: Metric,
    value: float,
    peers: Baseline | None = None,
    past: Baseline | None = None,
    component: str = "",
    action: str = "",
    evidence: dict[str, Any] | None = None,
) -> Verdict:
    """The worst of three comparisons. A node's own past alone never fails it: what changed may be the past's doing
    (another kernel, a busier hour), so that is at most `degraded`."""
    found: list[tuple[Grade, str, Baseline | None]] = []
    if math.isfinite(metric.bar):
        grade = metric.bar_grade if is_worse(metric, value, metric.bar) else Grade.PASS
        found.append((grade, "bar", None))
    if peers is not None:
        found.append((compare(metric, value, peers), "peers", peers))
    if past is not None:
        grade = compare(metric, value, past)
        found.append((Grade.DEGRADED if grade is Grade.FAIL else grade, "past", past))
    grade, against, decided = max(found, key=lambda f: _ORDER.index(f[0]), default=(Grade.PASS, "", None))
    basis = decided or peers or past
    return Verdict(
        node, check, grade, metric.name, component, value, metric.unit, metric.bar, against,
        basis.median if basis else math.nan, basis.n if basis else 0, basis.since if basis else 0.0,
        _reason(metric, value, grade, against, basis), action if grade in (Grade.FAIL, Grade.DEGRADED) else "",
        evidence or {},
    )  # fmt: skip


def _reason(metric: Metric, value: float, grade: Grade, against: str, basis: Baseline | None) -> str:
    if grade is Grade.PASS:
        return "" if against else "nothing to compare with yet"
    if against == "bar":
        return f"{'below' if metric.is_more_better else 'above'} the bar"
    assert basis is not None
    whose = "its peers'" if against == "peers" else "its own"
    return f"{share(metric, value, basis.median):.0%} of {whose} median"
