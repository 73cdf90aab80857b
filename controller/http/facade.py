"""What the HTTP side may request of the controller: plain JSON-able data, each shape given here once.

Times named `*_at`, `at`, `start`, `end`, `opened`, `closed` are Unix seconds (float); ages and durations seconds.
An unknown number is None. The gRPC side and the page are both thin around this.

`id` is a job's id. Where it is empty, a read is about the newest job, and a command about the only active one: with
none or several of them it raises UsageError. A read of an unknown id raises KeyError.
"""

from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol

from holdfast.diagnostics.steps.job_shape import JobShape
from holdfast.diagnostics.steps.span_table import SpanTable

Json = dict[str, Any]


class Facade(Protocol):
    """Reads are cheap, never block and are called on the controller's own event loop."""

    def status(self) -> Json:
        """{version, now, started_at, job: job()|None (the newest), jobs: jobs(), nodes: {name: state},
        counts: {state: n}, incidents: last 20 of incidents(), open_incidents: int}"""

    def nodes(self) -> list[Json]:
        """[{name, state, reason, connected, hostname, ips: [], pod: {name, namespace, uid}, switch, slots, cpus,
        memory_bytes, versions: {}, frame_age, cadence, job: id of the job that holds it|None, ranks: [int],
        gpus: [{index, uuid, model, pci, memory_bytes, values: {gauge: number}}],
        nics: [{name, kind, speed_bps, numa_node, state}], host: {gauge: number}, tx_bytes_per_s, rx_bytes_per_s}]"""

    def jobs(self) -> list[Json]:
        """Active jobs in the order in which they get nodes, then the ended ones that are still in memory, the newest
        first: [{id, name (of an active job: no other active one has it), state, reason, priority, preempt, generation,
        nnodes, nproc_per_node, nodes: [name by group rank], step, max_steps|None, restarts, submitted_at, started_at,
        ended_at, exit_code}], each as job() has it."""

    def job(self, id: str = "") -> Json | None:
        """{id, name, state: pending|starting|running|recovering|finished|failed|stopped, reason, priority, preempt,
        generation, world_size, nnodes, node_counts: [int], nproc_per_node, program: {target, args, module},
        submitted_at, started_at, ended_at, exit_code, step (last finished, -1 none), loss, tokens_per_s,
        step_seconds (recent median), mfu|None, restarts, goodput, pause|None,
        time: {wall, productive, unsaved, queued, lost: {reason: s}, last_hour: ratio|None},
        at_risk: {worker, node, job}|None (seconds of work that a fault would cost),
        sizes: [pp, dp, tp]|None, assignment: [{node, ranks: [int]}], max_steps|None, steps_counted (by a hook, over
        all lives), progress (what its checkpoints or its log said last)|None,
        queued (waits only because other jobs hold the nodes that it needs; may be missing)}; a loss of None is
        unknown. None before the first job."""

    def plan(self, id: str = "") -> Json | None:
        """What the job does in every step, once its rank 0 has reported it: {job, generation, schedule,
        micro_batches, axes: [[name, size]], stages: [{first, stop, rank}] (layers, pipeline rank),
        orders: [[action id]] (by pipeline rank)}. The id of an action is its stage, op and micro-batch, as "0F3" or
        "1SEND_F2"."""

    def ranks(self, id: str = "") -> Json:
        """Columns, one entry per rank: {rank, node (index into nodes), pp, dp, tp, step, phase (index into phases),
        state (index into states), step_seconds, progress_age, mfu, part_seconds: {part: [seconds]}, memory_bytes,
        operation (index into operations)} and the tables {nodes: [str], phases: [str], states: [str],
        operations: [str]}; sizes: [pp, dp, tp]."""

    def steps(self, since: int = -1, limit: int = 5000, id: str = "") -> Json:
        """Columns of the job's finished steps with step > since, oldest first, at most the newest `limit`:
        {step, loss, seconds, tokens, at, generation}"""

    def incidents(self, id: str = "") -> list[Json]:
        """Of one job; without an id all of them, also those of nodes. Newest first: [{id, job: id|None, kind,
        culprit: "rank3"|"node1"|"job", severity, state: open|recovering|closed|failed, summary, opened, closed, action,
        reason, detect_s, recover_s, source, restore_s, restored_bytes, generation_from, generation_to, step_at_fault,
        step_resumed, phases: [{name, start, end}], findings: [{kind, severity, subject, text, at, evidence: {}}],
        stacks: stacks()|None (of a hang)}]"""

    def spans(self, job: str, first: int, last: int) -> Callable[[], tuple[SpanTable, JobShape]]:
        """Spans of the steps `first` to `last` (-1: as far as there are any) of a job, also of one that is only on
        disk any more; "": the newest. What is returned reads them, in any thread. UsageError where there are none."""

    def newest_blame(self, id: str = "") -> Json | None:
        """What the watcher's last look at the job's spans found: the shape is `spans.BlameBrief`; None before the
        first."""

    def node_history(self, name: str) -> Json:
        """What is known of a node beyond this moment: {cordoned, evicted (why; "" if not), evicted_at, barred,
        offences: [{at, kind}] (faults that count against it, oldest first), verdicts: [verdict, and at] (the newest
        of each figure)}. KeyError when there is no such node."""

    def traffic(self, node: str, seconds: float = 5.0) -> Json:
        """Millisecond samples of one node: {node, nics: [{name, t0 (Unix ms), t: [ms since t0], tx: [bytes since the
        sample before], rx: [...]}]}. KeyError when there is no such node."""

    def metrics(self) -> Json:
        """What /metrics needs of the controller beyond the above: {frames_total, frame_bytes_total, events_total,
        malformed_total, refused_total: {reason: number}, alerts_suppressed_total, bugs_total, spans_total,
        spans_lost_total, commands_total: {result: n}, steps_total, journal_seconds_total, loop_lag_seconds,
        findings_total: {kind: n}, incidents_total: {kind: n}, diagnoses_running,
        diagnostics: [{node, test, metric, value, grade: pass|degraded|fail}] (the newest of each)}"""

    def job_metrics(self) -> list[Json]:
        """The same of each active job and of the newest: [{job: job(), ranks: ranks(),
        blame: {self_ratio: {rank: x}, induced_s: {rank: s}, victim_s: {rank: s}}, lost_seconds: {reason: s},
        productive_seconds, unsaved_seconds, queued_seconds, wall_seconds}]. No two of them have the same name."""

    def version(self) -> int:
        """Goes up with every change that a viewer could see."""

    def log_lines(self, job: str) -> AsyncIterator[Json]:
        """Live lines of the job's workers, beginning with the retained tail: {rank, stream: out|err, text,
        generation, dropped}; ends when the job has ended and all was delivered."""

    async def submit(self, spec: Json) -> str:
        """Submit a job: {name, program: {target, args, module, cwd, env, hooks, warm}, nnodes, nproc_per_node,
        max_restarts, max_steps|None, faults: ["kill@20:rank3", ...], node_counts: [int] (smaller numbers of nodes that
        will do as well), limits: {option: seconds}, priority, preempt} -> job id. It waits in the queue until there
        are nodes for it. UsageError when it cannot be."""

    async def stop(self, grace: float = 10.0, id: str = "") -> None:
        """Stop an active job by hand."""

    async def restart(self, dump: bool = False, id: str = "") -> None:
        """Restart a running job; `dump`: keep its workers' stacks with the incident. UsageError: it does not run."""

    async def inject(self, fault: str, id: str = "") -> Json:
        """`KIND[@STEP]:TARGET`, e.g. "kill@20:rank3"; without a step at once -> {id, armed: bool}."""

    async def stacks(self, id: str = "") -> Json:
        """What all workers of the job are doing, as soon as all agents have answered or five seconds have passed:
        {at, job, generation, missing: {node: why}, states: {rank: the kernel's word}, rows: [{depth, ranks, frame}]}.
        UsageError when it does not run."""

    async def checkpoint(self, id: str = "") -> None:
        """Request a checkpoint of the job's next step. UsageError when it is not training."""

    async def diagnose(self, spec: Json) -> str:
        """Run checks: {nodes: [str], suite, tests: [str], busy} -> its id. UsageError when it cannot be."""

    def diagnoses(self) -> list[Json]:
        """Newest first, with their verdicts: the shape is `http_diagnose.Diagnosis`."""

    async def evict(self, node: str) -> None:
        """Take a node out at once; a job that has ranks there restarts without it. UsageError: no such node."""

    async def cordon(self, node: str, on: bool) -> None:
        """Take a node out of future generations, or let it in again. UsageError when there is no such node."""
