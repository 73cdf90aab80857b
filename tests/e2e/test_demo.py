"""The demo of the README: a run with every kind of fault ends with the losses of an undisturbed one."""

import json
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.agent.node.checkpoints import snapshots_dir
from holdfast.agent.workers.workers import shared_dir
from tests.e2e.daemons import Commands, Json, commands, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

STEPS = 42
DEADLINE_S = 280.0
SMALL = ("--nproc", "2")
"""Two workers a node, pp 2 x dp 2: a step takes less than half of what it takes with eight, and shows as much."""


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    with commands(tmp_path_factory.mktemp("demo")) as one:
        yield one


def demo(stage: Commands, *faults: str, steps: int = STEPS, more: tuple[str, ...] = ()) -> Json:
    asked = [part for fault in faults for part in ("--fault", fault)]
    done = stage.run("demo", "--steps", str(steps), *asked, *more, "--json", deadline_s=DEADLINE_S)
    assert done.process.returncode == 0, done.err[-6000:]
    assert done.out.count("\n") == 1
    assert "Traceback" not in done.err
    found: Json = json.loads(done.out)
    assert stage.left() == []
    check_shape(found, steps)
    return found


def check_shape(found: Json, steps: int) -> None:
    """As the design's contract has it."""
    assert found.keys() == {"steps", "incidents", "goodput"}
    assert [row["step"] for row in found["steps"]] == list(range(steps))
    for row in found["steps"]:
        assert row.keys() == {"step", "loss", "seconds"}
        assert row["loss"] > 0
        assert row["seconds"] > 0
    for incident in found["incidents"]:
        assert incident.keys() == {"id", "kind", "culprit", "detect_s", "recover_s", "source", "action"}
        assert incident["detect_s"] >= 0
        assert incident["recover_s"] >= 0
    assert 0 < found["goodput"] <= 1


def losses(found: Json) -> list[float]:
    return [row["loss"] for row in found["steps"]]


def reported(found: Json) -> list[tuple[str, str]]:
    return [(incident["kind"], incident["culprit"]) for incident in incidents(found)]


def incidents(found: Json) -> list[Json]:
    """Without what a busy machine rightly has and nothing was done about: the suspicion of an agent that was kept from
    speaking, a worker that was slow among eight on two cores."""
    idle = ("node-silent", "watch"), ("straggler", "alert")
    return [one for one in found["incidents"] if (one["kind"], one["action"]) not in idle]


@pytest.fixture(scope="module")
def calm(stage: Commands) -> list[float]:
    """Losses of the small run, which nothing disturbed."""
    found = demo(stage, more=SMALL)
    assert incidents(found) == []
    # It learns: the end is well below the beginning.
    assert found["steps"][-1]["loss"] < found["steps"][0]["loss"] - 1
    return losses(found)


def test_a_killed_worker_a_killed_agent_and_a_stopped_worker(stage: Commands) -> None:
    """As the README has it: eight workers, pp 2 x dp 2 x tp 2."""
    calm = demo(stage)
    assert incidents(calm) == []
    # The agent that stops rank 6 is the one that was killed: many steps are left for it to come back in.
    found = demo(stage, "kill@5:rank3", "agent-kill@9:node1", "stop@33:rank6")
    assert reported(found) == [("worker-killed", "rank3"), ("agent-exit", "node1"), ("worker-stopped", "rank6")]
    assert [i["action"] for i in incidents(found)] == ["restart", "watch", "restart"]
    assert [i["source"] for i in incidents(found)] == ["memory", None, "memory"]
    assert losses(found) == losses(calm)


def test_a_killed_node_comes_back_from_its_peer(stage: Commands, calm: list[float]) -> None:
    """Agent, workers, checkpoint daemon and all that was in the node's memory."""
    found = demo(stage, "node-kill@12:node1", steps=30, more=SMALL)
    assert reported(found) == [("agent-exit", "node1")]
    assert [(i["action"], i["source"]) for i in incidents(found)] == [("restart", "peer")]
    assert losses(found) == calm[:30]


def test_a_lost_node_is_evicted_and_a_spare_takes_its_place(stage: Commands, calm: list[float]) -> None:
    found = demo(stage, "node-kill@12:node0", steps=30, more=(*SMALL, "--spares", "1"))
    assert reported(found) == [("agent-exit", "node0")]
    assert [(i["action"], i["source"]) for i in incidents(found)] == [("evict", "peer")]
    assert losses(found) == calm[:30]


def test_without_a_spare_it_goes_on_with_fewer_replicas_and_the_same_batch(stage: Commands, calm: list[float]) -> None:
    """Losses agree to rounding: sums over other numbers of replicas are taken in another order."""
    found = demo(stage, "node-kill@8:node1", steps=16, more=(*SMALL, "--min-nodes", "1"))
    assert [(i["action"], i["culprit"]) for i in incidents(found)] == [("shrink", "node1")]
    assert losses(found) == pytest.approx(calm[:16], rel=1e-5)


def test_the_controller_killed_at_any_moment(stage: Commands, calm: list[float]) -> None:
    """Some moments by chance, one right after a worker's death, that is within its recovery."""
    rng = random.Random(20260)
    quiet = rng.randrange(2, 9), rng.randrange(26, 36)
    faults = ["kill@16:rank2", "controller-kill@16", *(f"controller-kill@{step}" for step in quiet)]
    found = demo(stage, *faults, steps=42, more=SMALL)
    assert losses(found) == calm[:42]
    # Events during an open incident are part of it, but a controller's death never explains a worker's.
    assert ("worker-killed", "rank2") in reported(found)
    assert {kind for kind, _ in reported(found)} <= {"worker-killed", "controller-restart"}


OTHERS = {
    "segfault@6:rank0": ("worker-segfault", "rank0"),
    "oom@11:rank1": ("worker-oom", "rank1"),
    "exception@16:rank2": ("worker-exception", "rank2"),
    "nan@21:rank3": ("loss-nonfinite", "rank3"),
    "gil@26:rank0": ("worker-hang", "rank0"),
    "hang@31:rank1": ("worker-hang", "rank1"),
    "exit@36:rank2": ("worker-exit", "rank2"),
}


def test_every_other_way_to_break_a_worker(stage: Commands, calm: list[float]) -> None:
    steps = 42
    found = demo(stage, *OTHERS, steps=steps, more=SMALL)
    assert losses(found) == calm[:steps]
    expected = dict(OTHERS)
    if "worker-oom" not in {
        kind for kind, _ in reported(found)
    }:  # a kernel that gives us no memory group to be killed in
        expected["oom@11:rank1"] = ("worker-exception", "rank1")
    assert reported(found) == list(expected.values())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda n: n.name)
def test_ctrl_c_leaves_nothing_behind(holdfast: Commands, tmp_path: Path, number: signal.Signals) -> None:
    state = tmp_path / "state"
    command = holdfast.start("demo", "--nproc", "2", "--steps", "100000", "--state-dir", str(state))
    command.says("/100000  loss", 120)  # the first line of progress: which step it shows is chance
    assert len(holdfast.left()) >= 8  # the command, its daemons, their fork servers, workers
    folders = [shared_dir(state / f"node{n}") for n in range(2)]
    folders += [snapshots_dir(state / f"node{n}", f"node{n}") for n in range(2)]
    assert all(folder.is_dir() for folder in folders)
    os.killpg(command.process.pid, number)  # as a terminal does
    assert command.wait(60) == 128 + number
    assert "Traceback" not in command.err
    wait_for(lambda: holdfast.left() == [], 5, lambda: holdfast.left())
    assert not any(folder.exists() for folder in folders)
