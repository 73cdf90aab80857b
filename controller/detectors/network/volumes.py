"""What a node's steps move against what they usually do: less, now more and now less, or in one direction only."""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

import numpy as np

from holdfast.controller.detectors.base.table import Tuning, finding
from holdfast.controller.detectors.network.traffic_pattern import StepTraffic, Volume
from holdfast.controller.state.incidents import Finding
from holdfast.controller.state.model import Instant
from holdfast.wire import types as t

_K = t.FindingKind
_KEPT = 64  # steps
_WORTH = 10_000.0  # bytes in a step: below that there is nothing to compare
_OTHER = 0.7  # of its usual volume that the good direction of a one-sided node still moves
_STEADY = 0.25  # of the limit, below which steps hardly differ
_MUCH = 1.5  # times the usual volume
_FRESH = 0.1  # seconds
_FAR = 4.0  # standard deviations of a node's own burst rate, which on a busy host varies much by itself
_FADES = 0.95  # of a scatter that was, with each new usual: a calm moment does not say that it will stay so
_CLOSE = 1.25  # times a node's own share, below which the others are no better off


Row = tuple[float, float, float]  # a Volume, but for what is steady of it
Copied = tuple[float, float]  # bytes of snapshots, sent and received, that a step may have carried


@dataclass(frozen=True, slots=True)
class Trouble:
    kind: t.FindingKind
    what: str
    share: float  # of the usual
    usual: float


class Judge:
    """One node's volumes, newest last. Pure numbers: nothing of nodes or time.

    The baseline is updated every few steps, from steps that are not under suspicion themselves.
    """

    def __init__(self, tuning: Tuning) -> None:
        decline = tuning.limits(_K.TRAFFIC_DECLINE)
        self._share, self._run = decline["share"], max(2, int(decline["steps"]))
        self._one_sided = tuning.limit(_K.TRAFFIC_ONE_SIDED, "share")
        self._spread = tuning.limit(_K.TRAFFIC_UNSTEADY, "spread")
        self.begin()

    def begin(self) -> None:
        """Forget everything."""
        self._rows: deque[Row] = deque(maxlen=_KEPT)
        self._low: list[Row] = []  # the newest steps, each below its usual in something
        self._usual: Row | None = None
        self._below = (self._share,) * 3  # of the usual is low, for each of a row
        self._scatter = 0.0  # of the burst rate
        self._since = 0  # steps since the usual was taken
        self.share = 1.0

    def add(self, volume: Volume, copies: Copied = (0.0, 0.0)) -> Trouble | None:
        """The deviation that this step completes. Then its level is the new baseline: it is reported once.

        `copies`: bytes of snapshots, sent and received, that recently occur in some steps and not in others.
        """
        row = volume.tx, volume.rx, volume.peak
        usual = self._usual
        with_copies = row[0] + copies[0], row[1] + copies[1], row[2]
        if usual is not None and any(
            v < below * u for v, u, below in zip(with_copies, usual, self._below, strict=True) if u >= _WORTH
        ):
            self._low.append(row)
            if len(self._low) < self._run:
                return None
            self._low = self._low[-self._run :]
            trouble = self._explain(usual)
            if trouble is not None:
                self._settle(self._low, trouble.share)
            return trouble
        if usual is not None and self._low and max(row[0] / max(usual[0], 1), row[1] / max(usual[1], 1)) > _MUCH:
            return None  # it carried something else, a checkpoint say: no proof that all is well
        self._rows.extend(self._low)
        self._rows.append(row)
        self._since += 1 + len(self._low)
        self._low = []
        if self._since >= self._run and len(self._rows) >= 2 * self._run:
            return self._take_stock(sum(copies))
        return None

    def spread(self) -> float:
        """By how much its newest steps differ, as `traffic-unsteady` counts it."""
        newest = [*self._rows, *self._low][-2 * self._run :]
        return _spread(np.array(newest)[:, :2].sum(axis=1)) if newest else 0.0

    def low(self) -> float:
        """What this node moves now against its usual, of volume and burst rate; 1 where nothing is low."""
        usual = self._usual
        if usual is None or not self._low:
            return self.share
        return min(median(row[c] for row in self._low) / usual[c] for c in range(3) if usual[c] >= _WORTH)

    def _settle(self, rows: Sequence[Row], share: float) -> None:
        self.begin()
        self._rows.extend(rows)
        self.share = share

    def _take_stock(self, copies: float) -> Trouble | None:
        table = np.array(self._rows)
        middle = np.median(table, axis=0)
        self._usual, self._since, self.share = (float(middle[0]), float(middle[1]), float(middle[2])), 0, 1.0
        totals = table[:, :2].sum(axis=1)
        now, past = totals[-2 * self._run :], totals[: -2 * self._run]
        if len(past) < 2 * self._run or float(np.median(past)) < _WORTH:
            return None
        wide = _spread(now)
        # Where steps differ by much anyway, only a large decline is one.
        below = self._share if max(wide, _spread(past)) < self._spread else self._share / 4
        self._scatter = max(_scatter(table[:, 2]), _FADES * self._scatter)
        self._below = below, below, min(below, math.exp(-_FAR * self._scatter))
        explained = copies / float(np.median(past))
        if wide < self._spread + explained or _spread(past) > _STEADY * self._spread:
            return None
        self._settle(list(self._rows)[-2 * self._run :], 1.0)
        self._below = (self._share / 4,) * 3
        return Trouble(_K.TRAFFIC_UNSTEADY, "moves", wide, float(np.median(past)))

    def _explain(self, usual: Row) -> Trouble | None:
        """Several steps in a row are low in something: is it the same in all of them?"""
        ratios = [[row[c] / usual[c] if usual[c] >= _WORTH else 1.0 for row in self._low] for c in range(3)]
        for bad, good, what in ((0, 1, "sends"), (1, 0, "receives")):
            # A checkpoint may lift one of these steps, but not all: the median says how low they are.
            is_low = max(ratios[bad]) < self._below[bad] and median(ratios[bad]) < self._one_sided
            if is_low and min(ratios[good]) > _OTHER and usual[good] >= _WORTH:
                return Trouble(_K.TRAFFIC_ONE_SIDED, what, median(ratios[bad]), usual[bad])
        for column, what in ((0, "sends"), (1, "receives"), (2, "moves at most, per second,")):
            if max(ratios[column]) < self._below[column]:
                return Trouble(_K.TRAFFIC_DECLINE, what, median(ratios[column]), usual[column])
        return None


def _spread(values: np.ndarray) -> float:
    """Median distance from the median, as a share of it."""
    middle = float(np.median(values))
    return float(np.median(np.abs(values - middle))) / middle if middle > 0 else math.inf


def _scatter(values: np.ndarray) -> float:
    """Standard deviation of the logarithms, from the median distance: what is far out does not count."""
    logs = np.log(np.maximum(values, 1.0))
    return 1.4826 * float(np.median(np.abs(logs - np.median(logs))))


@dataclass(slots=True)
class _Copies:
    """A node's copies of snapshots, to it and from it, as its gauges show."""

    sent: float = 0.0
    received: float = 0.0
    step: float = -1.0
    volumes_ago: int = _KEPT

    def look(self, host: Mapping[str, float]) -> None:
        step = host.get("snapshot_peer_step", -1.0)
        if step != self.step:
            self.step, self.volumes_ago = step, 0
        self.sent = host.get("snapshot_bytes", 0.0) if step >= 0 else 0.0
        self.received = host.get("snapshot_copies_bytes", 0.0)

    def lately(self) -> Copied:
        """What one step may carry more than another; called for each step."""
        self.volumes_ago += 1
        return (self.sent, self.received) if self.volumes_ago <= _KEPT else (0.0, 0.0)


@dataclass(slots=True)
class _Node:
    judge: Judge
    steps: StepTraffic = field(default_factory=StepTraffic)
    copies: _Copies = field(default_factory=_Copies)
    in_windows: bool = False
    newest: list[tuple[Volume, Copied]] = field(default_factory=list)


class VolumeDetector:
    """All nodes of one job: what befalls most of them at once is the job's, and not a node's."""

    def __init__(self, tuning: Tuning) -> None:
        self._tuning = tuning
        self._nodes: dict[str, _Node] = {}
        self._lows: dict[str, float] = {}
        self._asked_at = math.inf

    def observe(
        self, node: str, frame: t.Frame, rank: int, generation: int, reports: bool, now: Instant
    ) -> list[Finding]:
        """`rank`: the worker of this node whose steps count; `reports`: does any worker of the job report steps?"""
        state = self._nodes.get(node)
        if state is None:
            state = self._nodes[node] = _Node(Judge(self._tuning))
        if generation != state.steps.generation:
            state.judge.begin()
        volumes = state.steps.add(frame, rank, generation)
        in_windows = not reports
        if in_windows:
            volumes = state.steps.windows()
        if in_windows != state.in_windows:
            state.in_windows = in_windows
            state.judge.begin()
        if frame.host:
            state.copies.look(frame.host)
        found, state.newest = [], []
        for volume in volumes:
            copies = state.copies.lately()
            trouble = state.judge.add(volume, copies)
            if not in_windows:
                state.newest.append((volume, copies))
            if trouble is not None and not self._is_common(node, trouble):
                found.append(self._finding(node, trouble, self._others(node, now), state.steps.period, now))
        return found

    def take(self, node: str) -> list[tuple[Volume, Copied]]:
        """Of the steps that the last frame of this node completed, each once; none where no steps are reported."""
        state = self._nodes.get(node)
        if state is None:
            return []
        found, state.newest = state.newest, []
        return found

    def _is_common(self, node: str, trouble: Trouble) -> bool:
        """Do most others' steps differ, too? Copies of snapshots that miss a step, say: no fault of a node."""
        if trouble.kind is not _K.TRAFFIC_UNSTEADY:
            return False
        others = [state.judge.spread() for name, state in self._nodes.items() if name != node]
        return bool(others) and median(others) > _STEADY * self._tuning.limit(trouble.kind, "spread")

    def _others(self, node: str, now: Instant) -> Sequence[float]:
        """How low the others are. When thousands decline at once, they are not all asked for each of them."""
        if not self._asked_at <= now.mono < self._asked_at + _FRESH:
            self._asked_at = now.mono
            self._lows = {name: state.judge.low() for name, state in self._nodes.items()}
        return [low for name, low in self._lows.items() if name != node]

    def _finding(self, node: str, trouble: Trouble, others: Sequence[float], period: float, now: Instant) -> Finding:
        together = sum(share <= _CLOSE * trouble.share for share in others)
        of_all = trouble.kind is _K.TRAFFIC_DECLINE and bool(others) and together > len(others) / 2
        subject = "job" if of_all else node
        if trouble.kind is _K.TRAFFIC_UNSTEADY:
            text = f"{node} {trouble.what} a varying volume per step: half of the steps are {trouble.share:.0%} off"
        else:
            text = f"{node} {trouble.what} {trouble.share:.0%} of its usual {trouble.usual / 1e6:.2f} MB in each step"
        if of_all:
            text += f", and so do {together} of {len(others)} others"
        evidence = {"share": trouble.share, "usual_bytes": trouble.usual, "others": [round(s, 3) for s in others[:16]]}
        if not math.isnan(period):
            evidence["period_s"] = period
        return finding(trouble.kind, subject, text, now, node="" if of_all else node, evidence=evidence)
