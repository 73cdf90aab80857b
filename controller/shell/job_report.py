"""The report of one job for viewers, as plain data (its shapes: `http.models`)."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from holdfast.base import log
from holdfast.base.errors import ProtocolError
from holdfast.controller.brain.job_brain import JobBrain
from holdfast.controller.cluster.ordering import placement_doc
from holdfast.controller.cluster.placement import natural
from holdfast.controller.hang.pauses import REPORTED
from holdfast.controller.job.stages import Stage
from holdfast.controller.state.at_risk import at_risk
from holdfast.controller.state.goodput import DAY, HOUR, LOSSES, Account
from holdfast.controller.state.incidents import Incident
from holdfast.controller.state.ledger import StepRow
from holdfast.controller.state.model import Instant, Job
from holdfast.controller.state.ranks import RANK_STATES, RankState, RankTable
from holdfast.wire import types as t
from holdfast.wire.plans import decode_plan

Json = dict[str, Any]


def brief(brain: JobBrain) -> Json:
    """What a list of jobs shows."""
    job, last = brain.c.job, brain.c.ledger.last
    return {
        "id": job.spec.id,
        "name": job.spec.name,
        "state": job.state.value,
        "reason": job.reason,
        "priority": job.spec.priority,
        "preempt": job.spec.preempt,
        "share_bytes": job.spec.share_bytes,
        "shares_with": [one.spec.id for one in brain.c.cluster.beside(job)],
        "generation": job.generation,
        "nnodes": len(job.nodes) or job.spec.nnodes,
        "nproc_per_node": job.spec.nproc,
        "nodes": list(job.nodes),
        "step": last.step if last else -1,
        "step_of_life": job.step_of_life,
        "max_steps": job.spec.max_steps,
        "restarts": job.restarts,
        "submitted_at": job.submitted_at,
        "started_at": job.started_at or None,
        "ended_at": job.ended_at or None,
        "exit_code": job.exit_code,
    }


def job_doc(brain: JobBrain, at: Instant) -> Json:
    state, job = brain.c, brain.c.job
    ledger = state.ledger
    last = ledger.last
    recent = sorted(ledger.recent)
    median = recent[len(recent) // 2] if recent else None
    until = job.ended_at or at.wall
    p, planned = job.spec.program, brain.plans.planned
    return {
        "id": job.spec.id,
        "name": job.spec.name,
        "state": job.state.value,
        "reason": job.reason,
        "generation": job.generation,
        "world_size": job.world,
        "nnodes": len(job.nodes) or job.spec.nnodes,
        "node_counts": sorted(set(job.spec.counts)),
        "nproc_per_node": job.spec.nproc,
        "program": {"target": p.target, "args": list(p.args), "module": p.module},
        "submitted_at": job.submitted_at,
        "started_at": job.started_at or None,
        "ended_at": job.ended_at or None,
        "exit_code": job.exit_code,
        "step": last.step if last else -1,
        "loss": number(ledger.loss),
        "tokens_per_s": ledger.tokens_per_second(),
        "step_seconds": median,
        "step_planned_seconds": None if planned is None else planned.step,
        "planned": None if planned is None else _planned(brain, planned.step, median),
        "traffic": _traffic(brain),
        "mfu": _mean(state.ranks.mfu),
        "restarts": job.restarts,
        "queued": not job.state.ended and state.life.waiting_since is not None and state.is_queued(),
        "priority": job.spec.priority,
        "preempt": job.spec.preempt,
        "share_bytes": job.spec.share_bytes,
        "shares_with": [one.spec.id for one in brain.c.cluster.beside(job)],
        "goodput": state.time.ratio(until),
        "time": _time(brain, until),
        "pause": _pause(brain, at),
        "at_risk": _at_risk(brain, median, at),
        "sizes": list(state.ranks.sizes) if state.ranks.sizes else None,
        "placement": placement_doc(job, state.nodes, sorted(job.nodes, key=natural), state.cluster.slow),
        "assignment": [{"node": n, "ranks": list(job.ranks_on(n))} for n in job.nodes],
        "max_steps": job.spec.max_steps,
        "steps_counted": job.progress.counted,
        "step_of_life": job.step_of_life,
        "progress": job.progress.reported or None,
        "faults_left": [text for text in job.spec.faults if text not in job.fired],
    }


def _pause(brain: JobBrain, at: Instant) -> Json | None:
    job, watch = brain.c.job, brain.hangs.pauses
    pause = watch.of(job)
    if pause is None or brain.c.life.stage is not Stage.UP or pause.still < REPORTED:
        return None
    return {
        "life": pause.life.value,
        "text": pause.text,
        "place": watch.place,
        "ranks": list(pause.ranks),
        "waiting": len(pause.waiting),
        "since": watch.since,
        "seconds": max(0.0, at.wall - watch.since),
        "limit_seconds": number(watch.limit),
        "usual_seconds": job.pauses.get(watch.place, [0.0, 0.0])[1],
    }


def _planned(brain: JobBrain, step: float, median: float | None) -> Json:
    """What a step takes beside what it was planned to take."""
    since = None if brain.c.job.state.ended else brain.plans.since
    return {
        "step_seconds": step,
        "ratio": None if median is None else median / step,
        "slower_since": since,
        "where": brain.plans.where if since is not None else "",
    }


def _traffic(brain: JobBrain) -> Json | None:
    """What nodes send beside what the layout says."""
    planned = brain.plans.traffic_planned
    if planned is None:
        return None
    lasting = [] if brain.c.job.state.ended else brain.plans.off_plan.values()
    return {
        "planned_bytes": float(planned.sent.sum()),
        "off_plan": [{"node": one.node, "text": one.text, "since": one.since} for one in lasting],
    }


def _at_risk(brain: JobBrain, step_seconds: float | None, at: Instant) -> Json | None:
    job = brain.c.job
    if job.state.ended:
        return None
    nodes = [brain.c.nodes[name] for name in job.nodes if name in brain.c.nodes]
    found = at_risk([(node.host, at.mono - node.host_at) for node in nodes], step_seconds)
    return {"worker": found.worker, "node": found.node, "job": found.job}


def ranks_doc(brain: JobBrain | None, at: Instant) -> Json:
    """Columns; without a job none."""
    r, job = (brain.c.ranks, brain.c.job) if brain is not None else (RankTable(0), None)
    operations = sorted(set(r.operation))
    index = {name: i for i, name in enumerate(operations)}
    nproc = job.spec.nproc if job is not None else 1
    return {
        "rank": list(range(r.world)),
        "node": [i // nproc for i in range(r.world)],
        "pp": _coordinates(r.coordinate[:, 0]),
        "dp": _coordinates(r.coordinate[:, 1]),
        "tp": _coordinates(r.coordinate[:, 2]),
        "step": r.step.tolist(),
        "phase": r.phase.tolist(),
        "state": _states(brain, r).tolist(),
        "step_seconds": _column(r.median_step),
        "progress_age": _column(at.mono - r.progress_at),
        "mfu": _column(r.mfu),
        "part_seconds": {part: _column(seconds) for part, seconds in zip(t.STEP_PARTS, r.parts, strict=True)},
        "memory_bytes": _column(r.memory_bytes),
        "operation": [index[name] for name in r.operation],
        "nodes": (job.nodes or [""] * job.spec.nnodes) if job is not None else [],  # nameless until placed
        "phases": [p.value for p in t.PHASES],
        "states": [s.value for s in RANK_STATES],
        "operations": operations,
        "sizes": list(r.sizes) if r.sizes else None,
    }


def _states(brain: JobBrain | None, table: RankTable) -> npt.NDArray[np.int64]:
    """As the workers' agents reported them; lost where the node is."""
    states: npt.NDArray[np.int64] = table.state.copy()
    if brain is None:
        return states
    job, nodes = brain.c.job, brain.c.nodes
    for name in job.nodes:
        if name in nodes and nodes[name].state is t.NodeState.LOST and not job.state.ended:
            ranks = job.ranks_on(name)
            part = states[ranks.start : ranks.stop]
            part[part != RANK_STATES.index(RankState.DONE)] = RANK_STATES.index(RankState.LOST)
    return states


def metrics_doc(brain: JobBrain, doc: Json, blame: Json, at: Instant) -> Json:
    """`doc`: what the job's own route shows."""
    job, spent = brain.c.job, brain.c.time
    totals = spent.totals(job.ended_at or at.wall)
    return {
        "job": doc,
        "ranks": ranks_doc(brain, at),
        "blame": blame,
        # What is booked never shrinks.
        "lost_seconds": {a.value: spent.booked[a] for a in LOSSES if a not in _unknown(job)},
        "productive_seconds": totals[Account.PRODUCTIVE],
        "unsaved_seconds": totals[Account.TRAINING],
        "queued_seconds": totals[Account.QUEUED],
        "wall_seconds": spent.wall(job.ended_at or at.wall),
    }


def _time(brain: JobBrain, until: float) -> Json:
    time = brain.c.time
    totals = time.totals(until)
    unknown = _unknown(brain.c.job)
    return {
        "wall": time.wall(until),
        "productive": totals[Account.PRODUCTIVE],
        "unsaved": totals[Account.TRAINING],
        "queued": totals[Account.QUEUED],
        "lost": {account.value: None if account in unknown else totals[account] for account in LOSSES},
        "last_hour": time.recent_ratio(until, HOUR),
        "last_day": time.recent_ratio(until, DAY),
    }


def _unknown(job: Job) -> tuple[Account, ...]:
    """Losses that are unknown: what a program that numbers no steps did again."""
    return () if job.is_repeat_known else (Account.RECOMPUTE,)


def steps_doc(rows: Sequence[StepRow]) -> Json:
    return {
        "step": [r.step for r in rows],
        "loss": [number(r.loss) for r in rows],
        "seconds": [r.seconds for r in rows],
        "tokens": [r.tokens for r in rows],
        "at": [r.at for r in rows],
        "generation": [r.generation for r in rows],
        "mfu": [number(r.mfu) for r in rows],
        "grad_norm": [number(r.grad_norm) for r in rows],
    }


def plan_doc(published: t.PlanPublished) -> Json | None:
    """A plan as plain data; None for one that this controller cannot read."""
    try:
        plan = decode_plan(published.data)
    except ProtocolError as error:
        log.warning("plan.unreadable", job=published.job, error=str(error))
        return None
    return {
        "job": published.job,
        "generation": published.generation,
        "schedule": plan.schedule,
        "micro_batches": plan.micro_batches,
        "axes": [[name, size] for name, size in plan.mesh.axes],
        "stages": [{"first": s.first, "stop": s.stop, "rank": s.rank} for s in plan.stages],
        "orders": [[action.id for action in order] for order in plan.orders],
        "replicas": [list(ranks) for ranks in plan.replicas],
    }


def number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _mean(values: Any) -> float | None:
    known = values[np.isfinite(values)]
    return float(known.mean()) if known.size else None


def _column(values: Any) -> list[float | None]:
    rounded = np.round(values, 4).tolist()
    return [v if math.isfinite(v) else None for v in rounded]


def _coordinates(values: Any) -> list[int | None]:
    return [v if v >= 0 else None for v in values.tolist()]


def incident_doc(i: Incident) -> Json:
    resumed = i.closed if i.state.value == "closed" and i.closed else None
    return {
        "id": i.id,
        "job": i.job or None,
        "kind": i.cause.kind.value,
        "culprit": i.cause.subject,
        "severity": i.cause.severity.value,
        "state": i.state.value,
        "summary": i.cause.text,
        "opened": i.opened,
        "closed": i.closed,
        "action": i.action,
        "reason": i.reason,
        "detect_s": max(0.0, i.opened - i.since),
        "recover_s": resumed - i.opened if resumed else None,
        "source": i.source or None,
        "restore_s": i.restore_s,
        "restored_bytes": i.restored_bytes or None,
        "restore_sent_bytes": i.restore_sent_bytes,
        "imports_s": i.imports_s,
        "hint": i.hint or None,
        "generation_from": i.generation_from,
        "generation_to": i.generation_to or None,
        "step_at_fault": i.step_at_fault,
        "step_resumed": i.step_resumed,
        "phases": [{"name": n, "start": a, "end": b} for n, a, b in i.phases],
        "findings": [
            {"kind": f.kind.value, "severity": f.severity.value, "subject": f.subject, "text": f.text, "at": f.at,
             "evidence": f.evidence}
            for f in i.findings
        ],
        "stacks": i.stacks,
    }  # fmt: skip
