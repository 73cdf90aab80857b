"""What is still in memory of the messages that a rank has sent."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

from joining import joined

from holdfast.plan.plan import Op
from holdfast.trainer.pipeline.messages import Messages
from holdfast.trainer.pipeline.stage import Stage


def alive(folder: Path, argv: list[str]) -> list[int]:
    """Activations sent forward that are in memory after each backward of the second step."""
    sent: list[weakref.ref[Any]] = []
    found: list[int] = []
    with joined(argv) as rank:
        trainer = rank.trainer()
        trainer.step(0)
        send, backward = Messages.send, Stage.backward

        def noted_send(self: Messages, action: Any, tensors: Any) -> None:
            if action.op is Op.SEND_FORWARD:
                sent.extend(weakref.ref(tensor.untyped_storage()) for tensor in tensors)
            send(self, action, tensors)

        def counted_backward(self: Stage, *args: Any) -> Any:
            grads = backward(self, *args)
            gc.collect()
            found.append(sum(one() is not None for one in sent))
            return grads

        Messages.send, Stage.backward = noted_send, counted_backward  # type: ignore[method-assign]
        trainer.step(1)
    return found
