"""What a fault would cost now, and the progress of checkpoints."""

from holdfast.dashboards.spec import Board, Panel, PanelRow, Query, one

_JOB = '{job="$job"}'
_NODE = '{node=~"$node"}'

BOARD = Board(
    uid="holdfast-checkpoints",
    title="Holdfast / Checkpoints and goodput",
    about="Work at risk, snapshots in memory and on peers, uploads to the store, and goodput.",
    by_node=True,
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
                      one(f"holdfast_host_snapshot_step{_NODE}", "{{node}}")),
                Panel("timeseries", "Newest copy on a peer", "Steps in what each node has on another one, too.",
                      "short", one(f"holdfast_host_snapshot_peer_step{_NODE}", "{{node}}")),
                Panel("timeseries", "Age of snapshots", "Work that a fault on the node would cost.", "s",
                      one(f"holdfast_host_snapshot_age_seconds{_NODE}", "{{node}}")),
                Panel("timeseries", "Memory for snapshots", "Own ones, and copies kept for others.", "bytes",
                      (Query(f"holdfast_host_snapshot_bytes{_NODE}", "{{node}} own"),
                       Query(f"holdfast_host_snapshot_copies_bytes{_NODE}", "{{node}} for others")), 12),
                Panel("timeseries", "Copy to a peer", "Time that the slowest worker's last copy took.", "s",
                      one(f"holdfast_host_snapshot_peer_seconds{_NODE}", "{{node}}"), 12),
            ),
        ),
        PanelRow(
            "Stage 2: store",
            (
                Panel("timeseries", "Newest checkpoint", "Steps in the newest one committed.", "short",
                      one(f"holdfast_host_checkpoint_step{_NODE}", "{{node}}")),
                Panel("timeseries", "From snapshot to commit", "How long the last one took.", "s",
                      one(f"holdfast_host_checkpoint_upload_seconds{_NODE}", "{{node}}")),
                Panel("timeseries", "Upload rate", "Bytes per second of each node's parts of the last one.", "Bps",
                      one(f"holdfast_host_checkpoint_upload_bytes_per_second{_NODE}", "{{node}}")),
                Panel("state", "Store refuses", "1 while the store refuses what a node writes.", "short",
                      one(f"holdfast_host_checkpoint_failing{_NODE}", "{{node}}"), 12),
                Panel("timeseries", "Age of the newest checkpoint", "Time since the newest commit.", "s",
                      one(f"min(holdfast_host_checkpoint_age_seconds{_NODE})", "age"), 12),
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
