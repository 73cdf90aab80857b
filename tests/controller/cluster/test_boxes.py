"""The picture of a job's layout: nodes, or switches and pods of many; what leaves each, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from holdfast.controller.cluster.boxes import MOST, layout_doc
from holdfast.controller.state.model import Job, JobSpec, Node
from holdfast.plan.plan import Layers, Mesh, Plan
from holdfast.plan.planned_traffic import PlannedTraffic
from holdfast.planner.placement.expected import NodeBytes, node_bytes
from holdfast.wire import messages as msg
from holdfast.wire import types as t


def job_of(names: list[str], nproc: int = 4) -> Job:
    job = Job(JobSpec("j", "job", msg.Program("train.py"), nnodes=len(names), nproc=nproc))
    job.nodes = names
    return job


def nothing(node: str) -> None:
    """No node was counted."""


def known(switches: dict[str, str]) -> dict[str, Node]:
    return {name: Node(name, t.Identity(name, name, "i", switch=switch)) for name, switch in switches.items()}


def ring(pp: int, dp: int) -> Plan:
    return Plan("1f1b", Mesh.of(pp=pp, dp=dp), tuple(Layers(i, i + 1, i) for i in range(pp)), 1, ((),) * pp)


def test_nodes_by_switch_with_what_leaves_them() -> None:
    """pp 2 with dp 8 on 4 nodes: node0 and node2 are stage 0. Rings of 8 leave each node once."""
    job = job_of(["node0", "node2", "node1", "node3"])
    planned = node_bytes(ring(2, 8), PlannedTraffic((0.0, 0.0), (10.0, 20.0), message=1.0), 4)
    counted = {"node2": (15.0, 14.0)}
    nodes = known({"node0": "a", "node1": "a", "node2": "b", "node3": ""})
    doc = layout_doc(job, nodes, planned, counted.get)
    assert (doc["kind"], doc["pp"]) == ("node", 2)
    assert [(box["inside"], box["name"], box["ranks"], box["stages"]) for box in doc["boxes"]] == [
        ("", "node3", [[12, 15]], [[1, 1.0]]),
        ("a", "node0", [[0, 3]], [[0, 1.0]]),
        ("a", "node1", [[8, 11]], [[1, 1.0]]),
        ("b", "node2", [[4, 7]], [[0, 1.0]]),
    ]
    assert [box["sent"] for box in doc["boxes"]] == [24.0, 14.0, 24.0, 14.0]
    assert [box["received"] for box in doc["boxes"]] == [24.0, 14.0, 24.0, 14.0]
    assert [box["sent_measured"] for box in doc["boxes"]] == [None, None, None, 15.0]
    assert doc["boxes"][3]["received_measured"] == 14.0


def test_stages_share_a_node() -> None:
    planned = node_bytes(ring(4, 2), PlannedTraffic((0.0,) * 4, (1.0,) * 4), 4)
    doc = layout_doc(job_of(["n0", "n1"]), known({"n0": "", "n1": ""}), planned, nothing)
    assert [box["stages"] for box in doc["boxes"]] == [[[0, 0.5], [1, 0.5]], [[2, 0.5], [3, 0.5]]]


def test_stages_that_differ_in_tp_share_nodes_unevenly() -> None:
    """tp 4, 2 and 2: node0 is stage 0, and node1 has both others."""
    mesh = Mesh.of(pp=3, tp=4, tps=(4, 2, 2))
    plan = Plan("1f1b", mesh, tuple(Layers(i, i + 1, i) for i in range(3)), 1, ((),) * 3)
    planned = node_bytes(plan, PlannedTraffic((1.0,) * 3, (0.0,) * 3, messages=(100.0, 10.0)), 4)
    doc = layout_doc(job_of(["n0", "n1"]), known({"n0": "", "n1": ""}), planned, nothing)
    assert doc["pp"] == 3
    assert [box["stages"] for box in doc["boxes"]] == [[[0, 1.0]], [[1, 0.5], [2, 0.5]]]
    assert [box["sent"] for box in doc["boxes"]] == [100.0, 100.0]


@pytest.mark.parametrize(
    ("switch", "kind", "count"),
    [
        (lambda i: f"leaf{i // 16}", "switch", 16),
        (lambda i: f"pod{i // 64}/leaf{i}", "pod", 4),
        (lambda i: "", "nodes", 128),
    ],
)
def test_many_nodes_are_drawn_by_what_they_lie_in(switch: object, kind: str, count: int) -> None:
    """A ring over 256 nodes: what leaves a box is what leaves its last node, and not what nodes of it exchange."""
    names = [f"node{i}" for i in range(256)]
    nodes = known({name: switch(i) for i, name in enumerate(names)})  # type: ignore[operator]
    planned = node_bytes(ring(1, 1024), PlannedTraffic((0.0,), (5.0,)), 4)
    doc = layout_doc(job_of(names), nodes, planned, nothing)
    assert (doc["kind"], len(doc["boxes"])) == (kind, count)
    assert len(doc["boxes"]) <= MOST
    assert {box["sent"] for box in doc["boxes"]} == {5.0}
    assert sum(box["nodes"] for box in doc["boxes"]) == 256
    assert sum(last - first + 1 for box in doc["boxes"] for first, last in box["ranks"]) == 1024


def test_a_node_that_the_controller_does_not_know_has_no_place() -> None:
    planned = NodeBytes(2, np.array([0, 1]), np.array([1, 0]), np.array([3.0, 4.0]))
    doc = layout_doc(job_of(["n0", "n1"]), known({"n0": "a"}), planned, nothing)
    assert [(box["name"], box["inside"]) for box in doc["boxes"]] == [("n1", ""), ("n0", "a")]
    assert [box["sent"] for box in doc["boxes"]] == [4.0, 3.0]
