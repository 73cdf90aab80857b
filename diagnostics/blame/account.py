"""One account of a step: where its seconds go, for the job and for each rank. The parts add up to the step.

The job's account is a chain of steps played again, each no longer than the one before it: as it was; without the named
culprits; with every rank and transfer as fast as the median of its peers; with transfers that take no time; with
nothing but the model's work. What one step of the chain saves is one part of the account, so the parts are never
negative and their sum is the step. "Exposed" communication is thereby what no computation hides. Several culprits
share what they cost together: each gets the mean of what it saves when it is removed first and when it is removed last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from holdfast.diagnostics.blame.suspects.peers import nanmean
from holdfast.diagnostics.blame.suspects.samples import computes
from holdfast.diagnostics.blame.whatif import joined, stripped
from holdfast.diagnostics.steps.graph import Graph
from holdfast.diagnostics.steps.replay import Measured, Variant, replay

Floats = npt.NDArray[np.float64]

_AROUND = ("load", "data", "checkpoint", "save")
"""Roles of a step that are not the model's: input and checkpoints."""


@dataclass(frozen=True, slots=True)
class JobAccount:
    """Seconds of a step. The sum of all is `step_s`."""

    step_s: float
    compute_s: float
    """The model's own work along the step, forward to optimizer, and what the plan makes of it."""
    other_s: float
    """Input, checkpoints and what lies outside of all spans; 0 where no span says what is computation."""
    communication_s: float
    """Transfers that no computation hides."""
    imbalance_s: float
    """Because stages have unequal work."""
    culprits_s: Floats
    """(culprits,): waiting for each of those that are named."""
    jitter_s: float
    """Waiting for ranks that are no slower than their peers by more than noise."""

    @property
    def ideal_s(self) -> float:
        """The step with every rank as fast as the median of its peers."""
        return self.compute_s + self.other_s + self.communication_s + self.imbalance_s


@dataclass(frozen=True, slots=True)
class RankAccount:
    """(ranks,) each, seconds of the rank's own step, whose length is the sum of all; NaN of a rank without a whole
    step. Ranks in the order of the columns."""

    compute_s: Floats
    other_s: Floats
    transfer_s: Floats
    culprits_s: Floats
    """(culprits, ranks): waiting for each of those that are named."""
    jitter_s: Floats
    """Waiting for ranks that are no slower than their peers by more than noise."""
    plan_s: Floats
    """Waiting that is left where no rank is slower than its peers."""

    @property
    def wait_s(self) -> Floats:
        """All waiting."""
        found: Floats = self.culprits_s.sum(axis=0) + self.jitter_s + self.plan_s
        return found

    @property
    def work_s(self) -> Floats:
        return self.compute_s + self.other_s

    def of(self, order: npt.NDArray[np.intp]) -> RankAccount:
        """The ranks at these places."""
        return RankAccount(
            self.compute_s[order], self.other_s[order], self.transfer_s[order], self.culprits_s[:, order],
            self.jitter_s[order], self.plan_s[order],
        )  # fmt: skip


class AccountBook:
    """Adds up steps that are played again. `culprits`: how many; the same ones in each step."""

    def __init__(self, culprits: int) -> None:
        self._count = culprits
        self._spans: list[Floats] = []
        self._waits: list[Floats] = []
        self._weights: list[float] = []
        self.works: list[Floats] = []
        """Of each step (columns,): seconds of computation of each column."""

    def add(self, graph: Graph, seen: Measured, culprits: Sequence[Variant], weight: float = 1.0) -> None:
        """`culprits`: by each, what is different without it. `weight`: how many steps it stands for."""
        assert len(culprits) == self._count
        removed = [culprits[: n + 1] for n in range(self._count)]
        removed += [culprits[n:] for n in range(self._count - 1, 0, -1)]
        rest, works = stripped(graph, seen, culprits, around_of(graph))
        played = replay(graph, seen, [Variant({}, {}, {}), *(joined(graph, seen, some) for some in removed), *rest])
        began = np.nanmax(np.concatenate([column.begin for column in graph.columns]))
        self._spans.append(np.fmax(played.makespan() - began, 0.0))
        self._waits.append(np.concatenate(played.waits, axis=1))
        self.works.append(works)
        self._weights.append(weight)

    def mean_works(self) -> Floats:
        """(columns,): seconds of computation."""
        found: Floats = np.average(self.works, axis=0, weights=self._weights)
        return found

    def job(self, step_s: float, is_uneven: bool = False) -> JobAccount:
        """Of a step of this length: the steps that were added need not be all. `is_uneven`: the plan is a culprit."""
        spans = np.average(self._spans, axis=0, weights=self._weights)
        spans = spans * (step_s / spans[0] if spans[0] > 0 else 0.0)
        alike, even, free, bare = (float(span) for span in spans[-4:])
        imbalance = min(max(alike - even, 0.0), bare) if is_uneven else 0.0
        return JobAccount(
            step_s=step_s,
            compute_s=bare - imbalance,
            other_s=max(free - bare, 0.0),
            communication_s=max(alike - free, 0.0),
            imbalance_s=imbalance,
            culprits_s=np.clip(self._shared(spans), 0.0, None),
            jitter_s=max(float(spans[self._count]) - alike, 0.0),
        )

    def saved_by_balance(self) -> float:
        """Seconds by which the steps would be shorter if all stages had the same work."""
        saved = [spans[-4] - spans[-3] for spans in self._spans]
        return float(np.average(saved, weights=self._weights))

    def ranks(self, compute_s: Floats, other_s: Floats, wait_s: Floats, transfer_s: Floats) -> RankAccount:
        """Given what was measured of all steps, (ranks,): its waiting, taken apart."""
        waits = nanmean(np.stack(self._waits), np.array(self._weights))
        with np.errstate(divide="ignore", invalid="ignore"):
            share = np.where(waits[0] > 0, 1 / waits[0], 0.0)
        each = np.nan_to_num(np.clip(self._shared(waits) * share, 0.0, 1.0))
        named = each.sum(axis=0)
        each = each / np.fmax(named, 1.0)  # together no more than all of it
        named = np.fmin(named, 1.0)
        beyond_plan = np.nan_to_num(np.clip((waits[0] - waits[-4]) * share, 0.0, 1.0))
        jitter = np.clip(beyond_plan - named, 0.0, None)
        plan = np.clip(1.0 - named - jitter, 0.0, 1.0)
        return RankAccount(compute_s, other_s, transfer_s, each * wait_s, jitter * wait_s, plan * wait_s)

    def _shared(self, values: Floats) -> Floats:
        """(culprits, ...): what each saves, the mean of being removed first and last. `values` by variant."""
        n = self._count
        first = values[:n] - values[1 : n + 1]
        if not n:
            return first
        since = values[[n, *(2 * n - k for k in range(1, n)), 0]]  # without those from the k-th on
        found: Floats = (first + since[1:] - since[:-1]) / 2
        return found


def around_of(graph: Graph) -> list[frozenset[int]]:
    """By column: the spans that are not the model's work; -1 for what lies outside of all, where any is computation."""
    known = any(computes(role) for column in graph.columns for role in column.shape.roles)
    found = []
    for column in graph.columns:
        names = [role.partition(" ")[0].partition(":")[0] for role in column.shape.roles[:-1]]
        spans = {int(i) for i, name in zip(column.shape.works, names, strict=True) if name in _AROUND}
        found.append(frozenset(spans | {-1} if known else spans))
    return found
