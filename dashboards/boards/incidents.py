"""What broke, how often, and how long it took to train again."""

from holdfast.dashboards.spec import HEALTH, Board, Panel, PanelRow, health, one

BOARD = Board(
    uid="holdfast-incidents",
    title="Holdfast / Incidents",
    about="Findings and incidents by kind, and how long their phases took.",
    rows=(
        PanelRow(
            "Now",
            (
                Panel("stat", "Open incidents", "Incidents under way, of all jobs and nodes.", "short",
                      one("holdfast_open_incidents"), 6,
                      warn=1, bad=3),
                Panel("stat", "Incidents in this window", "Incidents opened, all kinds and jobs.", "short",
                      one("sum(increase(holdfast_incidents_total[$__range]))"), 6),
                Panel("stat", "Restarts in this window", "Restarts of the job.", "short",
                      one('increase(holdfast_job_restarts_total{job="$job"}[$__range])'), 6),
                Panel("stat", "Commands refused", "Commands that an agent could not carry out.", "short",
                      one('sum(increase(holdfast_commands_total{result="error"}[$__range]))'), 6, warn=1, bad=5),
            ),
        ),
        PanelRow(
            "What broke",
            (
                Panel("bars", "Incidents by kind", "Opened in this window: the twenty most frequent kinds.", "short",
                      one("topk(20, increase(holdfast_incidents_total[$__range]) > 0)", "{{kind}}"), 12),
                Panel("bars", "Findings by kind", "What the detectors said in this window, more than one an incident.",
                      "short", one("topk(20, increase(holdfast_findings_total[$__range]) > 0)", "{{kind}}"), 12),
            ),
        ),
        PanelRow(
            "How long it took",
            (
                Panel("bars", "Mean duration of each phase", "From finding to training again, phase by phase.", "s",
                      one("holdfast_incident_phase_seconds_sum / holdfast_incident_phase_seconds_count", "{{phase}}"),
                      12),
                Panel("timeseries", "Commands", "Commands to agents, by result.", "short",
                      one("increase(holdfast_commands_total[$__rate_interval])", "{{result}}"), 12),
                Panel("state", "Health of the job", "The condition that leads.", "short",
                      one(health('job="$job"'), "{{job}}"), 24, maps=HEALTH),
            ),
        ),
    ),
)  # fmt: skip
