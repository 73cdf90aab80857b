"""The answers of a real controller, of every route, match the models: no field less, none more."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import ValidationError

from benchmarks.simulated_spans import Culprit, Job, simulate
from holdfast.controller.alerts.book import Book, JobView
from holdfast.controller.alerts.notice import Pace
from holdfast.controller.alerts.receivers import parse_receivers
from holdfast.controller.alerts.send import Sender
from holdfast.controller.detectors.base.table import Tuning
from holdfast.controller.http import metrics_models, models, streams
from holdfast.controller.shell.blame_watch import BlameWatch, _look
from holdfast.controller.shell.days import Days
from holdfast.controller.shell.report import Report
from holdfast.controller.shell.sessions import Sessions
from holdfast.controller.shell.shell import Shell
from holdfast.controller.state.events import DiagnoseRequested, EventSeen, ResultSeen
from holdfast.controller.state.incidents import Finding, Incident, IncidentState
from holdfast.diagnostics.steps import span_table
from holdfast.plan.planned_traffic import PlannedTraffic
from holdfast.wire import messages as msg
from holdfast.wire import types as t
from holdfast.wire.plans import encode_plan
from tests.controller.support.asking import app_of
from tests.controller.support.fake_facade import FakeFacade
from tests.controller.support.shapes import Route, hold, routes
from tests.controller.support.stage import make_shell
from tests.controller.support.virtual import Virtual

ROUTES = routes(app_of(FakeFacade()))
NOT_JSON = {"GET /metrics", "GET /api/v1/events", "GET /api/v1/job/logs", "GET /api/v1/jobs/{id}/logs"}
FAULT = {"fault": "stop@90000:rank1"}
PROGRAM = {"target": "/x/train.py"}
BODIES: dict[str, Any] = {
    "/api/v1/inject": FAULT,
    "/api/v1/jobs/{id}/inject": FAULT,
    "/api/v1/jobs": {"program": PROGRAM, "nproc_per_node": 4},
    "/api/v1/diagnose": {"nodes": ["node2"]},
}


@dataclass
class World:
    shell: Shell
    report: Report
    diagnosis: str

    def path(self, route: Route) -> str:
        id = self.diagnosis if "diagnoses" in route.path else "j1"
        path = route.path.replace("{id}", id).replace("{name}", "node1").replace("{incident}", "i1")
        query = {"then": "?at=1e10", "same": "?text=hello"}.get(path.rpartition("/")[2], "")
        return path.replace("{kind}", "worker-killed") + query


def world(folder: Path) -> World:
    """A job that recovered from a fault and trains, with a plan, spans and their blame, a log, stacks, a diagnosis."""
    v = Virtual(nodes=3)
    v.submit(nnodes=2, max_steps=100_000, id="j1")
    v.run(4.0)
    v.exit(3, signal=9)
    v.run(5.0)
    table, plan = simulate(Job(), [Culprit(5, "forward", 0.3)], 12, 1)
    traffic = PlannedTraffic((0.0,) * plan.mesh.size("pp"), (4e6,) * len(plan.stages))
    v.feed(EventSeen("node0", t.PlanPublished("j1", v.job.generation, encode_plan(plan, traffic=traffic))))
    v.feed(DiagnoseRequested("d1", ("node2",)))
    v.run(1.0)
    v.brain.c.history("node1").offend(t.FindingKind.WORKER_KILLED, v.instant.wall)
    shell = make_shell(folder, v.brain)
    shell.listen("j1")
    for spans in span_table.encode(table, "j1", v.job.generation):
        shell.spans.add("node0", msg.Spans((spans,), 0, 1000))
    watch = BlameWatch(shell, Tuning(["straggler.windows=1"]))
    taken = watch.due(v.brain.jobs.newest)
    assert taken is not None
    seen = _look(taken)
    assert seen.blame is not None
    watch.take(seen.blame, taken.shape, taken.generation, seen.beginning)
    shell.logs.add(msg.LogChunk("j1", v.job.generation, 1, "err", "hello"))
    shell.sessions = Answering(shell)
    days = Days(shell)
    report = Report(shell, -1, watch, days)
    days.sample(time.time())
    report.sender = Sender(
        parse_receivers(["webhook=http://127.0.0.1:9"]), given_up(), Pace(), list, list, shell.keep, lambda *_: None
    )
    return World(shell, report, "d1")


def given_up() -> Book:
    """The book of a controller that was here when j1 failed before."""
    book, cause = Book(), Finding(t.FindingKind.WORKER_EXCEPTION, t.Severity.CRITICAL, "rank3", "it failed", 1.0, 1.0)
    book.look([], [], 1.0)
    incident = Incident("i1", 1.0, [cause], job="j1")
    incident.end(IncidentState.FAILED, 2.0)
    book.look([incident], [JobView("j1", "job", 0.0, {"condition": "failed", "since": 2.0, "sentence": "It failed.",
                                                      "action": "", "doing": "", "others": []})], 3.0)  # fmt: skip
    return book


class Answering(Sessions):
    """Agents that report the stacks of their workers, and do whatever else is requested of them."""

    def __init__(self, shell: Shell) -> None:
        super().__init__()
        self._shell = shell

    def send(self, node: str, message: msg.ControllerMessage) -> bool:
        if isinstance(message, msg.Command):
            rank = 0 if node == "node0" else 4
            stacks = [{"ranks": f"{rank}", "thread": "main", "frames": ["train.py:5 main", "train.py:9 step"]}]
            store = {"host": "127.0.0.1", "port": "29500"}
            data = {"stacks": json.dumps(stacks), "states": json.dumps({rank: "S"}), **store}
            self._shell.handle(ResultSeen(node, msg.CommandResult(message.id, True, "", data)))
        return True


@asynccontextmanager
async def client(report: Report) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app=app_of(report))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:7080") as made:
        yield made


def test_which_routes_are_held_to_a_model() -> None:
    assert {route.name for route in ROUTES if route.shape is None} == NOT_JSON
    assert len(ROUTES) > 40
    assert {route.method for route in ROUTES} == {"GET", "POST"}


def test_every_read_is_what_its_model_says(tmp_path: Path) -> None:
    there = world(tmp_path)

    async def story() -> None:
        async with client(there.report) as asked:
            for route in ROUTES:
                if route.method == "GET" and route.shape is not None:
                    answer = await asked.get(there.path(route))
                    assert answer.status_code == 200, (route.name, answer.text)
                    assert answer.json() not in (None, [], {}), route.name
                    hold(route.shape, answer.content)
            assert (await asked.get("/metrics")).status_code == 200

    asyncio.run(story())
    there.shell.journal.close()


@pytest.mark.parametrize("route", [one for one in ROUTES if one.method == "POST"], ids=lambda one: one.path)
def test_every_command_answers_what_its_model_says(route: Route, tmp_path: Path) -> None:
    there = world(tmp_path)

    async def story() -> None:
        async with client(there.report) as asked:
            answer = await asked.post(there.path(route), json=BODIES.get(route.path))
            assert answer.status_code in (200, 201), (route.name, answer.text)
            hold(route.shape, answer.content)
            if route.shape is models.Stacks:
                assert answer.json()["rows"]
                assert answer.json()["missing"] == {}

    asyncio.run(story())
    there.shell.journal.close()


def test_what_goes_over_no_route_is_what_its_model_says(tmp_path: Path) -> None:
    there = world(tmp_path)
    hold(metrics_models.ControllerFigures, there.report.metrics())
    figures = there.report.job_metrics()
    assert figures[0]["blame"]["self_ratio"]
    hold(list[metrics_models.JobFigures], figures)

    async def story() -> None:
        there.shell.logs.end("j1")
        lines = [line async for line in there.report.log_lines("j1")]
        assert [line["text"] for line in lines] == ["hello"]
        hold(list[streams.LogLine], lines)

    asyncio.run(story())
    there.shell.journal.close()


def test_a_field_too_many_or_too_few_is_noticed() -> None:
    with pytest.raises(ValidationError):
        hold(models.NodeFailure, {"at": 1.0})
    with pytest.raises(AssertionError, match=r"\[0\]\.more"):
        hold(list[models.NodeFailure], [{"at": 1.0, "kind": "node-silent", "more": 1}])
