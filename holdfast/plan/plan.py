"""A job's plan as data: the mesh, which layers on which stage, and each pipeline rank's list of actions.

Pure. All ranks of one pipeline coordinate follow one list, so a plan holds one list for each of them. A trainer
executes the lists in order, a simulator costs them, and a span can name the action that it belongs to.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property


class Op(StrEnum):
    """What an action does. Values are those of torch's text form where torch has the action."""

    FORWARD = "F"
    BACKWARD = "B"
    BACKWARD_INPUT = "I"
    BACKWARD_WEIGHT = "W"
    SEND_FORWARD = "SEND_F"
    RECV_FORWARD = "RECV_F"
    SEND_BACKWARD = "SEND_B"
    RECV_BACKWARD = "RECV_B"
    UNSHARD = "UNSHARD"
    RESHARD = "RESHARD"
    REDUCE_GRAD = "REDUCE_GRAD"
    # Not in torch's form: the loop around the schedule does the first and the last of these.
    LOAD = "LOAD"
    RECOMPUTE = "R"
    STEP = "STEP"


OPS: tuple[Op, ...] = tuple(Op)
"""In the order of their numbers in messages: append only."""
COMPUTE = frozenset({Op.FORWARD, Op.BACKWARD, Op.BACKWARD_INPUT, Op.BACKWARD_WEIGHT, Op.RECOMPUTE})
"""Ops that keep the rank's processor busy."""
SENDS = frozenset({Op.SEND_FORWARD, Op.SEND_BACKWARD})
RECEIVES = frozenset({Op.RECV_FORWARD, Op.RECV_BACKWARD})
TORCH = frozenset(OPS) - {Op.LOAD, Op.RECOMPUTE, Op.STEP}
"""Ops that torch's pipelining runtime executes."""
WHOLE_STAGE = frozenset({Op.UNSHARD, Op.RESHARD, Op.REDUCE_GRAD, Op.LOAD, Op.STEP})
"""Ops of a stage and no micro-batch."""
SPANS: Mapping[Op, str] = {
    Op.FORWARD: "forward",
    Op.BACKWARD: "backward",
    Op.BACKWARD_INPUT: "backward_input",
    Op.BACKWARD_WEIGHT: "backward_weight",
    Op.SEND_FORWARD: "send_forward",
    Op.RECV_FORWARD: "recv_forward",
    Op.SEND_BACKWARD: "send_backward",
    Op.RECV_BACKWARD: "recv_backward",
    Op.UNSHARD: "unshard",
    Op.REDUCE_GRAD: "reduce_grad",
    Op.LOAD: "load",
    Op.RECOMPUTE: "recompute",
    Op.STEP: "optimizer",
}
"""What a span of an action is called. Each action of these leaves one in every step; freeing takes no time."""

_TEXT = re.compile(r"(\d+)([A-Z]+(?:_[A-Z]+)?)(\d*)(?:~(\d+))?")


@dataclass(frozen=True, slots=True)
class Action:
    """One thing that a rank does. `micro_batch` counts within a replica; -1 for an op of the whole stage.

    A send belongs to the stage that sends, a receive to the stage that receives. `turn` distinguishes repetitions
    of the same whole-stage op in a step.
    """

    op: Op
    stage: int
    micro_batch: int = -1
    turn: int = 0

    @property
    def text(self) -> str:
        """As torch writes it: `0F3`, `1SEND_F2`, `0UNSHARD`."""
        return f"{self.stage}{self.op}{self.micro_batch if self.micro_batch >= 0 else ''}"

    @property
    def id(self) -> str:
        """Unique in a plan, and the same in every step and generation with this plan."""
        return f"{self.text}~{self.turn}" if self.turn else self.text

    @classmethod
    def parse(cls, text: str) -> "Action":
        """From `text` or `id`. ValueError if it is neither."""
        match = _TEXT.fullmatch(text.strip())
        if match is None or match[2] not in OPS:
            raise ValueError(f"{text!r} is no action: write stage, op and micro-batch, as 0F3 or 1UNSHARD")
        action = cls(Op(match[2]), int(match[1]), int(match[3] or -1), int(match[4] or 0))
        if (action.op in WHOLE_STAGE) != (action.micro_batch < 0):
            raise ValueError(f"{text!r} is no action: {action.op} takes {_TAKES[action.op in WHOLE_STAGE]}")
        return action


_TAKES = {True: "no micro-batch", False: "a micro-batch"}
Order = tuple[Action, ...]


@dataclass(frozen=True, slots=True)
class Mesh:
    """Named axes with their sizes, the slowest first: with (pp, dp, tp), ranks count through tp first."""

    axes: tuple[tuple[str, int], ...]

    def __post_init__(self) -> None:
        if any(size < 1 for _, size in self.axes) or len(dict(self.axes)) != len(self.axes):
            raise ValueError(f"mesh {self.axes}: every axis once, of size 1 or more")

    @classmethod
    def of(cls, pp: int = 1, dp: int = 1, cp: int = 1, ep: int = 1, tp: int = 1) -> "Mesh":
        """The usual order: pipeline slowest, tensor parallelism fastest. cp and ep only where they are used."""
        sizes = (("pp", pp), ("dp", dp), ("cp", cp), ("ep", ep), ("tp", tp))
        return cls(tuple((name, size) for name, size in sizes if size != 1 or name not in ("cp", "ep")))

    @property
    def world(self) -> int:
        return math.prod(size for _, size in self.axes)

    def size(self, axis: str) -> int:
        """1 for an axis that the mesh lacks."""
        return dict(self.axes).get(axis, 1)

    def coordinate(self, rank: int) -> dict[str, int]:
        """Where a rank sits, by axis. ValueError for a rank outside the mesh."""
        if not 0 <= rank < self.world:
            raise ValueError(f"rank {rank} is not in a mesh of {self.world}")
        found = {}
        for name, size in reversed(self.axes):
            rank, found[name] = divmod(rank, size)
        return {name: found[name] for name, _ in self.axes}

    def rank(self, **coordinate: int) -> int:
        """The inverse of `coordinate`; axes left out count as 0."""
        rank = 0
        for name, size in self.axes:
            at = coordinate.pop(name, 0)
            if not 0 <= at < size:
                raise ValueError(f"{name}={at} is not in an axis of {size}")
            rank = rank * size + at
        if coordinate:
            raise ValueError(f"the mesh has no axis {', '.join(coordinate)}")
        return rank

    def groups(self, axis: str) -> list[tuple[int, ...]]:
        """The ranks that differ in `axis` only, group by group; every rank is in one group."""
        names = [name for name, _ in self.axes]
        if axis not in names:
            return [(rank,) for rank in range(self.world)]
        stride = math.prod(size for _, size in self.axes[names.index(axis) + 1 :])
        length = self.size(axis)
        firsts = (rank for rank in range(self.world) if rank // stride % length == 0)
        return [tuple(first + i * stride for i in range(length)) for first in firsts]


@dataclass(frozen=True, slots=True)
class Layers:
    """A stage's layers, from `first` to below `stop`, and the pipeline rank that holds it."""

    first: int
    stop: int
    rank: int


@dataclass(frozen=True)
class Plan:
    """All of it. `orders[p]` is the list of every rank whose pipeline coordinate is p."""

    schedule: str
    """Name that the settings gave it."""
    mesh: Mesh
    stages: tuple[Layers, ...]
    """By number of stage, in the order that data passes them."""
    micro_batches: int
    """In one step of one replica."""
    orders: tuple[Order, ...]

    def order_of(self, rank: int) -> Order:
        """What a rank does in a step, in order."""
        return self.orders[self.mesh.coordinate(rank).get("pp", 0)]

    def rank_of(self, stage: int) -> int:
        """The pipeline rank that holds a stage."""
        return self.stages[stage].rank

    def actions(self) -> Iterator[tuple[int, Action]]:
        """Every action with its pipeline rank, rank by rank in order."""
        return ((rank, action) for rank, order in enumerate(self.orders) for action in order)

    @cached_property
    def places(self) -> dict[str, tuple[int, int]]:
        """Pipeline rank and position of each action, by id."""
        return {action.id: (rank, i) for rank, order in enumerate(self.orders) for i, action in enumerate(order)}

    def find(self, action_id: str) -> Action | None:
        """The action of this id, None if the plan has none."""
        place = self.places.get(action_id)
        return None if place is None else self.orders[place[0]][place[1]]


def numbered(actions: Iterable[Action]) -> Order:
    """The same actions, with repetitions distinguished by `turn`."""
    seen: dict[str, int] = {}
    order = []
    for action in actions:
        turn = seen.get(action.text, 0)
        seen[action.text] = turn + 1
        order.append(action if turn == action.turn else Action(action.op, action.stage, action.micro_batch, turn))
    return tuple(order)


def to_csv(orders: Sequence[Sequence[Action]]) -> str:
    """One line a pipeline rank, in torch's form. Ops that torch lacks are left out."""
    return "".join(",".join(a.text for a in order if a.op in TORCH) + "\n" for order in orders)


def from_csv(text: str) -> tuple[Order, ...]:
    """The inverse of `to_csv`; empty cells (torch's idle slots) are skipped. ValueError for what is no action."""
    lines = text.replace("\r", "").removesuffix("\n").split("\n")
    return tuple(numbered(Action.parse(cell) for cell in line.split(",") if cell.strip()) for line in lines)
