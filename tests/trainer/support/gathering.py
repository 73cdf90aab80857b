"""What forked ranks do in the test of prefetching: a step, with a note of each gather and each computation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from joining import joined

from holdfast.trainer.mesh import collectives
from holdfast.trainer.optim.replicas import units_of


def gathers(folder: Path, argv: list[str]) -> dict[str, Any]:
    """Of the second step: `gather N` when unit N's parameters are on their way, `forward N` and `backward N` when it
    has computed. Units count in the order of forward; -1 is the rest of the stage, if that has any."""
    notes: list[str] = []
    made: list[Any] = []

    class Noted(collectives.AllGather):
        def __init__(self) -> None:
            made.append(self)

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            number = made.index(self)
            notes.append(f"gather {number if number < len(made) - 1 else -1}")
            return super().__call__(*args, **kwargs)

    collectives.AllGather = Noted  # type: ignore[misc]
    with joined(argv) as rank:
        trainer = rank.trainer()
        units = units_of(trainer.stages[0])
        for number, unit in enumerate(units):
            unit.register_forward_hook(lambda *_, number=number: notes.append(f"forward {number}"))
            unit.register_full_backward_hook(lambda *_, number=number: notes.append(f"backward {number}"))
        trainer.step(0)
        notes.clear()
        trainer.step(1)
        return {"units": len(units), "notes": notes}
