"""A whole node is frozen, agent and workers, as a batch system suspends it: when it wakes, training goes on."""

import dataclasses
import math

import pytest

from holdfast.controller.state.model import JobStatus, Options
from holdfast.wire import types as t
from tests.controller.support.virtual import Virtual, training


def freeze(v: Virtual, seconds: float, behind: str = "frozen") -> None:
    v.behind["node1"] = behind
    v.agents["node1"].frozen = True
    for rank in range(4, 8):
        v.sleep_worker(rank)
    v.run(seconds)


def thaw(v: Virtual) -> None:
    v.agents["node1"].frozen = False
    for worker in v.all_workers():
        worker.sleeping_at = math.inf


@pytest.mark.parametrize("spares", [0, 1])
@pytest.mark.parametrize("seconds", [5.0, 10.0, 40.0])
def test_it_wakes_and_its_workers_are_adopted(spares: int, seconds: float) -> None:
    v = training(nodes=2 + spares)
    freeze(v, seconds)
    assert "its agent does not: it is stopped or frozen" in v.brain.c.nodes["node1"].reason
    best = v.job.best_step
    thaw(v)
    v.run(3.0)
    assert (v.job.state, v.job.generation, v.job.nodes) == (JobStatus.RUNNING, 1, ["node0", "node1"])
    assert v.job.best_step > best
    (incident,) = v.incidents
    assert (incident.cause.kind, incident.action, incident.live) == (t.FindingKind.NODE_SILENT, "watch", False)
    assert not v.brain.c.nodes["node1"].frozen


@pytest.mark.parametrize("own", [False, True])
def test_beyond_the_idle_limit_the_job_goes_on_without_it_and_it_is_no_failure_of_the_node(own: bool) -> None:
    options = dataclasses.replace(Options(), idle_limit=60.0 if own else 20.0)
    v = Virtual(nodes=3, options=options)
    v.submit(nnodes=2, **({"limits": {"idle_limit": 20.0}} if own else {}))
    v.run(3.0)
    freeze(v, 18.0)
    assert v.job.generation == 1
    v.run(6.0)
    assert v.job.nodes == ["node0", "node2"]
    assert not v.brain.c.history("node1").node_failures


@pytest.mark.parametrize("behind", ["unreachable", "refused"])
def test_one_whose_host_or_agent_is_gone_is_lost_as_ever(behind: str) -> None:
    v = training(nodes=3)
    freeze(v, 6.0, behind)
    assert v.job.nodes == ["node0", "node2"]
    assert len(v.brain.c.history("node1").node_failures) == 1
