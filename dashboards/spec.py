"""What a dashboard is, before it is Grafana's: rows of panels, each with what it shows, its unit and its queries."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

MOST_SERIES = 50
"""Of a panel, in the largest cluster: more cannot be read, and the browser has to draw them."""
UP = {0: ("down", "red"), 1: ("up", "green")}
VERDICT = {0: ("pass", "green"), 1: ("degraded", "orange"), 2: ("fail", "red")}
FAILING = {0: ("accepts", "green"), 1: ("refuses", "red")}
CONDITIONS = (
    ("failed", "dark-red"), ("stopped", "purple"), ("no progress", "red"), ("recovering", "orange"), ("slow", "yellow"),
    ("paused", "light-yellow"), ("at risk", "light-orange"), ("waiting for nodes", "blue"), ("starting", "light-blue"),
    ("well", "green"), ("finished", "dark-green"),
)  # fmt: skip
"""Of a job's health, from the worst on, each with its colour."""
HEALTH = {number: condition for number, condition in enumerate(CONDITIONS)}
Kind = Literal["stat", "timeseries", "heatmap", "state", "bars", "table"]


@dataclass(frozen=True, slots=True)
class Query:
    """A PromQL expression; `$job`, `$node` and `$__rate_interval` are Grafana's. `legend`: `{{label}}` templates."""

    expr: str
    legend: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """`width` in Grafana's 24 columns. `shows` becomes the panel's description: what to read off it."""

    kind: Kind
    title: str
    shows: str
    unit: str
    queries: tuple[Query, ...]
    width: int = 8
    warn: float | None = None
    """A stat turns orange from here on ..."""
    bad: float | None = None
    """... and red from here on. Where `bad` lies below `warn`, low values are the bad ones."""
    maps: Mapping[int, tuple[str, str]] = field(default_factory=dict)
    """What a value stands for: text and colour."""
    needs: str = ""
    """Without what the panel stays empty: `gpu`, `job-gpu` (on a node of the job), or `peak`, a device whose peak
    FLOP/s is known."""


@dataclass(frozen=True, slots=True)
class PanelRow:
    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True)
class Board:
    """`uid` is stable: links and bookmarks point to it. `by_job`: has the variable `$job`. `by_node`: has `$node`,
    one at a time."""

    uid: str
    title: str
    about: str
    rows: tuple[PanelRow, ...]
    by_job: bool = True
    by_node: bool = False

    @property
    def panels(self) -> tuple[Panel, ...]:
        return tuple(panel for row in self.rows for panel in row.panels)


def health(selector: str = "") -> str:
    """A job's condition as a number of `HEALTH`. `selector`: `job="$job"`, or empty for all jobs."""
    parts = (
        f'(holdfast_job_health{{{selector}{"," if selector else ""}condition="{name}"}} == 1) * {number}'
        for number, (name, _) in enumerate(CONDITIONS)
    )
    return f"max by (job) ({' or '.join(parts)})"


def worst(selector: str, window: str = "", k: int = 10, low: bool = False) -> str:
    """The `k` highest (or lowest) at the end of the time range, over the whole range: with a plain `topk` each point
    may bring others. `window`: take the rate over it."""
    now = f"rate({selector}[{window}] @ end())" if window else f"{selector} @ end()"
    value = f"rate({selector}[{window}])" if window else selector
    return f"{value} and {'bottomk' if low else 'topk'}({k}, {now})"


def spread(expr: str) -> tuple[Query, ...]:
    """Highest, median and lowest of many."""
    return (
        Query(f"max({expr})", "highest"),
        Query(f"quantile(0.5, {expr})", "median"),
        Query(f"min({expr})", "lowest"),
    )


def heat(expr: str) -> tuple[Query, ...]:
    """For a heat map: how many have which share of the median, in steps of 5% from 0.5 to 2."""
    share = f"{expr} / scalar(quantile(0.5, {expr}) > 0)"
    return (Query(f'count_values("share", clamp(round({share}, 0.05), 0.5, 2))', "{{share}}"),)


def one(expr: str, legend: str = "") -> tuple[Query, ...]:
    """The usual case: a panel with one query."""
    return (Query(expr, legend),)
