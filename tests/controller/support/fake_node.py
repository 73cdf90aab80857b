"""One node as the facade reports it, for `fake_facade`."""

from typing import Any

from holdfast.controller.http.facade import Json
from holdfast.wire.types import NodeState


def make_node(index: int, per: int, world: int) -> Json:
    """A healthy H100 node with `per` of the job's ranks."""
    gpu: dict[str, Any] = {"model": "NVIDIA H100 80GB HBM3", "memory_bytes": 80 << 30}
    values = {
        "utilization_ratio": 0.97,
        "memory_used_bytes": 61e9,
        "temperature_celsius": 63.0,
        "power_watts": 655.0,
    }
    nic = {"kind": "rdma", "speed_bps": 400_000_000_000, "state": "ACTIVE"}
    return {
        "name": f"node{index}",
        "state": NodeState.HEALTHY,
        "reason": "",
        "connected": True,
        "hostname": f"gpu-{index:04d}.cluster",
        "ips": [f"10.0.{index >> 8}.{index & 255}"],
        "pod": {"name": "", "namespace": "", "uid": ""},
        "switch": f"tor-{index // 16}",
        "slots": per,
        "cpus": 96,
        "memory_bytes": 2 << 40,
        "versions": {"holdfast": "0.1.0", "torch": "2.11.0"},
        "frame_age": 0.05,
        "heartbeat_interval": 0.1,
        "ranks": list(range(index * per, min(world, (index + 1) * per))),
        "gpus": [
            gpu | {"index": g, "uuid": f"GPU-{index}-{g}", "pci": f"0000:{g:02x}:00.0", "values": dict(values)}
            for g in range(per)
        ],
        "nics": [nic | {"name": f"mlx5_{n}", "numa_node": n // 2} for n in range(4)],
        "host": {"cpu_ratio": 0.31, "memory_used_bytes": 4.1e11},
        "tx_bytes_per_s": 1e10,
        "rx_bytes_per_s": 1e10,
    }
