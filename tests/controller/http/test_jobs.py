"""Several jobs over HTTP: each under its own address, and what an address without a job means."""

from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import TypeAdapter

from holdfast.controller.http import models
from holdfast.controller.http.spans import Blame, BlameBrief, Heat, Lanes, Predicted
from holdfast.controller.shell.report import Report
from tests.controller.support.asking import app_of, ask, error, talk
from tests.controller.support.fake_facade import FakeFacade
from tests.controller.support.shapes import hold
from tests.controller.support.stage import make_shell

JOBS = "/api/v1/jobs"


@pytest.fixture
def facade() -> FakeFacade:
    """`demo` (job-1) has trained 20 steps, `eval` (job-2), the newest, three."""
    facade = FakeFacade()
    facade.warm_up(20)
    facade.add_job("eval", priority=5, pp=1, dp=2, tp=1, per_node=2).warm_up(3)
    return facade


def test_the_list_is_in_the_order_of_the_queue_and_then_what_ended(facade: FakeFacade) -> None:
    found = ask(facade, "GET", JOBS).json()
    TypeAdapter(list[models.JobBrief]).validate_python(found)
    assert [(job["name"], job["priority"], job["step"]) for job in found] == [("eval", 5, 2), ("demo", 0, 19)]
    assert found[0]["nodes"] == ["job-2-node0"]
    facade.others[0].job_state = "finished"
    assert [job["name"] for job in ask(facade, "GET", JOBS).json()] == ["demo", "eval"]


SHAPES: list[tuple[str, Any]] = [
    ("", models.Job),
    ("/plan", models.Plan),
    ("/health", models.Health),
    ("/ranks", models.Ranks),
    ("/steps", models.Steps),
    ("/steps/superseded", models.Steps),
    ("/incidents", list[models.Incident]),
    ("/blame", Blame),
    ("/blame/heat", Heat),
    ("/blame/newest", BlameBrief),
    ("/spans", Lanes),
    ("/spans/predicted", Predicted),
]


@pytest.mark.parametrize(("path", "shape"), SHAPES)
def test_a_jobs_answers_are_what_openapi_says(facade: FakeFacade, path: str, shape: Any) -> None:
    facade.fault(rank=3)
    for key in ("job-1", "demo", "eval"):
        answer = ask(facade, "GET", f"{JOBS}/{key}{path}")
        assert answer.status_code == 200, answer.text
        hold(shape, answer.content)


def test_each_job_is_distinguished_by_id_and_by_name(facade: FakeFacade) -> None:
    facade.fault(rank=3)
    for key, name, steps, ranks, incidents in (
        ("job-1", "demo", 20, 8, ["i1"]),
        ("demo", "demo", 20, 8, ["i1"]),
        ("job-2", "eval", 3, 2, []),
    ):
        assert ask(facade, "GET", f"{JOBS}/{key}").json()["name"] == name
        assert len(ask(facade, "GET", f"{JOBS}/{key}/steps").json()["step"]) == steps
        assert len(ask(facade, "GET", f"{JOBS}/{key}/ranks").json()["rank"]) == ranks
        assert [one["id"] for one in ask(facade, "GET", f"{JOBS}/{key}/incidents").json()] == incidents
        assert ask(facade, "GET", f"{JOBS}/{key}/blame/newest").json()["job"] == f"job-{1 if name == 'demo' else 2}"
        assert ask(facade, "GET", f"{JOBS}/{key}/timeline").status_code == 200


def test_without_a_job_reads_are_of_the_newest_and_incidents_of_all(facade: FakeFacade) -> None:
    facade.fault(rank=3)
    assert ask(facade, "GET", "/api/v1/job").json()["name"] == "eval"
    assert len(ask(facade, "GET", "/api/v1/ranks").json()["rank"]) == 2
    assert len(ask(facade, "GET", "/api/v1/steps").json()["step"]) == 3
    assert ask(facade, "GET", "/api/v1/blame").json()["job"] == "job-2"
    assert ask(facade, "GET", "/api/v1/blame?job=demo").json()["job"] == "job-1"
    assert [(one["id"], one["job"]) for one in ask(facade, "GET", "/api/v1/incidents").json()] == [("i1", "job-1")]


def test_commands_reach_the_job_that_is_named(facade: FakeFacade) -> None:
    other = facade.others[0]
    fault = {"fault": "kill@20:rank1"}
    for key, job in (("job-1", facade), ("eval", other)):
        assert ask(facade, "POST", f"{JOBS}/{key}/checkpoint").json() == {"ok": True}
        assert ask(facade, "POST", f"{JOBS}/{key}/restart", json={"dump": True}).json() == {"ok": True}
        assert ask(facade, "POST", f"{JOBS}/{key}/stacks").json()["job"] == job.id
        assert ask(facade, "POST", f"{JOBS}/{key}/inject", json=fault).json()["armed"]
        assert ask(facade, "POST", f"{JOBS}/{key}/stop", json={"grace": 3}).json() == {"ok": True}
        assert (job.checkpoints, job.dumps, job.injected, job.graces) == (1, [True], ["kill@20:rank1"], [3.0])


COMMANDS = ("job/stop", "job/restart", "job/stacks", "job/checkpoint", "inject")


@pytest.mark.parametrize("path", COMMANDS)
def test_a_command_without_a_job_means_the_only_active_one(facade: FakeFacade, path: str) -> None:
    body = {"fault": "kill:rank1"} if path == "inject" else None
    answer = ask(facade, "POST", f"/api/v1/{path}", json=body)
    assert answer.status_code == 409
    assert "eval (job-2), demo (job-1)" in error(answer)
    facade.others[0].job_state = "finished"  # the newest, but no command is for it
    assert ask(facade, "POST", f"/api/v1/{path}", json=body).status_code == 200
    facade.job_state = "failed"
    answer = ask(facade, "POST", f"/api/v1/{path}", json=body)
    assert answer.status_code == (200 if path == "inject" else 409)  # a node can be broken without a job


@pytest.mark.parametrize("path", COMMANDS)
def test_a_command_for_a_job_that_ended_says_so(facade: FakeFacade, path: str) -> None:
    facade.job_state = "failed"
    path = path.removeprefix("job/")
    answer = ask(facade, "POST", f"{JOBS}/demo/{path}", json={"fault": "kill:rank1"} if path == "inject" else None)
    assert (answer.status_code, error(answer)) == (409, "job demo (job-1) is already failed")


def test_a_name_means_the_active_job_before_one_that_ended(facade: FakeFacade) -> None:
    facade.add_job("eval", pp=1, dp=2, tp=1).job_state = "failed"  # a newer one, but it is over
    assert ask(facade, "GET", f"{JOBS}/eval").json()["id"] == "job-2"
    facade.others[0].job_state = "stopped"
    assert ask(facade, "GET", f"{JOBS}/eval").json()["id"] == "job-3"
    facade.others[1].name = "job-1"  # an id comes before a name
    assert ask(facade, "GET", f"{JOBS}/job-1").json()["name"] == "demo"


def test_an_unknown_job_is_one_line_that_says_where_to_look(facade: FakeFacade) -> None:
    app = app_of(facade)
    under = [(m, p) for p, methods in app.openapi()["paths"].items() if "/jobs/{id}" in p for m in methods]
    assert len(under) == 25
    for method, path in under:
        body = {"fault": "kill:rank1"} if path.endswith("/inject") else None
        answer = ask(facade, method.upper(), path.replace("{id}", "gone"), json=body)
        assert answer.status_code == 404, path
        assert "'gone'" in error(answer)
        assert "GET /api/v1/jobs" in error(answer)


def test_a_second_job_is_taken_with_its_priority(facade: FakeFacade) -> None:
    spec = {"program": {"target": "train.py"}, "priority": -10, "preempt": True}
    assert ask(facade, "POST", JOBS, json=spec).status_code == 201
    assert (facade.submitted[0]["priority"], facade.submitted[0]["preempt"]) == (-10, True)


def test_jobs_may_share_nodes_and_say_so(tmp_path: Path) -> None:
    shell = make_shell(tmp_path)
    app = app_of(Report(shell, -1))

    async def use(client: httpx.AsyncClient) -> None:
        for size in (0, -1, 1 << 54):
            refused = await client.post(JOBS, json={"program": {"target": "train.py"}, "share_bytes": size})
            assert refused.status_code == 400
            assert "share_bytes" in error(refused)
        ids = [
            (await client.post(JOBS, json={"program": {"target": "train.py"}, "share_bytes": 5})).json()["id"]
            for _ in range(2)
        ]
        for id in ids:
            job = shell.brain.c.jobs[id]
            job.nodes = ["node0"]
            shell.brain.c.hold(job)
        shown = [(await client.get(f"{JOBS}/{id}")).json() for id in ids]
        assert [(one["share_bytes"], one["shares_with"]) for one in shown] == [(5, [ids[1]]), (5, [ids[0]])]
        rows = (await client.get(JOBS)).json()
        assert {one["id"]: one["shares_with"] for one in rows} == {ids[0]: [ids[1]], ids[1]: [ids[0]]}

    talk(app, use)
    shell.journal.close()


def test_a_node_says_which_job_holds_it(facade: FakeFacade) -> None:
    rows = {row["name"]: row["job"] for row in ask(facade, "GET", "/api/v1/nodes?detail=false").json()}
    assert rows == {"node0": "job-1", "node1": "job-1", "node2": None, "job-2-node0": "job-2"}


def test_a_real_controller_queues_jobs_by_priority_and_gives_each_a_name_of_its_own(tmp_path: Path) -> None:
    shell = make_shell(tmp_path)
    app = app_of(Report(shell, -1))

    async def story(client: httpx.AsyncClient) -> None:
        spec = {"name": "train", "program": {"target": "x.py"}}
        ids = [
            (await client.post(JOBS, json=spec | {"priority": priority, "preempt": True})).json()["id"]
            for priority in (0, 5, 0)
        ]
        found = (await client.get(JOBS)).json()
        TypeAdapter(list[models.JobBrief]).validate_python(found)
        assert [(job["name"], job["priority"]) for job in found] == [("train-2", 5), ("train", 0), ("train-3", 0)]
        assert {job["state"] for job in found} == {"pending"}
        models.Job.model_validate((await client.get(f"{JOBS}/train-2")).json())
        models.Status.model_validate((await client.get("/api/v1/status")).json())
        assert (await client.post("/api/v1/job/stop")).status_code == 409
        assert (await client.post(f"{JOBS}/{ids[0]}/stop")).json() == {"ok": True}
        after = (await client.get(JOBS)).json()
        assert [(job["id"], job["state"]) for job in after][::2] == [(ids[1], "pending"), (ids[0], "stopped")]
        for name in ("train-2", "train-3"):
            assert f'holdfast_job_state{{job="{name}",state="pending"}} 1' in (await client.get("/metrics")).text

    talk(app, story)
    shell.journal.close()
