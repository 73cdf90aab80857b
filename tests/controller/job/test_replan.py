"""Jobs with planned layouts go on with fewer nodes, or wait, whichever costs less, and come back to their size."""

import dataclasses
from typing import Any

import pytest
from pydantic import ValidationError

from holdfast.base.errors import UsageError
from holdfast.controller.http.models.requests import SizedLayout as AskedLayout
from holdfast.controller.state.events import CordonRequested, EvictRequested
from holdfast.controller.state.history import History
from holdfast.controller.state.incidents import IncidentState
from holdfast.controller.state.job_size import check_size
from holdfast.controller.state.model import Job, JobSpec, JobStatus, Options, SizedLayout
from holdfast.wire import messages as msg
from holdfast.wire import types as t
from tests.controller.support.virtual import Virtual, trains_again
from tests.controller.support.virtual_agents import FakeAgent

THREE = SizedLayout(3, 0.75, ("--pp", "1", "--dp", "12"), "pp=1 dp=12 tp=1")
TWO = SizedLayout(2, 0.5, ("--pp", "2", "--dp", "4"), "pp=2 dp=4 tp=1")


def planned(layouts: tuple[SizedLayout, ...] = (THREE, TWO), absences: tuple[float, ...] = (), **more: Any) -> Virtual:
    """Four nodes. `absences`: how long another node was away before, in seconds."""
    v = Virtual(nodes=4, options=Options(**{"grow_after": 5.0, **more}))
    v.brain.c.histories["old"] = History(absences=[(v.instant.wall - 1e5, seconds) for seconds in absences])
    v.submit(nnodes=4, node_counts=tuple(one.nodes for one in layouts), layouts=layouts)
    v.run(8.0)
    assert v.job.state is JobStatus.RUNNING
    assert started(v) == ((), 4)
    return v


def started(v: Virtual) -> tuple[tuple[str, ...], int]:
    """Arguments of the newest start, and its nodes."""
    order = next(s.command.order for s in reversed(v.sent) if isinstance(s.command.order, msg.StartWorkers))
    return order.program.args, order.nnodes


def test_without_a_history_it_goes_on_with_the_layout_of_what_is_left() -> None:
    v = planned()
    v.lose_node("node1")
    v.run(v.options.agent_grace + 3)
    assert started(v) == (THREE.args, 3)
    trains_again(v, 2)
    found = v.incidents[0]
    assert (found.action, found.state) == ("shrink", IncidentState.CLOSED)
    assert "planned for 3 nodes: pp=1 dp=12 tp=1, 75% of the throughput predicted, costs" in found.reason
    assert found.reason.count("planned for") == 1


def test_what_the_new_layout_reaches_is_added_to_the_incident() -> None:
    v = planned()
    v.step_seconds = 0.3
    v.lose_node("node1")
    v.run_until(lambda: v.job.generation == 2)
    v.step_seconds = 0.5
    v.run(12.0)
    assert v.incidents[0].reason.endswith("; measured 60% (0.5 s a step, before 0.3 s)")
    assert v.saved["incident", v.incidents[0].id]["reason"] == v.incidents[0].reason


def test_it_waits_for_what_is_back_soon() -> None:
    v = planned(absences=(30.0,) * 20)
    v.lose_node("node1")
    v.run(v.options.agent_grace + 12)
    assert v.job.generation == 1
    assert v.job.reason.startswith("waiting for nodes: waits")
    finding = next(f for f in v.incidents[-1].findings if f.kind is t.FindingKind.CAPACITY)
    assert "at most for node1: to go on with 3 nodes now would cost" in finding.text
    v.join("node1")
    trains_again(v, 2)
    assert started(v) == ((), 4)


def test_it_does_not_wait_longer_than_it_was_worth() -> None:
    v = planned(absences=(*[30.0] * 20, 5000.0))
    v.lose_node("node1")
    v.run(29.0)
    assert v.job.generation == 1
    v.run(8.0)
    assert v.job.generation == 2
    assert started(v) == (THREE.args, 3)


def test_the_decision_survives_the_controller() -> None:
    v = planned(absences=(*[60.0] * 20, 5000.0))
    v.lose_node("node1")
    v.run(v.options.agent_grace + 3)
    assert v.job.generation == 1
    v.saved["node", "old"] = v.brain.c.histories["old"].to_doc()
    v.restart_controller()
    v.run(25.0)
    assert v.job.generation == 1
    assert v.job.spec.layouts == (THREE, TWO)
    v.run(30.0)
    assert started(v) == (THREE.args, 3)


def test_a_second_loss_takes_the_next_layout_and_each_return_grows() -> None:
    v = planned()
    v.lose_node("node1")
    v.run(v.options.agent_grace + 8)
    v.lose_node("node2")
    v.run(v.options.agent_grace + 8)
    assert started(v) == (TWO.args, 2)
    assert "67% of the throughput predicted" in v.incidents[1].reason
    v.join("node2")
    v.run(20.0)
    assert started(v) == (THREE.args, 3)
    assert "planned for 3 nodes: pp=1 dp=12 tp=1, 150% of the throughput predicted" in v.incidents[2].reason
    v.join("node1")
    v.run(20.0)
    assert started(v) == ((), 4)
    assert "planned for 4 nodes: its own layout, 133% of the throughput predicted" in v.incidents[3].reason


def test_a_flapping_node_is_taken_later_each_time() -> None:
    v = planned(grow_after=10.0)
    waited = []
    for _ in range(3):
        v.lose_node("node1")
        v.run_until(lambda: len(v.job.nodes) == 3 and v.job.best_step > 0)
        v.run(5.0)
        v.join("node1")
        began = v.now
        v.run_until(lambda: len(v.job.nodes) == 4)
        waited.append(v.now - began)
        v.run(10.0)
    assert waited[0] == pytest.approx(10, abs=2)
    assert waited[1] == pytest.approx(20, abs=2)
    assert waited[2] == pytest.approx(40, abs=2)


def test_where_no_layout_is_planned_it_waits_and_says_so() -> None:
    v = planned()
    for name in ("node1", "node2", "node3"):
        v.lose_node(name)
    v.run(v.options.agent_grace + 20)
    assert v.job.generation == 1
    finding = next(f for f in v.incidents[-1].findings if f.kind is t.FindingKind.CAPACITY)
    assert "smaller layouts are planned for 2, 3 of 4 nodes" in finding.text


def test_a_layout_that_the_program_refuses_is_left_out() -> None:
    v = planned((THREE,))
    v.lose_node("node1")
    v.run_until(lambda: v.job.generation == 2)
    v.exit(0, code=2)
    v.run(v.options.agent_grace + 20)
    assert (v.job.state, v.job.generation, v.job.spec.node_counts) == (JobStatus.RECOVERING, 2, ())
    assert "refused the layout planned for 3 nodes (pp=1 dp=12 tp=1), which is left out" in v.incidents[-1].reason
    v.join("node1")
    trains_again(v, 3)
    assert started(v) == ((), 4)


def test_refused_at_its_first_start_the_full_size_is_tried_as_well() -> None:
    v = Virtual(nodes=3)
    v.submit(nnodes=4, node_counts=(3,), layouts=(THREE,))
    assert started(v) == (THREE.args, 3)
    v.exit(0, code=2)
    v.run(30.0)
    assert v.job.state is JobStatus.RECOVERING
    assert v.job.reason == "waiting for nodes: needs 4 nodes with 4 free slots each, has 3"
    assert "refused the layout planned for 3 nodes" in v.incidents[-1].reason
    v.restart_controller()
    v.agents["node3"] = FakeAgent("node3", 4)
    v.join("node3")
    v.run_until(lambda: v.job.generation == 2)
    assert started(v) == ((), 4)
    v.exit(0, code=2)
    v.run(3.0)
    assert v.job.state.value == "failed"  # it is the program's own arguments


def test_each_planned_layout_may_be_refused_before_the_full_size() -> None:
    """Not more often than `restart_attempts` would allow: each start has other arguments."""
    layouts = tuple(SizedLayout(n, n / 6, (f"--dp={n}",)) for n in range(1, 6))
    v = Virtual(nodes=5)
    v.submit(nnodes=6, node_counts=(1, 2, 3, 4, 5), layouts=layouts)
    for generation in range(1, 6):
        while v.job.generation < generation or v.job.state is not JobStatus.RUNNING:
            v.run(0.1)
            assert v.now < 300.0
        assert started(v) == ((f"--dp={6 - generation}",), 6 - generation)
        v.exit(0, code=2)
    v.run(3.0)
    assert (v.job.state, v.job.spec.node_counts) == (JobStatus.RECOVERING, ())
    assert "refused the layout planned for 1 nodes, which is left out" in v.incidents[-1].reason


def test_after_a_refusal_it_goes_on_with_the_next_smaller_layout() -> None:
    v = planned(absences=(30.0,) * 20)
    v.lose_node("node1")
    v.run_until(lambda: v.job.generation == 2, 400.0)
    v.exit(0, code=2)
    v.run(10.0)
    assert started(v) == (TWO.args, 2)
    # What was predicted of the refused layout still counts: 0.5 / 0.75.
    assert "planned for 2 nodes: pp=2 dp=4 tp=1, 67% of the throughput predicted" in v.incidents[-1].reason
    assert Job.from_doc(v.job.to_doc()).throughput_on(3) == THREE.throughput
    v.join("node1")
    v.run(20.0)
    assert started(v) == ((), 4)


def test_a_job_without_refusals_is_written_as_before_there_were_any() -> None:
    """Recordings have checksums of documents."""
    job = Job(JobSpec("j", "j", msg.Program("x"), 4, 1))
    assert "refused" not in job.to_doc()
    job.refused["3"] = 0.75
    assert job.to_doc()["refused"] == {"3": 0.75}


# --- what is waited for ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["cordoned", "evicted", "evicted by an operator"])
def test_nodes_that_wait_for_an_operator_are_not_waited_for(how: str) -> None:
    v = planned(absences=(30.0,) * 20)
    if how == "cordoned":
        v.feed(CordonRequested("node1", True))
        v.run(1.0)
    elif how == "evicted":
        recovery = v.brain.jobs.brains[v.job.spec.id].recovery
        recovery.evict("node1", "did not stop its workers", v.instant, quarantined=False)
    if how == "evicted by an operator":
        v.feed(EvictRequested("node1"))
    else:
        v.exit(0, code=1)
    v.run(5.0)
    trains_again(v, 2)
    assert started(v) == (THREE.args, 3)


def test_beside_a_cordoned_node_only_the_lost_one_is_waited_for() -> None:
    v = planned(absences=(30.0,) * 20)
    v.feed(CordonRequested("node2", True))
    v.lose_node("node1")
    v.run(v.options.agent_grace + 12)
    assert "at most for node1: to go on with 2 nodes" in v.job.reason
    v.join("node1")
    trains_again(v, 2)
    assert started(v) == (THREE.args, 3)


def test_a_node_that_is_lost_while_the_job_waits_is_given_up_as_well() -> None:
    """All were away for 30 s, so 60 s is the longest that is waited for the one that left last."""
    v = planned(absences=(30.0,) * 20)
    v.lose_node("node1")
    v.run(v.options.agent_grace + 2)
    v.lose_node("node2")
    v.run(v.options.agent_grace + 2)
    assert "at most for node1, node2: to go on with 2 nodes" in v.job.reason
    v.run(60.0)
    assert started(v) == (TWO.args, 2)


@pytest.mark.parametrize("seconds", [3.0, 15.0])
def test_the_wait_ends_after_the_controller_restarts_as_well(seconds: float) -> None:
    """Of a node that was lost for long, the journal knows when; of another, the wait counts."""
    v = planned(absences=(30.0,) * 20)
    v.lose_node("node1")
    v.run(v.options.agent_grace + 2)
    v.lose_node("node2")
    v.run(seconds)
    v.saved["node", "old"] = v.brain.c.histories["old"].to_doc()
    v.restart_controller()
    known = seconds > v.options.agent_grace
    assert ("node2" in v.brain.c.histories) is known
    v.run(40.0)
    assert v.job.generation == 1
    v.run(61.0 - 40.0 - (seconds if known else 0.0) + v.options.agent_grace)
    assert started(v) == (TWO.args, 2)


def test_two_that_are_lost_together_are_in_the_journal() -> None:
    v = planned(absences=(30.0,) * 20)
    at = v.instant.wall
    v.lose_node("node1")
    v.lose_node("node2")
    v.run(v.options.agent_grace + 3)
    assert [v.saved["node", name]["away_since"] for name in ("node1", "node2")] == [at, at]


def test_three_of_many_nodes_are_named() -> None:
    v = Virtual(nodes=8)
    v.brain.c.histories["old"] = History(absences=[(v.instant.wall - 1e5, 30.0)] * 20)
    v.submit(nnodes=8, node_counts=(2,), layouts=(TWO,))
    v.run(8.0)
    for n in range(1, 6):
        v.lose_node(f"node{n}")
    v.run(v.options.agent_grace + 12)
    assert "at most for node1, node2, node3 and 2 more: to go on" in v.job.reason


def test_a_refusal_at_full_size_ends_the_job_as_ever() -> None:
    v = Virtual(nodes=4)
    v.submit(nnodes=4, node_counts=(3,), layouts=(THREE,))
    v.exit(0, code=2)
    v.run(3.0)
    assert v.job.state is JobStatus.FAILED


def test_an_absence_is_remembered_and_a_blip_is_not() -> None:
    v = planned()
    v.kill_agent("node1")
    v.run(2.0)
    v.join("node1")
    assert v.brain.c.history("node1").absences == []
    v.lose_node("node1")
    v.run(100.0)
    v.join("node1")
    (absence,) = v.brain.c.history("node1").absences
    assert absence[1] == pytest.approx(100.0)
    assert History.from_doc(v.saved["node", "node1"]).absences == [absence]


def test_a_return_is_in_the_journal_where_the_absence_is() -> None:
    """A node's document that was written while it was away would be an absence of a day tomorrow."""
    v = planned()
    v.kill_agent("node1")
    v.feed(CordonRequested("node1", True))
    assert v.saved["node", "node1"]["away_since"] == v.instant.wall
    v.run(2.0)
    v.join("node1")
    assert v.saved["node", "node1"]["away_since"] == 0.0
    v.restart_controller(away=86_400.0)
    assert v.brain.c.history("node1").absences == []


def test_a_return_after_a_restart_is_in_the_journal_as_well() -> None:
    history = History()
    history.left(100.0)
    after = History.from_doc(history.kept())
    assert after.returned(105.0, 10.0)
    assert after.absences == []
    assert not after.returned(200.0, 10.0)


def test_what_was_in_no_journal_needs_no_return_there() -> None:
    history = History()
    history.left(100.0)
    assert not history.returned(105.0, 10.0)


def test_a_controller_that_ends_notes_no_absence() -> None:
    """All agents leave when it does."""
    v = planned()
    for name in v.agents:
        v.kill_agent(name)
    assert not [key for key in v.saved if key[0] == "node"]


def test_a_repair_of_an_evicted_node_is_an_absence_as_well() -> None:
    history = History()
    history.evict("its GPU fell off the bus", 1000.0, quarantined=True)
    history.reset(4600.0)
    assert history.absences == [(4600.0, 3600.0)]
    history.reset(5000.0)
    assert len(history.absences) == 1


def test_layouts_come_back_from_the_journal() -> None:
    job = Job(JobSpec("j", "j", msg.Program("x"), 4, 1, node_counts=(3, 2), layouts=(THREE, TWO)))
    assert Job.from_doc(job.to_doc()).spec == job.spec


@pytest.mark.parametrize(
    ("layouts", "text"),
    [
        ((THREE,), r"layouts must be one for each of node_counts, \[3, 2\], not for \[3\]"),
        ((THREE, THREE), r"not for \[3, 3\]"),
        ((THREE, dataclasses.replace(TWO, throughput=0.0)), "throughput on 2 nodes must be a share"),
        ((THREE, dataclasses.replace(TWO, throughput=1.5)), "not 1.5"),
    ],
)
def test_layouts_that_fit_no_job_are_refused(layouts: tuple[SizedLayout, ...], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        check_size(JobSpec("j", "j", msg.Program("x"), 4, 1, node_counts=(3, 2), layouts=layouts))


@pytest.mark.parametrize("control", ["\n", "\r", "\0", "\x1b[2J", "\x7f", "\x85", "\u2028"])
@pytest.mark.parametrize("field", ["text", "args"])
def test_layouts_are_of_one_line(field: str, control: str) -> None:
    AskedLayout(nodes=3, throughput=0.5, args=["--name", "Übung 7", ""], text="pp=1 dp=12 · tp=1")
    for value in (control, f"dp=12{control}", f"dp{control}=12"):
        with pytest.raises(ValidationError, match="should match pattern"):
            AskedLayout.model_validate({"nodes": 3, "throughput": 0.5, field: [value] if field == "args" else value})
