"""How a controller takes up what an earlier life of it wrote down."""

import base64
from typing import Any

from holdfast.base.errors import UsageError
from holdfast.controller.diagnosis.diagnoses import Diagnoses
from holdfast.controller.job import policy, timekeeping
from holdfast.controller.job.cluster import Cluster
from holdfast.controller.job.lifecycle import Stage, fresh_table
from holdfast.controller.job.store_watch import StoreWatch
from holdfast.controller.state.goodput import Goodput
from holdfast.controller.state.history import History
from holdfast.controller.state.job_size import check_life
from holdfast.controller.state.ledger import StepRow
from holdfast.controller.state.model import Finding, Incident, Instant, Job, JobState, RankState
from holdfast.wire import types as t

REMEDY = "stop the job's workers or restore the file (docs/operations.md#a-damaged-journal), then start again"


def restore(
    c: Cluster,
    diagnoses: Diagnoses,
    stores: StoreWatch,
    entities: list[tuple[str, str, dict[str, Any]]],
    steps: list[StepRow],
    now: Instant,
) -> list[str]:
    """Take up what an earlier life of the controller wrote down; nodes will report what really is.

    What cannot be understood is left out and named, one line each. UsageError when that is the newest job: without it a
    controller would end what runs, and one that fails in another way is started again and again.
    """
    try:
        return _restore(c, diagnoses, stores, entities, steps, now)
    except UsageError:
        raise
    except Exception as error:
        why = f"{type(error).__name__} {error}"
        raise UsageError(f"the journal's newest job cannot be taken up ({why}); {REMEDY}") from error


def _restore(
    c: Cluster,
    diagnoses: Diagnoses,
    stores: StoreWatch,
    entities: list[tuple[str, str, dict[str, Any]]],
    steps: list[StepRow],
    now: Instant,
) -> list[str]:
    damaged: list[str] = []
    time: dict[str, Any] | None = None
    last_alive = max([row.at for row in steps], default=now.wall)
    unread_job = ""
    for kind, key, doc in entities:
        try:
            diagnoses.restore(kind, key, doc)
            if kind == "incident":
                c.book.restore(Incident.from_doc(doc))
            elif kind == "node":
                c.histories[key] = History.from_doc(doc)
            elif kind == "job":
                job = Job.from_doc(doc)
                check_life(job)
                unread_job = ""
                if c.job is None or job.submitted_at >= c.job.submitted_at:
                    c.job = job
            elif kind == "time":
                Goodput.from_doc(doc)
                time = doc
            elif kind == "plan":
                c.plan = t.PlanPublished(doc["job"], doc["generation"], base64.b64decode(doc["data"]))
        except Exception as error:  # a document may hold anything
            damaged.append(f"{kind} {key}: {type(error).__name__} {error}")
            unread_job = damaged[-1] if kind == "job" else unread_job
    if unread_job:
        raise UsageError(f"the journal's newest job cannot be read ({unread_job}); {REMEDY}")
    stores.restore(now)
    if c.job is None:
        return damaged
    if c.plan is not None and c.plan.job != c.job.spec.id:
        c.plan = None
    c.ledger.restore(steps)
    c.time = timekeeping.restored(time, c.job, steps)
    c.job.best_step = max([c.job.best_step, *c.ledger.rows])
    if of_life := [r.step for r in steps if r.generation == c.job.generation]:
        c.job.life_first, c.job.life_last = min(of_life), max(of_life)
    c.ranks = fresh_table(c.job)
    c.ranks.counted[:] = max((r.step for r in steps if r.generation == c.job.generation), default=-1)
    if c.job.state.ended:
        return damaged
    running = c.job.state is JobState.RUNNING and not c.job.stop_asked
    c.life.stage = Stage.UP if running else Stage.IDLE
    if c.job.launching and not c.job.stop_asked:
        c.life.adopt(c.job, now)
    for kind, key, doc in entities:
        if kind == "exit" and doc == {"job": c.job.spec.id, "generation": c.job.generation}:
            rank = key.rpartition(":")[2]
            if rank.isdecimal() and int(rank) < c.ranks.world:
                c.ranks.mark(int(rank), RankState.DONE)
    c.reconcile_until = now.mono + c.options.agent_grace
    c.progress_at = now.mono
    finding = Finding(
        kind=t.FindingKind.CONTROLLER_RESTART,
        severity=t.Severity.WARNING,
        subject="controller",
        text=f"the controller was gone and is back; {_before(c.job)} when it died",
        since=last_alive,
        at=now.wall,
    )
    live = c.book.live()
    if live:
        c.book.attach(live, finding)
    else:
        incident = c.book.open(finding, c.job, now)
        incident.action, incident.reason = policy.Move.WATCH.value, "wait for the agents to report what runs"
    return damaged


def _before(job: Job) -> str:
    """What was under way by the journal: all that is known before nodes have reported."""
    if job.stop_asked:
        return "the job was being stopped"
    if job.launching:
        return f"generation {job.generation} was being launched"
    if job.state is JobState.RUNNING:
        return f"generation {job.generation} was running"
    return f"generation {job.generation} was being ended" if job.generation else "the job was being placed"
