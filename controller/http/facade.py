"""What the HTTP side may ask of the controller: plain JSON-able data, each shape given here once.

Times named `*_at`, `at`, `start`, `end`, `opened`, `closed` are Unix seconds (float); ages and durations seconds.
A number that is not known is None. The gRPC side and the page are both thin around this.
"""

from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol

from holdfast.diagnostics.steps.job_shape import JobShape
from holdfast.diagnostics.steps.span_table import SpanTable

Json = dict[str, Any]


class Facade(Protocol):
    """Reads are cheap, never block and are called on the controller's own event loop."""

    def status(self) -> Json:
        """{version, now, started_at, job: job()|None, nodes: {name: state}, counts: {state: n},
        incidents: last 20 of incidents(), open_incidents: int}"""

    def nodes(self) -> list[Json]:
        """[{name, state, reason, connected, hostname, ips: [], pod: {name, namespace, uid}, switch, slots, cpus,
        memory_bytes, versions: {}, frame_age, cadence, ranks: [int], gpus: [{index, uuid, model, pci, memory_bytes,
        values: {gauge: number}}], nics: [{name, kind, speed_bps, numa_node, state}], host: {gauge: number},
        tx_bytes_per_s, rx_bytes_per_s}]"""

    def job(self) -> Json | None:
        """{id, name, state: pending|starting|running|recovering|finished|failed|stopped, reason, generation,
        world_size, nnodes, node_counts: [int], nproc_per_node, program: {target, args, module}, submitted_at,
        started_at, ended_at, exit_code, step (last finished, -1 none), loss, tokens_per_s,
        step_seconds (recent median), mfu|None, restarts, goodput, pause|None,
        time: {wall, productive, unsaved, lost: {reason: s}, last_hour: ratio|None},
        at_risk: {worker, node, job}|None (seconds of work that a fault would cost),
        sizes: [pp, dp, tp]|None, assignment: [{node, ranks: [int]}], max_steps|None, steps_counted (by a hook, over
        all lives), progress (what its checkpoints or its log said last)|None}; a loss of None is unknown"""

    def plan(self) -> Json | None:
        """What the job does in every step, if its rank 0 has told: {job, generation, schedule, micro_batches,
        axes: [[name, size]], stages: [{first, stop, rank}] (layers, pipeline rank), orders: [[action id]] (by
        pipeline rank)}. The id of an action is its stage, op and micro-batch, as "0F3" or "1SEND_F2"."""

    def ranks(self) -> Json:
        """Columns, one entry per rank: {rank, node (index into nodes), pp, dp, tp, step, phase (index into phases),
        state (index into states), step_seconds, progress_age, mfu, part_seconds: {part: [seconds]}, memory_bytes,
        operation (index into operations)} and the tables {nodes: [str], phases: [str], states: [str],
        operations: [str]}; sizes: [pp, dp, tp]."""

    def steps(self, since: int = -1, limit: int = 5000) -> Json:
        """Columns of the job's finished steps with step > since, oldest first, at most the newest `limit`:
        {step, loss, seconds, tokens, at, generation}"""

    def incidents(self) -> list[Json]:
        """Newest first: [{id, kind, culprit: "rank3"|"node1"|"job", severity, state: open|recovering|closed|failed,
        summary, opened, closed, action, reason, detect_s, recover_s, source, restore_s, restored_bytes,
        generation_from, generation_to, step_at_fault, step_resumed, phases: [{name, start, end}],
        findings: [{kind, severity, subject, text, at, evidence: {}}], stacks: stacks()|None (of a hang)}]"""

    def spans(self, job: str, first: int, last: int) -> Callable[[], tuple[SpanTable, JobShape]]:
        """Spans of the steps `first` to `last` (-1: as far as there are any) of a job, "" for the running one; what is
        returned reads them, in any thread. UsageError where there are none."""

    def newest_blame(self) -> Json | None:
        """What the watcher's last look at the running job's spans found: the shape is `http_spans.BlameBrief`; None
        before the first."""

    def node_history(self, name: str) -> Json:
        """What is known of a node beyond this moment: {cordoned, evicted (why; "" if not), evicted_at, barred,
        offences: [{at, kind}] (faults that count against it, oldest first), verdicts: [verdict, and at] (the newest
        of each figure)}. KeyError when there is no such node."""

    def traffic(self, node: str, seconds: float = 5.0) -> Json:
        """Millisecond samples of one node: {node, nics: [{name, t0 (Unix ms), t: [ms since t0], tx: [bytes since the
        sample before], rx: [...]}]}. KeyError when there is no such node."""

    def metrics(self) -> Json:
        """What /metrics needs beyond the above: {frames_total, frame_bytes_total, events_total, malformed_total,
        refused_total: {reason: number}, alerts_suppressed_total,
        bugs_total, spans_total,
        spans_lost_total, blame: {self_ratio: {rank: x}, induced_s: {rank: s}, victim_s: {rank: s}},
        commands_total: {result: n}, steps_total, journal_seconds_total, loop_lag_seconds, findings_total: {kind: n},
        incidents_total: {kind: n}, restarts_total, lost_seconds: {reason: s}, productive_seconds,
        unsaved_seconds, wall_seconds, diagnoses_running, diagnostics: [{node, test, metric, value,
        grade: pass|degraded|fail}] (the newest of each)}"""

    def version(self) -> int:
        """Goes up with every change that a viewer could see."""

    def log_lines(self, job: str) -> AsyncIterator[Json]:
        """Live lines of the job's workers, beginning with the retained tail: {rank, stream: out|err, text,
        generation, dropped}; ends when the job has ended and all was delivered."""

    async def submit(self, spec: Json) -> str:
        """Start a job: {name, program: {target, args, module, cwd, env, hooks, warm}, nnodes, nproc_per_node,
        max_restarts, max_steps|None, faults: ["kill@20:rank3", ...], node_counts: [int] (smaller
        numbers of nodes that will do as well), limits: {option: seconds}} -> job id. UsageError when it cannot be."""

    async def stop(self, grace: float = 10.0) -> None:
        """End the running job by hand."""

    async def restart(self, dump: bool = False) -> None:
        """Restart the running job; `dump`: keep its workers' stacks with the incident. UsageError: none runs."""

    async def inject(self, fault: str) -> Json:
        """`KIND[@STEP]:TARGET`, e.g. "kill@20:rank3"; without a step at once -> {id, armed: bool}."""

    async def stacks(self) -> Json:
        """What all workers of the running job are doing, as soon as all agents have told or five seconds have passed:
        {at, job, generation, missing: {node: why}, states: {rank: the kernel's word}, rows: [{depth, ranks, frame}]}.
        UsageError when none runs."""

    async def checkpoint(self) -> None:
        """Ask the running job for a checkpoint of the next step. UsageError when none is training."""

    async def diagnose(self, spec: Json) -> str:
        """Run checks: {nodes: [str], suite, tests: [str], busy} -> its id. UsageError when it cannot be."""

    def diagnoses(self) -> list[Json]:
        """Newest first, with their verdicts: the shape is `http_diagnose.Diagnosis`."""

    async def evict(self, node: str) -> None:
        """Take a node out at once; a job that has ranks there restarts without it. UsageError: no such node."""

    async def cordon(self, node: str, on: bool) -> None:
        """Take a node out of future generations, or let it in again. UsageError when there is no such node."""
