"""How a controller takes up what an earlier life of it wrote down."""

import base64
from typing import TYPE_CHECKING, Any

from holdfast import types as t
from holdfast.controller import policy, timekeeping
from holdfast.controller.goodput import Goodput
from holdfast.controller.history import History
from holdfast.controller.ledger import StepRow
from holdfast.controller.lifecycle import Stage, fresh_table
from holdfast.controller.model import Finding, Incident, Instant, Job, JobState, RankState
from holdfast.errors import UsageError

if TYPE_CHECKING:
    from holdfast.controller.brain import Brain

REMEDY = "stop the job's workers or restore the file (docs/operations.md#a-damaged-journal), then start again"


def restore(
    brain: "Brain", entities: list[tuple[str, str, dict[str, Any]]], steps: list[StepRow], now: Instant
) -> None:
    """Take up what an earlier life of the controller wrote down; nodes will report what really is.

    What cannot be understood is left out, `brain.damaged` names it. UsageError when that is the newest job.
    """
    time: dict[str, Any] | None = None
    last_alive = max([row.at for row in steps], default=now.wall)
    unread_job = ""
    for kind, key, doc in entities:
        try:
            brain.diagnoses.restore(kind, key, doc)
            if kind == "incident":
                brain.c.book.restore(Incident.from_doc(doc))
            elif kind == "node":
                brain.c.histories[key] = History.from_doc(doc)
            elif kind == "job":
                job, unread_job = Job.from_doc(doc), ""
                if brain.c.job is None or job.submitted_at >= brain.c.job.submitted_at:
                    brain.c.job = job
            elif kind == "time":
                Goodput.from_doc(doc)
                time = doc
            elif kind == "plan":
                brain.c.plan = t.PlanPublished(doc["job"], doc["generation"], base64.b64decode(doc["data"]))
        except (KeyError, ValueError, TypeError, AttributeError, IndexError) as error:
            brain.damaged.append(f"{kind} {key}: {type(error).__name__} {error}")
            unread_job = brain.damaged[-1] if kind == "job" else unread_job
    if unread_job:
        raise UsageError(f"the journal's newest job cannot be read ({unread_job}); {REMEDY}")
    brain.stores.restore(now)
    if brain.c.job is None:
        return
    if brain.c.plan is not None and brain.c.plan.job != brain.c.job.spec.id:
        brain.c.plan = None
    brain.c.ledger.restore(steps)
    brain.c.time = timekeeping.restored(time, brain.c.job, steps)
    brain.c.job.best_step = max([brain.c.job.best_step, *brain.c.ledger.rows])
    if of_life := [r.step for r in steps if r.generation == brain.c.job.generation]:
        brain.c.job.life_first, brain.c.job.life_last = min(of_life), max(of_life)
    brain.c.ranks = fresh_table(brain.c.job)
    brain.c.ranks.counted[:] = max((r.step for r in steps if r.generation == brain.c.job.generation), default=-1)
    if brain.c.job.state.ended:
        return
    running = brain.c.job.state is JobState.RUNNING and not brain.c.job.stop_asked
    brain.c.life.stage = Stage.UP if running else Stage.IDLE
    if brain.c.job.launching and not brain.c.job.stop_asked:
        brain.c.life.adopt(brain.c.job, now)
    for kind, key, doc in entities:
        if kind == "exit" and doc == {"job": brain.c.job.spec.id, "generation": brain.c.job.generation}:
            rank = key.rpartition(":")[2]
            if rank.isdecimal() and int(rank) < brain.c.ranks.world:
                brain.c.ranks.mark(int(rank), RankState.DONE)
    brain.c.reconcile_until = now.mono + brain.c.options.agent_grace
    brain.c.progress_at = now.mono
    finding = Finding(
        kind=t.FindingKind.CONTROLLER_RESTART,
        severity=t.Severity.WARNING,
        subject="controller",
        text=f"the controller was gone and is back; {_before(brain.c.job)} when it died",
        since=last_alive,
        at=now.wall,
    )
    live = brain.c.book.live()
    if live:
        brain.c.book.attach(live, finding)
    else:
        incident = brain.c.book.open(finding, brain.c.job, now)
        incident.action, incident.reason = policy.Move.WATCH.value, "wait for the agents to report what runs"


def _before(job: Job) -> str:
    """What was under way by the journal: all that is known before nodes have reported."""
    if job.stop_asked:
        return "the job was being stopped"
    if job.launching:
        return f"generation {job.generation} was being launched"
    if job.state is JobState.RUNNING:
        return f"generation {job.generation} was running"
    return f"generation {job.generation} was being ended" if job.generation else "the job was being placed"
