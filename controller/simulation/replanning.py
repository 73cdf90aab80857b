"""Nodes of one job are lost together, and come back one by one: what it trains meanwhile, by each policy. Pure.

Time is virtual, from one event to the next: a node is back, a wait is over, a restart is done. Decisions are those of
the controller (`controller/cluster/replanning.py`). No other node fails meanwhile.
"""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from holdfast.controller.cluster.replanning import Situation, choose


class Policy(StrEnum):
    WAIT = "wait"
    """Until all nodes are back."""
    GO_ON = "go on"
    """At once, with the largest number of nodes that has a layout."""
    CHOOSE = "choose"
    """What the controller does: whichever costs less."""


@dataclass(frozen=True, slots=True)
class Outage:
    """Times in seconds."""

    nodes: int
    """Of the job, before."""
    repairs: tuple[float, ...]
    """When each of the lost nodes is back."""
    absences: tuple[float, ...] = ()
    """What is known of earlier ones."""
    restart_s: float = 60.0
    grow_after_s: float = 30.0
    until_s: float = 86_400.0


@dataclass(frozen=True, slots=True)
class Trained:
    goodput: float
    """Work done, as a share of that of all nodes in the same time."""
    restarts: int


def play(outage: Outage, throughputs: Mapping[int, float], policy: Policy) -> Trained:
    """`throughputs`: by number of nodes, as a share of that of all; more nodes are faster.

    The job grows `grow_after_s` after nodes came that are worth it.
    """
    done, at, held, restarts = 0.0, 0.0, 0, 0
    while at < outage.until_s:
        size, wait_s = _decide(outage, throughputs, policy, held, at)
        if size > held:
            restarts += 1
            at, held = at + outage.restart_s, size
            continue
        until = min(_next(outage, at, held), at + wait_s, outage.until_s)
        done += (until - at) * _share(outage, throughputs, held)
        at = until
    # A restart that is under way at the end has done nothing yet.
    return Trained(done / outage.until_s, restarts)


def _share(outage: Outage, throughputs: Mapping[int, float], size: int) -> float:
    return 1.0 if size == outage.nodes else throughputs[size] if size else 0.0


def _decide(
    outage: Outage, throughputs: Mapping[int, float], policy: Policy, held: int, at: float
) -> tuple[int, float]:
    """The number of nodes to train on now, that of before to change nothing; and seconds until it is looked at again,
    if nothing happens before."""
    hold = outage.grow_after_s if held else 0.0
    gone = sum(back + hold > at for back in outage.repairs)
    if not gone:
        return outage.nodes, math.inf
    room = outage.nodes - gone
    size = max((nodes for nodes in throughputs if nodes <= room), default=0)
    if not size or policy is Policy.WAIT:
        return held, math.inf
    if policy is Policy.GO_ON or held:
        return max(size, held), math.inf
    found = choose(Situation(throughputs[size], gone, at, outage.absences, outage.restart_s, outage.grow_after_s))
    return (held, found.wait_s) if found.waits else (size, math.inf)


def _next(outage: Outage, at: float, held: int) -> float:
    """When the next node may be taken."""
    hold = outage.grow_after_s if held else 0.0
    return min((back + hold for back in outage.repairs if back + hold > at), default=math.inf)


@dataclass(frozen=True, slots=True)
class Repairs:
    """How long nodes are away: some only restart, others wait for a part. Both are log-normal."""

    restarts: float
    """Share of those that only restart."""
    restart_s: float
    """Their median."""
    part_s: float
    """The median of the others."""
    sigma: float = 0.5

    def draw(self, count: int, rng: random.Random) -> tuple[float, ...]:
        return tuple(
            (self.restart_s if rng.random() < self.restarts else self.part_s) * rng.lognormvariate(0.0, self.sigma)
            for _ in range(count)
        )


def compare(
    nodes: int, lost: int, tables: Mapping[str, tuple[Policy, Mapping[int, float]]], repairs: Repairs,
    seeds: Sequence[int], known: int = 30, restart_s: float = 60.0, until_s: float = 86_400.0,
) -> dict[str, list[Trained]]:  # fmt: skip
    """What each policy trains, for each seed; all meet the same repairs. `known`: absences that the history has."""
    found: dict[str, list[Trained]] = {name: [] for name in tables}
    for seed in seeds:
        rng = random.Random(seed)
        outage = Outage(nodes, repairs.draw(lost, rng), repairs.draw(known, rng), restart_s=restart_s, until_s=until_s)
        for name, (policy, throughputs) in tables.items():
            found[name].append(play(outage, throughputs, policy))
    return found
