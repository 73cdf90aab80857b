"""A whole controller's state, scripted: what its HTTP side is given of jobs that train, fault and recover."""

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from itertools import cycle, islice

from holdfast.base.errors import Conflict, NotFound, UsageError
from holdfast.controller.http.facade import Json
from holdfast.controller.past.slowness import SlowHistory
from holdfast.controller.shell.job_report import steps_doc
from holdfast.controller.shell.log_hub import said_by
from holdfast.controller.shell.log_tail import KeptChunk
from holdfast.controller.state.log_wanted import EVERY_LINE, LogWanted
from holdfast.diagnostics.blame import report as blame_report
from holdfast.diagnostics.catalog.catalog import choose, parse_suite
from holdfast.diagnostics.catalog.verdicts import Grade, Verdict
from holdfast.diagnostics.steps.job_shape import JobShape
from holdfast.diagnostics.steps.span_table import SpanTable
from holdfast.wire import messages as msg
from holdfast.wire.types import STEP_PARTS, NodeState
from tests.controller.support.fake_job import FakeJob
from tests.controller.support.fake_metrics import fake_job_metrics, fake_metrics
from tests.controller.support.fake_past import fake_day, fake_then
from tests.controller.support.fake_spans import traced
from tests.controller.support.fake_training import PHASES, STATES

ACTIVE = ("pending", "starting", "running", "recovering")
BRIEF = (
    "id", "name", "state", "reason", "priority", "preempt", "share_bytes", "shares_with", "generation", "nnodes",
    "nproc_per_node", "step", "max_steps", "restarts", "submitted_at", "started_at", "ended_at", "exit_code",
)  # fmt: skip
OPERATIONS = ["", "forward", "backward", "all_reduce", "send_forward", "optimizer"]


class FakeFacade(FakeJob):
    """Implements `Facade`. `submitted`, `injected`, `graces` record what was requested.

    It is one job itself; `add_job` gives it further ones, newest last, each another of its kind on nodes of its own.
    """

    def __init__(
        self, pp: int = 2, dp: int = 2, tp: int = 2, per_node: int = 4, now: float = 1_790_000_000.0, mesh: bool = True
    ) -> None:
        super().__init__(pp, dp, tp, per_node, now, mesh)
        self.others: list[FakeFacade] = []
        self.submitted: list[Json] = []
        self.injected: list[str] = []
        self.graces: list[float] = []
        self.dumps: list[bool] = []
        self.acknowledged: list[str] = []
        self.checkpoints = 0
        self.diagnosed: list[Json] = []
        self.traced: tuple[SpanTable, JobShape] | None = None

    # --- several jobs ---

    def add_job(self, name: str, priority: int = 0, **mesh: int) -> "FakeFacade":
        """A job that was submitted after those before it, and trains on nodes of its own."""
        job = FakeFacade(now=self.now, **mesh)
        job.id, job.name, job.priority = f"job-{len(self.others) + 2}", name, priority
        job.node_rows.pop()  # the spare is this one's
        for row in job.node_rows:
            row["name"] = f"{job.id}-{row['name']}"
        self.others.append(job)
        self.serial += 1
        return job

    def tick(self, seconds: float) -> None:
        super().tick(seconds)
        for job in self.others:
            job.tick(seconds)

    @property
    def newest(self) -> "FakeFacade":
        return self.others[-1] if self.others else self

    def of(self, id: str) -> "FakeFacade":
        """KeyError for a job that there is not."""
        return {"": self.newest, **{job.id: job for job in self._present()}}[id]

    def wanted(self, id: str) -> "FakeFacade":
        """The job that a command is for, as the controller finds it."""
        active = [job for job in self._present() if job.job_state in ACTIVE]
        if id:
            return next(job for job in active if job.id == id)
        if len(active) != 1:
            raise Conflict("no job is running" if not active else "several jobs are active")
        return active[0]

    def _present(self) -> "list[FakeFacade]":
        return [job for job in (self, *self.others) if job.job_state is not None]

    def jobs(self) -> list[Json]:
        active = [job for job in self._present() if job.job_state in ACTIVE]
        over = [job for job in reversed(self._present()) if job not in active]
        return [job.brief() for job in (*sorted(active, key=lambda job: -job.priority), *over)]

    def brief(self) -> Json:
        whole = self.document()
        return {key: whole[key] for key in BRIEF} | {"nodes": [part["node"] for part in whole["assignment"]]}

    def fault(self, rank: int, kind: str = "worker-killed") -> Json:
        incident = super().fault(rank, kind)
        incident |= {"job": self.id, "id": incident["id"] if self.id == "job-1" else f"{self.id}-{incident['id']}"}
        return incident

    # --- what the facade reports ---

    def status(self) -> Json:
        counts: dict[str, int] = {}
        rows, incidents = self.nodes(), self.incidents()
        for row in rows:
            counts[row["state"]] = counts.get(row["state"], 0) + 1
        return {
            "version": self.version(),
            "now": self.now,
            "started_at": self.started,
            "job": self.job(),
            "jobs": self.jobs(),
            "nodes": {row["name"]: row["state"] for row in rows},
            "counts": counts,
            "incidents": incidents[:20],
            "open_incidents": sum(i["state"] in ("open", "recovering") for i in incidents),
        }

    def nodes(self) -> list[Json]:
        for job in (self, *self.others):
            for row in job.node_rows:
                row["job"], row["jobs"] = (job.id, [job.id]) if row["ranks"] else (None, [])
        return [row for job in (self, *self.others) for row in job.node_rows]

    def job(self, id: str = "") -> Json | None:
        job = self.of(id)
        return job.document() if job.job_state is not None else None

    def health(self, id: str = "") -> Json | None:
        job = self.job(id)
        return job["health"] if job is not None else None

    def ranks(self, id: str = "") -> Json:
        if (job := self.of(id)) is not self:
            return job.ranks()
        every = range(self.world)
        if self.job_state is None:
            every = range(0)
        column = self.dp * self.tp
        ages = [0.1] * self.world if not self.script else [self.now - self.known_incidents[0]["opened"]] * self.world
        return {
            "rank": list(every),
            "node": [r // self.per_node for r in every],
            "pp": [r // column for r in every],
            "dp": [r % column // self.tp for r in every],
            "tp": [r % self.tp for r in every],
            "step": [self.step for _ in every],
            "phase": [self.rank_phase[r] for r in every],
            "state": [self.rank_state[r] for r in every],
            "step_seconds": [_rounded(self.rank_seconds[r]) for r in every],
            "progress_age": [_rounded(ages[r]) for r in every],
            "mfu": [0.41 for _ in every],
            "part_seconds": {part: [0.01 for _ in every] for part in STEP_PARTS},
            "memory_bytes": [1 << 30 for _ in every],
            "operation": [(r + self.step) % len(OPERATIONS) for r in every],
            "nodes": [row["name"] for row in self.node_rows],
            "phases": PHASES,
            "states": STATES,
            "operations": OPERATIONS,
            "sizes": [self.pp, self.dp, self.tp] if self.mesh else None,
        }

    def hour(self, since: float = 0.0, id: str = "") -> Json | None:
        job = self.of(id)
        if job.job_state is None:
            return None
        at = [at for i in range(240) if (at := job.now - (239 - i)) >= job.started and at > since]
        return {
            "job": job.id, "at": at, "mfu": [0.41 + 0.01 * math.sin(when / 200) for when in at],
            "goodput": [0.971] * len(at), "at_risk": [when % 60 for when in at], "spares": [1] * len(at),
        }  # fmt: skip

    def day(self, until: float | None = None, id: str = "") -> Callable[[], Json]:
        job = self._past(id)
        return lambda: fake_day(job.document(), self.incidents(id), job.now, job.now if until is None else until)

    def then(self, at: float, id: str = "") -> Callable[[], Json]:
        job = self._past(id)
        return lambda: fake_then(job.document(), self.incidents(id), job.now, at)

    def _past(self, id: str) -> "FakeFacade":
        if (job := self.of(id)).job_state is None:
            raise Conflict("no job has been submitted")
        return job

    def steps(self, since: int = -1, limit: int = 5000, id: str = "") -> Json:
        return steps_doc([row for row in self.of(id).rows if row.step > since][-limit:])

    def superseded_steps(self, limit: int = 5000, id: str = "") -> Json:
        return steps_doc(self.of(id).superseded[-limit:])

    def earlier(self, incident: str) -> list[Json]:
        known = [one for one in self.incidents() if one["id"] != incident]
        names = ("id", "kind", "culprit", "opened", "summary")
        return [{name: one[name] for name in names} | {"same": ["node"]} for one in known][:10]

    def plan(self, id: str = "") -> Json | None:
        if (job := self.of(id)) is not self:
            return job.plan()
        return {
            "job": self.id,
            "generation": self.generation,
            "schedule": "1f1b",
            "micro_batches": 1,
            "axes": [["pp", self.pp], ["dp", self.dp], ["tp", self.tp]],
            "stages": [{"first": 2 * p, "stop": 2 * p + 2, "rank": p} for p in range(self.pp)],
            "orders": [[f"{p}F0", f"{p}B0"] for p in range(self.pp)],
        }

    def layout(self, id: str = "") -> Json | None:
        if (job := self.of(id)) is not self:
            return job.layout()
        return {"job": self.id, "generation": self.generation, "kind": "node", "pp": self.pp, "boxes": self.boxes()}

    def incidents(self, id: str = "") -> list[Json]:
        found = [i | {"job": job.id} for job in (self, *self.others) for i in job.known_incidents]
        return sorted((i for i in found if not id or i["job"] == id), key=lambda i: -i["opened"])

    def spans(self, job: str, first: int, last: int) -> Callable[[], tuple[SpanTable, JobShape]]:
        job = job or self.newest.id
        if job in [other.id for other in self.others]:
            return self.of(job).spans(job, first, last)
        if job != self.id or not self.mesh:
            raise NotFound(f"no spans of a job {job!r} are kept")
        if self.traced is None:
            self.traced = traced(self)
        table, shape = self.traced
        known = table.of_steps(max(first, 0), last if last >= 0 else 1 << 30)
        if not len(known):
            raise NotFound(f"no spans of steps {first} to {last}")
        return lambda: (known, shape)

    def newest_blame(self, id: str = "") -> Json | None:
        if (job := self.of(id)) is not self:
            return job.newest_blame()
        if not self.mesh or self.world > 64:
            return None
        found = blame_report.report(*self.spans(self.id, -1, -1)())
        history = SlowHistory()
        for age in range(600, -60, -60):
            history.see(found["culprits"], self.now - age - 10.0, self.now - age)
        for culprit in found["culprits"]:
            history.add_to(culprit)
        return {key: value for key, value in found.items() if key not in ("ranks", "path", "course", "incomplete")}

    def node_history(self, name: str) -> Json:
        state = {row["name"]: row["state"] for row in self.node_rows}[name]
        verdicts = [v | {"at": d["ended"]} for d in self.diagnoses() for v in d["verdicts"] if v["node"] == name]
        return {
            "cordoned": state == NodeState.CORDONED, "evicted": "", "evicted_at": 0.0, "quarantined": False,
            "failed_job": "", "outs": [],
            "node_failures": [
                {"at": i["opened"], "kind": i["kind"]} for i in self.known_incidents if name in i["summary"].split()
            ],
            "verdicts": verdicts,
        }  # fmt: skip

    def traffic(self, node: str, seconds: float = 5.0) -> Json:
        row = {r["name"]: r for r in self.node_rows}[node]
        count = int(seconds * 1000)
        begin = (self.now - seconds) * 1000
        nics = []
        for i, nic in enumerate(row["nics"]):
            known = min(count, 10_000)  # then again the same: ten minutes of it would take seconds
            wave, back = (
                list(islice(cycle([self._bytes(begin + t + shift, n) for t in range(known)]), count))
                for shift, n in ((0, i), (-60, i + 3))
            )
            nics.append({"name": nic["name"], "t0": begin, "t": list(range(count)), "tx": wave, "rx": back})
        return {"node": node, "nics": nics}

    def _bytes(self, at_ms: float, i: int) -> int:
        """A burst of all-reduce once a step, on a floor of pipeline sends."""
        into = (at_ms / 1000 + i * 0.004) % self.base_s / self.base_s
        peak = 42_000_000 if 0.62 < into < 0.9 else 3_000_000 if int(into * 40) % 5 == 0 else 0
        return int(peak * (0.85 + 0.15 * self.random.random())) if not self.script else 0

    def metrics(self) -> Json:
        return fake_metrics(self)

    def job_metrics(self) -> list[Json]:
        shown = [job for job in self._present() if job.job_state in ACTIVE or job is self.newest]
        return [fake_job_metrics(job, job.ranks(job.id)) for job in shown]

    def version(self) -> int:
        return self.serial + sum(job.serial for job in self.others)

    async def log_lines(self, job: str, wanted: LogWanted = EVERY_LINE) -> AsyncIterator[Json]:
        if (other := self.of(job)) is not self:
            async for line in other.log_lines(job, wanted):
                yield line
            return
        sent = 0
        while (self.job_state in ("running", "recovering") and wanted.follow) or sent < len(self.log):
            while sent < len(self.log):
                line, sent = self.log[sent], sent + 1
                if wanted.takes(line["rank"], line.get("node", ""), line["generation"]):
                    yield line
            await asyncio.sleep(0.02)

    def log_same(self, job: str, text: str, generation: int | None = None) -> Callable[[], Json]:
        lines = self.of(job).log
        chunks = [msg.LogChunk(job, one["generation"], one["rank"], one["stream"], one["text"]) for one in lines]
        kept = [KeptChunk(one["at"], one["node"], chunk) for one, chunk in zip(lines, chunks, strict=True)]
        return lambda: said_by(kept, text, generation)

    async def submit(self, spec: Json) -> str:
        if spec["nnodes"] > len(self.node_rows):
            raise UsageError(f"nnodes is {spec['nnodes']} but only {len(self.node_rows)} nodes are healthy")
        self.submitted.append(spec)
        self.job_state = "running"
        return "job-2"

    async def acknowledge(self, id: str) -> None:
        if id in self.acknowledged or id not in [one["id"] for one in self.jobs()]:
            raise Conflict("nothing to acknowledge")
        self.acknowledged.append(id)

    async def notify_test(self, receiver: str = "") -> list[Json]:
        if receiver not in ("", "slack"):
            raise KeyError(receiver)
        return [{"receiver": "slack", "ok": True, "answer": "HTTP 200 ok"}]

    async def restart(self, dump: bool = False, id: str = "") -> None:
        self.wanted(id).dumps.append(dump)

    async def stop(self, grace: float = 10.0, id: str = "") -> None:
        job = self.wanted(id)
        job.graces.append(grace)
        job.job_state, job.ended_at = "stopped", job.now
        job.serial += 1

    async def stacks(self, id: str = "") -> Json:
        job = self.wanted(id)
        rows = [
            ("[main thread]", 0, "0-7"), ("train.py:9 step", 1, "0-7"), ("train.py:12 wait", 2, "0-2,4-7"),
            ("train.py:30 read", 2, "3"), ("data.py:7 open", 3, "3"),
        ]  # fmt: skip
        return {
            "at": job.now, "job": job.id, "generation": 1, "missing": {"node1": "away"},
            "states": {"0": "S in futex_wait", "1": "S in futex_wait"},
            "rows": [{"depth": depth, "ranks": ranks, "frame": frame} for frame, depth, ranks in rows],
        }  # fmt: skip

    async def checkpoint(self, id: str = "") -> None:
        self.wanted(id).checkpoints += 1

    async def inject(self, fault: str, id: str = "") -> Json:
        if ":" not in fault:
            raise UsageError(f"{fault!r} is not KIND[@STEP]:TARGET, such as kill@20:rank3")
        job = self.wanted(id) if id else self
        job.injected.append(fault)
        return {"id": f"f{len(job.injected)}", "armed": "@" in fault}

    async def diagnose(self, spec: Json) -> str:
        if "ghost" in spec["nodes"]:
            raise NotFound("no node is called 'ghost'")
        choose(parse_suite(spec["suite"]), tuple(spec["tests"]))
        self.diagnosed.append(spec)
        return "d1"

    def diagnoses(self) -> list[Json]:
        verdict = Verdict("node0", "gemm", Grade.FAIL, "flops", "cpu", 4e10, "FLOP/s", against="peers", baseline=1e11)
        base: Json = {"id": "d1", "why": "by hand", "state": "done", "suite": "quick", "tests": ["gemm"]}
        base |= {"nodes": ["node0", "node1"], "stage": "done", "rounds": 3, "jobs_done": 5, "jobs_open": 0}
        base |= {"began": self.started, "ended": self.started + 9, "failed": ["node0"], "cleared": ["node1"]}
        return [base | {"verdicts": [verdict.to_doc()]}] if self.diagnosed else []

    async def evict(self, node: str) -> None:
        row = {r["name"]: r for r in self.node_rows}[node]
        row["state"], row["reason"] = NodeState.FAULTY, "evicted by an operator"
        self.serial += 1

    async def cordon(self, node: str, on: bool) -> None:
        row = {r["name"]: r for r in self.node_rows}[node]
        row["state"] = NodeState.CORDONED if on else NodeState.HEALTHY
        row["reason"] = "by hand" if on else ""
        self.serial += 1


def _rounded(value: float | None) -> float | None:
    """As the controller rounds the columns of its ranks."""
    return None if value is None else round(value, 4)


def llm_175b() -> FakeFacade:
    """12,288 ranks, as in the paper: pp 8, dp 192, tp 8."""
    return FakeFacade(pp=8, dp=192, tp=8, per_node=8)
