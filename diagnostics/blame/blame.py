"""Which ranks are slow and which only wait: a job's steps, taken apart.

A rank is slow by itself when its own work takes longer than the same work of its peers: the ranks of its stage, which
do the same on other data. What that costs is found by playing the step again as if it were as fast as they are: the
step gets shorter, and others wait less. A wait is therefore never counted against the rank that waits.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from holdfast.diagnostics.blame import text as blame_text
from holdfast.diagnostics.blame.model import BlameSuspect, Culprit, Limits, Slowness
from holdfast.diagnostics.blame.path import PathPart, critical_path
from holdfast.diagnostics.blame.peers import compare, nanmean
from holdfast.diagnostics.blame.samples import BlameSamples, computes
from holdfast.diagnostics.blame.suspects import suspects
from holdfast.diagnostics.blame.threads import Threads
from holdfast.diagnostics.blame.whatif import balanced, ideal, without_suspect
from holdfast.diagnostics.steps.graph import Graph
from holdfast.diagnostics.steps.job_shape import JobShape
from holdfast.diagnostics.steps.replay import Measured, Variant, measured, replay

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(slots=True)
class Blame:
    """Means per step over the steps that were looked at, seconds. Arrays go by `ranks`."""

    first: int
    last: int
    steps: int
    step_s: float
    ideal_s: float
    """The same with every rank as fast as the median of its peers."""
    ranks: Ints
    work_s: Floats
    """NaN, as in all that follows, of a rank that has no whole step."""
    wait_s: Floats
    transfer_s: Floats
    self_ratio: Floats
    """Own compute over the median of the peers'; NaN where there are none."""
    self_s: Floats
    induced_s: Floats
    victim_s: Floats
    """Seconds waited beyond what the plan itself makes a rank wait."""
    culprits: list[Culprit] = field(default_factory=list)
    """The named culprits, the most expensive first."""
    path: list[PathPart] = field(default_factory=list)
    """Of one step of median length."""
    incomplete: list[int] = field(default_factory=list)
    """Ranks of which spans were missing in some step."""


def analyse(
    graphs: Iterable[Graph],
    shape: JobShape,
    limits: Limits | None = None,
    garbage: Floats | None = None,
    threads: Threads | None = None,
) -> Blame | None:
    """Blame over steps; None where none of them is whole. `garbage` (ranks,): seconds of collections per step.
    `threads`: why work took more time than the processor spent on it; without them the host is blamed."""
    limits = limits or Limits()
    whole = list(graphs)
    if not whole:
        return None
    seen = [measured(graph) for graph in whole]
    lengths = np.array([_length(graph) for graph in whole])
    samples = [BlameSamples() for _ in whole[0].columns]
    for graph, parts in zip(whole, seen, strict=True):
        for c, column in enumerate(samples[: len(graph.columns)]):
            column.add(graph, parts, c, by_element=len(whole) < 8)
    chosen = np.unique(np.linspace(0, len(whole) - 1, min(limits.replays, len(whole))).round().astype(int))
    found = suspects(whole[0], samples, float(lengths.mean()), limits, garbage, threads)
    return _judged(whole, seen, lengths, [int(i) for i in chosen], found, samples, shape, limits)


def _length(graph: Graph) -> float:
    ends = np.concatenate([column.at[-1] for column in graph.columns])
    begins = np.concatenate([column.begin for column in graph.columns])
    return float(np.nanmax(ends) - np.nanmedian(begins))


def _judged(
    whole: list[Graph],
    seen: list[Measured],
    lengths: Floats,
    chosen: list[int],
    accused: list[BlameSuspect],
    samples: list[BlameSamples],
    shape: JobShape,
    limits: Limits,
) -> Blame:
    model = whole[0]
    order = np.argsort(np.concatenate([column.ranks for column in model.columns]))

    def flat(parts: list[Floats]) -> Floats:
        return np.concatenate(parts)[order]

    ranks = flat([column.ranks.astype(float) for column in model.columns]).astype(np.int64)
    count = len(accused)
    shorter = np.zeros((len(chosen), count + 2))
    less_wait = np.zeros((len(chosen), count + 2, len(ranks)))
    stage_works = []
    for n, i in enumerate(chosen):
        graph, parts = whole[i], seen[i]
        even, works = balanced(graph)
        stage_works.append(works)
        variants = [Variant({}, {}, {}), ideal(graph, parts), even]
        variants += [without_suspect(graph, parts, s) for s in accused]
        played = replay(graph, parts, variants)
        spans = played.makespan()
        shorter[n] = spans[0] - spans[1:]
        waits = np.stack([flat(list(w)) for w in zip(*played.waits, strict=True)])
        less_wait[n] = waits[0] - waits[1:]
    gained, eased = shorter.mean(axis=0), nanmean(less_wait)
    blame = Blame(
        first=whole[0].step,
        last=whole[-1].step,
        steps=len(whole),
        step_s=float(lengths.mean()),
        ideal_s=float(lengths.mean() - gained[0]),
        ranks=ranks,
        work_s=nanmean(np.stack([flat([c.own.sum(axis=0) for c in g.columns]) for g in whole])),
        wait_s=nanmean(np.stack([flat([w.sum(axis=0) for w in m.waits]) for m in seen])),
        transfer_s=nanmean(np.stack([flat([x.sum(axis=0) for x in m.transfers]) for m in seen])),
        self_ratio=flat(
            [_compute_ratio(sample, len(c.ranks)) for sample, c in zip(samples, model.columns, strict=True)]
        ),
        self_s=np.zeros(len(ranks)),
        induced_s=np.zeros(len(ranks)),
        victim_s=np.clip(eased[0], 0, None),
        incomplete=sorted({rank for graph in whole for rank in graph.incomplete}),
    )
    place = {int(rank): i for i, rank in enumerate(ranks)}
    for n, s in enumerate(accused):
        rank = int(model.columns[s.column].ranks[s.lane])
        mine = np.nan_to_num(eased[n + 2])  # of a rank without spans nothing is known
        mine[place[rank]] = 0.0
        cost = float(gained[n + 2])
        induced = float(np.clip(mine, 0, None).sum())
        blame.self_s[place[rank]] += s.self_s
        blame.induced_s[place[rank]] += induced
        peers = s.peers or int(model.columns[s.column].present.sum()) - 1
        what = s.what or blame_text.work(next(iter(s.works), ""))
        others = sorted({r for move in s.moves for r in move.ranks} - {rank})
        culprit = Culprit(
            s.kind, rank, others[0] if len(others) == 1 else -1, what, s.ratio, s.z, peers, s.self_s, cost,
            induced, int((mine > 0.2 * max(cost, 1e-9)).sum()) if cost > 0 else 0,
            works={role: 1 / (1 - share) for role, share in s.works.items()},
        )  # fmt: skip
        blame.culprits.append(culprit)
    works = np.mean(stage_works, axis=0)
    if len(works) > 1 and works.max() >= limits.imbalance * works.mean() and gained[1] > 0.02 * blame.step_s:
        busiest = int(works.argmax())
        blame.culprits.append(
            Culprit(
                Slowness.IMBALANCE, -1, -1, f"pipeline rank {busiest}", float(works.max() / works.mean()), 0.0,
                len(works) - 1, float(works.max() - works.mean()), float(gained[1]), 0.0, 0,
            )
        )  # fmt: skip
    blame.culprits.sort(key=lambda c: (c.kind is Slowness.IMBALANCE, -c.cost_s, -c.self_s))
    blame.culprits = [blame_text.reported(culprit, blame.step_s, shape) for culprit in blame.culprits]
    middle = int(np.argsort(lengths)[len(lengths) // 2])
    blame.path = critical_path(whole[middle], seen[middle])
    return blame


def _compute_ratio(sample: BlameSamples, lanes: int) -> Floats:
    """A rank's compute over that of its peers, by CPU time where it is known."""
    roles = [role for role in sample.wall if computes(role)]
    if not roles:
        return np.full(lanes, np.nan)
    cpu = np.concatenate([np.stack(sample.cpu[role]) for role in roles])
    wall = np.concatenate([np.stack(sample.wall[role]) for role in roles])
    return compare(cpu if np.isfinite(cpu).all() else wall).ratio
