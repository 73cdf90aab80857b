"""Which ranks stand out among their peers, in which work or on which link: those whose cost is worth working out."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from holdfast.diagnostics.blame.links import slow_links
from holdfast.diagnostics.blame.model import BlameSuspect, Limits, Slowness
from holdfast.diagnostics.blame.peers import are_few, compare, floor_of, nanmedian
from holdfast.diagnostics.blame.samples import BlameSamples
from holdfast.diagnostics.blame.text import work
from holdfast.diagnostics.blame.threads import Threads
from holdfast.diagnostics.steps.graph import Graph
from holdfast.diagnostics.steps.shape import OTHER

Floats = npt.NDArray[np.float64]


def suspects(
    graph: Graph,
    samples: list[BlameSamples],
    step_s: float,
    limits: Limits,
    garbage: Floats | None = None,
    threads: Threads | None = None,
) -> list[BlameSuspect]:
    """The worst first, no more than `limits.candidates`. `graph` is any step of those that were sampled."""
    tests = sum(s.totals[0].size * (len(s.wall) + len(s.transfers)) for s in samples)
    z = max(limits.z, NormalDist().inv_cdf(1 - limits.chance / max(tests, 2)))
    found: list[BlameSuspect] = []
    for c, sample in enumerate(samples):
        slow = _slow_workers(c, sample, step_s, limits, z)
        off = _kept_from_running(c, sample, step_s, limits, z)
        slow, off = _larger(slow, off), _larger(off, slow)
        if threads is not None:
            for suspect in slow + off:
                _explain(suspect, graph.columns[c].ranks, sample, threads)
        found += slow + off
        if garbage is not None:
            found += _collectors(graph, c, garbage, step_s, limits)
    found += slow_links(graph, samples, step_s, limits, z)
    return sorted(found, key=lambda s: -s.self_s)[: limits.candidates]


def _slow_workers(c: int, sample: BlameSamples, step_s: float, limits: Limits, z: float) -> list[BlameSuspect]:
    """Ranks whose own work is slow, all slow works of one rank together."""
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
        mean = nanmedian(wall) * per_step
        for lane in np.flatnonzero((seen.ratio >= limits.ratio) & (seen.z >= z)).tolist():
            ratio = float(seen.ratio[lane])
            excess = float(mean[lane]) * (1 - 1 / ratio)
            if excess >= least * step_s and (role != OTHER or excess * len(sample.totals) >= limits.moments):
                by_lane.setdefault(lane, []).append((role, ratio, float(seen.z[lane]), excess))
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
