"""How a controller takes up what an earlier life of it wrote down."""

import base64
from typing import TYPE_CHECKING, Any

from holdfast import types as t
from holdfast.controller import policy, timekeeping
from holdfast.controller.history import History
from holdfast.controller.ledger import StepRow
from holdfast.controller.lifecycle import Stage, fresh_table
from holdfast.controller.model import Finding, Incident, Instant, Job, JobState, RankState

if TYPE_CHECKING:
    from holdfast.controller.brain import Brain


def restore(
    brain: "Brain", entities: list[tuple[str, str, dict[str, Any]]], steps: list[StepRow], now: Instant
) -> None:
    """Take up what an earlier life of the controller wrote down; nodes will report what really is."""
    time: dict[str, Any] | None = None
    last_alive = max([row.at for row in steps], default=now.wall)
    for kind, key, doc in entities:
        brain.diagnoses.restore(kind, key, doc)
        if kind == "incident":
            brain.c.book.restore(Incident.from_doc(doc))
        elif kind == "node":
            brain.c.histories[key] = History.from_doc(doc)
        elif kind == "job":
            job = Job.from_doc(doc)
            if brain.c.job is None or job.submitted_at >= brain.c.job.submitted_at:
                brain.c.job = job
        elif kind == "time":
            time = doc
        elif kind == "plan":
            brain.c.plan = t.PlanPublished(doc["job"], doc["generation"], base64.b64decode(doc["data"]))
    brain.stores.restore(now)
    if brain.c.job is None:
        return
    if brain.c.plan is not None and brain.c.plan.job != brain.c.job.spec.id:
        brain.c.plan = None
    brain.c.ledger.restore(steps)
    brain.c.time = timekeeping.restored(time, brain.c.job, steps)
    brain.c.job.best_step = max([brain.c.job.best_step, *brain.c.ledger.rows])
    brain.c.ranks = fresh_table(brain.c.job)
    brain.c.ranks.counted[:] = max((r.step for r in steps if r.generation == brain.c.job.generation), default=-1)
    if brain.c.job.state.ended:
        return
    running = brain.c.job.state is JobState.RUNNING and not brain.c.job.stop_asked
    brain.c.life.stage = Stage.UP if running else Stage.IDLE
    for kind, key, doc in entities:
        if kind == "exit" and doc == {"job": brain.c.job.spec.id, "generation": brain.c.job.generation}:
            brain.c.ranks.mark(int(key.rpartition(":")[2]), RankState.DONE)
    brain.c.reconcile_until = now.mono + brain.c.options.agent_grace
    brain.c.progress_at = now.mono
    finding = Finding(
        kind=t.FindingKind.CONTROLLER_RESTART,
        severity=t.Severity.WARNING,
        subject="controller",
        text="the controller was gone and is back; training went on without it",
        since=last_alive,
        at=now.wall,
    )
    live = brain.c.book.live()
    if live:
        brain.c.book.attach(live, finding)
    else:
        incident = brain.c.book.open(finding, brain.c.job, now)
        incident.action, incident.reason = policy.Move.WATCH.value, "wait for the agents to report what runs"
