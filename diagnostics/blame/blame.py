"""Which ranks are slow and which only wait: a job's steps, taken apart.

A rank is slow by itself when its own work takes longer than the same work of its peers: the ranks of its stage, which
do the same on other data. What that costs is found by playing the step again as if it were as fast as they are: the
step gets shorter, and others wait less. A wait is therefore never counted against the rank that waits.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from holdfast.diagnostics.blame import account_text
from holdfast.diagnostics.blame import text as blame_text
from holdfast.diagnostics.blame.account import AccountBook, JobAccount, RankAccount, around_of
from holdfast.diagnostics.blame.account_text import Entries
from holdfast.diagnostics.blame.model import BlameSuspect, Culprit, Limits, Slowness
from holdfast.diagnostics.blame.path import PathPart, critical_path
from holdfast.diagnostics.blame.suspects.bursts import bursty
from holdfast.diagnostics.blame.suspects.peers import compare, nanmean
from holdfast.diagnostics.blame.suspects.places import gap_of
from holdfast.diagnostics.blame.suspects.samples import BlameSamples, computes
from holdfast.diagnostics.blame.suspects.suspects import suspects
from holdfast.diagnostics.blame.suspects.threads import Threads
from holdfast.diagnostics.blame.whatif import part_of, without_suspect
from holdfast.diagnostics.steps.graph import Graph
from holdfast.diagnostics.steps.job_shape import JobShape
from holdfast.diagnostics.steps.replay import Measured, measured
from holdfast.diagnostics.steps.shape import OTHER

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(slots=True)
class Blame:
    """Means per step over the steps that were looked at, seconds. Arrays go by `ranks`."""

    first: int
    last: int
    steps: int
    step_s: float
    account: JobAccount
    """Where the step's seconds go."""
    ranks: Ints
    entries: Entries
    """The same in words and rounded figures."""
    parts: RankAccount
    """Where the seconds of each rank's own step go. NaN, as in all that follows, of a rank that has no whole step."""
    wait_s: Floats
    """All waiting."""
    self_ratio: Floats
    """Own compute over the median of the peers'; NaN where there are none."""
    self_s: Floats
    induced_s: Floats
    victim_s: Floats
    """Seconds waited beyond what the plan itself makes a rank wait: for the named culprits, and jitter."""
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
    if threads is not None:
        threads = threads.of([graph.step for graph in whole])
    quiet_s = float(np.quantile(lengths, 0.1))
    found = suspects(whole[0], samples, float(lengths.mean()), limits, garbage, threads, quiet_s)
    found += bursty(whole, samples, float(np.median(lengths)), limits, garbage, threads)
    found = sorted(found, key=lambda s: -s.self_s)[: limits.candidates]
    for s in found:
        if OTHER in s.works:
            s.where = gap_of((graph.columns[s.column] for graph in whole), s.lane)
    return _judged(whole, seen, lengths, _replayed(whole, found, limits.replays), found, samples, shape, limits)


def _replayed(whole: list[Graph], accused: list[BlameSuspect], most: int) -> list[tuple[int, float]]:
    """Which steps to play again, and how many each stands for: evenly spread, of steps with bursts as many as of
    others."""
    bursts = {step for s in accused if s.bursts is not None for step in s.bursts.seconds}
    kinds = [[i for i, graph in enumerate(whole) if (graph.step in bursts) == is_burst] for is_burst in (False, True)]
    kinds = [places for places in kinds if places]
    found = []
    for places in kinds:
        spread = np.linspace(0, len(places) - 1, min(most // len(kinds), len(places))).round().astype(int)
        chosen = np.unique(spread).tolist()
        found += [(places[n], len(places) / len(chosen)) for n in chosen]
    return sorted(found)


def _length(graph: Graph) -> float:
    ends = np.concatenate([column.at[-1] for column in graph.columns])
    begins = np.concatenate([column.begin for column in graph.columns])
    return float(np.nanmax(ends) - np.nanmax(begins))  # of both the last rank: all lengths together are the time


def _judged(
    whole: list[Graph],
    seen: list[Measured],
    lengths: Floats,
    chosen: list[tuple[int, float]],
    accused: list[BlameSuspect],
    samples: list[BlameSamples],
    shape: JobShape,
    limits: Limits,
) -> Blame:
    model = whole[0]
    order = np.argsort(np.concatenate([column.ranks for column in model.columns]))
    ranks = np.concatenate([column.ranks for column in model.columns])[order].astype(np.int64)
    place = {int(rank): i for i, rank in enumerate(ranks)}
    step_s, count = float(lengths.mean()), len(accused)
    book = AccountBook(count)
    for i, weight in chosen:
        book.add(whole[i], seen[i], [without_suspect(whole[i], seen[i], s) for s in accused], weight)
    works, saved = book.mean_works(), book.saved_by_balance()
    is_uneven = len(works) > 1 and works.max() >= limits.imbalance * works.mean() and saved > 0.02 * step_s
    account = book.job(step_s, is_uneven)
    parts = _parts(whole, seen, book, order)
    self_s, induced_s, culprits = np.zeros(len(ranks)), np.zeros(len(ranks)), []
    for n, s in enumerate(accused):
        rank = int(model.columns[s.column].ranks[s.lane])
        mine = np.nan_to_num(parts.culprits_s[n])  # of a rank without spans nothing is known
        mine[place[rank]] = 0.0
        cost, induced = float(account.culprits_s[n]), float(mine.sum())
        self_s[place[rank]] += s.self_s
        induced_s[place[rank]] += induced
        peers = s.peers or int(model.columns[s.column].present.sum()) - 1
        what = s.what or blame_text.work(next(iter(s.works), ""))
        others = sorted({r for move in s.moves for r in move.ranks} - {rank})
        victims = int((mine > 0.2 * max(cost, 1e-9)).sum()) if cost > 0 else 0
        culprits.append(
            Culprit(
                s.kind, rank, others[0] if len(others) == 1 else -1, what, s.ratio, s.z, peers, s.self_s, cost,
                induced, victims, works={role: 1 / (1 - share) for role, share in s.works.items()}, where=s.where,
                every=s.bursts.every if s.bursts is not None else 0.0,
                burst_s=s.bursts.usual if s.bursts is not None else 0.0,
            )
        )  # fmt: skip
    if is_uneven:
        busiest = f"pipeline rank {int(works.argmax())}"
        ratio, more = float(works.max() / works.mean()), float(works.max() - works.mean())
        cost = account.imbalance_s
        culprits.append(
            Culprit(Slowness.IMBALANCE, -1, -1, busiest, ratio, 0.0, len(works) - 1, more, cost, 0.0, 0)
        )  # fmt: skip
    ranking = sorted(
        range(len(culprits)),
        key=lambda n: (culprits[n].kind is Slowness.IMBALANCE, -culprits[n].cost_s, -culprits[n].self_s),
    )
    culprits = [culprits[n] for n in ranking]
    named = [n for n in ranking if n < count]
    account = replace(account, culprits_s=account.culprits_s[named])
    parts = replace(parts, culprits_s=parts.culprits_s[named])
    shown = account_text.entries(account, culprits)
    middle = int(np.argsort(lengths)[len(lengths) // 2])
    return Blame(
        first=whole[0].step,
        last=whole[-1].step,
        steps=len(whole),
        step_s=step_s,
        account=account,
        ranks=ranks,
        parts=parts,
        wait_s=parts.wait_s,
        self_ratio=np.concatenate(
            [_compute_ratio(sample, len(c.ranks)) for sample, c in zip(samples, model.columns, strict=True)]
        )[order],
        self_s=self_s,
        induced_s=induced_s,
        victim_s=parts.wait_s - parts.plan_s,
        culprits=[blame_text.reported(c, shown, n, shape) for n, c in enumerate(culprits)],
        entries=shown,
        path=critical_path(whole[middle], seen[middle]),
        incomplete=sorted({rank for graph in whole for rank in graph.incomplete}),
    )


def _parts(whole: list[Graph], seen: list[Measured], book: AccountBook, order: Ints) -> RankAccount:
    """Of all steps, by rank."""
    measured_s: list[list[Floats]] = [[], [], [], []]
    for graph, parts in zip(whole, seen, strict=True):
        around = around_of(graph)
        work = [column.own.sum(axis=0) for column in graph.columns]
        other = [part_of(column, spans).sum(axis=0) for column, spans in zip(graph.columns, around, strict=True)]
        waits, transfers = zip(*(parts.shown(c) for c in range(len(graph.columns))), strict=True)
        for kept, values in zip(measured_s, (work, other, waits, transfers), strict=True):
            kept.append(np.concatenate(values))
    work_s, other_s, wait_s, transfer_s = (nanmean(np.stack(rows)) for rows in measured_s)
    return book.ranks(np.maximum(work_s - other_s, 0.0), other_s, wait_s, transfer_s).of(order)


def _compute_ratio(sample: BlameSamples, lanes: int) -> Floats:
    """A rank's compute over that of its peers, by CPU time where it is known."""
    roles = [role for role in sample.wall if computes(role)]
    if not roles:
        return np.full(lanes, np.nan)
    cpu = np.concatenate([np.stack(sample.cpu[role]) for role in roles])
    wall = np.concatenate([np.stack(sample.wall[role]) for role in roles])
    return compare(cpu if np.isfinite(cpu).all() else wall).ratio
