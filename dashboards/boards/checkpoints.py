"""What a fault would cost now, and the progress of checkpoints."""

from holdfast.dashboards.spec import FAILING, Board, Panel, PanelRow, Query, one, spread, worst

_JOB = '{job="$job"}'

BOARD = Board(
    uid="holdfast-checkpoints",
    title="Holdfast / Checkpoints and goodput",
    about="Work at risk, snapshots in memory and on peers, uploads to the store, and goodput.",
    rows=(
        PanelRow(
            "A fault now",
            (
                Panel("stat", "A worker", "Seconds of work that would be done again if a worker died now.", "s",
                      one('holdfast_job_at_risk_seconds{job="$job",fault="worker"}'), 6, warn=300, bad=1800),
                Panel("stat", "A node", "The same for a whole node: what its peers hold.", "s",
                      one('holdfast_job_at_risk_seconds{job="$job",fault="node"}'), 6, warn=600, bad=3600),
                Panel("stat", "The whole job", "The same for everything at once: what the store holds.", "s",
                      one('holdfast_job_at_risk_seconds{job="$job",fault="job"}'), 6, warn=1800, bad=7200),
                Panel("stat", "Goodput", "Productive time over wall time without the queue.", "percentunit",
                      one('holdfast_job_goodput_ratio{job="$job"}'), 6, warn=0.97, bad=0.9),
                Panel("timeseries", "Work at risk", "Falls to nearly nothing with each snapshot, copy and commit.",
                      "s", one('holdfast_job_at_risk_seconds{job="$job"}', "{{fault}}"), 24),
            ),
        ),
        PanelRow(
            "Stage 1: memory",
            (
                Panel("timeseries", "Newest snapshot", "Steps in what each node has in memory.", "short",
                      spread("holdfast_host_snapshot_step")),
                Panel("timeseries", "Newest copy on a peer", "Steps in what each node has on another one, too.",
                      "short", spread("holdfast_host_snapshot_peer_step")),
                Panel("timeseries", "Age of snapshots", "Work that a fault on the node would cost: the ten oldest.",
                      "s", one(worst("holdfast_host_snapshot_age_seconds"), "{{node}}")),
                Panel("timeseries", "Memory for snapshots", "Own ones, and copies kept for others.", "bytes",
                      (Query("max(holdfast_host_snapshot_bytes)", "own, largest"),
                       Query("max(holdfast_host_snapshot_copies_bytes)", "for others, largest")), 12),
                Panel("timeseries", "Copy to a peer", "Duration of the last copy, of the ten slowest nodes.", "s",
                      one(worst("holdfast_host_snapshot_peer_seconds"), "{{node}}"), 12),
            ),
        ),
        PanelRow(
            "Stage 2: store",
            (
                Panel("timeseries", "Newest checkpoint", "Steps in the newest one committed.", "short",
                      spread("holdfast_host_checkpoint_step")),
                Panel("timeseries", "From snapshot to commit", "How long the last one took: the ten slowest nodes.",
                      "s", one(worst("holdfast_host_checkpoint_upload_seconds"), "{{node}}")),
                Panel("timeseries", "Upload rate", "Bytes per second of each node's parts of the last one.", "Bps",
                      spread("holdfast_host_checkpoint_upload_bytes_per_second")),
                Panel("state", "Store refuses", "When the store refused what a node wrote: the twenty worst nodes.",
                      "short", one("holdfast_host_checkpoint_failing and topk(20, "
                          "avg_over_time(holdfast_host_checkpoint_failing[$__range] @ end()))", "{{node}}"), 12,
                      maps=FAILING),
                Panel("timeseries", "Age of the newest checkpoint", "Time since the newest commit.", "s",
                      one("min(holdfast_host_checkpoint_age_seconds)", "age"), 12),
            ),
        ),
        PanelRow(
            "Goodput",
            (
                Panel("timeseries", "Goodput over time", "Productive time over wall time since the job was "
                      "submitted, without the time in the queue.", "percentunit",
                      one('holdfast_job_goodput_ratio{job="$job"}', "goodput"), 12),
                Panel("timeseries", "Where time goes now", "Share of wall time: steps that became safe, waiting for "
                      "nodes, and what was lost, by reason.", "percentunit",
                      (Query(f"clamp_min(deriv(holdfast_job_productive_seconds{_JOB}[$__rate_interval]), 0)",
                             "productive"),
                       Query(f"clamp_min(deriv(holdfast_job_queued_seconds{_JOB}[$__rate_interval]), 0)", "queued"),
                       Query(f"rate(holdfast_lost_seconds_total{_JOB}[$__rate_interval])", "{{reason}}")), 24),
                Panel("bars", "Lost by reason", "Seconds that made no progress, by what took them.", "s",
                      one(f"holdfast_lost_seconds_total{_JOB}", "{{reason}}"), 12),
            ),
        ),
    ),
)  # fmt: skip
