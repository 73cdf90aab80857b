"""Every node and job at a glance: which nodes are healthy, which jobs run and wait, how hosts and GPUs do."""

from holdfast.dashboards.spec import HEALTH, UP, VERDICT, Board, Panel, PanelRow, Query, health, one, spread, worst

BOARD = Board(
    uid="holdfast-cluster",
    title="Holdfast / Cluster",
    about="Nodes by state, the jobs on them, heartbeats, hosts and GPUs.",
    by_job=False,
    rows=(
        PanelRow(
            "Nodes",
            (
                Panel("stat", "Connected", "Nodes whose agent speaks to the controller.", "short",
                      one("sum(holdfast_node_up)"), 4),
                Panel("stat", "Lost or faulty", "Nodes that recovery has given up on.", "short",
                      one('sum(holdfast_nodes{state=~"lost|faulty"})'), 4, warn=1, bad=2),
                Panel("stat", "Spare", "Nodes that could take a failed one's place now.", "short",
                      one('holdfast_nodes{state="spare"}'), 4),
                Panel("stat", "Open incidents", "Incidents under way.", "short",
                      one("holdfast_open_incidents"), 4, warn=1, bad=3),
                Panel("stat", "Oldest heartbeat", "Time since the quietest node's last frame.", "s",
                      one("max(holdfast_node_frame_age_seconds)"), 4, warn=2, bad=10),
                Panel("stat", "Controller loop lag", "How late the controller's own event loop runs.", "s",
                      one("holdfast_controller_loop_lag_seconds"), 4, warn=0.2, bad=1),
                Panel("timeseries", "Nodes by state", "A step down in healthy with a step up in lost is a node gone.",
                      "short", one("holdfast_nodes", "{{state}}"), 12),
                Panel("state", "Agents", "When agents were connected: the twenty nodes that were away for longest.",
                      "short",
                      one("holdfast_node_up and bottomk(20, avg_over_time(holdfast_node_up[$__range] @ end()))",
                          "{{node}}"), 12, maps=UP),
            ),
        ),
        PanelRow(
            "Jobs",
            (
                Panel("stat", "Jobs running", "Jobs that train now.", "short",
                      one('holdfast_jobs{state="running"}'), 4),
                Panel("stat", "Jobs waiting", "Jobs in the queue: without nodes for now.", "short",
                      one('holdfast_jobs{state="pending"}'), 4),
                Panel("state", "Health of each job", "The condition that leads, as the controller decides it: the "
                      "twenty worst.", "short",
                      one(f"{health()} and bottomk(20, {health().replace('}', '} @ end()')})", "{{job}}"), 16,
                      maps=HEALTH),
                Panel("timeseries", "Workers by job", "Processes that run and are healthy: which job has the cluster.",
                      "short", one("topk(20, sum by (job) (holdfast_rank_running))", "{{job}}")),
                Panel("timeseries", "Goodput by job", "Productive time over wall time since each job was submitted, "
                      "without the time in the queue.",
                      "percentunit", one("bottomk(20, max by (job) (holdfast_job_goodput_ratio))", "{{job}}")),
                Panel("timeseries", "Lost time by job", "Share of each job's time that made no progress.",
                      "percentunit",
                      one("topk(20, sum by (job) (rate(holdfast_lost_seconds_total[$__rate_interval])))", "{{job}}")),
            ),
        ),
        PanelRow(
            "Hosts",
            (
                Panel("timeseries", "CPU", "Share of each host's CPU time in use.", "percentunit",
                      spread("holdfast_host_cpu_ratio")),
                Panel("timeseries", "Memory", "Share in use, of the ten highest: 1 is where the kernel kills.",
                      "percentunit",
                      one("holdfast_host_memory_used_bytes / holdfast_host_memory_total_bytes and topk(10, "
                          "holdfast_host_memory_used_bytes @ end() / holdfast_host_memory_total_bytes @ end())",
                          "{{node}}")),
                Panel("timeseries", "Load", "Processes that run or want to, over a minute: the ten highest.", "short",
                      one(worst("holdfast_host_load_1m"), "{{node}}")),
                Panel("timeseries", "Clock error", "What the kernel says of its own clock, of the ten worst; spans are "
                      "aligned apart from it.", "s", one(worst("holdfast_host_clock_max_error_seconds"), "{{node}}")),
                Panel("timeseries", "Disk writes", "Bytes written per second, all disks: the ten busiest.", "Bps",
                      one(worst("holdfast_host_disk_written_bytes_total", "$__rate_interval"), "{{node}}")),
                Panel("timeseries", "Heartbeat age", "Age of the last frame, of the ten oldest; the teeth are the "
                      "heartbeat interval.", "s", one(worst("holdfast_node_frame_age_seconds"), "{{node}}")),
            ),
        ),
        PanelRow(
            "Diagnostics",
            (
                Panel("stat", "Nodes that failed", "By the newest diagnosis of each.", "short",
                      one("count(max by (node) (holdfast_diagnostic_state) == 2) or vector(0)"), 6, warn=1, bad=2),
                Panel("stat", "Diagnoses under way", "Nodes being measured take no part in training.", "short",
                      one("holdfast_diagnoses_running"), 6),
                Panel("state", "Verdicts by node", "The worst test of each node: the twenty worst nodes.", "short",
                      one("max by (node) (holdfast_diagnostic_state) and "
                          "topk(20, max by (node) (holdfast_diagnostic_state @ end()))", "{{node}}"), 12, maps=VERDICT),
                Panel("table", "Verdicts by test", "The newest of each node and test, the worst forty.", "short",
                      one("topk(40, max by (node, test) (holdfast_diagnostic_state))"), 24, maps=VERDICT),
            ),
        ),
        PanelRow(
            "GPUs",
            (
                Panel("timeseries", "GPU utilisation", "Time that a kernel ran; high says little, low says much.",
                      "percentunit", spread("holdfast_gpu_utilization_ratio"), 6, needs="gpu"),
                Panel("timeseries", "GPU temperature", "The ten hottest.", "celsius",
                      one(worst("holdfast_gpu_temperature_celsius"), "{{node}} {{gpu}}"), 6, needs="gpu"),
                Panel("timeseries", "GPU power", "A GPU far below its peers waits or is throttled.", "watt",
                      spread("holdfast_gpu_power_watts"), 6, needs="gpu"),
                Panel("timeseries", "GPU memory", "Memory in use on each GPU.", "bytes",
                      spread("holdfast_gpu_memory_used_bytes"), 6, needs="gpu"),
                Panel("timeseries", "Throttled GPUs", "GPUs whose hardware lowers the clock: heat, power brake.",
                      "short", one("sum(holdfast_gpu_hw_throttled)", "throttled"), 6, needs="gpu"),
                Panel("bars", "ECC errors in this window", "Uncorrected memory errors: the ten worst GPUs.", "short",
                      one("topk(10, increase(holdfast_gpu_ecc_uncorrected_volatile_total[$__range]))",
                          "{{node}} {{gpu}}"), 6, needs="gpu"),
                Panel("bars", "NVLink errors in this window", "Replays: the ten worst GPUs.", "short",
                      one("topk(10, increase(holdfast_gpu_nvlink_replay_errors_total[$__range]))", "{{node}} {{gpu}}"),
                      6, needs="gpu"),
                Panel("timeseries", "Xids and lost GPUs", "Findings of the driver's own reports, by kind.", "short",
                      one('increase(holdfast_findings_total{kind=~"gpu-s?xid.*|gpu-lost|gpu-recovery"}[$__range])',
                          "{{kind}}"), 6),
            ),
        ),
        PanelRow(
            "Controller",
            (
                Panel("timeseries", "Frames", "Heartbeats taken in per second.", "short",
                      one("rate(holdfast_frames_total[$__rate_interval])")),
                Panel("timeseries", "Controller: CPU", "Cores that the controller uses.", "short",
                      one("rate(holdfast_controller_process_cpu_seconds_total[$__rate_interval])")),
                Panel("timeseries", "Controller: memory", "What the controller holds.", "bytes",
                      one("holdfast_controller_process_resident_memory_bytes")),
                Panel("timeseries", "Trouble of its own", "Frames it could not read and events that it failed at: "
                      "both should be 0.", "short",
                      (Query("increase(holdfast_malformed_frames_total[$__rate_interval])", "malformed frames"),
                       Query("increase(holdfast_controller_bugs_total[$__rate_interval])", "bugs")), 12),
                Panel("timeseries", "Journal", "Share of time spent writing the journal.", "percentunit",
                      one("rate(holdfast_journal_seconds_total[$__rate_interval])"), 12),
            ),
        ),
    ),
)  # fmt: skip
