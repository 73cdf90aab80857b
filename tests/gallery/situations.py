"""The situations that somebody may be paged about, and what a person must know after ten seconds of each."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.simulated_spans import Culprit
from holdfast.controller.state.events import EventSeen, JobSubmitted
from holdfast.controller.state.model import JobSpec, Options
from holdfast.wire import messages as msg
from holdfast.wire import types as t
from tests.controller.support.virtual import Virtual
from tests.gallery.stage import Scene

TRACEBACK = 'Traceback (most recent call last):\n  File "train.py", line 88, in <module>\nValueError: bad batch 1207\n'


@dataclass(frozen=True, slots=True)
class Situation:
    name: str
    condition: str
    """That leads; empty: the controller does not answer."""
    well: str
    """Is it well?"""
    who: str
    """Who is it? Empty: nobody."""
    todo: str
    """What to do."""
    build: Callable[[Path], Scene]
    fires: bool = False
    """Does a receiver have an open message of it?"""
    says: tuple[str, ...] = ()
    """Words that every surface must have: who, what, what to do."""


def started(folder: Path, nodes: int = 3, options: Options | None = None, **more: object) -> Scene:
    """A job on two nodes that has trained for 20 s."""
    scene = Scene(folder, Virtual(nodes=nodes, options=options))
    scene.v.submit(nnodes=2, **{"max_steps": 5000, **more})  # type: ignore[arg-type]
    scene.run(20)
    return scene


def calm(folder: Path) -> Scene:
    return started(folder)


def straggler(share: float) -> Callable[[Path], Scene]:
    def build(folder: Path) -> Scene:
        scene = started(folder)
        scene.slow(Culprit(6, "compute", share))
        scene.run(2)
        return scene

    return build


def save_on_rank_0(folder: Path) -> Scene:
    scene = started(folder)
    worker = scene.v.worker(0)
    worker.sleeping_at, worker.busy_until = scene.v.now, math.inf
    scene.run(25)
    return scene


def hang(folder: Path) -> Scene:
    """Rank 5 does not come to the all-reduce, and Holdfast has not found out why yet."""
    scene = started(folder)
    scene.v.sleep_worker(5)
    scene.run(14)
    return scene


def lost_with_a_spare(folder: Path) -> Scene:
    scene = started(folder)
    scene.v.lose_node("node1")
    scene.v.run_until(lambda: (scene.report.health() or {})["condition"] == "recovering")
    scene.look()
    return scene


def lost_without_a_spare(folder: Path) -> Scene:
    scene = started(folder, nodes=2)
    scene.v.lose_node("node1")
    scene.run(40)
    return scene


def failed(folder: Path) -> Scene:
    scene = started(folder, max_restarts=0)
    scene.v.exit(3, code=1, error=TRACEBACK)
    scene.run(30)
    return scene


def no_checkpoint(folder: Path) -> Scene:
    scene = started(folder)
    scene.v.checkpoint_every = 10**9
    scene.v.exit(3, signal=9)
    scene.run(15)
    return scene


def store_down(folder: Path) -> Scene:
    scene = started(folder)
    scene.v.brain.c.nodes["node0"].host["checkpoint_failing"] = 1.0
    text = "checkpoints of job j1 cannot be stored: No space left on device; retrying, the snapshots wait in memory"
    notice = t.AgentNotice(int(scene.v.instant.wall * 1e9), "checkpoint-store", t.Severity.WARNING, text)
    scene.v.feed(EventSeen("node0", notice))
    scene.run(40)
    return scene


def queue(folder: Path) -> Scene:
    scene = started(folder)
    scene.v.feed(JobSubmitted(JobSpec("j2", "second", msg.Program("train.py"), 2, 4)))
    scene.run(15)
    return scene


def finished(folder: Path) -> Scene:
    scene = Scene(folder, Virtual(nodes=3))
    scene.v.last_step = 49
    scene.v.submit(nnodes=2, max_steps=50)
    scene.run(30)
    return scene


SITUATIONS = (
    Situation("calm", "well", "It is well.", "", "Nothing.", calm, says=("Training normally",)),
    Situation("straggler of 2%", "slow", "It trains, 2% too slow.", "Rank 6 on node1.", "Test node1.",
              straggler(0.07), fires=True, says=("Rank 6 on node1", "2% longer", "holdfast diagnose node1")),
    Situation("straggler of 10%", "slow", "It trains, 10% too slow.", "Rank 6 on node1.", "Test node1.",
              straggler(0.32), fires=True, says=("Rank 6 on node1", "10% longer", "holdfast diagnose node1")),
    Situation("save on rank 0", "paused", "It pauses, and goes on by itself.", "Rank 0: it works.", "Nothing.",
              save_on_rank_0, says=("Paused", "rank 0", "busy", "Nothing to do")),
    Situation("hang", "paused", "It stands still, and is restarted if it stays so.", "Rank 5: it waits for a lock.",
              "Nothing.", hang, says=("Paused", "idle", "rank 5", "restarted after 60 s", "Nothing to do")),
    Situation("node lost, with a spare", "recovering", "It comes back by itself, on the spare.", "node1.", "Nothing.",
              lost_with_a_spare, says=("Recovering", "node1", "Nothing to do")),
    Situation("node lost, without a spare", "waiting for nodes", "It stands still until there is a node.", "node1.",
              "Add a node.", lost_without_a_spare, fires=True,
              says=("Waiting for nodes", "node1", "needs 2 nodes", "Add nodes", "holdfast nodes")),
    Situation("failed by an exception", "failed", "It is over.", "Rank 3 on node0, by a ValueError.",
              "Correct the cause, start it again.", failed, fires=True,
              says=("on node0, rank 3", "ValueError: bad batch 1207", "start the job again")),
    Situation("no checkpoint", "at risk", "It trains, from step 0 again.", "Nobody: no store is configured.",
              "Give it a checkpoint store.", no_checkpoint, fires=True,
              says=("lost all", "no checkpoint is configured", "--store")),
    Situation("store down", "at risk", "It trains, but nothing new is stored.", "The checkpoint store.",
              "Bring the store back.", store_down, fires=True,
              says=("No space left on device", "Bring the checkpoint store back")),
    Situation("queue", "waiting for nodes", "It waits for its turn.", "Nobody: another job has the nodes.", "Nothing.",
              queue, says=("Waiting for nodes", "Nothing to do")),
    Situation("finished", "finished", "It is over, and it is well.", "", "Nothing.", finished,
              says=("Finished after 50 steps", "Nothing to do")),
    Situation("controller lost", "", "It trains on, and nobody watches it.", "The controller.",
              "Start the controller again.", calm),
)  # fmt: skip
BY_NAME = {one.name: one for one in SITUATIONS}
