"""What goes wrong in the network between hosts: what it changes, for how long, and when a job gives up over it."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from typing import Any, Protocol

import numpy as np

from holdfast.controller.simulation.fabric.conditions import Flow
from holdfast.controller.simulation.fabric.layout import NIC_BYTES_PER_S
from holdfast.controller.simulation.fabric.links import Links
from holdfast.controller.simulation.hosts import SimulatedHost
from holdfast.controller.simulation.world import World
from holdfast.planner.network.questions import IB_RETRIES, IB_TIMEOUT
from holdfast.planner.network.retransmission import goes_on_after, ib_tolerance_s, timeout_s

LEAD_STEPS, TAIL_STEPS = 20, 40
"""Steps before a fault and after it in which frames are whole: detectors learn what is usual, and see what is not."""
GAVE_UP = "torch.distributed.DistBackendError: NCCL error: remote process exited or there was a network error"
_CONVERGES_S = 1.0
"""Until switches route around what is lost; nothing of what was under way there arrives."""
_NEVER_S = 1e9
_LASTS_S = 7200.0
"""Mean time until somebody mends a link."""


class LinkFault(StrEnum):
    SLOW_NIC = "slow NIC"
    """It came up with a half or a quarter of its speed."""
    CABLE = "bad cable"
    """One direction between a NIC and its switch loses packets."""
    FLAP = "flapping link"
    """Between a NIC and its switch, several times, for seconds each."""
    UPLINK = "lost uplink"
    """Of a lowest switch: its flows share the others."""
    SPINE = "lost spine switch"
    """Of the middle tier."""
    LEAF = "lost leaf switch"
    """The lowest switch of a rail: the NICs at it have no network."""
    NEIGHBOUR = "neighbour job"
    """Another job's flows cross the same uplinks."""
    INCAST = "incast"
    """Several NICs of others send into one of the job's."""


WEIGHTS: Mapping[LinkFault, float] = {
    LinkFault.FLAP: 0.4, LinkFault.CABLE: 0.2, LinkFault.SLOW_NIC: 0.1, LinkFault.UPLINK: 0.1, LinkFault.SPINE: 0.05,
    LinkFault.LEAF: 0.05, LinkFault.NEIGHBOUR: 0.05, LinkFault.INCAST: 0.05,
}  # fmt: skip
"""How often which is drawn. Ours: nobody has published it."""


class Crash(Protocol):
    """A worker of this host ends, and its peers lose it."""

    def __call__(self, host: SimulatedHost, *, code: int, error: str) -> None: ...


class LinkFaults:
    """Lets them happen to a world's network."""

    def __init__(self, world: World, links: Links, crash: Crash) -> None:
        self.w, self.links, self.crash = world, links, crash

    def strike(self, host: SimulatedHost, kind: LinkFault, rng: random.Random) -> None:
        """After some steps that show what is usual."""
        step = self.w.shape.step
        self.links.look((LEAD_STEPS + TAIL_STEPS) * step, (host.name,))
        self.w.later(LEAD_STEPS * step, self.begin, host, kind, rng)

    def begin(self, host: SimulatedHost, kind: LinkFault, rng: random.Random, nic: int = -1) -> None:
        """Now, if the host trains. `nic`: which one it is about, by its number in the network; any of the host's."""
        if host not in self.w.job_hosts() or self.w.life is None:
            return
        clos = self.links.clos
        if nic < 0:
            nic = self.links.numbers[host.name] * clos.rails + rng.randrange(clos.rails)
        leaf = int(clos.leaf_of(np.array([nic]))[0])
        lasts = max(TAIL_STEPS * self.w.shape.step, rng.expovariate(1 / _LASTS_S))
        match kind:
            case LinkFault.SLOW_NIC:
                share = rng.choice((0.25, 0.5))
                self._own(host, lasts)
                self.add(lasts, slower=frozenset({(nic, share), (clos.nics + nic, share)}))
            case LinkFault.CABLE:
                self._own(host, lasts)
                self.add(lasts, lossy=frozenset({(rng.choice((nic, clos.nics + nic)), 10 ** rng.uniform(-5, -2.3))}))
            case LinkFault.FLAP:
                self._own(host, lasts)
                self.flap(host, nic, rng.randint(3, 6), rng)
            case LinkFault.UPLINK:
                up = 2 * clos.nics + leaf * clos.uplinks + rng.randrange(clos.uplinks)
                self._reroute([up, up + clos.leaves * clos.uplinks], lasts)
            case LinkFault.SPINE:
                self._reroute(clos.links_of_middle(leaf // clos.down, rng.randrange(clos.uplinks)).tolist(), lasts)
            case LinkFault.LEAF:
                self.lose_leaf(leaf, rng.uniform(60, 1800))
            case LinkFault.NEIGHBOUR:
                self.add(lasts, others=self.neighbours(nic, NIC_BYTES_PER_S))
            case LinkFault.INCAST:
                self.add(lasts, others=self.senders(nic, rng.randint(2, 8), 0.5 * NIC_BYTES_PER_S))

    def began_life(self) -> None:
        """An attempt of the job began: on the network as it is."""
        self.links.stands_since = math.nan
        if self.links.is_cut:
            self._wait_for_ever()

    # --- others -------------------------------------------------------------------------------------------------

    def outside(self) -> list[int]:
        """Numbers of the hosts that are not the job's."""
        own = {host.name for host in self.w.job_hosts()}
        return [number for name, number in self.links.numbers.items() if name not in own]

    def senders(self, nic: int, count: int, bytes_per_s: float) -> tuple[Flow, ...]:
        """So many NICs that are not the job's send to this one; none where all are."""
        rails, outside = self.links.clos.rails, self.outside()
        free = [number * rails + rail for rail in range(rails) for number in outside]
        return tuple(Flow(source, nic, bytes_per_s) for source in free[:count])

    def neighbours(self, nic: int, bytes_per_s: float) -> tuple[Flow, ...]:
        """What hosts that are not the job's send: to one another, on each rail, around a ring as another job's
        replicas. A single such host exchanges it with the host of `nic`."""
        rails, outside = self.links.clos.rails, self.outside()
        ring = outside if len(outside) > 1 else [*outside, nic // rails] if outside else []
        return tuple(
            Flow(ring[i] * rails + rail, ring[(i + 1) % len(ring)] * rails + rail, bytes_per_s)
            for i in range(len(ring))
            for rail in range(rails)
        )

    # --- what happens -------------------------------------------------------------------------------------------

    def _own(self, host: SimulatedHost, seconds: float) -> None:
        """For so long something is wrong with this host's own link."""
        host.faulty = True
        self.w.later(seconds, self._well, [host])

    def _well(self, hosts: list[SimulatedHost]) -> None:
        for host in hosts:
            host.faulty = bool(host.broken) or not host.alive

    def add(self, seconds: float, **more: Any) -> None:
        """The network has this too, for so long: fields of `Conditions` that are sets or tuples."""
        now = self.links.conditions
        changed: dict[str, Any] = {
            name: getattr(now, name) | one if isinstance(one, frozenset) else getattr(now, name) + one
            for name, one in more.items()
        }
        self.links.change(replace(now, **changed))
        self.w.later(seconds, self._over, more)

    def _over(self, more: Mapping[str, Any]) -> None:
        now = self.links.conditions
        changed: dict[str, Any] = {
            name: getattr(now, name) - one
            if isinstance(one, frozenset)
            else tuple(flow for flow in getattr(now, name) if flow not in one)
            for name, one in more.items()
        }
        self.links.change(replace(now, **changed))

    def flap(self, host: SimulatedHost, nic: int, times: int, rng: random.Random) -> None:
        """The link is down for seconds, and again some time later."""
        if host not in self.w.job_hosts() or not host.alive:
            return
        self.port_down(host, nic, rng.uniform(0.5, 8.0))
        if times > 1:
            self.w.later(rng.uniform(20, 120), self.flap, host, nic, times - 1, rng)

    def port_down(self, host: SimulatedHost, nic: int, seconds: float) -> None:
        """Its link is lost for so long. Transfers stand until the first packet that is sent again after its return;
        where InfiniBand gives up before, workers end."""
        links = self.links
        links.look(TAIL_STEPS * self.w.shape.step, (host.name,))
        links.down.add(nic)
        links.meter.counts["link_downed"][nic] += 1
        self.w.later(seconds, links.down.discard, nic)
        back = goes_on_after(seconds, IB_TIMEOUT, IB_RETRIES)
        if self.w.life is None or not math.isnan(links.stands_since):
            return
        if back is None:
            self._wait_for_ever()
            return
        links.meter.counts["local_ack_timeout_err"][nic] += round(back / timeout_s(IB_TIMEOUT))
        links.stand(back)
        self.w.later(back, self._goes_on, links.stands_since)

    def _goes_on(self, since: float) -> None:
        if self.links.stands_since == since:
            self.links.go_on()

    def _reroute(self, lost: list[int], seconds: float) -> None:
        """Switches find other ways a moment later; then they are all the flows have until it is mended."""
        links = self.links
        links.stand(_CONVERGES_S)
        self.w.later(_CONVERGES_S, self._goes_on, links.stands_since)
        self.w.later(_CONVERGES_S, self._lose, lost)
        self.w.later(_CONVERGES_S + seconds, self._mend, lost)

    def _lose(self, lost: list[int]) -> None:
        self.links.change(self.links.conditions.losing(lost))

    def lose_leaf(self, leaf: int, seconds: float) -> None:
        """All NICs at it are cut off from the network until it is back."""
        links, clos = self.links, self.links.clos
        lost = clos.links_of_leaf(leaf).tolist()
        nics = [link for link in lost if link < clos.nics]
        below = {nic // clos.rails for nic in nics}
        behind = [host for host in self.w.hosts.values() if links.numbers[host.name] in below]
        for host in behind:
            host.faulty = True
        links.down |= set(nics)
        links.meter.counts["link_downed"][nics] += 1
        links.look(TAIL_STEPS * self.w.shape.step)
        links.change(links.conditions.losing(lost))
        self.w.later(seconds, self._mend, lost)
        self.w.later(seconds, self._well, behind)
        if links.is_cut:
            self._wait_for_ever()

    def _mend(self, lost: list[int]) -> None:
        self.links.change(self.links.conditions.having(lost))
        self.links.down -= set(lost)

    def _wait_for_ever(self) -> None:
        """Until InfiniBand gives up; then a worker with no network ends, and the others lose it."""
        life = self.w.life
        if life is None:
            return
        self.links.look(TAIL_STEPS * self.w.shape.step)
        self.links.stand(_NEVER_S)
        self.w.later(ib_tolerance_s(IB_TIMEOUT, IB_RETRIES), self._give_up, life.generation, self.links.stands_since)

    def _give_up(self, generation: int, since: float) -> None:
        life = self.w.life
        if life is None or life.generation != generation or self.links.stands_since != since:
            return
        cut = self._cut_hosts() or self.w.job_hosts()
        self.crash(cut[0], code=1, error=GAVE_UP)

    def _cut_hosts(self) -> list[SimulatedHost]:
        """Of the job, those with a port that is down."""
        rails = self.links.clos.rails
        down = {nic // rails for nic in self.links.down}
        return [host for host in self.w.job_hosts() if self.links.numbers[host.name] in down]
