"""The demo of the README: a run with every kind of fault ends with the losses of an undisturbed one."""

import json
import random
from collections.abc import Iterator

import pytest

from tests.e2e.daemons import Commands, Json, commands

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

STEPS = 42
DEADLINE_S = 280.0
SMALL = ("--nproc", "2")
"""Two workers a node, pp 2 x dp 2: a step takes less than half of what it takes with eight, and shows as much."""


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    with commands(tmp_path_factory.mktemp("demo")) as one:
        yield one


def demo(stage: Commands, *faults: str, more: tuple[str, ...] = SMALL) -> Json:
    asked = [part for fault in faults for part in ("--fault", fault)]
    argv = ("demo", "--steps", str(STEPS), *asked, *more, "--json")
    done = stage.run(*argv, deadline_s=DEADLINE_S)
    assert done.process.returncode == 0, done.err[-6000:]
    assert done.out.count("\n") == 1
    assert "Traceback" not in done.err
    found: Json = json.loads(done.out)
    assert stage.left() == []
    check_shape(found, STEPS)
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
    """Losses of a run that nothing disturbed."""
    found = demo(stage)
    assert incidents(found) == []
    # It learns: the end is well below the beginning.
    assert found["steps"][-1]["loss"] < found["steps"][0]["loss"] - 1
    return losses(found)


def test_a_killed_worker_agent_and_node_and_a_stopped_worker(stage: Commands, calm: list[float]) -> None:
    """As the README has it: eight workers, pp 2 x dp 2 x tp 2. With a node go its agent, workers, checkpoint daemon and
    all that was in its memory: it comes back from its peer."""
    # The agent that stops rank 6 is the one that was killed: many steps are left for it to come back in.
    found = demo(stage, "kill@5:rank3", "agent-kill@9:node1", "stop@33:rank6", "node-kill@38:node1", more=())
    assert reported(found) == [
        ("worker-killed", "rank3"),
        ("agent-exit", "node1"),
        ("worker-stopped", "rank6"),
        ("agent-exit", "node1"),
    ]
    assert [i["action"] for i in incidents(found)] == ["restart", "watch", "restart", "restart"]
    assert [i["source"] for i in incidents(found)] == ["memory", None, "memory", "peer"]
    # Of four workers, whose sums are taken in another order. To the last bit losses are compared below.
    assert losses(found) == pytest.approx(calm, rel=1e-5)


def test_a_lost_node_is_replaced_by_a_spare_and_without_one_there_are_fewer_replicas(
    stage: Commands, calm: list[float]
) -> None:
    """The batch stays the same: with fewer replicas losses agree to rounding, as sums are taken in another order."""
    second, flags = 26, (*SMALL, "--spares", "1", "--min-nodes", "1")
    found = demo(stage, "node-kill@12:node0", f"node-kill@{second}:node1", more=flags)
    first, last = incidents(found)
    assert (first["kind"], first["culprit"], first["action"], first["source"]) == (
        "agent-exit",
        "node0",
        "evict",
        "peer",
    )
    assert (last["kind"], last["culprit"], last["action"]) == ("agent-exit", "node1", "shrink")
    assert losses(found)[:second] == calm[:second]
    assert losses(found) == pytest.approx(calm, rel=1e-5)


def test_the_controller_killed_at_any_moment(stage: Commands, calm: list[float]) -> None:
    """Some moments by chance, one right after a worker's death, that is within its recovery."""
    rng = random.Random(20260)
    quiet = rng.randrange(2, 9), rng.randrange(26, 36)
    faults = ["kill@16:rank2", "controller-kill@16", *(f"controller-kill@{step}" for step in quiet)]
    found = demo(stage, *faults)
    assert losses(found) == calm
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
    found = demo(stage, *OTHERS)
    assert losses(found) == calm
    expected = dict(OTHERS)
    if "worker-oom" not in {
        kind for kind, _ in reported(found)
    }:  # a kernel that gives us no memory group to be killed in
        expected["oom@11:rank1"] = ("worker-exception", "rank1")
    assert reported(found) == list(expected.values())
