"""One node: its host, its GPUs one by one, its NICs, its tests."""

from holdfast.dashboards.spec import UP, VERDICT, Board, Panel, PanelRow, Query, one

_NODE = '{node=~"$node"}'
_RATE = "[$__rate_interval]"
_THROTTLED = {0: ("full clock", "green"), 1: ("throttled", "red")}
_LINKS = ("crc_flit", "crc_data", "replay", "recovery")

BOARD = Board(
    uid="holdfast-node",
    title="Holdfast / Node",
    about="Host, GPUs, NICs and diagnostics of one node.",
    by_job=False,
    by_node=True,
    rows=(
        PanelRow(
            "The node",
            (
                Panel("stat", "Agent", "Whether the agent is connected.", "short", one(f"holdfast_node_up{_NODE}"), 4,
                      maps=UP),
                Panel("stat", "State", "The state that the controller has it in.", "short",
                      one(f"holdfast_node_state{_NODE}", "{{state}}"), 4),
                Panel("stat", "Switch", "The switch that it is at.", "short",
                      one(f"holdfast_node_info{_NODE}", "{{switch}}"), 4),
                Panel("stat", "Ranks", "Ranks that run on it, by job.", "short",
                      one(f"sum by (job) (holdfast_rank_running{_NODE})", "{{job}}"), 4),
                Panel("stat", "Heartbeat", "Time since its last frame.", "s",
                      one(f"holdfast_node_frame_age_seconds{_NODE}"), 4, warn=2, bad=10),
                Panel("stat", "Worst verdict", "Of its newest diagnostics.", "short",
                      one(f"max(holdfast_diagnostic_state{_NODE})"), 4, maps=VERDICT),
                Panel("state", "Connected", "When its agent was connected.", "short",
                      one(f"holdfast_node_up{_NODE}", "{{node}}"), 24, maps=UP),
            ),
        ),
        PanelRow(
            "Host",
            (
                Panel("timeseries", "CPU", "Share of the host's CPU time in use.", "percentunit",
                      one(f"holdfast_host_cpu_ratio{_NODE}", "cpu")),
                Panel("timeseries", "Memory", "In use, and all of it.", "bytes",
                      (Query(f"holdfast_host_memory_used_bytes{_NODE}", "used"),
                       Query(f"holdfast_host_memory_total_bytes{_NODE}", "total"))),
                Panel("timeseries", "Network", "Sent and received, all NICs.", "Bps",
                      (Query(f"holdfast_node_tx_bytes_per_second{_NODE}", "sent"),
                       Query(f"holdfast_node_rx_bytes_per_second{_NODE}", "received"))),
                Panel("timeseries", "Disks", "Read and written, all disks.", "Bps",
                      (Query(f"rate(holdfast_host_disk_read_bytes_total{_NODE}{_RATE})", "read"),
                       Query(f"rate(holdfast_host_disk_written_bytes_total{_NODE}{_RATE})", "written"))),
                Panel("timeseries", "Load", "Processes that run or want to, over a minute.", "short",
                      one(f"holdfast_host_load_1m{_NODE}", "load")),
                Panel("timeseries", "Clock error", "What the kernel says of its own clock.", "s",
                      one(f"holdfast_host_clock_max_error_seconds{_NODE}", "error")),
            ),
        ),
        PanelRow(
            "GPUs",
            (
                Panel("timeseries", "Utilisation", "Time that a kernel ran on each GPU.", "percentunit",
                      one(f"holdfast_gpu_utilization_ratio{_NODE}", "GPU {{gpu}}"), 6, needs="gpu"),
                Panel("timeseries", "Temperature", "The hottest sensor of each GPU.", "celsius",
                      one(f"holdfast_gpu_temperature_celsius{_NODE}", "GPU {{gpu}}"), 6, needs="gpu"),
                Panel("timeseries", "Power", "A GPU below its peers waits or is throttled.", "watt",
                      one(f"holdfast_gpu_power_watts{_NODE}", "GPU {{gpu}}"), 6, needs="gpu"),
                Panel("timeseries", "Clock", "A GPU below its peers is throttled.", "hertz",
                      one(f"holdfast_gpu_sm_clock_hertz{_NODE}", "GPU {{gpu}}"), 6, needs="gpu"),
                Panel("state", "Throttled by hardware", "Heat, power brake or slowdown.", "short",
                      one(f"holdfast_gpu_hw_throttled{_NODE}", "GPU {{gpu}}"), 12, maps=_THROTTLED, needs="gpu"),
                Panel("timeseries", "Throttled for heat", "Share of time that the clock was lowered for heat.",
                      "percentunit",
                      (Query(f"rate(holdfast_gpu_hw_thermal_throttle_seconds_total{_NODE}{_RATE})", "{{gpu}} hardware"),
                       Query(f"rate(holdfast_gpu_sw_thermal_throttle_seconds_total{_NODE}{_RATE})", "{{gpu}} driver")),
                      12, needs="gpu"),
                Panel("timeseries", "ECC errors", "Memory errors since the driver was loaded.", "short",
                      (Query(f"holdfast_gpu_ecc_uncorrected_volatile_total{_NODE}", "GPU {{gpu}} uncorrected"),
                       Query(f"holdfast_gpu_ecc_corrected_volatile_total{_NODE}", "GPU {{gpu}} corrected")), 8,
                      needs="gpu"),
                Panel("timeseries", "NVLink errors", "Errors per second, all links of a GPU.", "short",
                      tuple(Query(f"rate(holdfast_gpu_nvlink_{name}_errors_total{_NODE}{_RATE})",
                                  f"GPU {{{{gpu}}}} {name.replace('_', ' ')}") for name in _LINKS), 8, needs="gpu"),
                Panel("timeseries", "NVLinks down", "Links that exist and are off.", "short",
                      one(f"holdfast_gpu_nvlinks_down{_NODE}", "GPU {{gpu}}"), 8, needs="gpu"),
            ),
        ),
        PanelRow(
            "Diagnostics",
            (
                Panel("table", "Verdicts", "The newest of each test.", "short",
                      one(f"max by (test) (holdfast_diagnostic_state{_NODE})"), 12, maps=VERDICT),
                Panel("table", "Figures", "What the worst part measured, in the unit that the docs give for the test.",
                      "short", one(f"topk(40, holdfast_diagnostic_value{_NODE})"), 12),
            ),
        ),
    ),
)  # fmt: skip
