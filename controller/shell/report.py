"""What viewers are told: the brain's state as plain JSON-able data (the shapes are `facade.Facade`'s)."""

import asyncio
import math
import time
import uuid
from collections.abc import AsyncIterator, Callable
from typing import Any

import numpy as np

from holdfast.base import log
from holdfast.base.errors import ProtocolError, UsageError
from holdfast.controller.hang.pauses import REPORTED
from holdfast.controller.job.lifecycle import Stage
from holdfast.controller.shell.shell import Shell
from holdfast.controller.spans.reader import read_kept, read_newest
from holdfast.controller.state.at_risk import at_risk
from holdfast.controller.state.events import (
    CheckpointAsked,
    CordonAsked,
    DiagnoseAsked,
    EvictAsked,
    FaultAsked,
    JobSubmitted,
    RestartAsked,
    StacksAsked,
    StopAsked,
)
from holdfast.controller.state.goodput import LOSSES, Account, Goodput
from holdfast.controller.state.history import History, node_history
from holdfast.controller.state.job_size import check_size
from holdfast.controller.state.model import RANK_STATES, Incident, Job, JobSpec, Node
from holdfast.controller.state.placement import natural
from holdfast.diagnostics.steps.job_shape import JobShape
from holdfast.diagnostics.steps.span_table import SpanTable
from holdfast.facts.faults import parse_fault, parse_faults
from holdfast.wire import messages as msg
from holdfast.wire import types as t
from holdfast.wire.plans import decode_plan

Json = dict[str, Any]
_INCIDENTS_IN_STATUS = 20
_STACKS_S = 5.0  # seconds that agents have to tell their workers' stacks


class Report:
    """The facade that HTTP serves."""

    def __init__(self, shell: Shell, max_restarts: int) -> None:
        self.shell = shell
        self.max_restarts = max_restarts
        self._plan: tuple[t.PlanPublished, Json | None] | None = None  # read once, asked for often

    @property
    def _c(self) -> Any:
        return self.shell.brain.c

    def version(self) -> int:
        return self.shell.brain.version

    def status(self) -> Json:
        nodes = self._c.nodes
        counts = dict.fromkeys((s.value for s in t.NodeState), 0)
        for node in nodes.values():
            counts[node.state.value] += 1
        newest = list(reversed(self._c.book.incidents.values()))
        return {
            "version": self.version(),
            "now": time.time(),
            "started_at": self.shell.started_at,
            "job": self.job(),
            "nodes": {n.name: n.state.value for n in self._sorted_nodes()},
            "counts": counts,
            # What goes out with every change carries no stacks: they are hundreds of lines.
            "incidents": [_incident(i) | {"stacks": None} for i in newest[:_INCIDENTS_IN_STATUS]],
            "open_incidents": sum(i.is_open for i in newest),
        }

    def _sorted_nodes(self) -> list[Node]:
        return sorted(self._c.nodes.values(), key=lambda n: natural(n.name))

    def nodes(self) -> list[Json]:
        job: Job | None = self._c.active
        now = time.monotonic()
        return [self._node(node, job, now) for node in self._sorted_nodes()]

    def _node(self, node: Node, job: Job | None, now: float) -> Json:
        i = node.identity
        return {
            "name": node.name,
            "state": node.state.value,
            "reason": node.reason,
            "connected": node.connected,
            "hostname": i.hostname,
            "ips": list(i.ips),
            "pod": {"name": i.pod.name, "namespace": i.pod.namespace, "uid": i.pod.uid},
            "switch": i.switch,
            "slots": i.slots,
            "cpus": i.cpus,
            "memory_bytes": i.memory_bytes,
            "versions": dict(i.versions),
            "frame_age": now - node.frame_at if node.frame_at else None,
            "cadence": node.cadence,
            "ranks": list(job.ranks_on(node.name)) if job is not None else [],
            "gpus": [
                {"index": g.index, "uuid": g.uuid, "model": g.model, "pci": g.pci, "memory_bytes": g.memory_bytes,
                 "values": node.gpus.get(g.index, {})}
                for g in i.gpus
            ],
            "nics": [
                {"name": n.name, "kind": n.kind, "speed_bps": n.speed_bps, "numa_node": n.numa_node, "state": n.state}
                for n in i.nics
            ],
            "host": node.host,
            "tx_bytes_per_s": node.tx_rate,
            "rx_bytes_per_s": node.rx_rate,
        }  # fmt: skip

    def job(self) -> Json | None:
        job: Job | None = self._c.job
        if job is None:
            return None
        ledger = self._c.ledger
        last = ledger.last
        recent = sorted(ledger.recent)
        median = recent[len(recent) // 2] if recent else None
        until = job.ended_at or time.time()
        p = job.spec.program
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
            "loss": _number(ledger.loss),
            "tokens_per_s": ledger.tokens_per_second(),
            "step_seconds": median,
            "mfu": _mean(self._c.ranks.mfu),
            "restarts": job.restarts,
            "goodput": self._c.time.ratio(until),
            "time": self._time(until),
            "pause": self._pause(job),
            "at_risk": self._at_risk(job, median),
            "sizes": list(self._c.ranks.sizes) if self._c.ranks.sizes else None,
            "assignment": [{"node": n, "ranks": list(job.ranks_on(n))} for n in job.nodes],
            "max_steps": job.spec.max_steps,
            "steps_counted": job.progress.counted,
            "progress": job.progress.told or None,
        }

    def _pause(self, job: Job) -> Json | None:
        watch = self.shell.brain.hangs.pauses
        pause = watch.of(job)
        if pause is None or self._c.life.stage is not Stage.UP or pause.still < REPORTED:
            return None
        return {
            "life": pause.life.value,
            "text": pause.text,
            "place": watch.place,
            "ranks": list(pause.ranks),
            "waiting": len(pause.waiting),
            "since": watch.since,
            "seconds": max(0.0, time.time() - watch.since),
            "limit_seconds": _number(watch.limit),
            "usual_seconds": job.pauses.get(watch.place, [0.0, 0.0])[1],
        }

    def _time(self, until: float) -> Json:
        time: Goodput = self._c.time
        totals = time.totals(until)
        unknown = self._unknown()
        return {
            "wall": time.wall(until),
            "productive": totals[Account.PRODUCTIVE],
            "unsaved": totals[Account.TRAINING],
            "lost": {account.value: None if account in unknown else totals[account] for account in LOSSES},
            "last_hour": time.recent_ratio(until),
        }

    def _unknown(self) -> tuple[Account, ...]:
        """Losses of which nobody knows: what a program that numbers no steps did again."""
        job: Job | None = self._c.job
        return () if job is None or job.is_repeat_known else (Account.RECOMPUTE,)

    def _at_risk(self, job: Job, step_seconds: float | None) -> Json | None:
        if job.state.ended:
            return None
        now = time.monotonic()
        nodes = [self._c.nodes[name] for name in job.nodes if name in self._c.nodes]
        found = at_risk([(node.host, now - node.host_at) for node in nodes], step_seconds)
        return {"worker": found.worker, "node": found.node, "job": found.job}

    def ranks(self) -> Json:
        r, job = self._c.ranks, self._c.job
        now = time.monotonic()
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
            "state": r.state.tolist(),
            "step_seconds": _column(r.median_step),
            "progress_age": _column(now - r.progress_at),
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

    def steps(self, since: int = -1, limit: int = 5000) -> Json:
        rows = self._c.ledger.sorted_rows(since)[-limit:]
        return {
            "step": [r.step for r in rows],
            "loss": [_number(r.loss) for r in rows],
            "seconds": [r.seconds for r in rows],
            "tokens": [r.tokens for r in rows],
            "at": [r.at for r in rows],
            "generation": [r.generation for r in rows],
        }

    def plan(self) -> Json | None:
        published: t.PlanPublished | None = self._c.plan
        if published is None:
            return None
        if self._plan is None or self._plan[0] is not published:
            self._plan = published, _plan(published)
        return self._plan[1]

    def incidents(self) -> list[Json]:
        return [_incident(i) for i in reversed(self._c.book.incidents.values())]

    def spans(self, job: str, first: int, last: int) -> Callable[[], tuple[SpanTable, JobShape]]:
        shape = self.shell.shape()
        if not job and not shape.job:
            raise UsageError("no job was submitted yet")
        if job and job != shape.job:
            return read_kept(self.shell.span_folder, job, first, last)
        return read_newest(self.shell.spans, shape, first, last)

    def newest_blame(self) -> Json | None:
        return self.shell.blame()

    def node_history(self, name: str) -> Json:
        if name not in self._c.nodes:
            raise KeyError(name)
        return node_history(self._c.histories.get(name) or History(), self.diagnoses(), name)

    def traffic(self, node: str, seconds: float = 5.0) -> Json:
        if node not in self._c.nodes:
            raise KeyError(node)
        return {"node": node, "nics": self.shell.samples.read(node, seconds)}

    def metrics(self) -> Json:
        job: Job | None = self._c.job
        spent = self._time((job.ended_at if job is not None else 0.0) or time.time())
        kinds: dict[str, int] = dict(self._c.book.forgotten)
        for incident in self._c.book.incidents.values():
            kinds[incident.cause.kind.value] = kinds.get(incident.cause.kind.value, 0) + 1
        return {
            "frames_total": self.shell.frames,
            "frame_bytes_total": self.shell.frame_bytes,
            "events_total": self.shell.events,
            "malformed_total": self.shell.malformed,
            "refused_total": {
                reason: many + self._c.dropped.get(reason, 0) for reason, many in self.shell.refused.items()
            },
            "alerts_suppressed_total": self.shell.brain.recovery.suppressed,
            "bugs_total": self.shell.bugs,
            "commands_total": dict(self.shell.commands),
            "steps_total": self.shell.brain.heartbeats.steps_total,
            "journal_seconds_total": self.shell.journal_seconds,
            "loop_lag_seconds": self.shell.lag,
            "findings_total": dict(self._c.book.counts),
            "incidents_total": kinds,
            "restarts_total": job.restarts if job is not None else 0,
            # What is booked never shrinks.
            "lost_seconds": {a.value: self._c.time.booked[a] for a in LOSSES if a not in self._unknown()},
            "diagnoses_running": len(self.shell.brain.diagnoses.running),
            "diagnostics": self.shell.brain.diagnoses.rows(),
            "productive_seconds": spent["productive"],
            "unsaved_seconds": spent["unsaved"],
            "blame": self.shell.figures(),
            "spans_total": self.shell.spans.received,
            "spans_lost_total": self.shell.spans.lost,
            "wall_seconds": spent["wall"],
        }

    async def log_lines(self, job: str) -> AsyncIterator[Json]:
        async for line in self.shell.logs.lines(job):
            yield line

    async def submit(self, spec: Json) -> str:
        program = dict(spec["program"])
        job = JobSpec(
            id=f"j{uuid.uuid4().hex[:8]}",
            name=spec.get("name") or str(program["target"]).rsplit("/", 1)[-1],
            program=msg.Program(
                target=program["target"],
                args=tuple(program.get("args") or ()),
                module=bool(program.get("module")),
                cwd=program.get("cwd") or "",
                env=dict(program.get("env") or {}),
                hooks=program.get("hooks", True),
                warm=program.get("warm", True),
            ),
            nnodes=int(spec.get("nnodes") or 1),
            nproc=int(spec.get("nproc_per_node") or 1),
            max_restarts=self.max_restarts if spec.get("max_restarts") is None else int(spec["max_restarts"]),
            max_steps=spec.get("max_steps"),
            faults=tuple(spec.get("faults") or ()),
            node_counts=tuple(sorted(set(spec.get("node_counts") or ()) - {int(spec.get("nnodes") or 1)})),
            limits={name: float(value) for name, value in (spec.get("limits") or {}).items() if value is not None},
        )
        check_size(job)
        parse_faults(job.faults, job.world, job.nnodes, job.max_steps)
        self.shell.handle(JobSubmitted(job))
        return job.id

    async def restart(self, dump: bool = False) -> None:
        """Restart the running job by hand; with `dump`, its workers' stacks are kept with the incident."""
        if dump:
            await self.stacks()
        self.shell.handle(RestartAsked())

    async def stop(self, grace: float = 10.0) -> None:
        self.shell.handle(StopAsked(grace))

    async def inject(self, fault: str) -> Json:
        spec = parse_fault(fault)
        self.shell.handle(FaultAsked(fault))
        return {"id": str(spec), "armed": spec.step is not None}

    async def checkpoint(self) -> None:
        self.shell.handle(CheckpointAsked())

    async def diagnose(self, spec: Json) -> str:
        id = f"d{uuid.uuid4().hex[:8]}"
        self.shell.handle(DiagnoseAsked(id, tuple(spec["nodes"]), spec["suite"], tuple(spec["tests"]), spec["busy"]))
        return id

    def diagnoses(self) -> list[Json]:
        return self.shell.brain.diagnoses.all_docs()

    async def stacks(self) -> Json:
        self.shell.handle(StacksAsked())
        dumps, began = self.shell.brain.hangs.stacks, time.monotonic()
        mine = dumps.count
        while dumps.count == mine and not dumps.is_complete and time.monotonic() - began < _STACKS_S:
            await asyncio.sleep(0.02)
        return dumps.tree() or {}

    async def evict(self, node: str) -> None:
        self.shell.handle(EvictAsked(node))

    async def cordon(self, node: str, on: bool) -> None:
        self.shell.handle(CordonAsked(node, on))


def _plan(published: t.PlanPublished) -> Json | None:
    """A plan for people and programs; None for one that this controller cannot read."""
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
    }


def _incident(i: Incident) -> Json:
    resumed = i.closed if i.state.value == "closed" and i.closed else None
    return {
        "id": i.id,
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


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _mean(values: Any) -> float | None:
    known = values[np.isfinite(values)]
    return float(known.mean()) if known.size else None


def _column(values: Any) -> list[float | None]:
    rounded = np.round(values, 4).tolist()
    return [v if math.isfinite(v) else None for v in rounded]


def _coordinates(values: Any) -> list[int | None]:
    return [v if v >= 0 else None for v in values.tolist()]
