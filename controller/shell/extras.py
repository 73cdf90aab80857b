"""Is a slow rank slow by design of the program? Pure.

What rank 0 does more than its peers in every step since the job's first (logging, saving a metric, checking) is the
program's, and no alert. Evidence: blame of the first steps of an attempt, and where ranks run. An extra
that stays with its rank when the rank moves to another node is the program's; one that stays with its node is the
node's. What begins later, or grows, is no design.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from holdfast.diagnostics.blame.blame import Blame
from holdfast.diagnostics.blame.model import Culprit, Limits, Slowness
from holdfast.diagnostics.steps.job_shape import JobShape
from holdfast.wire import types as t

LENIENT = Limits(ratio=1.02, chance=0.5, z=2.0, moments=0.02, least=0.001, between=0.01, garbage=0.005)
"""Of the look at the first steps: an extra that is just not named there must not pass for one that began later."""
_GROWN = 1.5
"""Times what it was at first; and _MORE of a step: what takes that much longer is another matter."""
_MORE = 0.02
_ALIKE = 0.5
"""Forward and backward are as much slower as each other from this share on: a slow GPU, and no extra work."""
_NOT_BY_DESIGN = (Slowness.LINK, Slowness.HOST, Slowness.IMBALANCE)


@dataclass(frozen=True, slots=True)
class Judged:
    severity: t.Severity
    why: str = ""
    """For the end of the finding's text; empty where there is nothing to add."""

    @property
    def is_design(self) -> bool:
        return self.severity is t.Severity.INFO


@dataclass(slots=True)
class Extras:
    """What each rank of a job did more than its peers at the beginning of the first attempt that was examined, and of
    the running one. Seconds a step by rank."""

    job: str = ""
    looked: bool = False
    """Has any step of this job been examined?"""
    first: dict[int, float] = field(default_factory=dict)
    first_nodes: tuple[str, ...] = ()
    first_generation: int = -1
    """Generation that `first` is of; -1: the job's beginning is not known."""
    life: dict[int, float] = field(default_factory=dict)
    generation: int = -1

    def begin(self, generation: int, blame: Blame | None, shape: JobShape) -> None:
        """The first window of an attempt. `blame` by `LENIENT` limits, or None: these were not its first steps."""
        self.generation = generation
        self.life = {} if blame is None else _extra(blame)
        if blame is not None and not self.looked:
            self.first, self.first_nodes, self.first_generation = self.life, shape.nodes, generation
        self.looked = True

    def judge(self, culprit: Culprit, blame: Blame, shape: JobShape) -> Judged:
        """Of one that is named: by design (information), or not (a warning)."""
        rank = culprit.rank
        at_first = self.life.get(rank)
        if culprit.kind in _NOT_BY_DESIGN or at_first is None or self.first_generation < 0:
            return Judged(t.Severity.WARNING)
        node = shape.node_of(rank)
        if _extra(blame).get(rank, 0.0) > _GROWN * at_first + _MORE * blame.step_s:
            return Judged(t.Severity.WARNING, "since the first steps of this generation, but more now")
        if rank not in self.first:
            then = [r for r in self.first if self._first_node(r, shape) == node and r not in self.life]
            if node and then:
                return Judged(t.Severity.WARNING, f"as rank {then[0]} was on it: the slowness stays with node {node}")
            return Judged(t.Severity.WARNING)
        before = self._first_node(rank, shape)
        if node and before and before != node:
            why = f"for information: it moved with rank {rank} from node {before} to {node}, so the program causes it"
            return Judged(t.Severity.INFO, why)
        if _is_scaled(culprit) or not self._is_usual(rank, shape):
            return Judged(t.Severity.WARNING, "since the first steps of the job")
        return Judged(
            t.Severity.INFO, f"for information: since the first steps of the job, extra work of rank {rank} by design"
        )

    def _first_node(self, rank: int, shape: JobShape) -> str:
        index = rank // max(shape.nproc, 1)
        return self.first_nodes[index] if index < len(self.first_nodes) else ""

    def _is_usual(self, rank: int, shape: JobShape) -> bool:
        """Is it one that programs give more to do: rank 0, or the same local rank of most nodes?"""
        if rank == 0:
            return True
        alike = sum(r % max(shape.nproc, 1) == rank % max(shape.nproc, 1) for r in self.first)
        return len(shape.nodes) > 1 and alike > len(shape.nodes) / 2

    def to_doc(self) -> dict[str, Any]:
        return {
            "job": self.job, "looked": self.looked, "first": [[r, s] for r, s in self.first.items()],
            "first_nodes": list(self.first_nodes), "first_generation": self.first_generation,
            "life": [[r, s] for r, s in self.life.items()], "generation": self.generation,
        }  # fmt: skip

    @classmethod
    def from_doc(cls, doc: dict[str, Any]) -> Extras:
        first, life = ({int(rank): float(s) for rank, s in doc[name]} for name in ("first", "life"))
        return cls(
            str(doc["job"]), bool(doc["looked"]), first, tuple(map(str, doc["first_nodes"])),
            int(doc["first_generation"]), life, int(doc["generation"]),
        )  # fmt: skip


def _extra(blame: Blame) -> dict[int, float]:
    found: dict[int, float] = {}
    for culprit in blame.culprits:
        if culprit.kind not in _NOT_BY_DESIGN:
            found[culprit.rank] = found.get(culprit.rank, 0.0) + culprit.self_s
    return found


def _is_scaled(culprit: Culprit) -> bool:
    """Is all its computation slower alike, forward and backward, as on a GPU with a low clock?"""
    most = {"forward": 0.0, "backward": 0.0}
    for role, ratio in culprit.works.items():
        kind = role.partition(" ")[0].partition("_")[0]
        if kind in most:
            most[kind] = max(most[kind], ratio - 1)
    low, high = sorted(most.values())
    return low > 0 and low >= _ALIKE * high
