"""What breaks in a cluster that does not exist: causes and rates as published, drawn by seed. Pure."""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class How(StrEnum):
    """How a cause shows."""

    GPU = "gpu"
    """A worker ends; the kernel's log names the GPU. The GPU stays bad more often than not."""
    CRASH = "crash"
    """A worker ends by a signal, and nothing says why. May come again on that node."""
    BUG = "bug"
    """A worker ends with a traceback: the script's own fault, or a dependency's."""
    HANG = "hang"
    """A worker stands still, and with it all."""
    DEAD = "dead"
    """The host is gone, its streams with it."""
    SILENT = "silent"
    """The host is gone or cut off, and no stream breaks."""
    SWITCH = "switch"
    """All nodes of a switch are cut off for a while."""
    NAN = "nan"
    """A loss that is NaN."""
    PLANNED = "planned"
    """Operators evict the node and bring it back later."""
    AGENT = "agent"
    """The agent dies and is started again; training goes on."""
    LOG = "log"
    """A critical line in a host's log that means nothing."""
    CONTROLLER = "controller"
    """The controller dies at any point, in the middle of an answer too."""
    SLOW = "slow"
    """A node is slower than the others for some hours."""
    PAUSE = "pause"
    """The job makes no step for a while and continues by itself; of one of `pauses.Kind`."""
    LINK = "link"
    """Something goes wrong in the network between nodes: one of `fabric.faults.LinkFault`."""


STOPS = frozenset({How.GPU, How.CRASH, How.BUG, How.HANG, How.DEAD, How.SILENT, How.SWITCH, How.NAN, How.PLANNED})
"""What ends an attempt of the job."""

LLAMA3: Mapping[str, tuple[int, Mapping[How, float]]] = {
    "faulty GPU": (148, {How.GPU: 0.8, How.HANG: 0.2}),
    "GPU HBM3 memory": (72, {How.GPU: 1.0}),
    "software bug": (54, {How.BUG: 1.0}),
    "network switch or cable": (35, {How.SWITCH: 0.3, How.SILENT: 0.4, How.HANG: 0.3}),
    "host maintenance": (32, {How.PLANNED: 1.0}),
    "GPU SRAM memory": (19, {How.GPU: 1.0}),
    "GPU system processor": (17, {How.GPU: 0.5, How.HANG: 0.5}),
    "NIC": (7, {How.SILENT: 0.5, How.HANG: 0.5}),
    "NCCL watchdog": (7, {How.HANG: 1.0}),
    "silent data corruption": (6, {How.NAN: 1.0}),
    "GPU thermal": (6, {How.CRASH: 1.0}),
    "SSD": (3, {How.CRASH: 0.5, How.DEAD: 0.5}),
    "power supply": (3, {How.DEAD: 1.0}),
    "server chassis": (2, {How.DEAD: 1.0}),
    "IO expansion board": (2, {How.DEAD: 1.0}),
    "dependency": (2, {How.BUG: 1.0}),
    "CPU": (2, {How.CRASH: 0.5, How.DEAD: 0.5}),
    "system memory": (2, {How.CRASH: 1.0}),
}
"""Cause -> unexpected interruptions in 54 days of Llama 3 on 16,384 GPUs (arXiv 2407.21783, table 5), and our reading
of how each shows."""

_LLAMA3_GPU_DAYS = 16_384 * 54.0
RATES: Mapping[str, float] = {
    "llama3": 1.0,
    # More than 100 restarts in a run of several weeks on more than 10,000 GPUs (arXiv 2402.15627, 6.3): taken as 4.
    "megascale": (100 / (10_000 * 28.0)) / (419 / _LLAMA3_GPU_DAYS),
    # 43,264 explicit and 5,948 implicit failures in three months, of 778,135 jobs of all sizes on a platform of more
    # than 200,000 GPUs, users' own mistakes among them (SOSP'25, table 1): the worst published rate.
    "byterobust": ((43_264 + 5_948) / (200_000 * 91.0)) / (419 / _LLAMA3_GPU_DAYS),
}
"""Interruptions per GPU and day, in units of Llama 3's."""

NOISE: Mapping[How, float] = {How.AGENT: 1 / 20_000, How.LOG: 1 / 5_000, How.SLOW: 1 / 40_000}
"""What interrupts nothing, per node and day of the published rate's unit. Our estimates: no rates are published."""
_CONTROLLER_PER_DAY = 1 / 7
_PAUSES_PER_NODE_AND_DAY = 1 / 500
LINKS_PER_GPU_AND_DAY = 0.00057 / 30
"""Faults of links per NIC, with a NIC for each GPU: 0.057% of the links between NICs and switches fail in a month of
Alibaba's production (HPN, SIGCOMM 2024). Flaps are not in it; nobody has published their rate per link."""


@dataclass(frozen=True, slots=True)
class SimulatedFault:
    at: float
    """Seconds since the job was submitted."""
    cause: str
    how: How
    where: float
    """Which node, 0 to 1 of those that run."""
    rng: int
    """Seed for whatever else is to be chosen."""


def draw(
    seed: int, gpus: int, nodes: int, seconds: float, rate: float, hurry: float = 1.0, links: float = 0.0
) -> list[SimulatedFault]:
    """All faults of a run, by time. `rate`: in units of Llama 3's; `hurry` speeds up noise and controller crashes;
    `links`: those of the network between nodes, in units of HPN's rate."""
    rng = random.Random(seed)
    days = seconds / 86_400
    faults: list[SimulatedFault] = []
    for cause, (count, shows) in LLAMA3.items():
        mean = rate * count * gpus * days / _LLAMA3_GPU_DAYS
        for at in _moments(rng, mean, seconds):
            how = rng.choices(list(shows), list(shows.values()))[0]
            faults.append(SimulatedFault(at, cause, how, rng.random(), rng.getrandbits(32)))
    others = {how: hurry * per * nodes * days for how, per in NOISE.items()}
    others[How.CONTROLLER] = hurry * _CONTROLLER_PER_DAY * days
    others[How.PAUSE] = hurry * _PAUSES_PER_NODE_AND_DAY * nodes * days
    others[How.LINK] = links * LINKS_PER_GPU_AND_DAY * gpus * days  # last: what is drawn before stays the same
    for how, mean in others.items():
        for at in _moments(rng, mean, seconds):
            faults.append(SimulatedFault(at, how.value, how, rng.random(), rng.getrandbits(32)))
    return sorted(faults, key=lambda fault: fault.at)


def _moments(rng: random.Random, mean: float, seconds: float) -> list[float]:
    """A Poisson process over the run."""
    at, found = 0.0, []
    while mean > 0:
        at += rng.expovariate(mean / seconds)
        if at >= seconds:
            break
        found.append(at)
    return found
