"""Prometheus recording and alerting rules. Every alert has an entry in docs/alerts.md, generated from here.

`severity`: `page` needs action at once, `warning` is for working hours, `info` is grouped. Symptoms page, causes do
not: a lost node does not page while the job trains. What state a job is in is the controller's judgement
(`holdfast_job_health`) and is not judged again here. A baseline ends before the drop that it is to show.
"""

from dataclasses import dataclass
from typing import Literal

Severity = Literal["page", "warning", "info"]
SCRAPE_JOB = "holdfast"
"""Prometheus' own name for what it scrapes of a controller."""
CHECKPOINT_MINUTES = 60
"""Work that may be without a checkpoint: as the health of a job has it."""


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
    # Per rank: a job that goes on with fewer nodes is not slow.
    Recording(
        "job:holdfast_job_tokens_per_second:per_rank",
        "holdfast_job_tokens_per_second / on (instance, job) holdfast_job_ranks",
    ),
    Recording(
        "job:holdfast_job_tokens_per_second:per_rank_median2h",
        "quantile_over_time(0.5, job:holdfast_job_tokens_per_second:per_rank[2h] offset 30m)",
    ),
    Recording(
        "job:holdfast_job_placed_seconds:max",
        "max by (job) (holdfast_job_wall_seconds - on (instance, job) holdfast_job_queued_seconds)",
    ),
    # Of the last hour only, so that a node which was switched off for good is no part of a later fault.
    Recording(
        "node:holdfast_node_up:lost1h",
        "holdfast_node_up == 0 and max_over_time(holdfast_node_up[1h]) == 1 "
        'unless on (instance, node) holdfast_node_state{state="cordoned"}',
    ),
    Recording("instance:holdfast_node_up:lost1h_count", "count by (instance) (node:holdfast_node_up:lost1h)"),
    Recording(
        "switch:holdfast_node_up:lost1h_count",
        "count by (instance, switch) (node:holdfast_node_up:lost1h "
        '* on (instance, node) group_left (switch) holdfast_node_info{switch!=""})',
    ),
)


def no_checkpoint(minutes: int) -> Alert:
    return Alert(
        "HoldfastNoCheckpoint", "warning",
        f'max by (job) (holdfast_job_at_risk_seconds{{fault="job"}}) > {minutes * 60} '
        f"or max by (job) (holdfast_job_unsaved_seconds) > {minutes * 60}", "5m",
        "A loss of all nodes would cost job {{ $labels.job }} {{ $value | humanizeDuration }} of work.",
        f"No checkpoint was committed for {minutes} minutes (`holdfast dashboards export --checkpoint-minutes`), "
        "or none at all since the job began. Before the first one only time in steps counts.",
        "First `holdfast status`: does the job save at all? `holdfast checkpoint list STORE` shows the newest one. If "
        "uploads fail, `HoldfastStoreRefuses` fires too: look at the store. Else save more often.",
    )  # fmt: skip


ALERTS = (
    # --- the job -----------------------------------------------------------------------------------------------
    Alert(
        "HoldfastJobFailed", "page", 'holdfast_job_health{condition="failed"} == 1', "0m",
        "Job {{ $labels.job }} failed and will not be restarted automatically.",
        "The job kept failing without progress, up to the restart attempts in the runbook's table. The alert ends "
        "when a job of this name is submitted, or after a day.",
        "First `holdfast status`: it names the culprit, the exception and the newest whole state. `holdfast incidents "
        "--job NAME` has traceback and last lines. The same traceback each time is a bug in the script; different "
        "ones on one node point to that node (`holdfast cordon NODE`). Then submit the job again.",
    ),
    Alert(
        "HoldfastJobStandsStill", "page", 'holdfast_job_health{condition="no progress"} == 1', "5m",
        "Job {{ $labels.job }} has finished no step for more than five minutes.",
        "The workers run, none of them is known to be busy, and no step ends. A pause that Holdfast can explain is "
        "`HoldfastJobPaused` and does not page.",
        "First `holdfast stacks --job NAME`: it shows what all ranks do. `holdfast job --job NAME` names the blocking "
        "rank and its activity. If a checkpoint phase takes this long, look at the store. `holdfast job restart "
        "--dump --job NAME` stores the stacks and restarts the job.",
    ),
    Alert(
        "HoldfastJobPaused", "warning", 'holdfast_job_health{condition="paused"} == 1', "15m",
        "Job {{ $labels.job }} has made no step for a quarter of an hour, but is paused for a known reason.",
        "One rank or all ranks compute, read, write or move bytes outside of training steps: a long save, upload or "
        "evaluation, or an endless loop. Below `--pause-limit` (30 minutes) no worker is killed.",
        "First `holdfast status`: it names the rank, its activity, and how long this took before. `holdfast stacks "
        "--job NAME` shows all ranks. If it does not end, `holdfast job restart --dump --job NAME` stores the stacks "
        "and restarts the job at once.",
    ),
    Alert(
        "HoldfastJobRecoversLong", "page",
        'max by (job) (holdfast_job_health{condition=~"recovering|starting"}) == 1', "10m",
        "Job {{ $labels.job }} has been starting or recovering for ten minutes.",
        "The next generation does not start: state that cannot be read, a node that does not start workers, a "
        "rendezvous that does not complete.",
        "First `holdfast status`: it says how long this usually takes. `holdfast incidents ID` shows the current "
        "phase. In `restoring`: check the store (`holdfast checkpoint verify`). In `starting`: read the last lines of "
        "the workers, which `holdfast incidents ID` shows too.",
    ),
    Alert(
        "HoldfastJobWaitsForNodes", "page",
        'holdfast_job_health{condition="waiting for nodes"} == 1 unless on (job) holdfast_job_queued == 1', "10m",
        "Job {{ $labels.job }} waits for nodes.",
        "Fewer nodes are healthy than the job needs, even without the other jobs. A job that only waits for another "
        "job's nodes does not page.",
        "First `holdfast nodes`: it lists lost, faulty and cordoned nodes with reasons. Add a node, or `holdfast "
        "uncordon NODE` for a repaired one.",
    ),
    Alert(
        "HoldfastStragglerCosts", "warning",
        "max by (job) (max_over_time(holdfast_job_slow_cost_ratio[3m])) "
        'and on (job) max by (job) (max_over_time(holdfast_job_health{condition="slow"}[3m])) == 1', "15m",
        "A slow rank or link costs job {{ $labels.job }} {{ $value | humanizePercentage }} of every step.",
        "Blame has named it for a quarter of an hour, at more than 2% of the step, with all uncertainty considered. "
        "The other ranks only wait for it.",
        "First `holdfast blame --job NAME`: it names rank, node, part of the step and cost. Then `holdfast diagnose "
        "NODE`, and `holdfast evict NODE` if the test agrees and a spare is there. What moves with the rank to "
        "another node is the program's.",
    ),
    Alert(
        "HoldfastGoodputLow", "warning",
        "sum by (job) (increase(holdfast_lost_seconds_total[1h])) "
        "/ on (job) (max by (job) (delta(holdfast_job_wall_seconds[1h])) "
        "- on (job) max by (job) (delta(holdfast_job_queued_seconds[1h]))) > 0.1 "
        "and on (job) job:holdfast_job_placed_seconds:max > 3600", "15m",
        "Job {{ $labels.job }} lost {{ $value | humanizePercentage }} of the last hour.",
        "More than a tenth of the last hour made no lasting progress. Time in the queue does not count, and neither "
        "does what was lost before.",
        "First the dashboard *Checkpoints and goodput*: it shows the losses by reason. Much `recompute`: checkpoint "
        "more often. Much `detect` or `restore`: see the phases in `holdfast incidents`.",
    ),
    Alert(
        "HoldfastRestartsOften", "warning", "increase(holdfast_job_restarts_total[1h]) > 5", "0m",
        "Job {{ $labels.job }} was restarted {{ $value | humanize }} times within an hour.",
        "The job makes progress each time, and fails again.",
        "First `holdfast incidents`: cordon a node that is in most of them; the same rank on different nodes points "
        "to the script.",
    ),
    Alert(
        "HoldfastThroughputDropped", "warning",
        "job:holdfast_job_tokens_per_second:per_rank < 0.8 * job:holdfast_job_tokens_per_second:per_rank_median2h "
        "and on (job) job:holdfast_job_placed_seconds:max > 9000 "
        'and on (job) max by (job) (holdfast_job_health{condition=~"well|slow|at risk"}) == 1', "15m",
        "Each rank of job {{ $labels.job }} trains {{ $value | humanize }} tokens/s, a fifth less than before.",
        "Steps became longer: a slow rank, a slow link, or late data. The baseline is the median of two hours that "
        "ended half an hour ago. A job that continues with fewer ranks is not slow.",
        "First `holdfast blame --job NAME`; the dashboard *GPU performance* separates slow ranks from waiting ranks. "
        "If no rank stands out, look at the data and the store.",
    ),
    Alert(
        "HoldfastLossNotFinite", "warning", 'increase(holdfast_incidents_total{kind="loss-nonfinite"}[10m]) > 0', "0m",
        "The loss of a job was not finite.",
        "A worker reported an infinite or NaN loss, or its parameters were not finite. The job was restarted from its "
        "newest checkpoint.",
        "First `holdfast incidents`: it names the job. The same step each time points to data or arithmetic; a single "
        "rank may have a faulty GPU.",
    ),
    # --- the controller ----------------------------------------------------------------------------------------
    Alert(
        "HoldfastControllerDown", "page", f'up{{job="{SCRAPE_JOB}"}} == 0', "1m",
        "The controller {{ $labels.instance }} cannot be scraped.",
        "The controller died, or the network to it is down, or Prometheus' token or certificate is refused. Training "
        "continues; faults are not detected until it is back.",
        "First `holdfast status`: does it respond? If not, start it again with the same `--state-dir`: it restores "
        "its state from the journal. If it does, look at Prometheus' own page *Targets*.",
    ),
    Alert(
        "HoldfastControllerOverloaded", "warning",
        "avg_over_time(holdfast_controller_loop_lag_seconds[5m]) > 0.5", "5m",
        "The controller's loop runs {{ $value | humanizeDuration }} late.",
        "The controller needs more than one core; detection is late by this time.",
        "First the dashboard *Cluster*, row *Controller*. Set a longer heartbeat interval (`--heartbeat-interval`), "
        "scrape less often, or use a faster core.",
    ),
    Alert(
        "HoldfastControllerBug", "warning", "increase(holdfast_controller_bugs_total[15m]) > 0", "0m",
        "The controller failed at {{ $value | humanize }} events.",
        "An event triggered a bug in Holdfast; the controller dropped it and continued.",
        "The controller's log has the traceback: please report it.",
    ),
    Alert(
        "HoldfastJournalNotWritable", "page", "holdfast_journal_failing == 1", "5m",
        "The controller {{ $labels.instance }} cannot write its journal.",
        "The disk of the controller's `state_dir` is full, read-only or broken. Training and detection continue, but "
        "a controller that restarts now does not know what happened since.",
        "First `df` on that folder; the controller's log has the error (`journal.failed`). Free space: the next write "
        "succeeds by itself. Do not restart the controller before.",
    ),
    Alert(
        "HoldfastNotificationFailed", "warning",
        'sum by (instance, receiver) (increase(holdfast_notifications_total{outcome="refused"}[1h])) > 0 '
        'or sum by (instance, receiver) (increase(holdfast_notifications_total{outcome="failed"}[30m])) > 8', "0m",
        "{{ $labels.receiver }} does not take notifications: {{ $value | humanize }} attempts failed.",
        "The receiver refuses messages, or has not been reachable for some minutes. Somebody was not notified.",
        "First `holdfast incidents`: what was missed? The controller's log has the receiver's answer "
        "(`alert.failed`): a changed address, a revoked token, a proxy.",
    ),
    Alert(
        "HoldfastSpansLost", "warning",
        "increase(holdfast_spans_lost_total[15m]) "
        "> 0.01 * (increase(holdfast_spans_total[15m]) + increase(holdfast_spans_lost_total[15m]))", "15m",
        "{{ $value | humanize }} spans were lost within 15 minutes, more than 1%.",
        "Agents or the controller could not keep up: spans were dropped or overwritten. Blame judges from what is "
        "left and may miss a slow rank. A few lost at a restart are normal.",
        "First the dashboard *GPU performance*: *Spans* and *Spans lost*. Look for busy hosts "
        "(`HoldfastHostMemoryLow`) and a late controller (`HoldfastControllerOverloaded`).",
    ),
    Alert(
        "HoldfastCertificateEnds", "warning",
        "min by (instance) (holdfast_certificate_expiry_timestamp_seconds) - time() < 30 * 86400", "1h",
        "A certificate in use ends in {{ $value | humanizeDuration }}.",
        "The authority's, the controller's or a node's certificate ends within 30 days. Open streams continue; a "
        "daemon that starts after the end cannot connect.",
        "First `holdfast incidents`: the incidents `certificate-expires` name each certificate and its command. "
        "`holdfast certs --dir DIR --renew` makes new ones from the same authority.",
    ),
    Alert(
        "HoldfastMalformedFrames", "warning", "increase(holdfast_malformed_frames_total[15m]) > 10", "0m",
        "{{ $value | humanize }} heartbeat frames could not be read.",
        "An agent of another version, or another program, sends to the gRPC port. A single stray connection does not "
        "alert.",
        "The controller's log names the sender.",
    ),
    # --- nodes -------------------------------------------------------------------------------------------------
    Alert(
        "HoldfastNodeDown", "warning",
        'holdfast_node_up == 0 unless on (instance, node) holdfast_node_state{state="cordoned"}', "2m",
        "Node {{ $labels.node }} has no connected agent.",
        "The agent, its host or the network is down. The job continues if the node's workers do. A cordoned node may "
        "be switched off without an alert.",
        "First `holdfast nodes`, then the agent's service on that host. `holdfast cordon NODE` if it is to stay off.",
    ),
    Alert(
        "HoldfastNodeFlaps", "warning", "resets(holdfast_node_up[1h]) >= 3", "0m",
        "Node {{ $labels.node }} lost its connection {{ $value | humanize }} times within an hour.",
        "The agent comes back each time before `HoldfastNodeDown` fires: a bad cable, an agent that is killed and "
        "restarted, a host without memory.",
        "First the agent's log on that host, and the kernel's. `holdfast cordon NODE` keeps it out of the next "
        "generation.",
    ),
    Alert(
        "HoldfastManyNodesDown", "page",
        "instance:holdfast_node_up:lost1h_count >= 3 and on (instance) instance:holdfast_node_up:lost1h_count "
        "> on (instance) 0.1 * count by (instance) (holdfast_node_up)", "1m",
        "{{ $value | humanize }} nodes were lost within an hour.",
        "Three nodes or more, and more than a tenth of all. A loss of many nodes at once usually has one cause: a "
        "switch, a power feed, a network change, expired certificates.",
        "First find what the lost nodes share; `holdfast nodes --json` has their switches. `HoldfastSwitchDown` names "
        "the switch if it is one.",
    ),
    Alert(
        "HoldfastSwitchDown", "page",
        "switch:holdfast_node_up:lost1h_count >= 2 and on (instance, switch) switch:holdfast_node_up:lost1h_count "
        '> on (instance, switch) 0.5 * count by (instance, switch) (holdfast_node_info{switch!=""})', "1m",
        "{{ $value | humanize }} nodes at switch {{ $labels.switch }} were lost within an hour.",
        "More than half of the nodes at one switch, and at least two: the switch, its uplink or its rack's power.",
        "First the switch itself. Jobs restart elsewhere if there are nodes: `holdfast status`. Nothing is to be done "
        "at the nodes.",
    ),
    Alert(
        "HoldfastNoSpare", "warning",
        'holdfast_nodes{state="spare"} == 0 and on (instance) max_over_time(holdfast_nodes{state="spare"}[1d]) > 0 '
        'and on (instance) holdfast_jobs{state="running"} > 0', "15m",
        "No spare node is left.",
        "There was a spare within the last day. The next lost node makes a job smaller, or makes it wait. A cluster "
        "that never has a spare does not alert.",
        "First `holdfast nodes`: which nodes are lost, faulty or cordoned, and why. Repair one and `holdfast uncordon "
        "NODE`.",
    ),
    Alert(
        "HoldfastIncidentDrags", "warning", "holdfast_open_incident_age_seconds > 1800", "1m",
        "An incident has been open for {{ $value | humanizeDuration }}.",
        "The incident waits for a node, a store, or a person. Several short ones after each other do not add up.",
        "First `holdfast incidents`: the open one says what it waits for.",
    ),
    Alert(
        "HoldfastCommandsRefused", "warning", 'increase(holdfast_commands_total{result="error"}[15m]) > 3', "0m",
        "Agents could not execute {{ $value | humanize }} commands.",
        "Workers do not start, a port is in use, a disk is full.",
        "First `holdfast incidents`: the newest ones have the reasons.",
    ),
    # --- checkpoints -------------------------------------------------------------------------------------------
    Alert(
        "HoldfastStoreRefuses", "page", "count by (instance) (holdfast_host_checkpoint_failing == 1)", "5m",
        "The checkpoint store refuses writes of {{ $value }} nodes.",
        "Snapshots in memory and on peers continue, but nothing is committed: a fault of the whole job would cost all "
        "steps since the last checkpoint.",
        "First the store: is it full, in safe mode, or down? The dashboard *Checkpoints and goodput* names the nodes; "
        "the agent's log on one of them has the error. The upload continues by itself once the store is back.",
    ),
    no_checkpoint(CHECKPOINT_MINUTES),
    Alert(
        "HoldfastSnapshotOld", "warning",
        'holdfast_job_at_risk_seconds{fault="worker"} > 3600 '
        'unless on (job) holdfast_job_at_risk_seconds{fault="job"} > 3600', "5m",
        "The death of one worker would cost job {{ $labels.job }} {{ $value | humanizeDuration }} of work.",
        "No snapshot in memory is younger than an hour. If there is no checkpoint either, `HoldfastNoCheckpoint` "
        "fires alone.",
        "First `holdfast job --job NAME`: it shows the work at risk. Lower `checkpoint.every`.",
    ),
    Alert(
        "HoldfastSnapshotRepaired", "warning", "increase(holdfast_host_snapshot_repaired_chunks_total[1h]) > 0", "0m",
        "A snapshot in memory of {{ $labels.node }} was corrupt and was repaired from a copy.",
        "Bits flipped in host memory. The corrupt data was not used for training.",
        "If it repeats on a node, `holdfast cordon NODE` and test its memory (`holdfast diagnose NODE`).",
    ),
    # --- hosts and GPUs ----------------------------------------------------------------------------------------
    Alert(
        "HoldfastHostMemoryLow", "warning",
        "holdfast_host_memory_used_bytes / holdfast_host_memory_total_bytes > 0.95", "5m",
        "{{ $labels.node }} uses {{ $value | humanizePercentage }} of its memory.",
        "The OOM killer may soon kill a worker.",
        "First the dashboard *Node*: is it alone, or are all nodes like this? Use fewer loader processes, or less "
        "memory for snapshots.",
    ),
    Alert(
        "HoldfastGpuHot", "warning", "max by (instance, node) (holdfast_gpu_temperature_celsius) > 88", "5m",
        "The hottest GPU of {{ $labels.node }} is at {{ $value }} degrees.",
        "The GPU throttles, or soon will, and all other ranks wait for it.",
        "First the dashboard *Node*: it shows temperature, power, clocks and throttling of each GPU. Check fans, dust "
        "and the rack's air flow.",
    ),
    Alert(
        "HoldfastGpuMemoryErrors", "warning", "increase(holdfast_gpu_ecc_uncorrected_volatile_total[1h]) > 0", "0m",
        "GPU {{ $labels.gpu }} of {{ $labels.node }} had uncorrected memory errors.",
        "The GPU's memory lost data. The worker that used it usually exits with an Xid.",
        "First `holdfast incidents`: is there a `gpu-xid` of that node? `holdfast cordon NODE`, then reset the GPU; "
        "if it repeats, replace the GPU.",
    ),
)  # fmt: skip
