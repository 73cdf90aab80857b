"""Families with thousands of series, written straight as Prometheus text: at 12,288 ranks every microsecond counts.

Label values are escaped once per node, numbers written by `repr`; unknown numbers (None, NaN) have no sample.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from holdfast.controller.http.facade import Json

RANK_COLUMNS = (
    ("step", "step", "Last finished step of the rank."),
    ("step_seconds", "step_seconds", "Duration of the rank's last steps."),
    ("progress_age_seconds", "progress_age", "Time since the rank's last step or change of phase."),
)
WORKER_COLUMNS = (
    ("mfu_ratio", "mfu", "Model FLOP/s of the whole job over the peak of its devices, in the rank's last step."),
    ("memory_bytes", "memory_bytes", "Peak memory of the rank: of its GPU, else of the host."),
)
PART_TEXT = "Time that a part of the rank's last step took, as the rank itself measured it."
NODE_GAUGES = (
    ("frame_age_seconds", "frame_age", "Time since the node's last heartbeat."),
    ("tx_bytes_per_second", "tx_bytes_per_s", "Bytes the node sends per second, all NICs."),
    ("rx_bytes_per_second", "rx_bytes_per_s", "Bytes the node receives per second, all NICs."),
    ("memory_bytes", "memory_bytes", "Memory of the node."),
    ("slots", "slots", "Worker slots of the node."),
)
HELP = {
    "gpu_utilization_ratio": "Share of time the GPU computed.",
    "gpu_memory_used_bytes": "Memory in use on the GPU.",
    "gpu_temperature_celsius": "Temperature of the GPU.",
    "gpu_power_watts": "Power the GPU draws.",
    "gpu_ecc_corrected_volatile_total": "Memory errors that the GPU corrected, since its driver was loaded.",
    "gpu_ecc_uncorrected_volatile_total": "Memory errors that the GPU could not correct, since its driver was loaded.",
    "gpu_hw_throttled": "1 while the GPU's hardware lowers its clock: heat, power brake or slowdown.",
    "host_cpu_ratio": "Share of the host's CPU time in use.",
    "host_memory_used_bytes": "Memory in use on the host.",
    "host_warm_ready": "1 while the node's fork server is up, so that a worker can start at once.",
    "host_snapshot_step": "Steps in the newest snapshot that each worker of the node has in memory.",
    "host_snapshot_age_seconds": "Age of the oldest of the workers' newest snapshots: work that a fault would cost.",
    "host_snapshot_bytes": "Bytes of one snapshot of all workers of the node.",
    "host_snapshot_peer_step": "Steps in the newest snapshot that each worker has on another node, too.",
    "host_snapshot_peer_seconds": "Duration of the slowest worker's last copy to another node.",
    "host_snapshot_copies_bytes": "Bytes of one snapshot of all workers of other nodes whose copies this node keeps.",
    "host_disk_read_bytes_total": "Bytes read from all disks.",
    "host_disk_written_bytes_total": "Bytes written to all disks.",
    "host_snapshot_repaired_chunks_total": "MiB of snapshots that changed in the host's memory and were repaired.",
    "host_checkpoint_step": "Steps in the newest checkpoint committed with this node's help.",
    "host_checkpoint_age_seconds": "Time since that checkpoint was committed.",
    "host_checkpoint_upload_seconds": "Time from snapshot to commit of that checkpoint.",
    "host_checkpoint_upload_bytes_per_second": "Rate at which the node wrote its parts of the last checkpoint.",
    "host_checkpoint_failing": "1 from a failure of the store until the next successful write.",
}
COUNTERS = frozenset({
    "disk_read_bytes", "disk_written_bytes", "snapshot_repaired_chunks", "energy_joules", "pcie_replays",
    "sw_thermal_throttle_seconds", "hw_thermal_throttle_seconds", "hw_power_brake_seconds",
    "nvlink_crc_flit_errors", "nvlink_crc_data_errors", "nvlink_replay_errors", "nvlink_recovery_errors",
    "nvlink_receive_errors", "nvlink_link_recoveries",
    "ecc_corrected_volatile", "ecc_uncorrected_volatile", "ecc_corrected_aggregate", "ecc_uncorrected_aggregate",
})  # fmt: skip
"""Of the agents' gauges those that only go up: counters, whose names end in `_total`."""
DIAGNOSTIC_STATES = {"pass": 0, "degraded": 1, "fail": 2}
GAUGE_NAME = re.compile(r"[a-z][a-z0-9_]*")
MOST_GAUGES = 64
"""Distinct gauges taken of what agents send: a broken agent must not flood Prometheus with names."""


def rank_families(jobs: Sequence[Json]) -> Iterator[str]:
    """One series per rank and family. `jobs`: as `Facade.job_metrics` gives them."""
    each = [job["ranks"] for job in jobs]
    by_job = [_rank_labels(job) for job in jobs]
    labels = _joined(by_job)
    for metric, column, text in RANK_COLUMNS:
        yield from family(f"holdfast_rank_{metric}", text, labels, _joined([ranks[column] for ranks in each]))
    for metric, column, text in WORKER_COLUMNS:
        yield from family(f"holdfast_worker_{metric}", text, labels, _joined([ranks[column] for ranks in each]))
    part_labels: list[str] = []
    part_values: list[float | None] = []
    for own, ranks in zip(by_job, each, strict=True):
        parts = {part: took for part, took in ranks["part_seconds"].items() if any(s is not None for s in took)}
        part_labels += [f'{label[:-2]},part="{part}"}} ' for part in parts for label in own]
        part_values += [value for took in parts.values() for value in took]
    yield from family("holdfast_worker_step_part_seconds", PART_TEXT, part_labels, part_values)
    running: list[float | None] = []
    for ranks in each:
        states = [1 if state == "running" else 0 for state in ranks["states"]]
        running += [states[state] for state in ranks["state"]]
    yield from family("holdfast_rank_running", "1 while the rank's process runs and is healthy.", labels, running)


def _rank_labels(job: Json) -> list[str]:
    ranks, name = job["ranks"], escape(job["job"]["name"])
    nodes = [escape(node) for node in ranks["nodes"]]
    return [
        f'{{job="{name}",node="{nodes[node]}",rank="{rank}"}} '
        for rank, node in zip(ranks["rank"], ranks["node"], strict=True)
    ]


BLAME_COLUMNS = (
    ("self_slowdown_ratio", "self_ratio", "The GPU's own computation time over that of its peers: 1.1 is 10% slower."),
    ("induced_wait_seconds_total", "induced_s", "Total time that other GPUs waited because of this one."),
    ("victim_wait_seconds_total", "victim_s", "Time that this GPU waited for others beyond the waits of the plan."),
)


def blame_families(jobs: Sequence[Json]) -> Iterator[str]:
    """One series per GPU of a job and family, by the rank that runs on it. `jobs`: as `Facade.job_metrics` has them."""
    where: list[dict[int, str]] = []
    for job in jobs:
        ranks, name, per_node = job["ranks"], escape(job["job"]["name"]), int(job["job"]["nproc_per_node"])
        nodes = [escape(node) for node in ranks["nodes"]]
        where.append({
            rank: f'{{job="{name}",node="{nodes[node]}",gpu="{rank % per_node}",rank="{rank}"}} '
            for rank, node in zip(ranks["rank"], ranks["node"], strict=True)
        })  # fmt: skip
    for metric, column, text in BLAME_COLUMNS:
        known = [
            (labels[rank], value)
            for job, labels in zip(jobs, where, strict=True)
            for rank, value in job["blame"].get(column, {}).items()
            if rank in labels
        ]
        yield from family(f"holdfast_gpu_{metric}", text, *_columns(known))


def node_families(nodes: Sequence[Json]) -> Iterator[str]:
    """One series per node, or per GPU or NIC of it, and family."""
    names = [escape(node["name"]) for node in nodes]
    labels = [f'{{node="{name}"}} ' for name in names]
    up = [int(node["connected"]) for node in nodes]
    yield from family("holdfast_node_up", "1 while the node's agent is connected.", labels, up)
    where = [f'{label[:-2]},switch="{escape(node["switch"])}"}} ' for label, node in zip(labels, nodes, strict=True)]
    yield from family("holdfast_node_info", "1; the switch of the node, as a label.", where, [1] * len(nodes))
    states = [f'{label[:-2]},state="{node["state"]}"}} ' for label, node in zip(labels, nodes, strict=True)]
    text = "1 for the state the node is in; the others have no sample."
    yield from family("holdfast_node_state", text, states, [1] * len(nodes))
    for metric, key, text in NODE_GAUGES:
        yield from family(f"holdfast_node_{metric}", text, labels, [node[key] for node in nodes])
    pairs = zip(labels, nodes, strict=True)
    yield from gauges("host", ((label, node["host"]) for label, node in pairs))
    cards = zip(names, nodes, strict=True)
    yield from gauges(
        "gpu",
        ((f'{{node="{name}",gpu="{gpu["index"]}"}} ', gpu["values"]) for name, node in cards for gpu in node["gpus"]),
    )
    ports = [
        (f'{{node="{name}",nic="{escape(nic["name"])}"}} ', nic["speed_bps"] / 8 if nic["speed_bps"] else None)
        for name, node in zip(names, nodes, strict=True)
        for nic in node["nics"]
    ]
    text = "Link speed of the NIC."
    yield from family("holdfast_nic_speed_bytes_per_second", text, *_columns(ports))


def diagnostic_families(tests: Sequence[Json]) -> Iterator[str]:
    """What each node's last diagnosis said: one series per node and test, and per figure."""
    names = [escape(test["node"]) for test in tests]
    worst: dict[str, int] = {}
    for name, test in zip(names, tests, strict=True):
        label = f'{{node="{name}",test="{test["test"]}"}} '
        worst[label] = max(worst.get(label, 0), DIAGNOSTIC_STATES.get(test["grade"], 0))
    text = "Verdict of the node's last diagnosis: 0 pass, 1 degraded, 2 fail."
    yield from family("holdfast_diagnostic_state", text, list(worst), list(worst.values()))
    figures = [
        (f'{{node="{name}",test="{test["test"]}",metric="{test["metric"]}"}} ', test["value"])
        for name, test in zip(names, tests, strict=True) if test["metric"]
    ]  # fmt: skip
    text = "Figure of the node's worst part in its last diagnosis; docs/diagnostics.md gives the units."
    yield from family("holdfast_diagnostic_value", text, *_columns(figures))


def gauges(prefix: str, rows: Iterable[tuple[str, Json]]) -> Iterator[str]:
    """Families for whatever gauges the agents send: the key is the name, units included."""
    found: dict[str, list[tuple[str, float | None]]] = {}
    for label, values in rows:
        for key, value in values.items():
            series = found.get(key)
            if series is None:
                if len(found) == MOST_GAUGES or not GAUGE_NAME.fullmatch(key):
                    continue
                series = found[key] = []
            series.append((label, value))
    for key in sorted(found):
        name = f"{prefix}_{key}_total" if key in COUNTERS else f"{prefix}_{key}"
        text = HELP.get(name, f"{key.replace('_', ' ')} as the agent reads it.")
        yield from family(f"holdfast_{name}", text, *_columns(found[key]))


def family(name: str, text: str, labels: Sequence[str], values: Sequence[float | None]) -> Iterator[str]:
    """One family: what it is, then its samples. `labels` come as they stand in the text."""
    kind = "counter" if name.endswith("_total") else "gauge"
    yield f"# HELP {name} {text}\n# TYPE {name} {kind}\n"
    # A number that differs from itself is NaN; infinities are written as Prometheus wants them by `number`.
    yield "".join(
        [
            f"{name}{label}{value if value.__class__ is int else number(value)}\n"
            for label, value in zip(labels, values, strict=True)
            if value is not None and value == value
        ]
    )


def number(value: float) -> str:
    text = repr(float(value))
    return f"{'-' if value < 0 else '+'}Inf" if text.endswith("inf") else text


def escape(value: str) -> str:
    return str(value).replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _joined(columns: Sequence[list[Any]]) -> list[Any]:
    """All of them behind each other; the only one as it is."""
    return columns[0] if len(columns) == 1 else [value for column in columns for value in column]


def _columns(rows: Sequence[tuple[str, float | None]]) -> tuple[list[str], list[float | None]]:
    return [label for label, _ in rows], [value for _, value in rows]
