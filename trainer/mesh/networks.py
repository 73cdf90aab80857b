"""Which network each process group goes through, chosen from the NICs of its members. Pure.

Holmes (Yang et al., ICPP 2024, arXiv 2312.03549) selects a NIC for each communicator: NICs of unlike types meet by
Ethernet only, so a group whose members are on both goes by TCP, and the others keep their RDMA. The rule is the
planner's (`planner.unlike.transports.transport`); here ranks and settings go in, and what torch takes for a group
comes out.

A group has one network. Where a pipeline has several stages on NICs of one type, these have a group of their own beside
that of the whole pipeline (`Networks.near`), so that only messages between types go by TCP.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from holdfast.facts.nics import TYPES, VARIABLE, comparable
from holdfast.planner.unlike.transports import transport
from holdfast.trainer.settings.errors import ConfigError

_ALONE = 1
"""A group of one rank sends nothing."""


@dataclass(frozen=True, slots=True)
class Network:
    """What one group is made with. Empty: NCCL, and gloo, use what they use for all groups."""

    net: str = ""
    """NCCL's network, as a communicator's netName has it. Only ever Socket: within one type of NIC NCCL takes the best
    that it has, and that may be a plugin of a name that we do not know."""
    interface: str = ""
    """Where gloo listens."""


@dataclass(frozen=True, slots=True)
class Networks:
    """Of one job, on one of its hosts."""

    nics: tuple[str, ...]
    """By rank, the type of NIC of its host."""
    within: str = ""
    """This host's interface for groups within one type; empty: that for all groups."""

    def of(self, ranks: Collection[int]) -> Network:
        """The network of a group of these ranks of the job."""
        nics = frozenset(self.nics[rank] for rank in ranks)
        if len(ranks) <= _ALONE:
            return Network()
        return Network("" if transport(nics).is_rdma else "Socket", self.within if len(nics) == 1 else "")

    def near(self, ranks: Sequence[int], rank: int) -> tuple[int, ...]:
        """Those of a pipeline's ranks that this rank reaches by another network than the whole pipeline's: it and the
        others of its type. Empty where there are none. All of them get the same answer."""
        own = tuple(one for one in ranks if self.nics[one] == self.nics[rank])
        return own if len(own) > _ALONE and self.of(own) != self.of(ranks) else ()


def numbered(nic: str) -> int:
    """A type of NIC as a number that ranks can exchange."""
    return TYPES.index(nic)


def named(numbers: Sequence[int]) -> tuple[str, ...]:
    """The types of all ranks, comparable with each other."""
    return tuple(comparable([TYPES[number] for number in numbers]))


def declared(env: Mapping[str, str]) -> str:
    """The type of this host as its agent, or the user, has it in the environment; empty without. ConfigError for a
    type that there is not."""
    nic = env.get(VARIABLE, "")
    if nic and nic not in TYPES:
        raise ConfigError(f"{VARIABLE}={nic} in the environment: must be one of {', '.join(TYPES)}", is_local=True)
    return nic


def present(key: str, wanted: str, interfaces: Collection[str]) -> str:
    """The first of the interfaces in `wanted`, with commas between, that this host has; empty for none wanted.
    ConfigError where it has none of them. `key`: the setting's name."""
    names = [name.strip() for name in wanted.split(",") if name.strip()]
    found = next((name for name in names if name in interfaces), "")
    if names and not found:
        raise ConfigError(
            f"transport.{key} = {wanted}: this host has no such interface, it has {', '.join(sorted(interfaces))}",
            is_local=True,
        )
    return found


def check_environment(env: Mapping[str, str]) -> None:
    """ConfigError where the environment takes the choice away: NCCL puts NCCL_NET above what a group is made with."""
    if net := env.get("NCCL_NET", ""):
        raise ConfigError(
            f"NCCL_NET={net} in the environment is for all groups, and transport.networks = by-nic chooses for each; "
            "unset it, or set transport.networks = one",
            is_local=True,
        )
