"""How long each layer of the network waits, set in one place and checked for the order that keeps a flap a flap.

A link that comes back must find its packets still being sent again; a peer that does not answer must be given up by
its process group before the watcher of the job gives up on that:

    flap  <  InfiniBand's retries  <  process group  <  driver

Pure: settings in; an environment, or the reason why the settings cannot work, out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, replace

from holdfast.planner.network.retransmission import IB_TICK_S, ib_tolerance_s

IB_EXPONENTS = range(1, 32)  # 0 stands for waiting for ever
IB_RETRIES = range(8)


@dataclass(frozen=True, slots=True)
class Transport:
    """The times, in seconds but for the two that InfiniBand counts in its own way."""

    flap_s: float
    ib_timeout: int
    ib_retries: int
    group_s: float
    driver_s: float
    """0: nothing outside gives up on the job after a fixed time."""

    @property
    def ib_s(self) -> float:
        return ib_tolerance_s(self.ib_timeout, self.ib_retries)


def obstacle(policy: Transport, infiniband: bool) -> str | None:
    """Why these times cannot work, with what would; None if they can. `infiniband`: whether NCCL may be in use."""
    if policy.ib_timeout not in IB_EXPONENTS:
        return f"transport.ib_timeout is {policy.ib_timeout}: must be from 1 to 31"
    if policy.ib_retries not in IB_RETRIES:
        return f"transport.ib_retries is {policy.ib_retries}: must be from 0 to 7"
    if infiniband and not policy.ib_s > policy.flap_s:
        return (
            f"transport.flap_s is {policy.flap_s:g}, but InfiniBand gives up after {policy.ib_s:.3g} s "
            f"(transport.ib_timeout = {policy.ib_timeout}, ib_retries = {policy.ib_retries}): {_cure(policy)}"
        )
    if infiniband and not policy.group_s > policy.ib_s:
        return (
            f"parallel.timeout_s is {policy.group_s:g}, but InfiniBand tries for {policy.ib_s:.3g} s: "
            "raise it above that, or lower transport.ib_timeout"
        )
    if policy.driver_s and not policy.driver_s > policy.group_s:
        return (
            f"transport.driver_s is {policy.driver_s:g}, but a process group waits parallel.timeout_s = "
            f"{policy.group_s:g} s: raise the first above the second, or lower the second"
        )
    return None


def _cure(policy: Transport) -> str:
    retries = max(policy.ib_retries, 1)
    needed = math.floor(math.log2(policy.flap_s / (IB_TICK_S * retries))) + 1 if policy.flap_s > 0 else 1
    if needed in IB_EXPONENTS:
        return f"set transport.ib_timeout to {needed} or more"
    return "no exponent reaches that far, lower transport.flap_s"


def environment(policy: Transport) -> dict[str, str]:
    """What NCCL and torch read when a process group is made."""
    seconds = str(math.ceil(policy.group_s))
    return {
        "NCCL_IB_TIMEOUT": str(policy.ib_timeout),
        "NCCL_IB_RETRY_CNT": str(policy.ib_retries),
        # A collective that takes longer than the group's timeout ends the process, after saying what it was.
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        # The watchdog's own timeout is no shorter than that of what it watches.
        "TORCH_NCCL_ENABLE_MONITORING": "1",
        "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": seconds,
    }


def heeding(policy: Transport, env: Mapping[str, str]) -> Transport:
    """The policy with what `env` says already in place of its own: that is what NCCL will do."""

    def known(name: str, value: int) -> int:
        return int(env[name]) if env.get(name, "").isdigit() else value

    timeout = known("NCCL_IB_TIMEOUT", policy.ib_timeout)
    return replace(policy, ib_timeout=timeout, ib_retries=known("NCCL_IB_RETRY_CNT", policy.ib_retries))


def export(policy: Transport, env: MutableMapping[str, str]) -> None:
    """Put the policy into `env`. What is set already stays."""
    for name, value in environment(policy).items():
        env.setdefault(name, value)
