"""Process groups on the networks that `networks` chooses: what the ranks report, and what torch is given for a group.

torch 2.13 gives options of a group to NCCL only: `ProcessGroupNCCL.Options().config.net_name`. Its branch for gloo
leaves them out (`_new_process_group_helper` in distributed_c10d.py), and gloo reads GLOO_SOCKET_IFNAME whenever a group
is made. So that variable is set while one is.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from holdfast.agent.collectors.nic import nics
from holdfast.facts.nics import nic_type
from holdfast.trainer.mesh.networks import Network, Networks, check_environment, declared, named, numbered, present
from holdfast.trainer.settings.config import TransportConfig
from holdfast.trainer.settings.errors import ConfigError
from holdfast.trainer.settings.launch import Launch

GLOO, NCCL = "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"


def prepare(settings: TransportConfig, env: MutableMapping[str, str], has_nccl: bool) -> None:
    """Before the group of all ranks is made: it goes by `transport.across`, and so does every group that no other
    network is chosen for. What `env` has already stays. ConfigError for what cannot be on this host."""
    interfaces = [name for _, name in socket.if_nameindex()]
    across = present("across", settings.across, interfaces)
    present("within", settings.within, interfaces)
    declared(env)
    if has_nccl:
        check_environment(env)
        if not hasattr(_options().config, "net_name"):
            raise ConfigError(
                f"transport.networks = by-nic: NCCL of torch {torch.__version__} has no network by group; "
                "set transport.networks = one",
                is_local=True,
            )
    if across:
        env.setdefault(GLOO, across)
        env.setdefault(NCCL, f"={across}")  # the equals sign: that name, and not all that begin so


def exchanged(settings: TransportConfig, launch: Launch, env: MutableMapping[str, str]) -> Networks:
    """What all ranks report of their hosts. Called by all ranks together, in the group of all of them."""
    found = torch.zeros(launch.world, dtype=torch.int64)
    found[launch.rank] = numbered(declared(env) or nic_type(nics()))
    dist.all_reduce(found)
    within = present("within", settings.within, [name for _, name in socket.if_nameindex()])
    return Networks(named(found.tolist()), within)


def set_network(group: dist.ProcessGroup, network: Network) -> None:
    """Give a group that is made already, and has no communicator yet, its network. torch makes NCCL's communicators at
    the first collective, from the options that the group has then."""
    if network.net:
        group._get_backend(torch.device("cuda")).options.config.net_name = network.net  # type: ignore[attr-defined]


def options(network: Network, timeout: timedelta) -> Any:
    """What `new_group` is given for NCCL; None: as for all groups, and where the job has no NCCL."""
    if not network.net or "nccl" not in dist.get_backend_config():
        return None
    found = _options()
    found.config.net_name = network.net
    found._timeout = timeout  # torch warns where it is not the group's
    return found


@contextmanager
def listening(network: Network, env: MutableMapping[str, str]) -> Iterator[None]:
    """gloo's groups that are made meanwhile listen on the network's interface. Not for several threads."""
    before = env.get(GLOO)
    if network.interface:
        env[GLOO] = network.interface
    try:
        yield
    finally:
        if network.interface:
            if before is None:
                del env[GLOO]
            else:
                env[GLOO] = before


def _options() -> Any:
    return dist.ProcessGroupNCCL.Options()
