"""A trainer whose messages are late at random: what it learns, and in which order its rank computed."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

from executing import digested
from joining import joined

from holdfast.plan.plan import Action, Op
from holdfast.trainer.pipeline.messages import Messages
from holdfast.trainer.pipeline.stage import Stage

HELD_S = 120.0
"""So long a message is held at most."""


def late(folder: Path, argv: list[str], steps: int, seed: int, most_s: float, held_until: int = 0) -> dict[str, Any]:
    """Losses and digests of gradients of each step; of each step, what was computed, as ["F", 3]; the most that were
    under way. Each message leaves up to `most_s` late, by seed, rank and message: no two runs of different
    seeds are alike. With `held_until`, no gradient leaves before so many micro-batches were under way on a rank."""
    done: list[list[Any]] = []
    under_way = most = 0
    enough = folder / "enough"
    with joined(argv) as rank:
        send, forward, backward = Messages.send, Stage.forward, Stage.backward
        rng = random.Random(f"{seed}:{rank.launch.rank}")

        def send_late(self: Messages, action: Action, tensors: Any) -> None:
            if held_until and action.op is Op.SEND_BACKWARD:
                give_up = time.monotonic() + HELD_S
                while not enough.exists() and time.monotonic() < give_up:
                    time.sleep(0.001)
            time.sleep(rng.uniform(0, most_s))
            send(self, action, tensors)

        def seen_forward(self: Stage, action: Action, *rest: Any) -> Any:
            nonlocal under_way, most
            done[-1].append([action.op, action.micro_batch])
            under_way += 1
            most = max(most, under_way)
            if most == held_until:
                enough.touch()
            return forward(self, action, *rest)

        def seen_backward(self: Stage, action: Action, *rest: Any) -> Any:
            nonlocal under_way
            done[-1].append([action.op, action.micro_batch])
            under_way -= 1
            return backward(self, action, *rest)

        Messages.send = send_late  # type: ignore[method-assign]
        Stage.forward, Stage.backward = seen_forward, seen_backward  # type: ignore[method-assign]
        trainer = rank.trainer()
        losses, digests = [], digested(trainer)
        for step in range(steps):
            done.append([])
            losses.append(trainer.step(step).loss.hex())
        return {"losses": losses, "digests": digests, "done": done, "most": most}
