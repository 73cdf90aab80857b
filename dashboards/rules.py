"""Prometheus recording and alerting rules. Every alert has an entry in docs/alerts.md, generated from here.

`severity`: `page` needs action at once, `warning` is for working hours, `info` is grouped. Symptoms page, causes do
not: a lost node does not page while the job trains.
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
    """`wait`: how long the expression holds before the alert fires. `means` and `do` become docs/alerts.md."""

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
        "Job {{ $labels.job }} failed and will not be restarted automatically.",
        "The job kept failing without progress, up to the restart attempts in the runbook's table.",
        "`holdfast incidents --job NAME` shows the last incident with traceback and last lines. The same traceback "
        "each time is a bug in the script; different ones on one node point to that node (`holdfast "
        "cordon`). Then submit the job again.",
    ),
    Alert(
        "HoldfastJobStandsStill", "page",
        'job:holdfast_rank_progress_age_seconds:min > 600 and on (job) holdfast_job_state{state="running"} == 1 '
        'unless on (job) holdfast_job_pause_seconds{state="busy"} > 0', "1m",
        "No rank of job {{ $labels.job }} made progress for {{ $value | humanizeDuration }}.",
        "All ranks are present, none makes steps, and the blocking rank shows no activity: it is idle below its limit, "
        "or it cannot be measured (a program that reports no steps has no such series). A busy pause does not page.",
        "`holdfast job --job NAME` names the blocking rank and its activity, and the position of all ranks (phase, "
        "operation, duration). If a checkpoint phase takes this long, the store is down: see "
        "`holdfast checkpoint list`.",
    ),
    Alert(
        "HoldfastJobPaused", "warning", 'max by (job) (holdfast_job_pause_seconds{state="busy"}) > 900', "0m",
        "Job {{ $labels.job }} has made no step for {{ $value | humanizeDuration }}, but is busy.",
        "One rank or all ranks compute, read, write or move bytes outside of training steps: a long save, upload or "
        "evaluation, or an endless loop. Below `--pause-limit` (30 minutes) no worker is killed.",
        "`holdfast job --job NAME` names the rank, its activity and its place in the script; `holdfast stacks --job "
        "NAME` shows all ranks. If it does not end, `holdfast job restart --dump --job NAME` stores the stacks and "
        "restarts the job at once.",
    ),
    Alert(
        "HoldfastJobRecoversLong", "page", 'holdfast_job_state{state=~"recovering|starting"} == 1', "10m",
        "Job {{ $labels.job }} has been {{ $labels.state }} for ten minutes.",
        "The next generation does not start: state that cannot be read, a node that does not start workers, a "
        "rendezvous that does not complete.",
        "`holdfast incidents ID` shows the current phase. In `restoring`: check the store "
        "(`holdfast checkpoint verify`). In `starting`: read the last lines of the workers, which `holdfast incidents "
        "ID` shows too.",
    ),
    Alert(
        "HoldfastJobWaitsForNodes", "page",
        'holdfast_job_state{state="pending"} == 1 unless on (job) holdfast_job_queued == 1', "10m",
        "Job {{ $labels.job }} waits for nodes.",
        "Fewer nodes are healthy than the job needs, even without the other jobs. A job that only waits for another "
        "job's nodes does not page.",
        "`holdfast nodes` lists lost, faulty and cordoned nodes with reasons. Add a node, or `holdfast uncordon` a "
        "repaired one.",
    ),
    Alert(
        "HoldfastGoodputLow", "warning",
        "holdfast_job_goodput_ratio < 0.9 "
        "and on (job) (holdfast_job_wall_seconds - on (job) holdfast_job_queued_seconds > 3600)", "15m",
        "Goodput of job {{ $labels.job }} is {{ $value | humanizePercentage }}.",
        "More than a tenth of the job's time made no lasting progress. Time in the queue does not count.",
        "The dashboard *Checkpoints and goodput* shows the losses. Much `recompute`: checkpoint more often. Much "
        "`detect` or `restore`: see the incidents' phases.",
    ),
    Alert(
        "HoldfastRestartsOften", "warning", "increase(holdfast_job_restarts_total[1h]) > 5", "0m",
        "Job {{ $labels.job }} was restarted {{ $value | humanize }} times within an hour.",
        "The job makes progress each time, and fails again.",
        "`holdfast incidents`: cordon a node that is in most of them; the same rank on different nodes points to the "
        "script.",
    ),
    Alert(
        "HoldfastThroughputDropped", "warning",
        "holdfast_job_tokens_per_second < 0.8 * job:holdfast_tokens_per_second:avg1h "
        'and on (job) holdfast_job_state{state="running"} == 1', "10m",
        "Job {{ $labels.job }} trains {{ $value | humanize }} tokens/s, a fifth less than over the last hour.",
        "Steps became longer: a slow rank, a slow link, or late data.",
        "The dashboard *GPU performance* separates slow ranks from waiting ranks.",
    ),
    Alert(
        "HoldfastLossNotFinite", "warning", 'increase(holdfast_incidents_total{kind="loss-nonfinite"}[10m]) > 0', "0m",
        "The loss of a job was not finite.",
        "A worker reported an infinite or NaN loss, or its parameters were not finite. The job was restarted from its "
        "newest checkpoint.",
        "`holdfast incidents` names the job. The same step each time points to data or arithmetic; a single rank may "
        "have a faulty GPU.",
    ),
    # --- nodes and the controller ------------------------------------------------------------------------------
    Alert(
        "HoldfastControllerDown", "page", 'up{job="holdfast"} == 0', "1m",
        "The controller {{ $labels.instance }} cannot be scraped.",
        "The controller died, or the network to it is down. Training continues; faults are not detected until it is "
        "back.",
        "Restart it with the same `--state-dir`: it restores its state from the journal.",
    ),
    Alert(
        "HoldfastControllerOverloaded", "warning", "holdfast_controller_loop_lag_seconds > 0.5", "5m",
        "The controller's loop runs {{ $value | humanizeDuration }} late.",
        "The controller needs more than one core; detection is late by this time.",
        "Set a longer heartbeat interval (`--heartbeat-interval`), scrape less often, or use a faster core.",
    ),
    Alert(
        "HoldfastControllerBug", "warning", "increase(holdfast_controller_bugs_total[15m]) > 0", "0m",
        "The controller failed at {{ $value | humanize }} events.",
        "An event triggered a bug in Holdfast; the controller dropped it and continued.",
        "The controller's log has the traceback: please report it.",
    ),
    Alert(
        "HoldfastMalformedFrames", "warning", "increase(holdfast_malformed_frames_total[15m]) > 0", "0m",
        "{{ $value | humanize }} heartbeat frames could not be read.",
        "An agent of another version, or another program, sends to the gRPC port.",
        "The controller's log names the sender.",
    ),
    Alert(
        "HoldfastNodeDown", "warning", "holdfast_node_up == 0", "2m",
        "Node {{ $labels.node }} has no connected agent.",
        "The agent, its host or the network is down. The job continues if the node's workers do.",
        "Check `holdfast nodes`, then the agent's service on that host.",
    ),
    Alert(
        "HoldfastManyNodesDown", "page", "instance:holdfast_node_up:ratio < 0.9", "1m",
        "Only {{ $value | humanizePercentage }} of the nodes are connected.",
        "A loss of many nodes at once usually has one cause: a switch, a power feed, a network change, expired "
        "certificates.",
        "Find what the lost nodes share; `holdfast nodes --json` has their switches.",
    ),
    Alert(
        "HoldfastIncidentDrags", "warning", "holdfast_open_incidents > 0", "30m",
        "An incident has been open for half an hour.",
        "The incident waits for a node, a store, or a person.",
        "`holdfast incidents` shows what it waits for.",
    ),
    Alert(
        "HoldfastCommandsRefused", "warning", 'increase(holdfast_commands_total{result="error"}[15m]) > 3', "0m",
        "Agents could not execute {{ $value | humanize }} commands.",
        "Workers do not start, a port is in use, a disk is full.",
        "The newest incidents have the reasons.",
    ),
    # --- checkpoints -------------------------------------------------------------------------------------------
    Alert(
        "HoldfastStoreRefuses", "page", "holdfast_host_checkpoint_failing == 1", "5m",
        "The checkpoint store refuses writes of {{ $labels.node }}.",
        "Snapshots in memory and on peers continue, but nothing is committed: a fault of the whole job would cost all "
        "steps since the last checkpoint.",
        "Check whether the store is full, in safe mode, or down. The agent's log on that node has its error. The "
        "upload continues by itself once the store is back.",
    ),
    Alert(
        "HoldfastCheckpointOld", "warning", 'holdfast_job_at_risk_seconds{fault="job"} > 7200', "5m",
        "A loss of all nodes would cost job {{ $labels.job }} {{ $value | humanizeDuration }} of work.",
        "No checkpoint was committed for two hours.",
        "`holdfast checkpoint now --job NAME` requests one; if it fails, check the store.",
    ),
    Alert(
        "HoldfastSnapshotOld", "warning", 'holdfast_job_at_risk_seconds{fault="worker"} > 3600', "5m",
        "The death of one worker would cost job {{ $labels.job }} {{ $value | humanizeDuration }} of work.",
        "No snapshot in memory is younger than an hour.",
        "Lower `checkpoint.every`; `holdfast checkpoint now --job NAME` requests one at once.",
    ),
    Alert(
        "HoldfastSnapshotRepaired", "warning", "increase(holdfast_host_snapshot_repaired_chunks_total[1h]) > 0", "0m",
        "A snapshot in memory of {{ $labels.node }} was corrupt and was repaired from a copy.",
        "Bits flipped in host memory. The corrupt data was not used for training.",
        "If it repeats on a node, cordon it and test its memory.",
    ),
    # --- hosts and GPUs ----------------------------------------------------------------------------------------
    Alert(
        "HoldfastHostMemoryLow", "warning",
        "holdfast_host_memory_used_bytes / holdfast_host_memory_total_bytes > 0.95", "5m",
        "{{ $labels.node }} uses {{ $value | humanizePercentage }} of its memory.",
        "The OOM killer may soon kill a worker.",
        "Compare with the other nodes; use fewer loader processes, or less memory for snapshots.",
    ),
    Alert(
        "HoldfastGpuHot", "warning", "holdfast_gpu_temperature_celsius > 88", "5m",
        "GPU {{ $labels.gpu }} of {{ $labels.node }} is at {{ $value }} degrees.",
        "The GPU throttles, or soon will, and all other ranks wait for it.",
        "Check fans, dust and the rack's air flow; the dashboard *Cluster* shows power and clocks.",
    ),
    Alert(
        "HoldfastGpuMemoryErrors", "warning", "increase(holdfast_gpu_ecc_uncorrected_volatile_total[1h]) > 0", "0m",
        "GPU {{ $labels.gpu }} of {{ $labels.node }} had uncorrected memory errors.",
        "The GPU's memory lost data. The worker that used it usually exits with an Xid.",
        "Drain the node and reset the GPU; if it repeats, replace the GPU.",
    ),
)  # fmt: skip
