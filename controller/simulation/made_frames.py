"""What agents of a made-up cluster send for a viewer to look at: identities, gauges, states of ranks, traffic.

The simulation alone needs none of it: the brain decides by less.
"""

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from holdfast.controller.simulation.hosts import SimulatedHost
from holdfast.controller.simulation.state import SimulationState
from holdfast.wire import types as t

_GPU, _GPU_BYTES = "NVIDIA H100 80GB HBM3", 80 << 30
_NIC_BPS = 400_000_000_000
_FLOPS_SHARE = 0.55
"""Model FLOPs utilization of a step without slow ranks, as MegaScale has it on 12,288 GPUs (arXiv 2402.15627)."""
_SAMPLES_PER_S = 200
_BURST_S = 0.17
"""Period of the traffic within a step: micro-batches."""
_DOING = ("forward", "backward", "dp:all_reduce")


def identity(host: SimulatedHost, number: int, gpus: int) -> t.Identity:
    ip = f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"
    return t.Identity(
        host.name, host.name, f"{host.name}-{host.incarnation}",
        ips=(ip,), pod=t.Pod(f"pretended-{number}", "training", f"pod-{number}"),
        gpus=tuple(
            t.Gpu(i, f"GPU-{number:06d}-{i}", _GPU, f"0000:{0x1b + 0x10 * i:02x}:00", _GPU_BYTES) for i in range(gpus)
        ),
        nics=tuple(t.Nic(f"mlx5_{i}", "rdma", _NIC_BPS, i // 4, "active") for i in range(gpus)),
        switch=host.switch, slots=gpus, versions={"driver": "550.54.15", "cuda": "12.4"}, boot_id=f"boot-{number}",
        cpus=192, memory_bytes=2 << 40, address=ip,
    )  # fmt: skip


@lru_cache(maxsize=1 << 16)
def coordinate(rank: int, mesh: tuple[int, int, int]) -> tuple[int, int, int]:
    """(pp, dp, tp) of a rank; `mesh`: their sizes, tensor innermost."""
    _, dp, tp = mesh
    return rank // (dp * tp), rank // tp % dp, rank % tp


def training(world: SimulationState, host: SimulatedHost, mesh: tuple[int, int, int]) -> list[t.WorkerSample]:
    """Its ranks while the job trains, or starts; nothing of a host that runs none."""
    job, life = world.job, world.life
    if job is None or host.generation != job.generation or not host.generation:
        return []
    is_up = life is not None and life.generation == host.generation
    step = life.newest(world.now) if is_up and life is not None else -1
    since = (world.now - life.first) % life.step if is_up and life is not None and step >= 0 else 0.0
    phase = t.Phase.TRAIN if is_up else t.Phase.RESTORE
    part = since / world.shape.step
    doing = _DOING[min(int(3 * part), 2)] if is_up else ""
    meters = t.Meters(_FLOPS_SHARE * world.shape.step / life.step) if is_up and life is not None else None
    return [
        t.WorkerSample(
            rank, host.generation, 1000 + rank, step, phase, doing, since, since, 0.05, median_step=world.shape.step,
            coordinate=coordinate(rank, mesh), sizes=mesh, meters=meters, job=job.spec.id,
        )
        for rank in job.ranks_on(host.name)
        if rank not in host.ended
    ]  # fmt: skip


def gauges(world: SimulationState, number: int) -> tuple[dict[str, float], tuple[t.GpuGauges, ...]]:
    """Of a host and of its GPUs; each is a little warmer or cooler than the others, always by the same."""
    is_busy = world.life is not None
    own = math.sin(number * 12.9898)
    host = {
        "cpu_ratio": 0.22 if is_busy else 0.05,
        "load_1m": 40.0,
        "memory_used_bytes": 7e11,
        "memory_total_bytes": 2e12,
    }
    values = [
        {
            "utilization_ratio": 0.97 if is_busy else 0.0,
            "temperature_celsius": round(58.0 + 3 * own + i % 4, 1) if is_busy else 35.0,
            "power_watts": round(640.0 + 20 * own) if is_busy else 90.0,
            "memory_used_bytes": 70e9 if is_busy else 1e9,
            "memory_total_bytes": float(_GPU_BYTES),
            "ecc_errors_total": 0.0,
        }
        for i in range(world.shape.gpus)
    ]
    return host, tuple(t.GpuGauges(i, one) for i, one in enumerate(values))


def traffic(world: SimulationState, seconds: float) -> tuple[bytes, tuple[t.NicSamples, ...]]:
    """Offsets and counters of the samples of so many seconds up to now: bursts while it trains."""
    count = max(1, round(seconds * _SAMPLES_PER_S))
    at = world.now + (np.arange(count) + 1) / _SAMPLES_PER_S
    most = _NIC_BPS / 8 / _SAMPLES_PER_S
    share = np.where(at % _BURST_S < 0.35 * _BURST_S, 0.8, 0.02) if world.life is not None else np.zeros(count)
    sent = (share * most).astype("<u4")
    total = int(world.now * most)
    offsets = ((np.arange(count) + 1) * (1e6 / _SAMPLES_PER_S)).astype("<u4").tobytes()
    packed = sent.tobytes()
    nics: Sequence[t.NicSamples] = [
        t.NicSamples(f"mlx5_{i}", total, total, packed, packed) for i in range(world.shape.gpus)
    ]
    return offsets, tuple(nics)
