"""Boards to Grafana's JSON, with Grafana's own typed SDK."""

import json
from typing import Any

from grafana_foundation_sdk.builders import (
    bargauge,
    dashboard,
    heatmap,
    prometheus,
    stat,
    statetimeline,
    table,
    timeseries,
)
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as models

from holdfast.dashboards.boards import BOARDS
from holdfast.dashboards.spec import Board, Panel

TAG = "holdfast"
_SOURCE = models.DataSourceRef(type_val="prometheus", uid="$datasource")
_BUILDERS: dict[str, Any] = {
    "stat": stat.Panel,
    "timeseries": timeseries.Panel,
    "heatmap": heatmap.Panel,
    "state": statetimeline.Panel,
    "bars": bargauge.Panel,
    "table": table.Panel,
}
_OF_JOB = '{job="$job"}'
_TITLES = {"Generations": "{{job}}: new generation", "Incidents": "Incident: {{kind}}"}
_LINKS = (("node", "holdfast-node", "This node"), ("job", "holdfast-job", "This job"))
"""Label, board and text: a link is there only where each series of the panel has the label."""
_HEIGHT = {"stat": 4, "bars": 6}


def render(board: Board, page_url: str = "", job: str = "") -> str:
    """The dashboard as Grafana takes it, with a newline. `page_url`: of Holdfast's own page; `job`: shown first."""
    builder = (
        dashboard.Dashboard(board.title)
        .uid(board.uid)
        .description(board.about)
        .tags([TAG])
        .refresh("10s")
        .time("now-1h", "now")
        .timezone("browser")
        .readonly()
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .with_variable(dashboard.DatasourceVariable("datasource").label("Source").type("prometheus"))
        .link(
            dashboard.DashboardLink("Holdfast")
            .type(models.DashboardLinkType.DASHBOARDS)
            .tags([TAG])
            .as_dropdown(True)
            .include_vars(True)
            .keep_time(True)
        )
        .annotation(
            _marks(
                "Generations", "orange", f"changes(holdfast_job_generation{_OF_JOB if board.by_job else ''}[1m]) > 0"
            )
        )
        .annotation(_marks("Incidents", "red", "increase(holdfast_incidents_total[1m]) > 0"))
    )
    if board.by_job:
        variable = _variable("job", "label_values(holdfast_job_health, job)")
        if job:
            variable.current(models.VariableOption(selected=True, text=job, value=job))
        builder.with_variable(variable)
    if page_url:
        builder.link(
            dashboard.DashboardLink("Holdfast's page")
            .type(models.DashboardLinkType.LINK)
            .url(page_url)
            .target_blank(True)
        )
    if board.by_node:
        builder.with_variable(_variable("node", "label_values(holdfast_node_up, node)"))
    for row in board.rows:
        builder.with_row(dashboard.Row(row.title))
        for panel in row.panels:
            builder.with_panel(_panel(panel, board))
    made = json.loads(JSONEncoder(sort_keys=True).encode(builder.build()))
    made["id"] = None
    for number, panel in enumerate(made["panels"], 1):
        panel["id"] = number  # the SDK leaves them out; links to a panel need them
        for letter, target in zip("ABCDEFGH", panel.get("targets", ()), strict=False):
            target["refId"] = letter
    for mark in made["annotations"]["list"]:
        mark["titleFormat"] = _TITLES[mark["name"]]  # the SDK has no name for it
    for variable in made["templating"]["list"]:
        variable.pop("id", None)
    return json.dumps(made, indent=1, sort_keys=True) + "\n"


def files(page_url: str = "", job: str = "") -> dict[str, str]:
    """Every board by its file's name."""
    return {f"{board.uid}.json": render(board, page_url, job) for board in BOARDS}


def _variable(name: str, query: str) -> dashboard.QueryVariable:
    return (
        dashboard.QueryVariable(name)
        .label(name.capitalize())
        .datasource(_SOURCE)
        .query(query)
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.ALPHABETICAL_ASC)
    )


def _marks(name: str, colour: str, expr: str) -> dashboard.AnnotationQuery:
    return dashboard.AnnotationQuery().name(name).datasource(_SOURCE).enable(True).icon_color(colour).expr(expr)


def _panel(panel: Panel, board: Board) -> Any:
    builder = (
        _BUILDERS[panel.kind]()
        .title(panel.title)
        .description(panel.shows)
        .datasource(_SOURCE)
        .unit(panel.unit)
        .span(panel.width)
        .height(_HEIGHT.get(panel.kind, 8))
    )
    if panel.warn is not None or panel.bad is not None:
        builder.thresholds(_thresholds(panel.warn, panel.bad))
    links = [
        dashboard.DashboardLink(title).url(f"/d/{uid}?var-{label}=${{__field.labels.{label}}}&${{__url_time_range}}")
        for label, uid, title in _LINKS
        if uid != board.uid and all(f"{{{{{label}}}}}" in query.legend for query in panel.queries)
    ]
    if links and panel.kind in ("timeseries", "state"):
        builder.data_links(links)
    if panel.maps:
        results = {
            str(value): models.ValueMappingResult(text=text, color=colour, index=value)
            for value, (text, colour) in panel.maps.items()
        }
        builder.mappings([models.ValueMap(options=results)])
    if panel.kind == "heatmap":
        builder.calculate(False)
    for query in panel.queries:
        target = prometheus.Dataquery().expr(query.expr).datasource(_SOURCE).legend_format(query.legend)
        builder.with_target(target.instant() if panel.kind in ("table", "bars") else target.range())
    return builder


def _thresholds(warn: float | None, bad: float | None) -> dashboard.ThresholdsConfig:
    low_is_bad = warn is not None and bad is not None and bad < warn
    first, last = ("red", "green") if low_is_bad else ("green", "red")
    middle, end = (bad, warn) if low_is_bad else (warn, bad)
    steps = [(None, first), (middle, "orange"), (end, last)]
    return (
        dashboard.ThresholdsConfig()
        .mode(models.ThresholdsMode.ABSOLUTE)
        .steps(
            [models.Threshold(value, colour) for i, (value, colour) in enumerate(steps) if i == 0 or value is not None]
        )
    )
