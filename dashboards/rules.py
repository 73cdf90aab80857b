"""Prometheus rules: what is recorded, and what people are told. Every alert has a runbook entry made from here.

`severity`: `page` wakes somebody, `warning` is for working hours, `info` is told and grouped. Symptoms page, causes do
not: a node that is gone while the job trains on is no reason to get up.
"""

from dataclasses import dataclass
from typing import Literal

Severity = Literal["page", "warning", "info"]


@dataclass(frozen=True, slots=True)
class Recording:
    name: str
    expr: str


@dataclass(frozen=True, slots=True)
class Alert:
    """`wait`: how long the expression holds before anybody hears of it. `means` and `do` become the runbook."""

    name: str
    severity: Severity
    expr: str
    wait: str
    summary: str
    means: str
    do: str


RECORDINGS = (
    Recording("job:holdfast_rank_step_seconds:median", "quantile by (job) (0.5, holdfast_rank_step_seconds)"),
    Recording("job:holdfast_rank_step_seconds:max", "max by (job) (holdfast_rank_step_seconds)"),
    Recording("job:holdfast_rank_progress_age_seconds:min", "min by (job) (holdfast_rank_progress_age_seconds)"),
    Recording("job:holdfast_tokens_per_second:avg1h", "avg_over_time(holdfast_job_tokens_per_second[1h])"),
    Recording(
        "instance:holdfast_lost_seconds:increase1h", "sum by (instance) (increase(holdfast_lost_seconds_total[1h]))"
    ),
    Recording("instance:holdfast_node_up:ratio", "avg by (instance) (holdfast_node_up)"),
)

ALERTS = (
    # --- the job -----------------------------------------------------------------------------------------------
    Alert(
        "HoldfastJobFailed", "page", 'holdfast_job_state{state="failed"} == 1', "0m",
        "Job {{ $labels.job }} failed and will not be started again by itself.",
        "Restarts made no progress for the number of tries in the runbook's table, so the job went back to its owner.",
        "`holdfast incidents --job NAME` shows the last one with traceback and last lines. The same traceback "
        "each time is a bug of the script; different ones on one node point to that node (`holdfast "
        "cordon`). Then start it again.",
    ),
    Alert(
        "HoldfastJobStandsStill", "page",
        'job:holdfast_rank_progress_age_seconds:min > 600 and on (job) holdfast_job_state{state="running"} == 1 '
        'unless on (job) holdfast_job_pause_seconds{state="busy"} > 0', "1m",
        "No rank of job {{ $labels.job }} made progress for {{ $value | humanizeDuration }}.",
        "All ranks are there, none of them steps, and what holds them up is not seen to work: it is idle below its "
        "limit, or nothing could be measured (one that reports no steps has no such series). A busy pause does not "
        "page.",
        "`holdfast job --job NAME` says who is waited for and what it does, and where the ranks are (phase, "
        "operation, since when). A checkpoint phase that takes this long is a store that is down: see "
        "`holdfast checkpoint list`.",
    ),
    Alert(
        "HoldfastJobPaused", "warning", 'max by (job) (holdfast_job_pause_seconds{state="busy"}) > 900', "0m",
        "Job {{ $labels.job }} has made no step for {{ $value | humanizeDuration }}, and something in it works.",
        "One rank or all of them compute, read, write or move bytes outside of training steps: a long save, upload or "
        "evaluation, or a loop that never ends. Below `--pause-limit` (30 minutes) nothing is ended.",
        "`holdfast job --job NAME` names the rank, what it does and where in the script; `holdfast stacks --job NAME` "
        "shows all ranks. If it never ends, `holdfast job restart --dump --job NAME` keeps the stacks and restarts the "
        "job at once.",
    ),
    Alert(
        "HoldfastJobRecoversLong", "page", 'holdfast_job_state{state=~"recovering|starting"} == 1', "10m",
        "Job {{ $labels.job }} has been {{ $labels.state }} for ten minutes.",
        "The next generation does not come up: state that cannot be read, a node that does not start workers, a "
        "rendezvous that does not meet.",
        "`holdfast incidents ID` shows the phase that it hangs in. In `restoring`: is the store there "
        "(`holdfast checkpoint verify`)? In `starting`: the last lines of its "
        "workers, which `holdfast incidents ID` shows too.",
    ),
    Alert(
        "HoldfastJobWaitsForNodes", "page",
        'holdfast_job_state{state="pending"} == 1 unless on (job) holdfast_job_queued == 1', "10m",
        "Job {{ $labels.job }} waits for nodes.",
        "Fewer nodes are healthy than the job needs, even without the other jobs. A job that only waits until another "
        "one gives its nodes back does not page.",
        "`holdfast nodes` tells who is lost, faulty or cordoned and why. Add a node, or `holdfast uncordon` one that "
        "is well again.",
    ),
    Alert(
        "HoldfastGoodputLow", "warning",
        "holdfast_job_goodput_ratio < 0.9 and on (job) holdfast_job_wall_seconds > 3600", "15m",
        "Goodput of job {{ $labels.job }} is {{ $value | humanizePercentage }}.",
        "More than a tenth of the job's time made no lasting progress.",
        "The dashboard *Checkpoints and goodput* says what took it. Much `recompute`: checkpoint more often. Much "
        "`detect` or `restore`: look at the incidents' phases.",
    ),
    Alert(
        "HoldfastRestartsOften", "warning", "increase(holdfast_job_restarts_total[1h]) > 5", "0m",
        "Job {{ $labels.job }} was restarted {{ $value | humanize }} times within an hour.",
        "It goes on each time, and something keeps breaking it.",
        "`holdfast incidents`: one node in most of them is the one to cordon; one rank whatever its node is the "
        "script's.",
    ),
    Alert(
        "HoldfastThroughputDropped", "warning",
        "holdfast_job_tokens_per_second < 0.8 * job:holdfast_tokens_per_second:avg1h "
        'and on (job) holdfast_job_state{state="running"} == 1', "10m",
        "Job {{ $labels.job }} trains {{ $value | humanize }} tokens/s, a fifth less than over the last hour.",
        "Steps became longer: one slow rank, a slow link, or data that comes late.",
        "The dashboard *GPU performance* separates who computes slowly from who waits.",
    ),
    Alert(
        "HoldfastLossNotFinite", "warning", 'increase(holdfast_incidents_total{kind="loss-nonfinite"}[10m]) > 0', "0m",
        "The loss of a job was not finite.",
        "A worker reported infinite or NaN, or its parameters became so. The job was restarted from its newest "
        "checkpoint.",
        "`holdfast incidents` names the job. The same step again and again is data or arithmetic; one rank alone may "
        "be a broken GPU.",
    ),
    # --- nodes and the controller ------------------------------------------------------------------------------
    Alert(
        "HoldfastControllerDown", "page", 'up{job="holdfast"} == 0', "1m",
        "The controller {{ $labels.instance }} cannot be scraped.",
        "It died, or the way to it is cut. Training goes on without it; nothing new is detected or mended until it is "
        "back.",
        "Start it again with the same `--state-dir`: it takes up where it was.",
    ),
    Alert(
        "HoldfastControllerOverloaded", "warning", "holdfast_controller_loop_lag_seconds > 0.5", "5m",
        "The controller's loop runs {{ $value | humanizeDuration }} late.",
        "It has more to do than one core allows; detection is late by as much.",
        "Longer `frames_per_second` intervals, fewer scrapes, a quicker core.",
    ),
    Alert(
        "HoldfastControllerBug", "warning", "increase(holdfast_controller_bugs_total[15m]) > 0", "0m",
        "The controller failed at {{ $value | humanize }} events.",
        "An event met a mistake in Holdfast; the controller went on without it.",
        "Its log has the traceback: please report it.",
    ),
    Alert(
        "HoldfastMalformedFrames", "warning", "increase(holdfast_malformed_frames_total[15m]) > 0", "0m",
        "{{ $value | humanize }} heartbeat frames could not be read.",
        "An agent of another version, or something else that speaks to the gRPC port.",
        "The controller's log names the sender.",
    ),
    Alert(
        "HoldfastNodeDown", "warning", "holdfast_node_up == 0", "2m",
        "Node {{ $labels.node }} has no connected agent.",
        "The agent, its host or the network between is gone. If the node's workers train on, so does the job.",
        "`holdfast nodes`; then the agent's service on that host.",
    ),
    Alert(
        "HoldfastManyNodesDown", "page", "instance:holdfast_node_up:ratio < 0.9", "1m",
        "Only {{ $value | humanizePercentage }} of the nodes are connected.",
        "Many at once are rarely many faults: a switch, a power feed, a network change, expired certificates.",
        "What do the missing ones share? `holdfast nodes --json` has their switches.",
    ),
    Alert(
        "HoldfastIncidentDrags", "warning", "holdfast_open_incidents > 0", "30m",
        "An incident has been open for half an hour.",
        "It waits for a node, for a store, or for somebody.",
        "`holdfast incidents` names it and says what it waits for.",
    ),
    Alert(
        "HoldfastCommandsRefused", "warning", 'increase(holdfast_commands_total{result="error"}[15m]) > 3', "0m",
        "Agents could not carry out {{ $value | humanize }} commands.",
        "Workers that do not start, a port that is taken, a disk that is full.",
        "The newest incidents have each refusal's reason.",
    ),
    # --- checkpoints -------------------------------------------------------------------------------------------
    Alert(
        "HoldfastStoreRefuses", "page", "holdfast_host_checkpoint_failing == 1", "5m",
        "The checkpoint store refuses what {{ $labels.node }} writes.",
        "Snapshots in memory and on peers go on, but nothing is committed: a fault of the whole job would cost all "
        "since the last checkpoint.",
        "Is the store full, in safe mode, away? The agent's log on that node has its answer. The upload goes on by "
        "itself once it is back.",
    ),
    Alert(
        "HoldfastCheckpointOld", "warning", 'holdfast_job_at_risk_seconds{fault="job"} > 7200', "5m",
        "A loss of all nodes would cost job {{ $labels.job }} {{ $value | humanizeDuration }} of work.",
        "No checkpoint was committed for two hours.",
        "`holdfast checkpoint now --job NAME` requests one; if none comes, look at the store.",
    ),
    Alert(
        "HoldfastSnapshotOld", "warning", 'holdfast_job_at_risk_seconds{fault="worker"} > 3600', "5m",
        "The death of one worker would cost job {{ $labels.job }} {{ $value | humanizeDuration }} of work.",
        "No snapshot in memory is younger than an hour.",
        "Set `checkpoint.every` lower; `holdfast checkpoint now --job NAME` requests one at once.",
    ),
    Alert(
        "HoldfastSnapshotRepaired", "warning", "delta(holdfast_host_snapshot_repaired_chunks[1h]) > 0", "0m",
        "Memory of {{ $labels.node }} changed under a snapshot and was repaired from a copy.",
        "Bits flipped in host memory. What was repaired was never trained on.",
        "More than once on one node: cordon it and test its memory.",
    ),
    # --- hosts and GPUs ----------------------------------------------------------------------------------------
    Alert(
        "HoldfastHostMemoryLow", "warning",
        "holdfast_host_memory_used_bytes / holdfast_host_memory_total_bytes > 0.95", "5m",
        "{{ $labels.node }} uses {{ $value | humanizePercentage }} of its memory.",
        "The kernel kills a worker next.",
        "Compare with the other nodes; fewer loader processes, or less memory for snapshots.",
    ),
    Alert(
        "HoldfastGpuHot", "warning", "holdfast_gpu_temperature_celsius > 88", "5m",
        "GPU {{ $labels.gpu }} of {{ $labels.node }} is at {{ $value }} degrees.",
        "It throttles, or soon will, and makes everybody wait.",
        "Fans, dust, the rack's air; power and clocks beside it on the dashboard *Cluster*.",
    ),
    Alert(
        "HoldfastGpuMemoryErrors", "warning", "delta(holdfast_gpu_ecc_uncorrected_volatile[1h]) > 0", "0m",
        "GPU {{ $labels.gpu }} of {{ $labels.node }} had uncorrected memory errors.",
        "Its memory lost data. The worker that used it ends with an Xid, as a rule.",
        "Drain the node and reset the GPU; if it comes back, have it replaced.",
    ),
)  # fmt: skip
