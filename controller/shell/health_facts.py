"""Gathers what the health of a job is judged by: from its document, its brain, and blame's last look at it."""

from collections.abc import Mapping
from dataclasses import replace
from statistics import median
from typing import Any

from holdfast.controller.brain.job_brain import JobBrain
from holdfast.controller.health.facts import Facts, Fault, Pause, Slow
from holdfast.controller.health.judge import NEEDS_PERSON, Found, Health, judge
from holdfast.controller.shell.certificate_watch import AUTHORITY, CONTROLLER
from holdfast.controller.state.incidents import Incident, IncidentState
from holdfast.controller.state.model import Instant, Job, JobStatus
from holdfast.wire import types as t

Json = dict[str, Any]


def health_doc(
    brain: JobBrain, doc: Json, blame: Mapping[str, Any] | None, at: Instant, certificates: Mapping[str, float]
) -> Json:
    """`models.Health`. `doc`: the rest of the job's document. `certificates`: their ends by subject, wall seconds."""
    ours = [certificates[one] for one in (AUTHORITY, CONTROLLER, *brain.c.job.nodes) if one in certificates]
    known = replace(facts(brain, doc, blame, at), certificates_end=min(ours, default=None))
    return health_json(judge(known))


def health_json(found: Health) -> Json:
    return {**_doc(found.lead), "others": [_doc(one) for one in found.others]}


def facts(brain: JobBrain, doc: Json, blame: Mapping[str, Any] | None, at: Instant) -> Facts:
    state, job, wall, mono = brain.c, brain.c.job, at.wall, at.mono
    last, own, live = state.ledger.last, state.book.own(), state.book.live()
    failed = next((one for one in reversed(own) if one.state is IncidentState.FAILED), None)
    store = next((one for one in own if one.is_open and one.cause.kind is t.FindingKind.STORE), None)
    waiting, up = state.life.waiting_since, state.life.up_at
    since = {
        JobStatus.PENDING: wall - (mono - waiting) if waiting is not None else job.submitted_at,
        JobStatus.STARTING: job.started_at or job.submitted_at,
        JobStatus.RECOVERING: live.opened if live is not None else wall,
        JobStatus.RUNNING: wall - (mono - up) if up else job.started_at,
    }
    nodes = [state.nodes[name] for name in job.nodes if name in state.nodes]
    return Facts(
        now=wall,
        state=job.state,
        reason=job.reason,
        since=since.get(job.state, job.ended_at),
        restarts=job.restarts,
        step=doc["step"],
        step_of_life=doc["step_of_life"],
        max_steps=job.spec.max_steps,
        stepped_at=last.at if last is not None and last.generation == job.generation else None,
        step_seconds=doc["step_seconds"],
        world=doc["world_size"],
        nodes=doc["nnodes"],
        is_queued=doc["queued"],
        live=_fault(live) if live is not None else None,
        ended=_fault(failed) if failed is not None else None,
        safe=state.time.safe if state.time.reports else None,
        repeated=_repeated(job, state.book.of_generation(job.generation)),
        at_risk=doc["at_risk"]["job"] if doc["at_risk"] else None,
        usual_recovery=_usual(own),
        pause=_pause(doc["pause"]),
        store=_fault(store) if store is not None else None,
        slow=_slow(blame),
        doubtful=tuple((n.name, n.state.value) for n in nodes if n.state is not t.NodeState.HEALTHY),
        spares=sum(node.state is t.NodeState.SPARE for node in state.nodes.values()),
    )


def _repeated(job: Job, incident: Incident | None) -> int:
    """What a program that numbers its steps had done before the restart, and does again from step 0."""
    if incident is None or job.life_first != 0 or not job.numbers_steps:
        return 0
    return incident.step_at_fault + 1


def _usual(incidents: list[Incident]) -> float | None:
    """Of those for which the job was restarted: an alert is over at once."""
    took = [
        one.closed - one.opened
        for one in incidents
        if one.state is IncidentState.CLOSED and one.closed is not None and one.generation_to
    ]
    return median(took) if took else None


def _fault(incident: Incident) -> Fault:
    # A want of nodes is what came of it, not who it was.
    cause = next((one for one in incident.findings if one.kind is not t.FindingKind.CAPACITY), incident.cause)
    cause = cause if incident.cause.kind is t.FindingKind.CAPACITY else incident.cause
    name, start, _ = incident.phases[-1] if incident.phases else ("", incident.opened, None)
    return Fault(
        incident.id, cause.kind.value, cause.subject, cause.text, incident.opened, cause.node, incident.action, name,
        start, incident.state is IncidentState.RECOVERING,
    )  # fmt: skip


def _pause(pause: Json | None) -> Pause | None:
    if pause is None:
        return None
    return Pause(pause["life"], pause["text"], pause["since"], pause["limit_seconds"], pause["usual_seconds"] or None)


def slow_cost(blame: Mapping[str, Any] | None) -> float | None:
    """Share of the step that the worst of them costs; None where nothing is known."""
    return max((one.cost for one in _slow(blame)), default=0.0) if blame is not None else None


def _slow(blame: Mapping[str, Any] | None) -> tuple[Slow, ...]:
    if blame is None:
        return ()
    return tuple(
        Slow(one["rank"], one["peer"], one["node"], one["share"], one["text"], one.get("since"))
        for one in blame["culprits"]
        if not one["by_design"]
    )


def _doc(found: Found) -> Json:
    return {
        "condition": found.condition.value,
        "sentence": found.sentence,
        "since": found.since,
        "action": found.action,
        "needs_person": found.condition in NEEDS_PERSON or found.is_urgent,
        "doing": found.doing,
        "usual_s": found.usual_s,
        "basis": list(found.basis),
        "remedy": found.remedy.value,
        "target": found.target,
        "rank": found.rank,
    }
