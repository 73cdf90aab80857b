"""One fault of the network, or one honest event, in a quiet cluster: what the controller finds, and what it does."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

from holdfast.controller.detectors.base.moves import Move
from holdfast.controller.simulation.breaks import Breaks
from holdfast.controller.simulation.fabric import honest
from holdfast.controller.simulation.fabric.faults import LinkFault
from holdfast.controller.simulation.fabric.honest import Honest
from holdfast.controller.simulation.fabric.layout import mesh_for
from holdfast.controller.simulation.fabric.links import Links
from holdfast.controller.simulation.hosts import ClusterShape
from holdfast.controller.simulation.world import World
from holdfast.plan.plan import Action, Layers, Mesh, Op, Plan
from holdfast.plan.planned_traffic import PlannedTraffic
from holdfast.wire import types as t
from holdfast.wire.plans import encode_plan

LEAD_STEPS = 40
_STARTS_S = 10.0
_SAYS = frozenset({"", Move.ALERT, Move.WATCH})


@dataclass(frozen=True, slots=True)
class Found:
    kind: t.FindingKind
    subject: str
    after_s: float
    """Since the event began; negative: before it, which is false."""


@dataclass(slots=True)
class Trial:
    host: str
    """At which it happened."""
    found: list[Found] = field(default_factory=list)
    acted: list[str] = field(default_factory=list)
    """What was done, and about what: moves that end an attempt of the job, or the job."""
    said: Counter[str] = field(default_factory=Counter)
    """How often each kind was found, those that open no incident included."""
    step_s: float = 0.0
    """Of the last step."""

    def first(self, kind: t.FindingKind) -> float | None:
        """Seconds from the event to the first finding of a kind."""
        return min((one.after_s for one in self.found if one.kind is kind and one.after_s >= 0), default=None)


class TrialWorld:
    """A job that trains, whose network is looked at from its first attempt on."""

    def __init__(self, shape: ClusterShape, seed: int, links: type[Links] = Links) -> None:
        self.w = World(shape, seed)
        self.w.links = links(self.w)
        self.breaks = Breaks(self.w)
        self.links = self.breaks.links.links
        self.links.look(_STARTS_S)
        self.w.run(self.w.now + _STARTS_S)
        self._publish()

    def _publish(self) -> None:
        """The plan, with what each link carries by it."""
        layout, job = self.links.layout, self.w.job
        if layout is None or job is None:
            return
        pp, dp, tp = mesh_for(len(job.nodes), self.w.shape.gpus)
        orders = tuple((Action(Op.FORWARD, p, 0), Action(Op.BACKWARD, p, 0)) for p in range(pp))
        plan = Plan("1f1b", Mesh.of(pp=pp, dp=dp, tp=tp), tuple(Layers(p, p + 1, p) for p in range(pp)), 1, orders)
        sizes = PlannedTraffic((0.0,) * pp, (layout.traffic.sums,) * pp, layout.traffic.messages)
        published = t.PlanPublished(job.spec.id, job.generation, encode_plan(plan, traffic=sizes))
        self.w.report(self.w.job_hosts()[0], published)

    def run(self, seconds: float) -> None:
        self.links.look(seconds)
        self.w.run(self.w.now + seconds)

    def outcome(self, host: str, since: float) -> Trial:
        """`since`: when the event began, on the world's clock."""
        book = self.w.brain.c.book
        result = Trial(host, said=Counter(book.counts), step_s=self.w.life.step if self.w.life is not None else 0.0)
        for incident in book.incidents.values():
            at = [one.at - self.w.epoch - since for one in incident.findings]
            result.found += [Found(one.kind, one.subject, s) for one, s in zip(incident.findings, at, strict=True)]
            if incident.action not in _SAYS:
                result.acted.append(f"{incident.action}: {incident.cause.text}")
        return result


def trial(
    event: LinkFault | Honest, seed: int, shape: ClusterShape, seconds: float, links: type[Links] = Links
) -> Trial:
    """`seconds`: how long the controller has to find it."""
    made = TrialWorld(shape, seed, links)
    made.run(LEAD_STEPS * shape.step)
    rng = random.Random(seed)
    host, since = rng.choice(made.w.job_hosts()), made.w.now
    made.links.look(seconds, (host.name,))
    if isinstance(event, LinkFault):
        made.breaks.links.begin(host, event, rng)
    else:
        honest.begin(event, made.breaks, host, rng)
    made.run(seconds)
    return made.outcome(host.name, since)
