"""Diagnoses through the brain: which nodes may be asked, what is kept, what comes back after a restart."""

import json
from dataclasses import dataclass, field

import pytest

from holdfast.base.errors import Conflict, UsageError
from holdfast.controller.brain.cluster_brain import ClusterBrain
from holdfast.controller.state.events import (
    Action,
    AgentJoined,
    AgentLeft,
    DiagnoseRequested,
    JobSubmitted,
    Record,
    ResultSeen,
    Send,
    Tick,
)
from holdfast.controller.state.model import Instant, JobSpec
from holdfast.diagnostics.catalog.verdicts import Grade
from holdfast.wire import messages as msg
from holdfast.wire import types as t
from tests.controller.support.measured import Bench, Machine


@dataclass
class Hall:
    """A brain with nodes that answer checks as `machines` say."""

    machines: dict[str, Machine]
    brain: ClusterBrain = field(default_factory=lambda: ClusterBrain("b1"))
    now: float = 1000.0
    records: dict[tuple[str, str], dict[str, object]] = field(default_factory=dict)
    asked: list[msg.RunCheck] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.bench = Bench(self.machines)
        for name in self.machines:
            self.join(name)

    def join(self, name: str) -> None:
        # The address names the node, so that the bench knows the server of a pair's client.
        identity = t.Identity(name, name, f"i-{name}", slots=1, switch="s0", boot_id=f"boot-{name}", address=name)
        self.feed(AgentJoined(msg.Hello(identity)))

    @property
    def instant(self) -> Instant:
        return Instant(self.now, 1e9 + self.now)

    def feed(self, event: object) -> list[Action]:
        actions = self.brain.handle(event, self.instant)  # type: ignore[arg-type]
        for action in actions:
            if isinstance(action, Record):
                self.records[action.kind, action.id] = action.doc
        return actions

    def play(self, actions: list[Action]) -> None:
        """Answer every check, and the checks that follow from the answers."""
        while actions:
            self.now += 1.0
            answers = [
                self.answer(a) for a in actions if isinstance(a, Send) and isinstance(a.command.order, msg.RunCheck)
            ]
            actions = [new for answer in answers for new in self.feed(answer)]

    def answer(self, send: Send) -> ResultSeen:
        order = send.command.order
        assert isinstance(order, msg.RunCheck)
        self.asked.append(order)
        options = json.loads(order.options)
        results = [self.bench._one(name, send.node, options) for name in order.checks]
        lines = "\n".join(r.to_json() for r in results)
        return ResultSeen(send.node, msg.CommandResult(send.command.id, True, data={"results": lines}))

    def diagnose(self, *nodes: str, id: str = "d1", **more: object) -> None:
        self.play(self.feed(DiagnoseRequested(id, nodes, **more)))  # type: ignore[arg-type]


def hall(n: int = 6, **bad: Machine) -> Hall:
    return Hall({f"n{i}": bad.get(f"n{i}", Machine()) for i in range(n)})


def test_from_the_wish_to_the_verdict() -> None:
    here = hall(n2=Machine(link=0.3))
    here.diagnose()
    outcome = here.brain.diagnoses.outcome("d1")
    assert outcome is not None
    assert outcome.failed == ("n2",)
    assert set(outcome.cleared) == {"n0", "n1", "n3", "n4", "n5"}
    (doc,) = here.brain.diagnoses.all_docs()
    assert (doc["state"], doc["failed"], doc["why"]) == ("done", ["n2"], "by an operator")
    states = {(r["node"], r["test"], r["metric"]): r["grade"] for r in here.brain.diagnoses.rows()}
    assert states["n2", "pair", "bandwidth"] == "fail"
    assert states["n0", "pair", "bandwidth"] == "pass"


def test_a_policy_asks_for_a_suspect_and_gets_its_verdict() -> None:
    here = hall(n2=Machine(wrong=True))
    begun = here.brain.diagnoses.begin("i7", ["n2"], "quick", (), False, "incident i7", here.instant)
    assert here.brain.diagnoses.outcome("i7") is None
    here.play(begun)
    outcome = here.brain.diagnoses.outcome("i7")
    assert outcome is not None
    assert outcome.failed == ("n2",)
    assert {v.node for v in outcome.verdicts} == {"n2"}


def test_figures_are_kept_over_a_restart_and_compared_with() -> None:
    here = hall(4)
    for number in range(4):
        here.diagnose(id=f"d{number}", tests=("memory",))
    again = Hall({name: Machine(speed=1.0) for name in here.machines}, ClusterBrain("b2"))
    again.brain = ClusterBrain("b2")
    documents = [(kind, key, json.loads(json.dumps(doc))) for (kind, key), doc in here.records.items()]
    again.brain.restore(documents, [], again.instant)
    for name in again.machines:
        again.join(name)
    assert [doc["id"] for doc in again.brain.diagnoses.all_docs()] == ["d3", "d2", "d1", "d0"]
    again.diagnose(id="d9", tests=("memory",))
    outcome = again.brain.diagnoses.outcome("d9")
    assert outcome is not None
    assert all(v.grade is Grade.PASS for v in outcome.verdicts)
    assert len(again.brain.diagnoses.past["n0"]["memory/bandwidth/"]) == 5


def with_job(here: Hall) -> Hall:
    here.feed(JobSubmitted(JobSpec("j", "job", msg.Program("train.py"), nnodes=2, nproc=1)))
    answer = msg.CommandResult("b1-1", True, data={"host": "h", "port": "1"})
    here.feed(ResultSeen("n0", answer))
    assert here.brain.jobs.newest.c.job is not None
    assert here.brain.jobs.newest.c.job.nodes == ["n0", "n1"]
    return here


def test_nodes_that_train_are_left_alone() -> None:
    here = with_job(hall(5))
    here.diagnose(tests=("memory",))
    (doc,) = here.brain.diagnoses.all_docs()
    assert doc["nodes"] == ["n2", "n3", "n4"]
    with pytest.raises(Conflict, match="n0 is training"):
        here.feed(DiagnoseRequested("d2", ("n0",)))
    here.diagnose("n0", id="d3", tests=("memory",), busy=True)
    assert here.brain.diagnoses.all_docs()[0]["nodes"] == ["n0"]


def test_partners_are_never_taken_from_a_job() -> None:
    here = with_job(hall(5))
    here.diagnose("n4", tests=("pair",))
    addresses = {json.loads(order.options)["address"] for order in here.asked}
    assert not addresses & {"n0", "n1"}


@pytest.mark.parametrize(
    ("event", "says"),
    [
        (DiagnoseRequested("d1", ("n9",)), "no node is called 'n9'"),
        (DiagnoseRequested("d1", (), "long"), "quick or full"),
        (DiagnoseRequested("d1", (), "quick", ("gem",)), "did you mean gemm"),
    ],
)
def test_bad_wishes_are_refused(event: DiagnoseRequested, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        hall(2).feed(event)


def test_a_node_that_is_away_is_refused_and_one_that_is_diagnosed_already() -> None:
    here = hall(3)
    here.feed(AgentLeft("n1", "i-n1"))
    with pytest.raises(UsageError, match="n1 is not connected"):
        here.feed(DiagnoseRequested("d1", ("n1",)))
    here.feed(DiagnoseRequested("d2", ("n0",)))
    with pytest.raises(UsageError, match="is already being diagnosed"):
        here.feed(DiagnoseRequested("d3", ("n0",)))


def test_no_node_to_diagnose() -> None:
    with pytest.raises(UsageError, match="no node is connected"):
        Hall({}).feed(DiagnoseRequested("d1"))


def test_a_diagnosis_ends_when_all_its_nodes_leave_or_hang() -> None:
    here = hall(2)
    here.feed(DiagnoseRequested("d1"))
    here.feed(AgentLeft("n1", "i-n1"))
    for _ in range(120):
        here.now += 1
        here.feed(Tick())
    outcome = here.brain.diagnoses.outcome("d1")
    assert outcome is not None
    assert outcome.failed == ()
    assert here.brain.diagnoses.running == {}
    assert here.brain.diagnoses._commands == {}


def test_a_late_answer_and_rubbish_change_nothing() -> None:
    here = hall(2)
    sends = [a for a in here.feed(DiagnoseRequested("d1", tests=("memory",))) if isinstance(a, Send)]
    rubbish = msg.CommandResult(sends[0].command.id, True, data={"results": "not json\n[]"})
    here.feed(ResultSeen(sends[0].node, rubbish))
    here.play(list(sends[1:]))
    for _ in range(60):
        here.now += 1
        here.feed(Tick())
    assert here.brain.diagnoses.outcome("d1") is not None
    assert here.feed(here.answer(sends[1])) == []
