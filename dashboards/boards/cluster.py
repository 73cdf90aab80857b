"""Every node and job at a glance: which nodes are healthy, which jobs run and wait, how hosts and GPUs do."""

from holdfast.dashboards.spec import Board, Panel, PanelRow, Query, one

_NODE = '{node=~"$node"}'

BOARD = Board(
    uid="holdfast-cluster",
    title="Holdfast / Cluster",
    about="Nodes by state, the jobs on them, heartbeats, hosts and GPUs.",
    by_job=False,
    by_node=True,
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
                Panel("state", "Agents", "When each node's agent was connected (1) and when not (0).", "short",
                      one(f"holdfast_node_up{_NODE}", "{{node}}"), 12),
            ),
        ),
        PanelRow(
            "Jobs",
            (
                Panel("stat", "Jobs running", "Jobs that train now.", "short",
                      one('holdfast_jobs{state="running"}'), 4),
                Panel("stat", "Jobs waiting", "Jobs in the queue: without nodes for now.", "short",
                      one('holdfast_jobs{state="pending"}'), 4),
                Panel("table", "State of each job", "Active jobs, and those that ended within an hour.", "short",
                      one("max by (job, state) (holdfast_job_state) == 1"), 16),
                Panel("timeseries", "Workers by job", "Processes that run and are healthy: which job has the cluster.",
                      "short", one("sum by (job) (holdfast_rank_running)", "{{job}}")),
                Panel("timeseries", "Goodput by job", "Productive time over wall time since each job was submitted, "
                      "without the time in the queue.",
                      "percentunit", one("max by (job) (holdfast_job_goodput_ratio)", "{{job}}")),
                Panel("timeseries", "Lost time by job", "Share of each job's time that made no progress.",
                      "percentunit",
                      one("sum by (job) (rate(holdfast_lost_seconds_total[$__rate_interval]))", "{{job}}")),
            ),
        ),
        PanelRow(
            "Hosts",
            (
                Panel("timeseries", "CPU", "Share of each host's CPU time in use.", "percentunit",
                      one(f"holdfast_host_cpu_ratio{_NODE}", "{{node}}")),
                Panel("timeseries", "Memory", "Share of each host's memory in use; 1 is where the kernel kills.",
                      "percentunit",
                      one(f"holdfast_host_memory_used_bytes{_NODE} / holdfast_host_memory_total_bytes{_NODE}",
                          "{{node}}")),
                Panel("timeseries", "Load", "Processes that run or want to, over a minute.", "short",
                      one(f"holdfast_host_load_1m{_NODE}", "{{node}}")),
                Panel("timeseries", "Clock error", "What the kernel says of its own clock; spans are aligned apart "
                      "from it.", "s", one(f"holdfast_host_clock_max_error_seconds{_NODE}", "{{node}}")),
                Panel("timeseries", "Disk writes", "Bytes written per second, all disks.", "Bps",
                      one(f"rate(holdfast_host_disk_written_bytes_total{_NODE}[$__rate_interval])", "{{node}}")),
                Panel("timeseries", "Heartbeat age", "Age of the last frame; the teeth are the heartbeat interval.",
                      "s", one(f"holdfast_node_frame_age_seconds{_NODE}", "{{node}}")),
            ),
        ),
        PanelRow(
            "Diagnostics",
            (
                Panel("stat", "Nodes that failed", "By the newest diagnosis of each.", "short",
                      one("count(max by (node) (holdfast_diagnostic_state) == 2) or vector(0)"), 6, warn=1, bad=2),
                Panel("stat", "Diagnoses under way", "Nodes being measured take no part in training.", "short",
                      one("holdfast_diagnoses_running"), 6),
                Panel("state", "Verdicts by node", "The worst test of each node: 0 pass, 1 degraded, 2 fail.", "short",
                      one(f"max by (node) (holdfast_diagnostic_state{_NODE})", "{{node}}"), 12),
                Panel("table", "Verdicts by test", "The newest of each node and test: 0 pass, 1 degraded, 2 fail.",
                      "short", one(f"max by (node, test) (holdfast_diagnostic_state{_NODE})"), 12),
                Panel("table", "Figures", "What each node's worst part measured, in the unit that the docs give for "
                      "the test.", "short", one(f"holdfast_diagnostic_value{_NODE}"), 12),
            ),
        ),
        PanelRow(
            "GPUs",
            (
                Panel("timeseries", "GPU utilisation", "Time that a kernel ran; high says little, low says much.",
                      "percentunit", one(f"holdfast_gpu_utilization_ratio{_NODE}", "{{node}} {{gpu}}"), 6, needs="gpu"),
                Panel("timeseries", "GPU temperature", "The hottest sensor of each GPU.", "celsius",
                      one(f"holdfast_gpu_temperature_celsius{_NODE}", "{{node}} {{gpu}}"), 6, needs="gpu"),
                Panel("timeseries", "GPU power", "A GPU below its peers waits or is throttled.", "watt",
                      one(f"holdfast_gpu_power_watts{_NODE}", "{{node}} {{gpu}}"), 6, needs="gpu"),
                Panel("timeseries", "GPU memory", "Memory in use on each GPU.", "bytes",
                      one(f"holdfast_gpu_memory_used_bytes{_NODE}", "{{node}} {{gpu}}"), 6, needs="gpu"),
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
