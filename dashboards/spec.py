"""What a dashboard is, before it is Grafana's: rows of panels, each with what it shows, its unit and its queries."""

from dataclasses import dataclass
from typing import Literal

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
    with `by_job` only the nodes of that job."""

    uid: str
    title: str
    about: str
    rows: tuple[PanelRow, ...]
    by_job: bool = True
    by_node: bool = False

    @property
    def panels(self) -> tuple[Panel, ...]:
        return tuple(panel for row in self.rows for panel in row.panels)


def one(expr: str, legend: str = "") -> tuple[Query, ...]:
    """The usual case: a panel with one query."""
    return (Query(expr, legend),)
