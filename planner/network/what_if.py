"""What a change of the network costs a job: a switch that is lost, another order of ranks, a link that flaps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from holdfast.planner.network.clos import Clos
from holdfast.planner.network.errors import NetworkError
from holdfast.planner.network.flows import Change, Floats, Transfers, bytes_by_link, ends
from holdfast.planner.network.network import Network
from holdfast.planner.network.retransmission import goes_on_after, ib_tolerance_s
from holdfast.planner.network.traffic import BEST, StepTraffic, messages, places, sums


@dataclass(frozen=True, slots=True)
class Answer:
    """Seconds of a step's transfers on a network, and where their bytes go."""

    sums_s: float
    """Infinite where a rank has lost its network."""
    messages_s: float
    tier_bytes: tuple[float, float, float]
    """Over the links of NICs, of lowest and of middle switches, both directions."""
    conflicts: int
    """Uplinks of lowest switches that several edges share beyond their speed."""
    cut_off: int
    """Rings and messages that can't end."""


@dataclass(frozen=True, slots=True)
class Flap:
    """What a link's silence costs: when the step's sums end with it and without it, None where the job fails."""

    calm_s: float
    ends_s: float | None
    tolerance_s: float


def answer(traffic: StepTraffic, network: Network, order: str = BEST) -> Answer:
    """Sums of all replicas at once, and messages of all stages at once; neither beside the other or computation.

    Raises NetworkError where the network has fewer NICs than the job has ranks.
    """
    clos = network.clos
    if clos.nics < traffic.world:
        raise NetworkError(f"{traffic.world:,} ranks on {clos.nics:,} NICs: give the network as many NICs at least")
    place, capacity = places(traffic, order), network.capacity()
    both = sums(traffic, place, network), messages(traffic, place, network)
    took = [ends(transfers, capacity) for transfers in both]
    loads = sum((bytes_by_link(transfers, clos.link_count) for transfers in both), np.zeros(clos.link_count))
    tiers = _by_tier(clos, loads)
    return Answer(
        float(took[0].max(initial=0.0)),
        float(took[1].max(initial=0.0)),
        tiers,
        _conflicts(clos, both[0]),
        int(sum(np.isinf(end).sum() for end in took)),
    )


def flap(
    traffic: StepTraffic,
    network: Network,
    nic: int,
    seconds: float,
    ib_timeout: int,
    ib_retries: int,
    adaptive: bool = False,
    order: str = BEST,
) -> Flap:
    """A NIC's link is silent for `seconds` from the beginning of sums and messages on; InfiniBand has its own times."""
    if not 0 <= nic < network.clos.nics:
        raise NetworkError(f"NIC {nic}: there are 0 to {network.clos.nics - 1}")
    place, capacity = places(traffic, order), network.capacity()
    transfers = sums(traffic, place, network) + messages(traffic, place, network)
    links = np.array([nic, network.clos.nics + nic])
    calm = float(ends(transfers, capacity).max(initial=0.0))
    tolerance = ib_tolerance_s(ib_timeout, ib_retries)
    back = goes_on_after(seconds, ib_timeout, ib_retries, adaptive)
    if back is None and np.isin(transfers.crossing, links).any():
        return Flap(calm, None, tolerance)
    changes = [Change(0.0, links, 0.0), Change(back or 0.0, links, 1.0)]
    return Flap(calm, float(ends(transfers, capacity, changes).max(initial=0.0)), tolerance)


def _by_tier(clos: Clos, loads: Floats) -> tuple[float, float, float]:
    nics, leaf = 2 * clos.nics, 2 * (clos.nics + clos.leaves * clos.uplinks)
    return float(loads[:nics].sum()), float(loads[nics:leaf].sum()), float(loads[leaf:].sum())


def _conflicts(clos: Clos, transfers: Transfers) -> int:
    users = np.bincount(transfers.crossing, weights=transfers.part, minlength=clos.link_count)
    first, after = 2 * clos.nics, 2 * (clos.nics + clos.leaves * clos.uplinks)
    return int((users[first:after] > clos.split + 1e-9).sum())
