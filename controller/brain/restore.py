"""How a restarted controller restores from the journal of an earlier run."""

import base64
from collections.abc import Mapping
from typing import Any

from holdfast.base.errors import UsageError
from holdfast.controller.brain.job_brain import JobBrain
from holdfast.controller.brain.roster import Roster
from holdfast.controller.cluster.state import ClusterState
from holdfast.controller.diagnosis.diagnoses import Diagnoses
from holdfast.controller.job import policy, timekeeping
from holdfast.controller.job.lifecycle import fresh_table
from holdfast.controller.state.goodput import Goodput
from holdfast.controller.state.history import History
from holdfast.controller.state.incidents import Finding, Incident
from holdfast.controller.state.job_size import check_life
from holdfast.controller.state.ledger import StepRow
from holdfast.controller.state.model import ENDED, Instant, Job, JobStatus
from holdfast.controller.state.ranks import RankState
from holdfast.wire import types as t

REMEDY = "stop the job's workers or restore the file (docs/operations.md#a-damaged-journal), then start again"
KEPT = 16
"""Jobs that are over and are taken up all the same, to be looked at: the newest."""

Json = dict[str, Any]
Steps = Mapping[str, list[StepRow]] | list[StepRow]
"""Steps by job; of recordings before there were several, those of the newest job."""


class _Written:
    """What the journal holds, by what it is about."""

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}
        self.times: dict[str, Json] = {}
        self.plans: dict[str, t.PlanPublished] = {}
        self.exits: list[tuple[str, Json]] = []
        self.damaged: list[str] = []
        self.unread: dict[str, str] = {}  # jobs whose document could not be read, and why

    def take(self, c: ClusterState, diagnoses: Diagnoses, kind: str, key: str, doc: Json) -> None:
        try:
            diagnoses.restore(kind, key, doc)
            if kind == "incident":
                c.book.taken(key)
                incident = Incident.from_doc(doc)
                if incident.id != key:
                    raise ValueError(f"id cannot be {incident.id!r:.40}")
                c.book.restore(incident)
            elif kind == "node":
                c.histories[key] = History.from_doc(doc)
            elif kind == "job":
                job = Job.from_doc(doc)
                check_life(job)
                self.jobs[job.spec.id] = job
            elif kind == "time":
                Goodput.from_doc(doc)
                self.times[str(doc["job"])] = doc
            elif kind == "plan":
                plan = t.PlanPublished(doc["job"], doc["generation"], base64.b64decode(doc["data"]))
                self.plans[plan.job] = plan
            elif kind == "exit":
                self.exits.append((key, doc))
        except Exception as error:  # a document may hold anything
            if doc or kind != "job":  # an empty one marks a document that the journal itself could not read
                self.damaged.append(f"{kind} {key}: {type(error).__name__} {error}")
            if kind == "job":
                self.unread[key] = f"{type(error).__name__} {error}"
                if doc.get("state") not in ENDED:
                    c.unread_jobs.add(key)


def restore(
    c: ClusterState,
    roster: Roster,
    diagnoses: Diagnoses,
    entities: list[tuple[str, str, Json]],
    steps: Steps,
    now: Instant,
) -> list[str]:
    """Restore from the journal of an earlier run; the nodes will report the actual state.

    What cannot be understood is left out and named, one line each; workers of a job that cannot be read and may not be
    over are left alone. UsageError when that is the job that was written last: one that fails in another way is started
    again and again.
    """
    try:
        return _restore(c, roster, diagnoses, entities, steps, now)
    except UsageError:
        raise
    except Exception as error:
        why = f"{type(error).__name__} {error}"
        raise UsageError(f"the journal's newest job cannot be restored ({why}); {REMEDY}") from error


def _restore(
    c: ClusterState,
    roster: Roster,
    diagnoses: Diagnoses,
    entities: list[tuple[str, str, Json]],
    steps: Steps,
    now: Instant,
) -> list[str]:
    written = _Written()
    last_job = ""
    for kind, key, doc in entities:
        written.take(c, diagnoses, kind, key, doc)
        last_job = key if kind == "job" else last_job
    if last_job in written.unread:
        why = f"job {last_job}: {written.unread[last_job]}"
        raise UsageError(f"the journal's newest job cannot be read ({why}); {REMEDY}")
    jobs = sorted(written.jobs.values(), key=lambda job: job.submitted_at)
    over = [job for job in jobs if job.state.ended]
    left_out = {job.spec.id for job in over[: max(0, len(over) - KEPT)]}
    by_job = steps if isinstance(steps, Mapping) else {jobs[-1].spec.id: steps} if jobs else {}
    rows = [row for one in by_job.values() for row in one]
    last_alive = max([row.at for row in rows], default=now.wall)
    for job in jobs:
        if job.spec.id not in left_out:
            _restore_job(c, roster.add(job), written, by_job.get(job.spec.id, []), last_alive, now)
    return written.damaged


def _restore_job(
    c: ClusterState, brain: JobBrain, written: _Written, steps: list[StepRow], last_alive: float, now: Instant
) -> None:
    state, job = brain.c, brain.c.job
    brain.stores.restore(now)
    brain.stragglers.restore()
    state.plan = written.plans.get(job.spec.id)
    state.ledger.restore(steps)
    state.time = timekeeping.restored(written.times.get(job.spec.id), job, steps)
    job.best_step = max([job.best_step, *state.ledger.rows])
    if of_life := [r.step for r in steps if r.generation == job.generation]:
        job.life_first, job.life_last = min(of_life), max(of_life)
    state.ranks = fresh_table(job)
    state.ranks.counted[:] = max((r.step for r in steps if r.generation == job.generation), default=-1)
    if job.state.ended:
        return
    c.hold(job)
    if job.launching and not job.stop_asked:
        state.life.adopt(job, now)
    elif job.state is JobStatus.RUNNING and not job.stop_asked:
        state.life.resume()
    for key, doc in written.exits:
        if doc == {"job": job.spec.id, "generation": job.generation}:
            rank = key.rpartition(":")[2]
            if rank.isdecimal() and int(rank) < state.ranks.world:
                state.ranks.mark(int(rank), RankState.DONE)
    c.reconcile_until = now.mono + c.options.agent_grace
    state.progress_at = now.mono
    finding = Finding(
        kind=t.FindingKind.CONTROLLER_RESTART,
        severity=t.Severity.WARNING,
        subject="controller",
        text=f"the controller restarted; {_before(job)} when it stopped",
        since=last_alive,
        at=now.wall,
    )
    live = state.book.live()
    if live:
        state.book.attach(live, finding)
    elif job.nodes:  # one that waits for its nodes has missed nothing
        incident = state.book.open(finding, now)
        incident.action, incident.reason = policy.Move.WATCH.value, "waiting for the agents to report what runs"


def _before(job: Job) -> str:
    """The last state in the journal: the only knowledge before the nodes report."""
    if job.stop_asked:
        return "the job was being stopped"
    if job.launching:
        return f"generation {job.generation} was being launched"
    if job.state is JobStatus.RUNNING:
        return f"generation {job.generation} was running"
    if job.state is JobStatus.PENDING:
        return "the job was queued"
    return f"generation {job.generation} was being stopped" if job.generation else "the job was being placed"
