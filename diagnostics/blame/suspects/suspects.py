"""Which ranks stand out among their peers, in which work or on which link: those whose cost is worth working out."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from holdfast.diagnostics.blame.links import slow_links
from holdfast.diagnostics.blame.model import BlameSuspect, Limits, Slowness
from holdfast.diagnostics.blame.suspects.floors import FEWEST_STRETCHES, STRETCH, Raised, floors_beyond, raised
from holdfast.diagnostics.blame.suspects.peers import are_few, compare, floor_of, nanmedian
from holdfast.diagnostics.blame.suspects.samples import BlameSamples
from holdfast.diagnostics.blame.suspects.threads import Threads
from holdfast.diagnostics.blame.text import work
from holdfast.diagnostics.steps.graph import Graph
from holdfast.diagnostics.steps.shape import OTHER

Floats = npt.NDArray[np.float64]

_EXPLAINS = 0.5
"""Share of what a rank takes longer that explains all of it."""


def suspects(
    graph: Graph,
    samples: list[BlameSamples],
    step_s: float,
    limits: Limits,
    garbage: Floats | None = None,
    threads: Threads | None = None,
    quiet_s: float = 0.0,
) -> list[BlameSuspect]:
    """The worst first, no more than `limits.candidates`. `graph` is any step of those that were sampled. `quiet_s`:
    what a step takes without much of what a busy host adds."""
    tests = sum(s.totals[0].size * (len(s.wall) + len(s.transfers)) for s in samples)
    z = max(limits.z, NormalDist().inv_cdf(1 - limits.chance / max(tests, 2)))
    found: list[BlameSuspect] = []
    for c, sample in enumerate(samples):
        ready = _ready(graph.columns[c].ranks, sample, threads)
        slow = _slow_workers(c, sample, step_s, limits, z, ready)
        off = _kept_from_running(c, sample, step_s, limits, z)
        slow, off = _larger(slow, off), _larger(off, slow)
        if threads is not None:
            for suspect in slow + off:
                _explain(suspect, graph.columns[c].ranks, sample, threads)
        fastest = _in_fastest(c, graph.columns[c].ranks, sample, quiet_s or step_s, limits, threads)
        found += _beside(slow + off, fastest)
        if garbage is not None:
            found += _collectors(graph, c, garbage, step_s, limits)
    found += slow_links(graph, samples, step_s, limits, z)
    return sorted(found, key=lambda s: -s.self_s)[: limits.candidates]


def _ready(ranks: npt.NDArray[np.int64], sample: BlameSamples, threads: Threads | None) -> Floats:
    """(lanes,): of the time of work without processor time, the share for which the rank waited for a processor; 1
    where the kernel does not say."""
    if threads is None or not sample.is_timed:
        return np.ones(len(ranks))
    with np.errstate(divide="ignore", invalid="ignore"):
        share = nanmedian(threads.delayed[:, ranks]) / nanmedian(np.stack(sample.off))
    found: Floats = np.where(np.isfinite(share), np.clip(share, 0.0, 1.0), 1.0)
    return found


def _slow_workers(
    c: int, sample: BlameSamples, step_s: float, limits: Limits, z: float, ready: Floats
) -> list[BlameSuspect]:
    """Ranks whose own work is slow, all slow works of one rank together. `ready`: as `_ready`."""
    by_lane: dict[int, list[tuple[str, float, float, float]]] = {}
    for role, walls in sample.wall.items():
        wall = np.stack(walls)
        cpus = sample.cpu.get(role)
        # The processor's time is the work itself; the clock's includes what kept it from running.
        cpu = np.stack(cpus) if cpus else wall
        is_known = role != OTHER and not role.startswith("load") and np.isfinite(cpu).all()
        seen = compare(cpu if is_known else wall, floor_of(step_s * len(sample.totals)))
        least = limits.between if role == OTHER else limits.least
        per_step = len(wall) / max(len(sample.totals), 1)
        usual = nanmedian(wall)
        # More work also waits longer for a processor; what it waits for otherwise is as long as before.
        part = np.minimum(nanmedian(cpu + ready * np.maximum(wall - cpu, 0.0)), usual) if is_known else usual
        for lane in np.flatnonzero((seen.ratio >= limits.ratio) & (seen.z >= z)).tolist():
            ratio = float(seen.ratio[lane])
            excess = float(part[lane]) * per_step * (1 - 1 / ratio)
            if excess >= least * step_s and (role != OTHER or excess * len(sample.totals) >= limits.moments):
                share = min(excess / (float(usual[lane]) * per_step), 0.99)
                by_lane.setdefault(lane, []).append((role, 1 / (1 - share), float(seen.z[lane]), excess))
    found = []
    few = are_few(sample.totals[0].size)
    for lane, works in by_lane.items():
        if few and sum(work[3] for work in works) * len(sample.totals) < limits.moments:
            continue
        works.sort(key=lambda work: -work[3])
        role, ratio, errors, _ = works[0]
        kind = Slowness.DATA if role.startswith("load") else Slowness.COMPUTE
        shares = {name: 1 - 1 / r for name, r, _, _ in works}
        found.append(BlameSuspect(kind, c, lane, ratio, errors, sum(work[3] for work in works), shares))
    return found


def _larger(some: list[BlameSuspect], others: list[BlameSuspect]) -> list[BlameSuspect]:
    """Without those of ranks that lose more time for another reason. Loading is apart from both."""
    more = {s.lane: s.self_s for s in others if s.kind is not Slowness.DATA}
    return [s for s in some if s.kind is Slowness.DATA or s.self_s > more.get(s.lane, 0.0)]


def _kept_from_running(c: int, sample: BlameSamples, step_s: float, limits: Limits, z: float) -> list[BlameSuspect]:
    off = np.stack(sample.off)
    if len(off) < 3 or not sample.is_timed:
        return []
    seen = compare(off + 0.01 * step_s, floor_of(step_s * len(off)))  # next to nothing over next to nothing is no ratio
    wall = nanmedian(np.stack(sample.totals))
    found = []
    least = max(limits.host * step_s, limits.moments / len(off))
    for lane in np.flatnonzero((seen.excess >= least) & (seen.z >= z + 1.5)):
        excess, own = float(seen.excess[lane]), float(wall[lane])
        share = min(excess / own, 0.99)
        suspect = BlameSuspect(Slowness.HOST, c, int(lane), 1 / (1 - share), float(seen.z[lane]), excess, whole=share)
        more = {role: float(compare(np.stack(rows)).excess[lane]) for role, rows in sample.off_of.items()}
        suspect.what = work(max(more, key=lambda role: more[role]))
        found.append(suspect)
    return found


def _in_fastest(
    c: int, ranks: npt.NDArray[np.int64], sample: BlameSamples, quiet_s: float, limits: Limits, threads: Threads | None
) -> list[BlameSuspect]:
    """Ranks that take longer in every step, also in the fastest ones: each with its works of one kind together."""
    steps = len(sample.totals)
    if steps < STRETCH * FEWEST_STRETCHES:
        return []
    least = max((limits.ratio - 1) * quiet_s, limits.moments / steps)
    delayed = None if threads is None else floors_beyond(threads.delayed[:, ranks])
    works: dict[tuple[int, Slowness], list[tuple[str, float, Raised]]] = {}
    for role, rows in sample.wall.items():
        wall = np.stack(rows)
        if len(wall) != steps:
            continue  # it is not in all of them, or several times in each
        for one in raised(wall, least, limits.chance / len(sample.wall)):
            if delayed is not None and delayed[one.lane] >= _EXPLAINS * one.excess:
                continue  # it waits for a processor for as long, in every step
            kind = _kind_of(role, one, sample, int(ranks[one.lane]), threads)
            share = min(one.excess / max(float(np.nanmedian(wall[:, one.lane])), one.excess), 0.99)
            works.setdefault((one.lane, kind), []).append((role, share, one))
    found = []
    for (lane, kind), some in works.items():
        some.sort(key=lambda work: -work[2].excess)
        share, best = some[0][1], some[0][2]
        z = NormalDist().inv_cdf(1 - max(best.chance, 1e-15))
        shares = {role: share for role, share, _ in some}
        excess = sum(one.excess for _, _, one in some)
        found.append(BlameSuspect(kind, c, lane, 1 / (1 - share), z, excess, shares))
    return found


def _kind_of(role: str, one: Raised, sample: BlameSamples, rank: int, threads: Threads | None) -> Slowness:
    if role.startswith("load"):
        return Slowness.DATA
    if role == OTHER:
        worked = np.stack(sample.worked)[:, one.lane]
        asleep = threads is not None and sample.is_timed and not threads.computes(rank, worked, one.excess)
        return Slowness.WAIT if asleep else Slowness.COMPUTE
    cpu = np.stack(sample.cpu[role])
    if not np.isfinite(cpu).all() or floors_beyond(cpu)[one.lane] >= _EXPLAINS * one.excess:
        return Slowness.COMPUTE
    return Slowness.WAIT


def _beside(some: list[BlameSuspect], fastest: list[BlameSuspect]) -> list[BlameSuspect]:
    """Both, each rank once for each reason. What the fastest steps show is the rank's, but may be the smaller part."""
    kept = []
    for suspect in fastest:
        same = [
            s for s in some if s.lane == suspect.lane and (s.kind is Slowness.DATA) == (suspect.kind is Slowness.DATA)
        ]
        if any(s.kind is Slowness.COMPUTE or s.self_s > 2 * suspect.self_s for s in same):
            continue
        some = [s for s in some if s not in same]
        kept.append(suspect)
    return some + kept


def _explain(suspect: BlameSuspect, ranks: npt.NDArray[np.int64], sample: BlameSamples, threads: Threads) -> None:
    """Kept from running by the host, or waiting by itself, by the kernel's counters of its thread."""
    if suspect.kind is Slowness.COMPUTE:
        worked = np.stack(sample.worked)[:, suspect.lane]
        computed = threads.computes(int(ranks[suspect.lane]), worked, suspect.self_s)
        if next(iter(suspect.works)) != OTHER or not sample.is_timed or computed:
            return
    elif suspect.kind is not Slowness.HOST:
        return
    suspect.kind = threads.kept(ranks, suspect.lane, suspect.self_s)


def _collectors(graph: Graph, c: int, garbage: Floats, step_s: float, limits: Limits) -> list[BlameSuspect]:
    seconds = garbage[graph.columns[c].ranks]
    excess = seconds - np.median(seconds)
    return [
        BlameSuspect(Slowness.GARBAGE, c, int(lane), float("nan"), limits.z, float(excess[lane]), whole=1.0)
        for lane in np.flatnonzero(excess >= limits.garbage * step_s)
    ]
