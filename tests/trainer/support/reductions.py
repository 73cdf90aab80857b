"""What forked ranks do in the tests of reductions: steps whose sums of gradients arrive as late as they may."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import torch.distributed as dist
from joining import Joined, joined
from torch.distributed.fsdp import fully_shard

from holdfast.plan.plan import COMPUTE, Op
from holdfast.trainer.optim import replicas
from holdfast.trainer.pipeline import shared_state
from holdfast.trainer.pipeline.stage import Stage

PATIENCE_S = 120.0


class Progress:
    """The computations of a step that have begun and ended, of those that there are."""

    def __init__(self, count: int) -> None:
        self.count, self.begun, self.ended = count, 0, 0
        self.moved = threading.Condition()
        for name in ("forward", "backward", "backward_input", "backward_weight"):
            self._watch(name)

    def _watch(self, name: str) -> None:
        original = getattr(Stage, name)

        def watched(*args: Any, **named: Any) -> Any:
            with self.moved:
                self.begun += 1
                self.moved.notify_all()
            result = original(*args, **named)
            with self.moved:
                self.ended += 1
                self.moved.notify_all()
            return result

        setattr(Stage, name, watched)

    def restart(self) -> None:
        with self.moved:
            self.begun = self.ended = 0

    def wait_beyond(self, begun: int) -> bool:
        """Until another computation has begun, or all have ended. False if that does not come."""
        with self.moved:
            return self.moved.wait_for(lambda: self.begun > begun or self.ended == self.count, PATIENCE_S)


def late(folder: Path, argv: list[str], steps: int) -> dict[str, Any]:
    """Losses, and how many sums could not arrive: each arrives once the rank has gone on to compute. Sums that began
    before the rank's last computation had. And gatherings, in the plan and on the wire."""
    with joined(argv) as rank:
        trainer, progress = _watched(rank)
        planned = steps * sum(action.op is Op.UNSHARD for action in trainer.plan.order_of(rank.launch.rank))
        found = {"sums": 0, "early": 0, "stuck": 0, "planned": planned, "gathered": 0}
        name = "all_gather_single" if hasattr(dist, "all_gather_single") else "all_gather_into_tensor"
        gather = getattr(dist, name)

        def gathered(*args: Any, **named: Any) -> Any:
            found["gathered"] += 1
            return gather(*args, **named)

        setattr(dist, name, gathered)
        original = dist.all_to_all_single

        def exchanged(*args: Any, **named: Any) -> Any:
            work, begun = original(*args, **named), progress.begun
            found["sums"] += 1
            found["early"] += begun < progress.count

            class Late(dist.Work):
                def wait(self, *args: Any) -> bool:
                    found["stuck"] += not progress.wait_beyond(begun)
                    return bool(work.wait())

            return Late()

        dist.all_to_all_single = exchanged
        losses = []
        for step in range(steps):
            progress.restart()
            losses.append(trainer.step(step).loss.hex())
        return {"losses": losses, **found}


def usual(folder: Path, argv: list[str], steps: int) -> dict[str, Any]:
    """Losses of the same steps over the network as it is."""
    with joined(argv) as rank:
        trainer = rank.trainer()
        return {"losses": [trainer.step(step).loss.hex() for step in range(steps)]}


def on_streams(folder: Path, argv: list[str]) -> dict[str, Any]:
    """As on a GPU, where FSDP's own collective is used, and FSDP's end of a backward is where the compute stream waits
    for its sums: how many computations of a step had ended then, and each time one began to be reduced."""
    replicas._talk_over_gloo = lambda *_: None
    with joined(argv) as rank:
        trainer, progress = _watched(rank)
        ended: dict[str, list[int]] = {"waits": [], "reductions": []}
        trainer.step(0)
        for stage in trainer.stages:
            state = fully_shard.state(stage)  # type: ignore[attr-defined]  # torch's
            for group in shared_state._all_groups(state):
                for name, notes in (("finalize_backward", "waits"), ("post_backward", "reductions")):
                    _note(group, name, ended[notes], progress)
        progress.restart()
        trainer.step(1)
        return {**ended, "count": progress.count}


def _note(owner: Any, name: str, notes: list[int], progress: Progress) -> None:
    original = getattr(owner, name)

    def noted(*args: Any) -> Any:
        if name == "finalize_backward" or owner.reduce_grads:
            notes.append(progress.ended)
        return original(*args)

    setattr(owner, name, noted)


def _watched(rank: Joined) -> tuple[Any, Progress]:
    trainer = rank.trainer()
    order = trainer.plan.order_of(rank.launch.rank)
    return trainer, Progress(sum(action.op in COMPUTE for action in order))
