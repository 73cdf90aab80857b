"""Rollback: which states of a job still count after the controller restarted it from an earlier one.

A job's workers get them in their environment, in every generation from then on: what older generations kept of later
steps is what people wanted to get away from. Standard library only.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

VARIABLE = "HOLDFAST_ROLLBACKS"


@dataclass(frozen=True, slots=True)
class Rollback:
    """`at_most` steps are done in the state to go on from; `generation` is the first that did."""

    at_most: int
    generation: int

    def __str__(self) -> str:
        return f"{self.at_most}:{self.generation}"


def to_text(rollbacks: Iterable[Rollback]) -> str:
    return ",".join(map(str, rollbacks))


def from_environment(env: Mapping[str, str]) -> tuple[Rollback, ...]:
    """Those in the variable that the controller set; none without it. ValueError when it is no list of them."""
    pairs = (one.split(":") for one in env.get(VARIABLE, "").split(",") if one)
    return tuple(Rollback(int(steps), int(generation)) for steps, generation in pairs)


def counts(rollbacks: Iterable[Rollback], steps: int, generation: int) -> bool:
    """Whether training may go on from the state after `steps` steps that this generation kept."""
    return all(steps <= back.at_most or generation >= back.generation for back in rollbacks)
