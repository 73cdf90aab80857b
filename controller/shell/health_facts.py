"""Gathers what the health of a job is judged by, from its brain and from blame's last look at it."""

import time
from collections.abc import Mapping
from statistics import median
from typing import Any

from holdfast.controller.brain.job_brain import JobBrain
from holdfast.controller.hang.pauses import REPORTED
from holdfast.controller.health.facts import Facts, Fault, Pause, Slow
from holdfast.controller.health.judge import NEEDS_PERSON, Found, Health, judge
from holdfast.controller.job.stages import Stage
from holdfast.controller.state.at_risk import at_risk
from holdfast.controller.state.model import Incident, IncidentState, JobStatus
from holdfast.wire import types as t

Json = dict[str, Any]


def health_doc(brain: JobBrain, blame: Mapping[str, Any] | None) -> Json:
    """`models.Health`."""
    return health_json(judge(facts(brain, blame)))


def health_json(found: Health) -> Json:
    return {**_doc(found.lead), "others": [_doc(one) for one in found.others]}


def facts(brain: JobBrain, blame: Mapping[str, Any] | None) -> Facts:
    state, job, wall, mono = brain.c, brain.c.job, time.time(), time.monotonic()
    last = state.ledger.last
    recent = sorted(state.ledger.recent)
    step_seconds = recent[len(recent) // 2] if recent else None
    nodes = [state.nodes[name] for name in job.nodes if name in state.nodes]
    own, live = state.book.own(), state.book.live()
    failed = next((one for one in reversed(own) if one.state is IncidentState.FAILED), None)
    recoveries = [one.closed - one.opened for one in own if one.state is IncidentState.CLOSED and one.closed]
    waiting, up = state.life.waiting_since, state.life.up_at
    since = {
        JobStatus.PENDING: wall - (mono - waiting) if waiting is not None else job.submitted_at,
        JobStatus.STARTING: job.submitted_at,
        JobStatus.RECOVERING: live.opened if live is not None else wall,
        JobStatus.RUNNING: wall - (mono - up) if up else job.started_at,
    }
    return Facts(
        now=wall,
        state=job.state,
        reason=job.reason,
        since=since.get(job.state, job.ended_at),
        restarts=job.restarts,
        step=last.step if last else -1,
        max_steps=job.spec.max_steps,
        stepped_at=last.at if last is not None and last.generation == job.generation else None,
        step_seconds=step_seconds,
        world=job.world,
        nodes=len(job.nodes) or job.spec.nnodes,
        is_queued=state.is_queued() if job.state is JobStatus.PENDING and waiting is not None else False,
        live=_fault(live) if live is not None else None,
        ended=_fault(failed) if failed is not None and job.state is JobStatus.FAILED else None,
        safe=state.time.safe if state.time.reports else None,
        at_risk=at_risk([(node.host, mono - node.host_at) for node in nodes], step_seconds).job,
        usual_recovery=median(recoveries) if recoveries else None,
        pause=_pause(brain),
        slow=_slow(blame),
        doubtful=tuple((n.name, n.state.value) for n in nodes if n.state is not t.NodeState.HEALTHY),
        spares=sum(node.state is t.NodeState.SPARE for node in state.nodes.values()),
    )


def _fault(incident: Incident) -> Fault:
    cause = incident.cause
    name, start, _ = incident.phases[-1] if incident.phases else ("", incident.opened, None)
    return Fault(
        incident.id, cause.kind.value, cause.subject, cause.text, incident.opened, cause.node, incident.action, name,
        start, incident.state is IncidentState.RECOVERING,
    )  # fmt: skip


def _pause(brain: JobBrain) -> Pause | None:
    job, watch = brain.c.job, brain.hangs.pauses
    pause = watch.of(job)
    if pause is None or brain.c.life.stage is not Stage.UP or pause.still < REPORTED:
        return None
    usual = job.pauses.get(watch.place, [0.0, 0.0])[1]
    limit = watch.limit if watch.limit < float("inf") else None
    return Pause(pause.life.value, pause.text, watch.since, limit, usual or None)


def _slow(blame: Mapping[str, Any] | None) -> tuple[Slow, ...]:
    if blame is None or not blame["step_s"]:
        return ()
    return tuple(
        Slow(one["rank"], one["peer"], one["node"], one["cost_s"] / blame["step_s"], one["text"])
        for one in blame["culprits"]
        if not one["by_design"]
    )


def _doc(found: Found) -> Json:
    return {
        "condition": found.condition.value,
        "sentence": found.sentence,
        "since": found.since,
        "action": found.action,
        "needs_person": found.condition in NEEDS_PERSON,
        "doing": found.doing,
        "usual_s": found.usual_s,
        "basis": list(found.basis),
    }
