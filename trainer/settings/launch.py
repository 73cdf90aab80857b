"""What a launcher passes to a rank through the environment: torchrun's variables, and Holdfast's own."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass

from holdfast.trainer.settings.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Launch:
    """This process's place in the job."""

    rank: int = 0
    world: int = 1
    local_rank: int = 0
    generation: int = 0
    """How often the job was started again before this."""
    job: str = ""
    is_distributed: bool = False
    """Whether a launcher started us; if not, this is the only rank and needs no rendezvous."""
    local_world: int = 1
    """Ranks on this node."""
    node: str = ""
    """The node's number among those of the job, "" when the launcher does not say."""


def from_environment(env: Mapping[str, str]) -> Launch:
    """Read RANK, WORLD_SIZE, LOCAL_RANK, HOLDFAST_GENERATION or TORCHELASTIC_RESTART_COUNT, HOLDFAST_JOB.

    Raises ConfigError for values that make no sense.
    """
    if "RANK" not in env and "WORLD_SIZE" not in env:
        return Launch()
    launch = Launch(
        rank=_number(env, "RANK"),
        world=_number(env, "WORLD_SIZE"),
        local_rank=_number(env, "LOCAL_RANK", env.get("RANK", "0")),
        generation=_number(env, "HOLDFAST_GENERATION", env.get("TORCHELASTIC_RESTART_COUNT", "0")),
        job=env.get("HOLDFAST_JOB", ""),
        is_distributed=True,
        local_world=_number(env, "LOCAL_WORLD_SIZE", "1"),
        node=env.get("GROUP_RANK", ""),
    )
    if launch.world < 1 or launch.rank >= launch.world:
        raise ConfigError(f"RANK={launch.rank} WORLD_SIZE={launch.world} in the environment: ranks count from 0")
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        if name not in env:
            raise ConfigError(f"{name} is not in the environment, RANK is: start under holdfast run or torchrun")
    return launch


def keep_loopback_local(env: MutableMapping[str, str]) -> None:
    """Make gloo listen on the loopback device when the rendezvous is there and nothing else is set.

    gloo otherwise looks the host's own name up, which fails or stalls on machines without a resolver.
    """
    address = env.get("MASTER_ADDR", "")
    try:
        is_loopback = address == "localhost" or ipaddress.ip_address(address).is_loopback
    except ValueError:
        is_loopback = False
    if is_loopback and "GLOO_SOCKET_IFNAME" not in env and os.path.exists("/sys/class/net/lo"):
        env["GLOO_SOCKET_IFNAME"] = "lo"


def _number(env: Mapping[str, str], name: str, default: str | None = None) -> int:
    text = env.get(name, default)
    if text is None or not text.isdigit():
        raise ConfigError(f"{name}={text} in the environment: must be a whole number, as torchrun sets it")
    return int(text)
