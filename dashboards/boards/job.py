"""One job: its health, its speed, and where its time goes."""

from holdfast.dashboards.spec import HEALTH, Board, Panel, PanelRow, Query, health, one

_JOB = '{job="$job"}'

BOARD = Board(
    uid="holdfast-job",
    title="Holdfast / Job",
    about="Loss, speed, goodput and the parts of a step of one job.",
    rows=(
        PanelRow(
            "Is it fine?",
            (
                Panel("stat", "Health", "The condition that leads, as the controller decides it; page and `holdfast "
                      "status` have its sentence and the next action.", "short", one(health('job="$job"')), 8,
                      maps=HEALTH),
                Panel("state", "Health over time", "What the job's condition was.", "short",
                      one(health('job="$job"'), "{{job}}"), 16, maps=HEALTH),
                Panel("stat", "Step", "Last finished step.", "short", one(f"holdfast_job_step{_JOB}"), 4),
                Panel("stat", "Loss", "Loss of the last finished step.", "short", one(f"holdfast_job_loss{_JOB}"), 4),
                Panel("stat", "Goodput", "Productive time over wall time without the queue.", "percentunit",
                      one(f"holdfast_job_goodput_ratio{_JOB}"), 4, warn=0.97, bad=0.9),
                Panel("stat", "MFU", "Model FLOP/s over the peak of the job's devices.", "percentunit",
                      one(f"holdfast_job_mfu_ratio{_JOB}"), 4, needs="peak"),
                Panel("stat", "Slow ranks cost", "Share of every step that the worst slow rank or link costs.",
                      "percentunit", one(f"holdfast_job_slow_cost_ratio{_JOB}"), 4, warn=0.02, bad=0.1, needs="blame"),
                Panel("stat", "Restarts", "Restarts since the job began.", "short",
                      one(f"holdfast_job_restarts_total{_JOB}"), 4),
            ),
        ),
        PanelRow(
            "Progress",
            (
                Panel("timeseries", "Loss by time", "A jump that stays is worth a look at data and newest restart.",
                      "short", one(f"holdfast_job_loss{_JOB}", "loss"), 12),
                Panel("timeseries", "Tokens per second", "Throughput of the whole job.", "short",
                      one(f"holdfast_job_tokens_per_second{_JOB}", "tokens/s"), 12),
                Panel("timeseries", "Step time", "Median of the last steps, what `holdfast plan` said of them, and the "
                      "slowest and quickest rank's own.", "s",
                      (Query(f"holdfast_job_step_seconds{_JOB}", "job"),
                       Query(f"holdfast_job_step_planned_seconds{_JOB}", "planned"),
                       Query(f"max(holdfast_rank_step_seconds{_JOB})", "slowest rank"),
                       Query(f"min(holdfast_rank_step_seconds{_JOB})", "quickest rank")), 12),
                Panel("timeseries", "Parts of a step", "Where the mean rank's step goes.", "s",
                      one(f"avg by (part) (holdfast_worker_step_part_seconds{_JOB})", "{{part}}"), 12),
            ),
        ),
        PanelRow(
            "Time lost",
            (
                Panel("timeseries", "Lost seconds by reason", "What took the time that made no progress.", "s",
                      one(f"holdfast_lost_seconds_total{_JOB}", "{{reason}}"), 12),
                Panel("timeseries", "Ranks running", "Processes that run and are well, and how many there should be.",
                      "short", (Query(f"sum(holdfast_rank_running{_JOB})", "running"),
                                Query(f"holdfast_job_ranks{_JOB}", "wanted")), 24),
                Panel("timeseries", "Generation", "Goes up by one with every (re)start.", "short",
                      one(f"holdfast_job_generation{_JOB}", "generation"), 6),
                Panel("timeseries", "Productive and wall time", "The distance between the two is what was lost, what a "
                      "fault could still take, and time in the queue.", "s",
                      (Query(f"holdfast_job_productive_seconds{_JOB}", "productive"),
                       Query(f"holdfast_job_unsaved_seconds{_JOB}", "unsaved"),
                       Query(f"holdfast_job_queued_seconds{_JOB}", "queued"),
                       Query(f"holdfast_job_wall_seconds{_JOB}", "wall")), 6),
            ),
        ),
        PanelRow(
            "Memory",
            (
                Panel("timeseries", "Memory of workers", "The most that any rank of a node has held: the ten highest.",
                      "bytes", one(f"max by (node) (holdfast_worker_memory_bytes{_JOB}) and "
                          f"topk(10, max by (node) (holdfast_worker_memory_bytes{_JOB} @ end()))", "{{node}}"), 24),
            ),
        ),
    ),
)  # fmt: skip
