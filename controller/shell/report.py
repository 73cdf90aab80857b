"""The report for viewers: the brain's state as plain JSON-able data (its shapes: `http.models`)."""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable
from typing import Any

from holdfast.base.errors import Conflict, HoldfastError
from holdfast.controller.alerts.send import Sender
from holdfast.controller.brain.job_brain import JobBrain
from holdfast.controller.cluster.boxes import layout_doc
from holdfast.controller.cluster.earlier import earlier
from holdfast.controller.cluster.placement import natural
from holdfast.controller.cluster.state import ClusterState
from holdfast.controller.shell.blame_watch import BlameWatch
from holdfast.controller.shell.certificate_watch import CertificateWatch
from holdfast.controller.shell.days import Days
from holdfast.controller.shell.health_facts import health_doc, slow_cost
from holdfast.controller.shell.job_report import (
    brief,
    incident_doc,
    job_doc,
    metrics_doc,
    plan_doc,
    ranks_doc,
    steps_doc,
)
from holdfast.controller.shell.shell import Shell, now
from holdfast.controller.spans.reader import read
from holdfast.controller.state.events import (
    CheckpointRequested,
    CordonRequested,
    DiagnoseRequested,
    EvictRequested,
    FaultRequested,
    JobSubmitted,
    RestartRequested,
    StacksRequested,
    StopRequested,
)
from holdfast.controller.state.history import History, node_history
from holdfast.controller.state.job_size import check_size
from holdfast.controller.state.log_wanted import EVERY_LINE, LogWanted
from holdfast.controller.state.model import Instant, Job, JobSpec, Node, axis_sizes, sized_layouts
from holdfast.diagnostics.steps.job_shape import JobShape
from holdfast.diagnostics.steps.span_table import SpanTable
from holdfast.facts.faults import parse_fault, parse_faults
from holdfast.wire import messages as msg
from holdfast.wire import types as t

Json = dict[str, Any]
_INCIDENTS_IN_STATUS = 20
_STACKS_S = 5.0  # seconds that agents have to send their workers' stacks


class Report:
    """The facade that HTTP serves."""

    def __init__(
        self,
        shell: Shell,
        max_restarts: int,
        watch: BlameWatch | None = None,
        days: Days | None = None,
        certificates: CertificateWatch | None = None,
        clock: Callable[[], Instant] = now,
    ) -> None:
        """What `watch`, `days`, `certificates` and `sender` found and count is reported as well."""
        self.shell, self.max_restarts, self._watch, self._clock = shell, max_restarts, watch, clock
        self._days = days or Days(shell)
        self._days.view = self.job
        self._certificates = certificates
        self.sender: Sender | None = None
        self._plans: dict[str, tuple[t.PlanPublished, Json | None]] = {}  # by job: read once, asked for often

    @property
    def _c(self) -> ClusterState:
        return self.shell.brain.c

    def _brain(self, job: str = "") -> JobBrain | None:
        """Of a job by its id; empty: of the newest. None where there is none yet. KeyError: no such job."""
        jobs = self.shell.brain.jobs
        return jobs.brains[job] if job else jobs.newest

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
            "now": self._clock().wall,
            "started_at": self.shell.started_at,
            "job": self.job(),
            "jobs": self.jobs(),
            "nodes": {n.name: n.state.value for n in self._sorted_nodes()},
            "counts": counts,
            # What goes out with every change carries no stacks: they are hundreds of lines.
            "incidents": [incident_doc(i) | {"stacks": None} for i in newest[:_INCIDENTS_IN_STATUS]],
            "open_incidents": sum(i.is_open for i in newest),
        }

    def _sorted_nodes(self) -> list[Node]:
        return sorted(self._c.nodes.values(), key=lambda n: natural(n.name))

    def nodes(self) -> list[Json]:
        now = self._clock().mono
        return [self._node(node, self._c.holder(node.name), now) for node in self._sorted_nodes()]

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
            "heartbeat_interval": node.heartbeat_interval,
            "job": job.spec.id if job is not None else None,
            "jobs": [one.spec.id for one in self._c.holders_of(node.name)],
            "ranks": list(job.ranks_on(node.name)) if job is not None else [],
            "gpus": [
                {"index": g.index, "uuid": g.uuid, "model": g.model, "pci": g.pci, "memory_bytes": g.memory_bytes,
                 "values": node.gpus.get(g.index, {})}
                for g in i.gpus
            ],
            "nics": [
                {"name": n.name, "kind": n.kind, "speed_bps": n.speed_bps, "numa_node": n.numa_node, "state": n.state,
                 "link_layer": n.link_layer}
                for n in i.nics
            ],
            "host": node.host,
            "tx_bytes_per_s": node.tx_rate,
            "rx_bytes_per_s": node.rx_rate,
        }  # fmt: skip

    def jobs(self) -> list[Json]:
        """Those that get nodes first in front, then those that are over, the newest first."""
        jobs = self.shell.brain.jobs
        over = [brain for brain in jobs.brains.values() if brain.c.job.state.ended]
        return [brief(brain) for brain in (*jobs.active(), *reversed(over))]

    def job(self, id: str = "") -> Json | None:
        brain = self._brain(id)
        return self._job(brain) if brain is not None else None

    def _job(self, brain: JobBrain) -> Json:
        job, at = brain.c.job, self._clock()
        doc = job_doc(brain, at)
        return doc | {"health": health_doc(brain, doc, self._blame_now(job), at, self._certificate_ends())}

    def _certificate_ends(self) -> dict[str, float]:
        return self._certificates.ends() if self._certificates is not None else {}

    def _blame_now(self, job: Job) -> Json | None:
        return self._watch.found_now(job.spec.id, job.generation) if self._watch is not None else None

    def health(self, id: str = "") -> Json | None:
        job = self.job(id)
        return job["health"] if job is not None else None

    def ranks(self, id: str = "") -> Json:
        return ranks_doc(self._brain(id), self._clock())

    def steps(self, since: int = -1, limit: int = 5000, id: str = "") -> Json:
        brain = self._brain(id)
        return steps_doc(brain.c.ledger.sorted_rows(since)[-limit:] if brain is not None else [])

    def superseded_steps(self, limit: int = 5000, id: str = "") -> Json:
        brain = self._brain(id)
        return steps_doc(brain.c.ledger.earlier_rows()[-limit:] if brain is not None else [])

    def hour(self, since: float = 0.0, id: str = "") -> Json | None:
        brain = self._brain(id)
        return self._days.hour(brain.c.job.spec.id, since) if brain is not None else None

    def day(self, until: float | None = None, id: str = "") -> Callable[[], Json]:
        return self._days.day(self._existing(id), self._clock().wall if until is None else until)

    def then(self, at: float, id: str = "") -> Callable[[], Json]:
        return self._days.then(self._existing(id), at)

    def _existing(self, id: str) -> str:
        brain = self._brain(id)
        if brain is None:
            raise Conflict("no job has been submitted")
        return brain.c.job.spec.id

    def plan(self, id: str = "") -> Json | None:
        brain = self._brain(id)
        published = brain.c.plan if brain is not None else None
        if published is None:
            return None
        if self._plans.get(published.job, (None, None))[0] is not published:
            self._plans = {job: kept for job, kept in self._plans.items() if job in self._c.jobs}
            self._plans[published.job] = published, plan_doc(published)
        return self._plans[published.job][1]

    def layout(self, id: str = "") -> Json | None:
        brain = self._brain(id)
        planned = brain.plans.traffic_planned if brain is not None else None
        if brain is None or planned is None or len(brain.c.job.nodes) != planned.nodes:
            return None
        return layout_doc(brain.c.job, self._c.nodes, planned, brain.plans.traffic_measured)

    def incidents(self, id: str = "") -> list[Json]:
        return [incident_doc(i) for i in reversed(self._c.book.incidents.values()) if not id or i.job == id]

    def earlier(self, incident: str) -> list[Json]:
        book = self._c.book.incidents
        return [
            {"id": i.id, "kind": i.cause.kind.value, "culprit": i.cause.subject, "opened": i.opened,
             "summary": i.cause.text, "same": list(same)}
            for i, same in earlier(book[incident], book.values())
        ]  # fmt: skip

    def spans(self, job: str, first: int, last: int) -> Callable[[], tuple[SpanTable, JobShape]]:
        newest = self._c.newest
        if not job and newest is None:
            raise Conflict("no job has been submitted")
        job = job or (newest.spec.id if newest is not None else "")
        known, store = self._c.jobs.get(job), self.shell.span_store
        shape, folder = self.shell.brain.jobs.shape(job), store.folder if store is not None else None
        return read(self.shell.spans.of(job), shape, folder, job, known is None or known.state.ended, first, last)

    def newest_blame(self, id: str = "") -> Json | None:
        brain = self._brain(id)
        if brain is None or self._watch is None:
            return None
        return self._watch.found(brain.c.job.spec.id)

    def node_history(self, name: str) -> Json:
        if name not in self._c.nodes:
            raise KeyError(name)
        return node_history(self._c.histories.get(name) or History(), self.diagnoses(), name)

    def traffic(self, node: str, seconds: float = 5.0) -> Json:
        if node not in self._c.nodes:
            raise KeyError(node)
        return {"node": node, "nics": self.shell.samples.read(node, seconds)}

    def metrics(self) -> Json:
        received = self.shell.sessions.received
        kinds: dict[str, int] = dict(self._c.book.forgotten)
        for incident in self._c.book.incidents.values():
            kinds[incident.cause.kind.value] = kinds.get(incident.cause.kind.value, 0) + 1
        return {
            "frames_total": received.frames,
            "frame_bytes_total": received.frame_bytes,
            "events_total": received.events,
            "malformed_total": received.malformed,
            "refused_total": {
                reason: many + self._c.dropped.get(reason, 0) for reason, many in received.refused.items()
            },
            "alerts_suppressed_total": self.shell.brain.alerts.suppressed,
            "bugs_total": self.shell.bugs,
            "commands_total": dict(received.commands),
            "steps_total": self._c.steps_total,
            "journal_seconds_total": self.shell.journal_seconds,
            "journal_failing": self.shell.journal_failing,
            "loop_lag_seconds": self.shell.lag,
            "certificates": self._certificate_ends(),
            "findings_total": dict(self._c.book.counts),
            "incidents_total": kinds,
            "diagnoses_running": len(self.shell.brain.diagnoses.running),
            "diagnostics": self.shell.brain.diagnoses.rows(),
            "spans_total": self.shell.spans.received,
            "spans_lost_total": self.shell.spans.lost,
            "notifications_total": self.sender.counts if self.sender is not None else {},
        }

    def job_metrics(self) -> list[Json]:
        jobs = self.shell.brain.jobs
        brains = jobs.active()
        if jobs.newest is not None and jobs.newest not in brains:
            brains.append(jobs.newest)  # of the others their last samples are in Prometheus
        watch = self._watch
        return [
            metrics_doc(
                brain, self._job(brain), watch.figures(brain.c.job.spec.id) if watch is not None else {}, self._clock()
            )
            | {"slow_cost": slow_cost(self._blame_now(brain.c.job))}
            for brain in brains
        ]

    async def log_lines(self, job: str, wanted: LogWanted = EVERY_LINE) -> AsyncIterator[Json]:
        async for line in self.shell.logs.lines(job, wanted):
            yield line

    def log_same(self, job: str, text: str, generation: int | None = None) -> Callable[[], Json]:
        return self.shell.logs.same(job, text, generation)

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
                hooks=program.get("hooks", True),
                warm=program.get("warm", True),
                executable=bool(program.get("executable")),
                virtual_local_rank=bool(program.get("virtual_local_rank")),
                log_dir=program.get("log_dir") or "",
                redirects=program.get("redirects") or "0",
                stdin=program.get("stdin") or "",
                preload=tuple(program.get("preload") or ()),
            ),
            nnodes=int(spec.get("nnodes") or 1),
            nproc=int(spec.get("nproc_per_node") or 1),
            max_restarts=self.max_restarts if spec.get("max_restarts") is None else int(spec["max_restarts"]),
            max_steps=spec.get("max_steps"),
            faults=tuple(spec.get("faults") or ()),
            node_counts=tuple(sorted(set(spec.get("node_counts") or ()) - {int(spec.get("nnodes") or 1)})),
            limits={name: float(value) for name, value in (spec.get("limits") or {}).items() if value is not None},
            priority=int(spec.get("priority") or 0),
            preempt=bool(spec.get("preempt")),
            share_bytes=int(spec.get("share_bytes") or 0),
            parallel=axis_sizes(spec.get("parallel")),
            step_bytes={axis: float(v) for axis, v in (spec.get("step_bytes") or {}).items() if v is not None},
            layouts=sized_layouts(spec.get("layouts") or ()),
        )
        check_size(job)
        parse_faults(job.faults, job.world, job.nnodes, job.max_steps, self._c.nodes)
        self.shell.environments.keep(job.id, program.get("env") or {})
        try:
            self.shell.handle(JobSubmitted(job))
        except HoldfastError:
            self.shell.environments.forget(job.id)
            raise
        return job.id

    async def restart(self, dump: bool = False, id: str = "") -> None:
        """Restart a job by hand; with `dump`, its workers' stacks are kept with the incident."""
        if dump:
            await self.stacks(id)
        self.shell.handle(RestartRequested(id))

    async def stop(self, grace: float = 10.0, id: str = "") -> None:
        self.shell.handle(StopRequested(grace, id))

    async def inject(self, fault: str, id: str = "") -> Json:
        spec = parse_fault(fault)
        self.shell.handle(FaultRequested(fault, id))
        return {"id": str(spec), "armed": spec.step is not None}

    async def checkpoint(self, id: str = "") -> None:
        self.shell.handle(CheckpointRequested(id))

    async def diagnose(self, spec: Json) -> str:
        id = f"d{uuid.uuid4().hex[:8]}"
        self.shell.handle(
            DiagnoseRequested(
                id, tuple(spec["nodes"]), spec["suite"], tuple(spec["tests"]), spec["busy"], spec["passes"]
            )
        )
        return id

    def diagnoses(self) -> list[Json]:
        return self.shell.brain.diagnoses.all_docs()

    async def stacks(self, id: str = "") -> Json:
        dumps, began = self.shell.brain.jobs.wanted(id).hangs.stacks, time.monotonic()
        self.shell.handle(StacksRequested(id))
        mine = dumps.count
        while dumps.count == mine and not dumps.is_complete and time.monotonic() - began < _STACKS_S:
            await asyncio.sleep(0.02)
        return dumps.tree() or {}

    async def acknowledge(self, id: str) -> None:
        if self.sender is None or not self.sender.acknowledge(id):
            raise Conflict("nothing to acknowledge: the job is not marked failed, or somebody has acted already")

    async def notify_test(self, receiver: str = "") -> list[Json]:
        answers = await self.sender.test(receiver) if self.sender is not None else []
        return [{"receiver": name, "ok": not one.error, "answer": one.error or one.text} for name, one in answers]

    async def evict(self, node: str) -> None:
        self.shell.handle(EvictRequested(node))

    async def cordon(self, node: str, on: bool) -> None:
        self.shell.handle(CordonRequested(node, on))
