"""A job's nodes beside the bytes of its layout: what is said, and all that looks like it and is not. In virtual time,
through the frames that agents send."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from holdfast.controller.shell.job_report import job_doc
from holdfast.controller.state.events import Action, EventSeen, FrameSeen, Say
from holdfast.controller.state.model import Options
from holdfast.plan.plan import Action as PlanAction
from holdfast.plan.plan import Layers, Mesh, Op, Plan
from holdfast.plan.planned_traffic import PlannedTraffic
from holdfast.wire import types as t
from holdfast.wire.plans import encode_plan
from tests.controller.support.virtual import Virtual

MB = 1e6
RING = 20 * MB
"""From each rank to the next of 16: of each node of 4, one link leaves it and one comes in."""
Moves = Callable[[str, int], tuple[float, float]]
"""Megabytes that a node sends and receives in its n-th step."""


def plan(dp: int = 16, ring: float | None = RING) -> bytes:
    order = (PlanAction(Op.FORWARD, 0, 0), PlanAction(Op.BACKWARD, 0, 0))
    one = Plan("1f1b", Mesh.of(pp=1, dp=dp, tp=1), (Layers(0, 1, 0),), 1, (order,))
    return encode_plan(one, traffic=None if ring is None else PlannedTraffic((0.0,), (ring,)))


def as_planned(node: str, step: int) -> tuple[float, float]:
    return 20.8, 20.8  # with headers


def one_moves(sent: float, received: float) -> Moves:
    """node2 does, and the others as planned."""
    return lambda node, step: (sent, received) if node == "node2" else as_planned(node, step)


class Run:
    """A job of 4 nodes with 4 ranks each, whose steps and counters are given."""

    def __init__(self, data: bytes | None, *detectors: str) -> None:
        self.v = Virtual(nodes=4, options=Options(detectors=detectors))
        self.v.step_seconds = 1e9
        self.v.submit(nnodes=4)
        self.v.run(1.0)
        assert self.v.job.generation == 1
        self.step, self.said, self.nic = 0, list[Say](), "eth0"
        self.steady = 0.0  # megabytes a second that something else moves on node2, both ways
        self.copies = False  # whether node2 says that snapshots went along
        self.published(data)

    def published(self, data: bytes | None) -> None:
        if data is not None:
            self.v.feed(EventSeen("node0", t.PlanPublished("j1", self.v.job.generation, data)))

    def steps(self, count: int, moves: Moves = as_planned, seconds: float = 0.4) -> list[str]:
        """Names of what is said meanwhile of traffic beside the layout."""
        before = len(self.said)
        for _ in range(count):
            begin = self.v.instant.wall
            self.v.now += seconds
            for i, node in enumerate(self.v.job.nodes):
                self._frame(i, node, begin, seconds, moves(node, self.step))
            self.step += 1
        return [one.name for one in self.said[before:]]

    def _frame(self, i: int, node: str, begin: float, seconds: float, moved: tuple[float, float]) -> None:
        count = round(seconds * 1e3)
        at = (np.arange(count) * 1000).astype("<u4")
        in_burst = (np.arange(count) > 0.3 * count) & (np.arange(count) < 0.8 * count)
        steady = self.steady * MB / 1e3 if node == "node2" else 0.0
        columns = [
            np.where(in_burst, megabytes * MB / in_burst.sum() + steady, steady).astype("<u4").tobytes()
            for megabytes in moved
        ]
        end = int((begin + seconds) * 1e9)
        record = t.StepRecord(4 * i, self.v.job.generation, self.step, end, seconds, job="j1")
        host = {}
        if self.copies and node == "node2":
            host = {"snapshot_peer_step": float(self.step), "snapshot_bytes": 80 * MB, "snapshot_copies_bytes": 80 * MB}
        nics = (t.NicSamples(self.nic, 0, 0, *columns),)
        frame = t.Frame(1, int(begin * 1e9), int(self.v.now * 1e9), at.tobytes(), nics, host, steps=(record,))
        self._heard(self.v.feed(FrameSeen(node, frame)))

    def _heard(self, actions: list[Action]) -> None:
        self.said += [one for one in actions if isinstance(one, Say) and one.fields.get("kind") == "traffic-unplanned"]

    @property
    def subjects(self) -> list[object]:
        return [one.fields["subject"] for one in self.said]

    @property
    def shown(self) -> list[dict[str, object]]:
        found: list[dict[str, object]] = self.doc["off_plan"]
        return found

    @property
    def doc(self) -> Any:
        brain = self.v.brain.jobs.newest
        assert brain is not None
        return job_doc(brain, self.v.instant)["traffic"]


def test_a_node_that_sends_more_than_its_layout_says() -> None:
    run = Run(plan())
    assert run.steps(60) == []
    assert run.steps(29, one_moves(90.0, 84.0)) == [], (
        "10 change the median of 20, and it has to last for as many as 20"
    )
    assert run.steps(1, one_moves(90.0, 84.0)) == ["finding"]
    text = str(run.said[0].fields["text"])
    assert text == "node2 sends 90 MB and receives 84 MB in each step, 4.2 times what the layout says (20 MB and 20 MB)"
    assert run.subjects == ["node2"]
    (shown,) = run.shown
    assert (shown["node"], shown["text"]) == ("node2", text)
    assert shown["since"] == pytest.approx(run.v.instant.wall, abs=3.0)
    assert run.doc["planned_bytes"] == 4 * RING
    assert run.steps(60, one_moves(90.0, 84.0)) == [], "it is said once"
    assert run.steps(40, one_moves(45.0, 45.0)) == [], "neither more nor over: no flapping at the limit"
    assert run.steps(20, one_moves(30.0, 30.0)) == ["finding.ended"]
    assert run.shown == []
    kinds = [one.cause.kind.value for one in run.v.incidents]
    assert kinds == ["traffic-decline"], "from 90 to 45 MB; of the plan no incident, so no alert and nothing that pages"
    assert run.v.brain.c.book.counts["traffic-unplanned"] == 1
    assert not run.v.brain.c.history("node2").recent(run.v.instant.wall, 1e9), "and no evidence against the node"


def test_a_node_that_sends_less() -> None:
    run = Run(plan())
    assert run.steps(80, one_moves(6.0, 5.0)) == ["finding"]
    assert str(run.said[0].fields["text"]).startswith(
        "node2 sends 6 MB and receives 5 MB in each step, 30% of what the layout says"
    )


def test_what_most_nodes_do_is_one_finding_of_the_job() -> None:
    run = Run(plan())
    assert run.steps(80, lambda node, step: (20.0, 20.0) if node == "node3" else (80.0, 80.0)) == ["finding"]
    assert run.subjects == ["j1"]
    assert run.said[0].fields["text"] == "3 of 4 nodes move 4 times what the layout says in each step"
    assert [one["node"] for one in run.shown] == [""]
    assert run.steps(80, one_moves(80.0, 80.0)) == ["finding.ended", "finding"], "one of them still does"
    assert run.subjects == ["j1", "j1", "node2"]


def test_limits_and_leaving_it_out() -> None:
    assert Run(plan(), "traffic-unplanned.action=off").steps(80, one_moves(90.0, 90.0)) == []
    strict = Run(plan(), "traffic-unplanned.more=1.5", "traffic-unplanned.steps=5")
    assert strict.steps(25, one_moves(32.0, 32.0)) == ["finding"]
    assert strict.steps(10) == ["finding.ended"]


# --- what looks like it ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "moves"),
    [
        ("a checkpoint that is uploaded all the time", one_moves(400.0, 20.8)),
        ("data over the same NIC", one_moves(20.8, 400.0)),
        ("retransmissions: lost on the way, and some come twice", one_moves(90.0, 26.0)),
        ("an evaluation in every third step", lambda node, step: (400.0, 400.0) if step % 3 == 0 else (20.8, 20.8)),
        ("warm-up", lambda node, step: (200.0, 200.0) if step < 10 else (20.8, 20.8)),
        ("counters that see nothing of it", one_moves(0.0, 0.0)),
        ("counters that see other messages alone", lambda node, step: (0.6, 0.5)),
        ("sums in the switch", lambda node, step: (10.4, 10.4)),
        ("collectives of tp that are computed again", lambda node, step: (31.0, 31.0)),
    ],
)
def test_look_alikes(what: str, moves: Moves) -> None:
    run = Run(plan())
    assert run.steps(100, moves) == [], what
    assert run.shown == []


def test_another_program_on_the_node() -> None:
    run = Run(plan())
    run.steady = 500.0
    assert run.steps(100) == [], "20 MB of 220 MB a step are the job's"
    assert run.steps(60, one_moves(90.0, 90.0)) == ["finding"], "and what the job's bursts move is still seen"


def test_copies_of_snapshots() -> None:
    run = Run(plan())
    run.copies = True
    assert run.steps(100, one_moves(100.0, 100.0)) == []
    silent = Run(plan())
    assert silent.steps(100, one_moves(100.0, 100.0)) == ["finding"], "the same of which no agent says what it is"


def test_steps_of_another_duration() -> None:
    run = Run(plan())
    assert [run.steps(40, seconds=seconds) for seconds in (0.4, 1.6, 0.2)] == [[], [], []]


def test_nodes_of_one_host() -> None:
    run = Run(plan())
    run.nic = "lo"
    assert run.steps(80, one_moves(400.0, 400.0)) == []


def test_a_restart() -> None:
    """What the steps of an earlier generation moved says nothing about this one's; what was found is over."""
    run = Run(plan())
    run.steps(80, one_moves(90.0, 90.0))
    run.v.exit(0, code=1, error="ValueError")
    run.v.run(5.0)
    assert run.v.job.generation == 2
    run.published(plan())
    run.step = run.v.job.best_step + 1
    assert run.steps(12, one_moves(90.0, 90.0)) == ["finding.ended"]
    assert run.said[-1].fields["text"] == "the job was started anew"
    assert run.steps(100) == []
    assert run.steps(60, one_moves(90.0, 90.0)) == ["finding"]


def unlike(messages: float) -> bytes:
    """tp 8, 4 and 4: node0 and node1 are stage 0, node2 and node3 the others."""
    order = (PlanAction(Op.FORWARD, 0, 0), PlanAction(Op.BACKWARD, 0, 0))
    stages = tuple(Layers(i, i + 1, i) for i in range(3))
    one = Plan("1f1b", Mesh.of(pp=3, tp=8, tps=(8, 4, 4)), stages, 1, (order,) * 3)
    tensor, nothing = (1 * MB, 0.0, 0.0), (0.0,) * 3
    return encode_plan(one, traffic=PlannedTraffic(tensor, nothing, messages=(messages, messages / 4)))


def test_pipeline_ranks_that_differ_in_tp() -> None:
    """A whole message crosses into node2 once, and comes back into node0 once and from there into node1; node2's four
    ranks send theirs to node3's, place by place. The tensor group of 8 goes round node0 and node1."""
    moves = {"node0": (81.0, 41.0), "node1": (1.0, 41.0), "node2": (80.0, 80.0), "node3": (40.0, 40.0)}
    run = Run(unlike(40 * MB))
    assert run.steps(60, lambda node, step: moves[node]) == []
    assert run.doc["planned_bytes"] == (2 * 1 + 2 * 40 + 40 + 2 * 4 * 10) * MB
    assert run.steps(60, lambda node, step: (240.0, 240.0) if node == "node2" else moves[node]) == ["finding"]
    assert run.subjects == ["node2"]
    assert "3 times what the layout says (80 MB and 80 MB)" in str(run.said[0].fields["text"])


@pytest.mark.parametrize(
    "data", [None, plan(ring=None), plan(dp=8), plan(ring=0.4 * MB), b"forged"],
    ids=["no plan", "no bytes", "of 8 ranks", "hardly any bytes", "forged"],
)  # fmt: skip
def test_nothing_to_compare_with(data: bytes | None) -> None:
    run = Run(data)
    assert run.steps(80, one_moves(90.0, 90.0)) == []
    assert run.said == []


def test_a_plan_that_is_of_other_sizes_now() -> None:
    run = Run(plan())
    run.steps(80, one_moves(90.0, 90.0))
    run.published(plan(ring=90 * MB))
    assert run.steps(2, one_moves(90.0, 90.0)) == ["finding.ended"]
    assert run.said[-1].fields["text"] == "its plan is another one"
    assert run.steps(80, one_moves(90.0, 90.0)) == ["finding"], "the other three send 23% of it now"
    assert run.subjects[-1] == "j1"
    run.published(plan(dp=8))
    assert run.steps(2, one_moves(90.0, 90.0)) == ["finding.ended"]
    assert "no plan of this number of ranks" in str(run.said[-1].fields["text"])
