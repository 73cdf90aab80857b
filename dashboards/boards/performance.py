"""Which rank is slow by itself, and which only waits."""

from holdfast.dashboards.spec import Board, Panel, PanelRow, Query, heat, one, worst

_JOB = '{job="$job"}'
_GPU = "{{node}} GPU {{gpu}}, rank {{rank}}"
_PARTS = 'holdfast_worker_step_part_seconds{job="$job"'

BOARD = Board(
    uid="holdfast-performance",
    title="Holdfast / GPU performance",
    about="Step time and its parts by rank: a rank that computes for longer is slow, one that waits for longer is not.",
    rows=(
        PanelRow(
            "Blame: slow ranks and waiting ranks",
            (
                Panel("stat", "Slowest by itself", "The GPU's own computation over that of its peers, of the slowest: "
                      "1.1 is 10% slower.", "short", one(f"max(holdfast_gpu_self_slowdown_ratio{_JOB})"), 6, warn=1.05,
                      bad=1.1),
                Panel("stat", "Waited for others", "Share of all GPUs' time that went into waiting beyond what the "
                      "plan makes them wait.", "percentunit",
                      one(f"sum(rate(holdfast_gpu_victim_wait_seconds_total{_JOB}[$__rate_interval])) / "
                          f"sum(holdfast_job_ranks{_JOB})"), 6, warn=0.05, bad=0.15),
                Panel("stat", "Spans lost", "Dropped or overwritten on their way: blame lacks them.", "short",
                      one("increase(holdfast_spans_lost_total[$__range])"), 6, warn=1, bad=1000),
                Panel("stat", "Spans", "Taken in per second.", "short",
                      one("rate(holdfast_spans_total[$__rate_interval])"), 6),
                Panel("timeseries", "Own work against peers", "The ten slowest. A line that stays above 1.05 is the "
                      "culprit; the other ranks wait for it.", "short",
                      one(worst(f"holdfast_gpu_self_slowdown_ratio{_JOB}"), _GPU)),
                Panel("timeseries", "Made others wait", "Seconds a second that the others together wait because of "
                      "this one: the ten worst.", "s",
                      one(worst(f"holdfast_gpu_induced_wait_seconds_total{_JOB}", "$__rate_interval"), _GPU)),
                Panel("timeseries", "Victims", "Seconds a second that each waits for others: the ten worst. A victim "
                      "is well.", "s",
                      one(worst(f"holdfast_gpu_victim_wait_seconds_total{_JOB}", "$__rate_interval"), _GPU)),
            ),
        ),
        PanelRow(
            "Ranks against each other",
            (
                Panel("timeseries", "Spread of step times", "Slowest rank over median: 1 is a job in step.", "short",
                      one(f"max(holdfast_rank_step_seconds{_JOB}) / "
                          f"quantile(0.5, holdfast_rank_step_seconds{_JOB})"), 8),
                Panel("timeseries", "Compute, slowest over median", "Above 1.05 for long: one rank computes slowly "
                      "and all others wait for it.", "short",
                      one(f'max({_PARTS},part="compute"}}) / quantile(0.5, {_PARTS},part="compute"}})'), 8),
                Panel("timeseries", "Least progress", "Time since the rank that is furthest behind moved.", "s",
                      one(f"max(holdfast_rank_progress_age_seconds{_JOB})"), 8),
                Panel("table", "Slowest to compute", "The ten ranks whose own computing takes longest.", "s",
                      one(f'topk(10, {_PARTS},part="compute"}})'), 12),
                Panel("table", "Longest waits", "The ten ranks that wait longest for others: victims, as a rule.",
                      "s", one(f'topk(10, {_PARTS},part="communication"}})'), 12),
            ),
        ),
        PanelRow(
            "Heat map",
            (
                Panel("heatmap", "Step time by rank", "How many ranks take which share of the median step: 1 is the "
                      "median. A row of its own above the others is a slow rank.", "short",
                      heat(f"holdfast_rank_step_seconds{_JOB}"), 24),
                Panel("heatmap", "Parts by rank: compute", "How many ranks compute for which share of the median.",
                      "short", heat(f'{_PARTS},part="compute"}}'), 12),
                Panel("heatmap", "Parts by rank: communication", "The same of communication that is not hidden.",
                      "short", heat(f'{_PARTS},part="communication"}}'), 12),
            ),
        ),
        PanelRow(
            "GPUs of the job",
            (
                Panel("timeseries", "MFU by rank", "As each rank's own last step gives it.", "percentunit",
                      (Query(f"quantile(0.5, holdfast_worker_mfu_ratio{_JOB})", "median"),
                       Query(f"min(holdfast_worker_mfu_ratio{_JOB})", "lowest")), 12, needs="peak"),
                Panel("timeseries", "Clock", "A GPU below its peers is throttled: the ten slowest.", "hertz",
                      one(f"bottomk(10, holdfast_gpu_sm_clock_hertz and on (node) holdfast_rank_running{_JOB})",
                          "{{node}} {{gpu}}"), 12, needs="job-gpu"),
            ),
        ),
    ),
)  # fmt: skip
