"""What viewers see of a real brain, in every state of a job: always what OpenAPI says."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from holdfast.base.errors import UsageError
from holdfast.controller.shell.report import Report
from holdfast.controller.shell.shell import Shell
from holdfast.controller.state.history import History, node_history
from holdfast.controller.state.model import JobStatus
from holdfast.wire import messages as msg
from holdfast.wire import types as t
from tests.controller.support.asking import app_of
from tests.controller.support.fake_facade import FakeFacade
from tests.controller.support.shapes import hold, routes
from tests.controller.support.stage import make_shell
from tests.controller.support.virtual import Virtual


def shell_of(v: Virtual, folder: Path) -> Shell:
    return make_shell(folder, v.brain)


def pending() -> Virtual:
    v = Virtual(nodes=1)
    v.submit(nnodes=3)
    return v


def training() -> Virtual:
    v = Virtual()
    v.submit(max_steps=100)
    v.run(5.0)
    return v


def recovering() -> Virtual:
    v = training()
    v.exit(3, signal=9)
    return v


def recovered() -> Virtual:
    v = recovering()
    v.run(5.0)
    return v


def failed() -> Virtual:
    v = training()
    for _ in range(4):
        if v.job.state.ended:
            break
        v.exit(0, code=1, error="Traceback (most recent call last):\nValueError: bad batch\n")
        v.run(1.0)
    return v


def finished() -> Virtual:
    v = Virtual()
    v.last_step = 10
    v.submit()
    v.run(8.0)
    return v


STATES = {
    "nothing at all": lambda: Virtual(nodes=0),
    "no job": Virtual,
    "pending": pending,
    "training": training,
    "recovering": recovering,
    "recovered": recovered,
    "failed": failed,
    "finished": finished,
}


READS = [one for one in routes(app_of(FakeFacade())) if one.method == "GET" and one.shape is not None]


@pytest.mark.parametrize("state", STATES)
def test_answers_have_their_shapes_in_every_state(state: str, tmp_path: Path) -> None:
    v = STATES[state]()
    shell = shell_of(v, tmp_path)
    report = Report(shell, -1)
    app = app_of(report)

    async def story() -> None:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:7080") as client:
            for route in READS:
                path = route.path.replace("{id}", "j1").replace("{name}", "node1").replace("{incident}", "i1")
                answer = await client.get(path)
                if answer.status_code in (400, 404, 409):  # there is no such job, node, incident or span
                    assert answer.json().keys() == {"error"}, path
                    continue
                assert answer.status_code == 200, (path, answer.text)
                hold(route.shape, answer.content)
            metrics = await client.get("/metrics")
            assert metrics.status_code == 200
            assert "holdfast_" in metrics.text

    asyncio.run(story())
    shell.journal.close()


@pytest.fixture
def reported(tmp_path: Path) -> Any:
    shells: list[Shell] = []

    def make(v: Virtual) -> Report:
        shells.append(shell_of(v, tmp_path))
        return Report(shells[-1], -1)

    yield make
    for shell in shells:
        shell.journal.close()


def test_a_job_that_recovered(reported: Any) -> None:
    v = recovered()
    report = reported(v)
    job = report.job()
    assert (job["state"], job["generation"], job["restarts"], job["world_size"]) == ("running", 2, 1, 8)
    assert job["assignment"] == [
        {"node": "node0", "ranks": [0, 1, 2, 3]},
        {"node": "node1", "ranks": [4, 5, 6, 7]},
    ]
    [incident] = report.incidents()
    assert (incident["kind"], incident["culprit"], incident["state"]) == ("worker-killed", "rank3", "closed")
    assert (incident["generation_from"], incident["generation_to"], incident["source"]) == (1, 2, "store")
    assert incident["recover_s"] == pytest.approx(incident["closed"] - incident["opened"])
    assert all(phase["end"] is not None for phase in incident["phases"])
    assert [phase["name"] for phase in incident["phases"]][:3] == ["suspect", "suspended", "starting"]
    assert incident["findings"][0]["evidence"]["signal"] == 9
    assert report.status()["open_incidents"] == 0


def test_steps_are_columns_of_equal_length_without_gaps(reported: Any) -> None:
    report = reported(recovered())
    steps = report.steps()
    assert len({len(column) for column in steps.values()}) == 1
    assert steps["step"] == list(range(len(steps["step"])))
    assert report.steps(since=3)["step"][0] == 4
    assert report.steps(limit=2)["step"] == steps["step"][-2:]


def test_a_job_that_failed_says_why(reported: Any) -> None:
    v = failed()
    assert v.job.state is JobStatus.FAILED
    job = reported(v).job()
    assert job["exit_code"] == 1
    assert "ValueError: bad batch" in job["reason"]


def states(report: Report) -> list[str]:
    ranks = report.ranks()
    return [ranks["states"][state] for state in ranks["state"]]


def test_who_was_only_ended_along_is_no_culprit(reported: Any) -> None:
    v = failed()
    found = states(reported(v))
    assert found == ["exited"] + ["ended"] * 7


def test_ranks_of_a_lost_node_are_lost_and_those_ended_for_it_are_not(reported: Any) -> None:
    v = training()
    v.lose_node("node1")
    v.run(20.0)
    assert states(reported(v)) == ["ended"] * 4 + ["lost"] * 4


def test_traffic_of_an_unknown_node(reported: Any) -> None:
    report = reported(training())
    with pytest.raises(KeyError):
        report.traffic("ghost")
    assert report.traffic("node0") == {"node": "node0", "nics": []}


def spec(**more: Any) -> dict[str, Any]:
    return {"program": {"target": "/x/train.py", "args": ["--lr", "1"]}, "nproc_per_node": 4, **more}


def test_a_job_as_it_is_submitted(reported: Any) -> None:
    v = Virtual()
    report = reported(v)
    name = asyncio.run(report.submit(spec(nnodes=2, faults=["kill@5:rank7"])))
    job = v.job
    assert job.spec.id == name
    assert (job.spec.name, job.spec.nnodes, job.spec.nproc, job.spec.max_restarts) == ("train.py", 2, 4, -1)
    assert job.spec.program == msg.Program("/x/train.py", ("--lr", "1"))
    assert job.spec.faults == ("kill@5:rank7",)
    assert report.job(name)["faults_left"] == ["kill@5:rank7"]
    job.fired["kill@5:rank7"] = 1.0
    assert report.job(name)["faults_left"] == []


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"nnodes": 1, "faults": ["kill@5:rank4"]}, "there is no rank4"),
        ({"nnodes": 2, "node_counts": [0]}, "node_counts must be from 1 to nnodes, 2, not"),
        ({"nnodes": 2, "node_counts": [3]}, "node_counts must be from 1 to nnodes, 2, not"),
        ({"faults": ["smash@5:rank0"]}, "unknown kind 'smash'"),
        ({"max_steps": 5, "faults": ["kill@5:rank0"]}, "step 5 never comes"),
    ],
)
def test_a_job_that_cannot_be(reported: Any, more: dict[str, Any], says: str) -> None:
    v = Virtual()
    with pytest.raises(UsageError, match=says):
        asyncio.run(reported(v).submit(spec(**more)))
    assert v.brain.jobs.newest is None


def test_faults_now_and_later(reported: Any) -> None:
    v = training()
    report = reported(v)
    assert asyncio.run(report.inject("kill@90:rank0")) == {"id": "kill@90:rank0", "armed": True}
    assert v.job.spec.faults == ("kill@90:rank0",)
    assert asyncio.run(report.inject("stop:rank1")) == {"id": "stop:rank1", "armed": False}
    for wrong in ("kill:rank8", "kill@100:rank0", "agent-kill:node2", "controller-kill"):
        with pytest.raises(UsageError):
            asyncio.run(report.inject(wrong))


def test_history_of_a_node_has_its_faults_and_the_newest_of_each_figure() -> None:
    history = History(cordoned=True)
    history.offend(t.FindingKind.NODE_SILENT, 50.0)
    verdict = {"node": "n1", "check": "gemm", "metric": "flops", "component": "gpu0"}
    diagnoses = [
        {"id": "d2", "ended": 20.0, "verdicts": [verdict | {"value": 2.0}, verdict | {"node": "n2", "value": 9.0}]},
        {
            "id": "d1",
            "ended": 10.0,
            "verdicts": [verdict | {"value": 1.0}, verdict | {"component": "gpu1", "value": 3.0}],
        },
    ]
    found = node_history(history, diagnoses, "n1")
    assert found["cordoned"]
    assert found["node_failures"] == [{"at": 50.0, "kind": "node-silent"}]
    assert [(v["component"], v["value"], v["at"], v["diagnosis"]) for v in found["verdicts"]] == [
        ("gpu0", 2.0, 20.0, "d2"),
        ("gpu1", 3.0, 10.0, "d1"),
    ]


def test_history_of_a_node_that_nothing_speaks_against(tmp_path: Path) -> None:
    report = Report(shell_of(training(), tmp_path), -1)
    found = report.node_history("node0")
    assert (found["cordoned"], found["evicted"], found["node_failures"], found["verdicts"]) == (False, "", [], [])
    with pytest.raises(KeyError):
        report.node_history("ghost")
