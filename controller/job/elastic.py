"""A job that may run on fewer nodes: when it goes on with them, and when it grows again.

It grows when there is room: after a checkpoint, so that nothing is lost by it. A job with planned layouts
(`JobSpec.layouts`) goes on with fewer nodes only where that costs less than to wait for the lost ones, and grows onto
a flapping node later with each of its returns. The incident has the predicted throughput, and later the measured one.
"""

import math
import statistics
from dataclasses import dataclass

from holdfast.controller.cluster import incidents as books
from holdfast.controller.cluster import replanning
from holdfast.controller.cluster.placement import place
from holdfast.controller.job import policy
from holdfast.controller.job.recovery import Recovery
from holdfast.controller.job.requests import Requests
from holdfast.controller.job.stages import Stage
from holdfast.controller.job.state import JobState
from holdfast.controller.state.events import Action
from holdfast.controller.state.incidents import Finding
from holdfast.controller.state.model import Instant, Job
from holdfast.wire import types as t

SAVE_LIMIT = 60.0
"""Seconds to wait for that checkpoint: a store that is down must not keep a job small."""
_RESTARTS = frozenset({"suspended", "evicting", "starting", "restoring", "resuming"})
"""Phases of an incident that a restart consists of; the others wait for something else."""
_MEASURED, _WARM_UP = 12, 4
"""Steps of a new layout after which its throughput is known; so many of them are left out."""
_NAMED = 3
"""Nodes that a text names; it counts the others."""
_NEWEST = 50
"""Absences, and of the restarts a tenth of it, that say what the next takes."""


@dataclass(frozen=True, slots=True)
class _Expected:
    generation: int
    nodes: int
    before_s: float
    """Seconds of a step before it; NaN if that is unknown."""


class Elastic:
    def __init__(self, job: JobState, recovery: Recovery, requests: Requests) -> None:
        self.c, self.recovery, self.requests = job, recovery, requests
        self.room_since = math.inf  # mono since which there has been room for more
        self.asked_at = math.inf
        self.asked_step = -1
        self._expected: _Expected | None = None
        self._missed: dict[str, float] = {}  # nodes that are waited for, and mono of the first look without them

    # --- fewer nodes -------------------------------------------------------------------------------------------

    def choose(self, chosen: list[str], missing: str, now: Instant) -> tuple[list[str], str]:
        """The nodes of the next generation, of those that the allocator chose; none, and why, to wait for others."""
        job = self.c.job
        if not job.spec.layouts or not job.nodes:
            return chosen, missing
        if not chosen:
            counts = ", ".join(map(str, sorted(job.spec.node_counts)))
            return [], f"{missing}; smaller layouts are planned for {counts} of {job.spec.nnodes} nodes"
        if len(chosen) == len(job.nodes):
            self._forget_plan(job)
            self._missed = {}
            return chosen, missing
        share = job.throughput_on(len(chosen)) / job.throughput_on(len(job.nodes))
        costs = ""
        gone = self._may_return(job) if len(chosen) < len(job.nodes) else []
        self._missed = {name: self._missed.get(name, now.mono) for name in gone}
        if gone:
            found = replanning.choose(self._situation(gone, min(share, 1.0), now))
            if found.waits:
                return [], (
                    f"waits {found.wait_s:.0f} s at most for {_named(gone)}: to go on with {len(chosen)} nodes now "
                    f"would cost {found.going_on_s:.0f} s of training, to wait {found.cost_s:.0f} s"
                )
            costs = f", costs {found.going_on_s:.0f} s of training" if math.isfinite(found.going_on_s) else ""
            costs += f", to wait {found.waiting_s:.0f} s" if math.isfinite(found.waiting_s) else ""
        self._expect(job, len(chosen), share, costs)
        return chosen, missing

    def _may_return(self, job: Job) -> list[str]:
        """Its nodes that are away and may come back by themselves. Cordoned and evicted ones wait for an operator, for
        as long as that takes; and where all are there, nothing is to be waited for."""
        known = self.c.nodes
        away = [name for name in job.nodes if name not in known or not known[name].usable]
        return [name for name in away if not self.c.history(name).cordoned and not self.c.history(name).evicted]

    def _situation(self, gone: list[str], share: float, now: Instant) -> replanning.Situation:
        histories = [self.c.history(name) for name in gone]
        known = sorted(one for history in self.c.cluster.histories.values() for one in history.absences)
        # Where it is unknown since when one is away, it counts from the first look: else each would begin anew.
        missed = [now.wall - (now.mono - self._missed[name]) for name in gone]
        since = [history.away_since or look for history, look in zip(histories, missed, strict=True)]
        return replanning.Situation(
            throughput=share,
            missing=len(gone),
            away_s=max(0.0, now.wall - max(since)),
            absences=[seconds for _, seconds in known[-_NEWEST:]],
            restart_s=self._restart_s(),
            grow_after_s=self.c.options.grow_after,
        )

    def _restart_s(self) -> float:
        """Seconds that the job's last restarts took, the median."""
        over = [one for one in self.c.book.own() if one.closed is not None and one.generation_to > one.generation_from]
        took = [
            sum(end - start for name, start, end in one.phases if name in _RESTARTS and end is not None) for one in over
        ]
        return statistics.median(took[-_NEWEST // 10 :]) if took else replanning.PRIOR_RESTART_S

    def _expect(self, job: Job, nodes: int, share: float, costs: str) -> None:
        """Say once in the incident what the next generation is predicted to do."""
        known = self._expected
        if known is not None and (known.generation, known.nodes) == (job.generation + 1, nodes):
            return
        recent = [*self.c.ledger.recent][-_MEASURED:]
        before_s = statistics.median(recent) if len(recent) == _MEASURED else math.nan
        self._expected = _Expected(job.generation + 1, nodes, before_s)
        layout = job.spec.layout_on(nodes)
        text = layout.text if layout is not None and layout.text else "its own layout"
        self.c.life.story = f"planned for {nodes} nodes: {text}, {share:.0%} of the throughput predicted{costs}"

    def _forget_plan(self, job: Job) -> None:
        """The nodes are there again, before a generation without them began."""
        if self._expected is not None and self._expected.generation == job.generation + 1:
            self._expected = None
            self.c.life.story = f"then {len(job.nodes)} nodes were there again"

    def _measured(self, job: Job) -> list[Action]:
        """Add the measured throughput to the incident, once the new generation has done enough steps."""
        expected = self._expected
        if expected is None or job.generation < expected.generation or job.life_steps < _MEASURED:
            return []
        self._expected = None
        incident = self.c.book.of_generation(expected.generation)
        if incident is None or job.generation > expected.generation or math.isnan(expected.before_s):
            return []
        after_s = statistics.median([*self.c.ledger.recent][_WARM_UP - _MEASURED :])
        share = expected.before_s / after_s if after_s > 0 else math.inf
        incident.reason += f"; measured {share:.0%} ({after_s:.3g} s a step, before {expected.before_s:.3g} s)"
        return [books.saved(incident)]

    # --- more nodes --------------------------------------------------------------------------------------------

    def tick(self, job: Job, now: Instant) -> list[Action]:
        """Grow when there has been room for long enough, nothing else is going on, and the state is safe."""
        return [*self._measured(job), *self._grow_if_safe(job, now)]

    def _grow_if_safe(self, job: Job, now: Instant) -> list[Action]:
        nodes = self._larger(job)
        if not nodes:
            self.room_since = self.asked_at = math.inf
            return []
        self.room_since = min(self.room_since, now.mono)
        if now.mono - self.room_since < self._hold(job, nodes, now):
            return []
        if math.isinf(self.asked_at):
            self.asked_at, self.asked_step = now.mono, job.best_step
            return self.requests.precaution(now)
        if not is_saved(self.c, self.asked_step) and now.mono - self.asked_at < SAVE_LIMIT:
            return []
        self.room_since = self.asked_at = math.inf
        return self._grow(job, nodes, now)

    def _hold(self, job: Job, nodes: list[str], now: Instant) -> float:
        """Seconds that there must have been room."""
        o = self.c.options
        if not job.spec.layouts:
            return o.grow_after
        new = [self.c.history(name) for name in nodes if name not in job.nodes]
        returns = max((history.returns(now.wall, o.failure_window) for history in new), default=0)
        return replanning.hold_before_growing(o.grow_after, returns)

    def _larger(self, job: Job) -> list[str]:
        """The nodes of a larger generation; empty when there is none, or this is no moment for it."""
        if self.c.life.stage is not Stage.UP or self.c.book.live() is not None or job.stop_asked:
            return []
        if not job.nodes or len(job.nodes) >= job.spec.nnodes:
            return []
        chosen, _ = place(job.spec, self.c.free_nodes(), job.nodes)
        sound = not any(self.c.history(name).evicted for name in chosen)
        return chosen if sound and len(chosen) > len(job.nodes) else []

    def _grow(self, job: Job, nodes: list[str], now: Instant) -> list[Action]:
        new = [name for name in nodes if name not in job.nodes]
        finding = Finding(
            kind=t.FindingKind.ROOM,
            severity=t.Severity.INFO,
            subject="job",
            text=f"capacity restored: {len(nodes)} nodes instead of {len(job.nodes)} ({', '.join(new)})",
            since=now.wall,
            at=now.wall,
        )
        incident = self.c.book.open(finding, now)
        incident.action, incident.reason = policy.Move.GROW.value, "capacity restored"
        return [books.saved(incident), *self.recovery.recover(incident, job, now)]


def _named(names: list[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names) if more <= 0 else f"{', '.join(names[:_NAMED])} and {more:,} more"


def is_saved(c: JobState, step: int) -> bool:
    """Is what was trained up to this step in the store? True for a job that reports no checkpoints."""
    hosts = [c.nodes[name].host for name in c.job.nodes if name in c.nodes]
    stored = [host["checkpoint_step"] for host in hosts if "checkpoint_step" in host]
    keeps = any("snapshot_step" in host for host in hosts)
    return max(stored, default=-1.0) >= step if stored or keeps else True
