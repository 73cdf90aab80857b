"""A job that had to shrink grows again when there is room: after a checkpoint, so that nothing is lost by it."""

import math

from holdfast.controller.cluster import incidents as books
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


class Elastic:
    def __init__(self, job: JobState, recovery: Recovery, requests: Requests) -> None:
        self.c, self.recovery, self.requests = job, recovery, requests
        self.room_since = math.inf  # mono since which there has been room for more
        self.asked_at = math.inf
        self.asked_step = -1

    def tick(self, job: Job, now: Instant) -> list[Action]:
        """Grow when there has been room for long enough, nothing else is going on, and the state is safe."""
        nodes = self._larger(job)
        if not nodes:
            self.room_since = self.asked_at = math.inf
            return []
        self.room_since = min(self.room_since, now.mono)
        if now.mono - self.room_since < self.c.options.grow_after:
            return []
        if math.isinf(self.asked_at):
            self.asked_at, self.asked_step = now.mono, job.best_step
            return self.requests.precaution(now)
        if not is_saved(self.c, self.asked_step) and now.mono - self.asked_at < SAVE_LIMIT:
            return []
        self.room_since = self.asked_at = math.inf
        return self._grow(job, nodes, now)

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


def is_saved(c: JobState, step: int) -> bool:
    """Is what was trained up to this step in the store? True for a job that reports no checkpoints."""
    hosts = [c.nodes[name].host for name in c.job.nodes if name in c.nodes]
    stored = [host["checkpoint_step"] for host in hosts if "checkpoint_step" in host]
    keeps = any("snapshot_step" in host for host in hosts)
    return max(stored, default=-1.0) >= step if stored or keeps else True
