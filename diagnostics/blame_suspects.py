"""Who stands out among its peers, in which work or on which link: those whose cost is worth working out."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from holdfast.diagnostics.blame_links import slow_links
from holdfast.diagnostics.blame_model import Limits, Slowness, Suspect
from holdfast.diagnostics.blame_peers import compare
from holdfast.diagnostics.blame_samples import Samples
from holdfast.diagnostics.step_graph import Graph
from holdfast.diagnostics.step_shape import OTHER

Floats = npt.NDArray[np.float64]


def suspects(
    graph: Graph, samples: list[Samples], step_s: float, limits: Limits, garbage: Floats | None
) -> list[Suspect]:
    """The worst first, no more than `limits.candidates`. `graph` is any step of those that were sampled."""
    tests = sum(s.totals[0].size * (len(s.wall) + len(s.transfers)) for s in samples)
    z = max(limits.z, NormalDist().inv_cdf(1 - limits.chance / max(tests, 2)))
    found: list[Suspect] = []
    for c, sample in enumerate(samples):
        found += _slow_workers(c, sample, step_s, limits, z)
        found += _kept_from_running(c, sample, step_s, limits, z, {s.lane for s in found if s.column == c})
        if garbage is not None:
            found += _collectors(graph, c, garbage, step_s, limits)
    found += slow_links(graph, samples, step_s, limits, z)
    return sorted(found, key=lambda s: -s.self_s)[: limits.candidates]


def _slow_workers(c: int, sample: Samples, step_s: float, limits: Limits, z: float) -> list[Suspect]:
    """Ranks whose own work is slow, all slow works of one rank together."""
    by_lane: dict[int, list[tuple[str, float, float, float]]] = {}
    for role, walls in sample.wall.items():
        wall = np.stack(walls)
        cpus = sample.cpu.get(role)
        # The processor's time is the work itself; the clock's includes what kept it from running.
        cpu = np.stack(cpus) if cpus else wall
        is_known = role != OTHER and not role.startswith("load") and np.isfinite(cpu).all()
        seen = compare(cpu if is_known else wall)
        least = limits.between if role == OTHER else limits.least
        per_step = len(wall) / max(len(sample.totals), 1)
        mean = np.nanmedian(wall, axis=0) * per_step
        for lane in np.flatnonzero((seen.ratio >= limits.ratio) & (seen.z >= z)).tolist():
            ratio = float(seen.ratio[lane])
            excess = float(mean[lane]) * (1 - 1 / ratio)
            if excess >= least * step_s:
                by_lane.setdefault(lane, []).append((role, ratio, float(seen.z[lane]), excess))
    found = []
    for lane, works in by_lane.items():
        works.sort(key=lambda work: -work[3])
        role, ratio, errors, _ = works[0]
        kind = Slowness.DATA if role.startswith("load") else Slowness.COMPUTE
        shares = {name: 1 - 1 / r for name, r, _, _ in works}
        found.append(Suspect(kind, c, lane, ratio, errors, sum(work[3] for work in works), shares))
    return found


def _kept_from_running(
    c: int, sample: Samples, step_s: float, limits: Limits, z: float, slow: set[int]
) -> list[Suspect]:
    off = np.stack(sample.off)
    if len(off) < 3 or not sample.is_timed:
        return []
    seen = compare(off + 0.01 * step_s)  # next to nothing over next to nothing is no ratio
    wall = np.median(np.stack(sample.totals), axis=0)
    found = []
    for lane in np.flatnonzero((seen.excess >= limits.host * step_s) & (seen.z >= z + 1.5)):
        if int(lane) not in slow:
            excess, own = float(seen.excess[lane]), float(wall[lane])
            share = min(excess / own, 0.99)
            ratio = 1 / (1 - share)
            found.append(Suspect(Slowness.HOST, c, int(lane), ratio, float(seen.z[lane]), excess, whole=share))
    return found


def _collectors(graph: Graph, c: int, garbage: Floats, step_s: float, limits: Limits) -> list[Suspect]:
    seconds = garbage[graph.columns[c].ranks]
    excess = seconds - np.median(seconds)
    return [
        Suspect(Slowness.GARBAGE, c, int(lane), float("nan"), limits.z, float(excess[lane]), whole=1.0)
        for lane in np.flatnonzero(excess >= limits.garbage * step_s)
    ]
