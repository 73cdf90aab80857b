"""`/metrics`: read from the state when scraped. Families with one series or a few go through prometheus-client;
per-rank, per-node and per-GPU families through `metrics_text`, which is about ten times as fast.

Names follow Prometheus: prefix `holdfast_`, base units, `_total` for counters. Labels are a closed set: job, node,
rank, gpu, nic, switch, state, condition, kind, phase, part, fault, reason, result, test, metric, subject, receiver,
outcome, version. Every value of a small label
exists from the start, at 0. An unknown number has no sample. `job` is a job's name: no two active ones share it.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily

import holdfast
from holdfast.controller.health.judge import Condition
from holdfast.controller.http.facade import Facade, Json
from holdfast.controller.http.metrics_text import blame_families, diagnostic_families, node_families, rank_families
from holdfast.wire.limits import REASONS
from holdfast.wire.types import FindingKind, NodeState

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
JOB_STATES = ("pending", "starting", "running", "recovering", "finished", "failed", "stopped")
OPEN = ("open", "recovering")
COMMAND_RESULTS = ("ok", "error")

JOB_GAUGES = {
    "step": ("step", "Last finished step."),
    "loss": ("loss", "Loss of the last finished step."),
    "tokens_per_second": ("tokens_per_s", "Tokens trained per second of the last steps."),
    "step_seconds": ("step_seconds", "Median duration of the last steps."),
    "step_planned_seconds": ("step_planned_seconds", "What `holdfast plan` said that a step takes."),
    "mfu_ratio": ("mfu", "Model FLOP/s over the peak of the job's devices, in the last step."),
    "generation": ("generation", "Generation: goes up by one with every (re)start."),
    "goodput_ratio": ("goodput", "Productive training time over the job's wall time without the time in the queue."),
    "ranks": ("world_size", "Workers of the job."),
    "priority": ("priority", "Higher values get nodes first."),
}
# Gauges: a step done again after a fault takes the lost one's time back, and another job begins at nothing.
JOB_TIMES = {
    "productive_seconds": "Job time in steps that can no longer be lost.",
    "unsaved_seconds": "Job time in steps that a fault could still take.",
    "queued_seconds": "Job time waiting for nodes: neither productive nor lost.",
    "wall_seconds": "Total job time.",
}
JUST_ENDED_S = 3600.0
"""How long the state and health of an ended job are still exported: an alert must not miss it."""
FAILED_S = 86400.0
"""The same of a failed one: its page must not be over before a person has acted."""
CONTROLLER_COUNTERS = {
    "frames": ("frames_total", "Heartbeat frames received."),
    "frame_bytes": ("frame_bytes_total", "Bytes of the heartbeat frames received."),
    "malformed_frames": ("malformed_total", "Heartbeat frames that could not be read."),
    "events": ("events_total", "Events received from agents."),
    "alerts_suppressed": ("alerts_suppressed_total", "Alerts beyond the limit of one node or subject per minute."),
    "controller_bugs": ("bugs_total", "Errors in the controller itself: report each, its log has the traceback."),
    "spans": ("spans_total", "Spans received from workers."),
    "spans_lost": ("spans_lost_total", "Spans dropped or overwritten on the way to the controller: blame lacks them."),
    "steps": ("steps_total", "Finished steps received from workers."),
    "journal_seconds": ("journal_seconds_total", "Time spent writing the journal."),
}
CONTROLLER_GAUGES = {
    "journal_failing": ("journal_failing", "1 from a failure to write the journal until the next successful write."),
    "controller_loop_lag_seconds": ("loop_lag_seconds", "Lag of the controller's event loop."),
}


@dataclass(frozen=True, slots=True)
class ScrapeState:
    """What one scrape returns: the state at one instant."""

    status: Json
    jobs: list[Json]
    nodes: list[Json]
    incidents: list[Json]
    metrics: Json


class Metrics:
    def __init__(self) -> None:
        self._process = CollectorRegistry(auto_describe=False)
        ProcessCollector(namespace="holdfast_controller", registry=self._process)

    def scrape(self, facade: Facade) -> Callable[[], bytes]:
        """Reads the facade now, on its own loop; the result writes the text, in any thread."""
        state = ScrapeState(facade.status(), facade.job_metrics(), facade.nodes(), facade.incidents(), facade.metrics())

        def write() -> bytes:
            registry = CollectorRegistry(auto_describe=False)
            registry.register(_Families(state))
            parts = [generate_latest(registry), generate_latest(self._process)]
            rows = [node_families(state.nodes), rank_families(state.jobs), blame_families(state.jobs)]
            text = "".join(chain(*rows, diagnostic_families(state.metrics["diagnostics"])))
            return b"".join([*parts, text.encode()])

        return write


class _Families:
    """A collector, as prometheus-client calls it, over one state."""

    def __init__(self, state: ScrapeState) -> None:
        self._state = state

    def collect(self) -> Iterable[Metric]:
        build = GaugeMetricFamily("holdfast_build_info", "Version of the controller, as a label.", labels=["version"])
        build.add_metric([holdfast.__version__], 1)
        yield build
        yield from _cluster(self._state)
        yield from _jobs(self._state)
        yield from _incidents(self._state)
        yield from _controller(self._state.metrics)


def _cluster(state: ScrapeState) -> Iterable[Metric]:
    counts = state.status["counts"]
    yield _each("holdfast_nodes", "Nodes by state.", "state", {s: counts.get(s, 0) for s in NodeState})
    yield GaugeMetricFamily("holdfast_diagnoses_running", "Diagnoses in progress.", state.metrics["diagnoses_running"])
    yield GaugeMetricFamily("holdfast_open_incidents", "Open incidents.", state.status["open_incidents"])
    open_since = [one["opened"] for one in state.incidents if one["state"] in OPEN]
    oldest = max(0.0, state.status["now"] - min(open_since)) if open_since else 0.0
    yield GaugeMetricFamily("holdfast_open_incident_age_seconds", "Age of the oldest open incident; 0: none.", oldest)
    ends = GaugeMetricFamily(
        "holdfast_certificate_expiry_timestamp_seconds", "When a certificate in use ends, in Unix time.",
        labels=["subject"],
    )  # fmt: skip
    for subject, at in state.metrics["certificates"].items():
        ends.add_metric([subject], at)
    yield ends


def _jobs(state: ScrapeState) -> Iterable[Metric]:
    jobs = state.status["jobs"]
    counts = {name: sum(job["state"] == name for job in jobs) for name in JOB_STATES}
    yield _each("holdfast_jobs", "Jobs by state: all active jobs, and the newest ended ones.", "state", counts)
    yield _states(state)
    yield _health(state)
    for metric, (key, text) in JOB_GAUGES.items():
        yield _by_job(f"holdfast_job_{metric}", text, [(job["job"]["name"], job["job"][key]) for job in state.jobs])
    for key, text in JOB_TIMES.items():
        yield _by_job(f"holdfast_job_{key}", text, [(job["job"]["name"], job[key]) for job in state.jobs])
    restarts = CounterMetricFamily("holdfast_job_restarts", "Restarts of the job.", labels=["job"])
    queued = GaugeMetricFamily(
        "holdfast_job_queued", "1 while the job waits only for nodes of other jobs.",
        labels=["job"],
    )  # fmt: skip
    lost = CounterMetricFamily("holdfast_lost_seconds", "Job time lost, by reason.", labels=["job", "reason"])
    risk = GaugeMetricFamily(
        "holdfast_job_at_risk_seconds", "Work that would be lost if a worker, a node or the whole job failed now.",
        labels=["job", "fault"],
    )  # fmt: skip
    paused = GaugeMetricFamily(
        "holdfast_job_pause_seconds", "Duration of a pause that may end by itself; 0: the job makes progress.",
        labels=["job", "state"],
    )  # fmt: skip
    slow = GaugeMetricFamily(
        "holdfast_job_slow_cost_ratio", "Share of the step that the worst slow rank or link costs the whole job.",
        labels=["job"],
    )  # fmt: skip
    for each in state.jobs:
        job = each["job"]
        name = str(job["name"])
        restarts.add_metric([name], job["restarts"])
        queued.add_metric([name], float(job.get("queued", False)))
        for reason, seconds in each["lost_seconds"].items():
            lost.add_metric([name, str(reason)], seconds)
        for fault, seconds in (job["at_risk"] or {}).items():
            if _known(seconds):
                risk.add_metric([name, fault], seconds)
        pause = job["pause"]
        for life in ("busy", "idle", "held", "unknown"):
            paused.add_metric([name, life], pause["seconds"] if pause and pause["life"] == life else 0.0)
        if _known(each["slow_cost"]):
            slow.add_metric([name], each["slow_cost"])
    yield from (restarts, queued, lost, risk, paused, slow)


def _health(state: ScrapeState) -> Metric:
    family = GaugeMetricFamily(
        "holdfast_job_health", "1 for the leading condition of the job, the worst of those that hold.",
        labels=["job", "condition"],
    )  # fmt: skip
    judged = {job["job"]["id"]: job["job"]["health"]["condition"] for job in state.jobs}
    for job in _reported(state):
        condition = judged.get(job["id"], job["state"])  # the only condition of a job that is over is how it ended
        for each in Condition:
            family.add_metric([str(job["name"]), each.value], float(condition == each.value))
    return family


def _states(state: ScrapeState) -> Metric:
    family = GaugeMetricFamily("holdfast_job_state", "1 for the state the job is in.", labels=["job", "state"])
    for job in _reported(state):
        for each in JOB_STATES:
            family.add_metric([str(job["name"]), each], float(each == job["state"]))
    return family


def _reported(state: ScrapeState) -> Iterable[Json]:
    """Jobs that are there, or ended a while ago: how a job ended is seen nowhere else."""
    shown = {job["job"]["id"] for job in state.jobs}
    names: set[str] = set()
    for job in state.status["jobs"]:  # active ones first, then the newest: the name is theirs
        ended, least = job["ended_at"], FAILED_S if job["state"] == "failed" else JUST_ENDED_S
        is_new = ended is None or state.status["now"] - ended < least
        if job["name"] in names or not (is_new or job["id"] in shown):
            continue
        names.add(job["name"])
        yield job


def _by_job(name: str, text: str, values: Iterable[tuple[str, float | None]]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=["job"])
    for job, value in values:
        if value is not None and math.isfinite(value):
            family.add_metric([job], value)
    return family


def _incidents(state: ScrapeState) -> Iterable[Metric]:
    kinds: dict[str, float] = {kind: 0 for kind in FindingKind}
    found = kinds | state.metrics["findings_total"]
    yield _each("holdfast_findings", "Findings of the detectors, by kind.", "kind", found, counter=True)
    by_kind = kinds | state.metrics["incidents_total"]
    yield _each("holdfast_incidents", "Incidents opened, by kind.", "kind", by_kind, counter=True)
    phases: dict[str, list[float]] = {}
    for incident in state.incidents:
        for phase in incident["phases"]:
            if phase["end"] is not None:
                phases.setdefault(phase["name"], []).append(phase["end"] - phase["start"])
    summary = SummaryMetricFamily(
        "holdfast_incident_phase_seconds", "Duration of the phases of the incidents.", labels=["phase"]
    )
    for phase_name, seconds in sorted(phases.items()):
        summary.add_metric([phase_name], len(seconds), math.fsum(seconds))
    yield summary


def _controller(metrics: Json) -> Iterable[Metric]:
    for name, (key, text) in CONTROLLER_COUNTERS.items():
        counter = CounterMetricFamily(f"holdfast_{name}", text)
        if _known(metrics[key]):
            counter.add_metric([], metrics[key])
        yield counter
    results: dict[str, float] = dict.fromkeys(COMMAND_RESULTS, 0)
    yield _each(
        "holdfast_commands",
        "Commands sent to agents, by result.",
        "result",
        results | metrics["commands_total"],
        counter=True,
    )
    refused: dict[str, float] = dict.fromkeys(REASONS, 0)
    text = "Values dropped from agents' messages, by reason."
    sent = CounterMetricFamily(
        "holdfast_notifications", "Attempts to send a notification, by receiver and outcome.",
        labels=["receiver", "outcome"],
    )  # fmt: skip
    for receiver, outcomes in metrics["notifications_total"].items():
        for outcome, many in outcomes.items():
            sent.add_metric([receiver, outcome], many)
    yield sent
    yield _each("holdfast_ingest_malformed", text, "reason", refused | metrics["refused_total"], counter=True)
    for name, (key, text) in CONTROLLER_GAUGES.items():
        gauge = GaugeMetricFamily(f"holdfast_{name}", text)
        if _known(metrics[key]):
            gauge.add_metric([], metrics[key])
        yield gauge


def _each(name: str, text: str, label: str, values: Mapping[str, float], counter: bool = False) -> Metric:
    make = CounterMetricFamily if counter else GaugeMetricFamily
    family = make(name, text, labels=[label])
    for key, value in values.items():
        family.add_metric([str(key)], value)
    return family


def _known(value: float | None) -> bool:
    return value is not None and math.isfinite(value)
