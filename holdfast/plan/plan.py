"""A job's plan as data: the mesh, which layers on which stage, and each pipeline rank's list of actions.

Pure. All ranks of one pipeline coordinate follow one list, so a plan holds one list for each of them. A trainer
executes the lists in order, a simulator costs them, and a span can name the action that it belongs to.

Several pipelines may run through the same ranks (Chimera): each is a *pipe*, with its own replica of every stage and
its own micro-batches. Micro-batches are numbered over all pipes, so stage and micro-batch name one computation.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from fractions import Fraction
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
    # Of a preconditioned optimizer: statistics of a layer's inputs, their inverse, its use on the gradient.
    FACTOR = "FACTOR"
    INVERT = "INVERT"
    PRECOND = "PRECOND"
    # State that lies in host memory between its uses, and copies of state for checkpoints.
    FETCH = "FETCH"
    EVICT = "EVICT"
    SNAP = "SNAP"


class Resource(StrEnum):
    """What an action keeps busy. Actions of a rank on one resource are done in the order of its list."""

    COMPUTE = "compute"
    P2P = "p2p"
    DP = "dp"
    TP = "tp"
    HOST = "host"


OPS: tuple[Op, ...] = tuple(Op)
"""In the order of their numbers in messages: append only."""
COMPUTE = frozenset({Op.FORWARD, Op.BACKWARD, Op.BACKWARD_INPUT, Op.BACKWARD_WEIGHT, Op.RECOMPUTE})
"""Ops that keep the rank's processor busy."""
SENDS = frozenset({Op.SEND_FORWARD, Op.SEND_BACKWARD})
RECEIVES = frozenset({Op.RECV_FORWARD, Op.RECV_BACKWARD})
BACKWARDS = frozenset({Op.BACKWARD, Op.BACKWARD_INPUT})
"""Ops that yield the gradient of a stage's input."""
LAST_BACKWARDS = frozenset({Op.BACKWARD, Op.BACKWARD_WEIGHT})
"""Ops after which nothing of a micro-batch's activations is needed."""
SECOND_ORDER = frozenset({Op.FACTOR, Op.INVERT, Op.PRECOND})
"""Ops of a preconditioned optimizer. FACTOR of turn 2m is of the inputs of micro-batch m, 2m + 1 of the gradients of
its outputs; INVERT of turn k x pipes + p is the k-th of pipe p: these turns are no count of repetitions."""
_COPIES = frozenset({Op.FETCH, Op.EVICT, Op.SNAP})
TORCH = frozenset(OPS) - {Op.LOAD, Op.RECOMPUTE, Op.STEP} - SECOND_ORDER - _COPIES
"""Ops that torch's pipelining runtime executes."""
WHOLE_STAGE = frozenset({Op.UNSHARD, Op.RESHARD, Op.REDUCE_GRAD, Op.LOAD, Op.STEP}) | SECOND_ORDER | _COPIES
"""Ops of a stage and no micro-batch."""
RESOURCES: Mapping[Op, Resource] = {
    **dict.fromkeys(COMPUTE | SECOND_ORDER | {Op.STEP}, Resource.COMPUTE),
    **dict.fromkeys(SENDS | RECEIVES, Resource.P2P),
    **dict.fromkeys((Op.UNSHARD, Op.RESHARD, Op.REDUCE_GRAD), Resource.DP),
    **dict.fromkeys(_COPIES | {Op.LOAD}, Resource.HOST),
}
"""By op. Collectives of tensor parallelism are part of a computation today: no op is of `Resource.TP` alone."""
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
    Op.FACTOR: "factor",
    Op.INVERT: "invert",
    Op.PRECOND: "precondition",
    Op.FETCH: "fetch",
    Op.EVICT: "evict",
    Op.SNAP: "snapshot",
}
"""What a span of an action is called. Each action of these leaves one in every step; freeing takes no time."""

_TEXT = re.compile(
    r"(?P<stage>\d+)(?P<op>[A-Z]+(?:_[A-Z]+)?)(?P<first>\d*)(?P<also>(?:\+\d+)*)"
    r"(?:/(?P<part>\d+):(?P<parts>\d+))?(?P<late>!?)(?:@(?P<pipe>\d+))?(?:~(?P<turn>\d+))?"
)


@dataclass(frozen=True, slots=True)
class Action:
    """One thing that a rank does. `micro_batch` counts within a replica; -1 for an op of the whole stage.

    A send belongs to the stage that sends, a receive to the stage that receives. `turn` distinguishes repetitions
    of the same whole-stage op in a step, over all pipes; of one of several `parts` it is the part's number.
    """

    op: Op
    stage: int
    micro_batch: int = -1
    turn: int = 0
    pipe: int = 0
    """Which replica of the stage does it."""
    also: tuple[int, ...] = ()
    """More micro-batches that are done at once with the first."""
    parts: int = 1
    """Into how many pieces the micro-batch is cut, of which this is one."""
    late: bool = False
    """Of a recompute: it begins only when the gradient is there, as if it were in the backward itself. Of other work in
    a bubble: it is that of the step before (see fill.py)."""
    _id: str = field(default="", init=False, repr=False, compare=False)
    """`id` once it was asked for: checks and simulations of a plan look it up several times for each action."""

    @property
    def micro_batches(self) -> tuple[int, ...]:
        """All that it does; none for an op of the whole stage."""
        return () if self.micro_batch < 0 else (self.micro_batch, *self.also)

    @property
    def part(self) -> tuple[int, int]:
        """(which, of how many): (0, 1) of what is done whole."""
        return (self.turn, self.parts) if self.parts > 1 else (0, 1)

    @property
    def share(self) -> Fraction:
        """How many micro-batches it does: 2 of two at once, 1/2 of a half."""
        return Fraction(len(self.micro_batches), self.parts)

    @property
    def resource(self) -> Resource:
        """What it keeps busy."""
        return RESOURCES[self.op]

    @property
    def text(self) -> str:
        """As torch writes it: `0F3`, `1SEND_F2`, `0UNSHARD`.

        What torch lacks follows: `0F2+3` does two micro-batches, `0B2/1:2` is the second half of one, `0R2!` is late,
        `0F2@1` is of pipe 1. `0FACTOR!~3` is late: turns of second-order ops are written, as no list tells them.
        """
        text = self._base + "".join(f"+{m}" for m in self.also)
        if self.parts > 1:
            text += f"/{self.turn}:{self.parts}"
        text += "!" * self.late + (f"@{self.pipe}" if self.pipe else "")
        return f"{text}~{self.turn}" if self.turn and self.op in SECOND_ORDER else text

    @property
    def id(self) -> str:
        """Unique in a plan, and the same in every step and generation with this plan.

        Only what a span says of its action is in it: op, stage, the first micro-batch, turn.
        """
        if not self._id:
            object.__setattr__(self, "_id", f"{self._base}~{self.turn}" if self.turn else self._base)
        return self._id

    @property
    def _base(self) -> str:
        return f"{self.stage}{self.op}{self.micro_batch if self.micro_batch >= 0 else ''}"

    @classmethod
    def parse(cls, text: str) -> "Action":
        """From `text` or `id`. ValueError if it is neither."""
        match = _TEXT.fullmatch(text.strip())
        if match is None or match["op"] not in OPS:
            raise ValueError(f"{text!r} is no action: write stage, op and micro-batch, as 0F3 or 1UNSHARD")
        part, parts = int(match["part"] or 0), int(match["parts"] or 1)
        action = cls(
            Op(match["op"]),
            int(match["stage"]),
            int(match["first"] or -1),
            part or int(match["turn"] or 0),
            int(match["pipe"] or 0),
            tuple(int(m) for m in match["also"].split("+")[1:]),
            parts,
            bool(match["late"]),
        )
        if (action.op in WHOLE_STAGE) != (action.micro_batch < 0):
            raise ValueError(f"{text!r} is no action: {action.op} takes {_TAKES[action.op in WHOLE_STAGE]}")
        if action.op in WHOLE_STAGE and (action.also or match["part"]):
            raise ValueError(f"{text!r} is no action: {action.op} takes {_TAKES[True]}")
        if match["part"] and not (part < parts and parts > 1 and not match["turn"]):
            raise ValueError(f"{text!r} is no action: parts count from 0, as 0B3/0:2 and 0B3/1:2")
        if action.late and action.op is not Op.RECOMPUTE and action.op not in SECOND_ORDER:
            raise ValueError(f"{text!r} is no action: only a recompute, or second-order work, can be late")
        return action


_TAKES = {True: "no micro-batch", False: "a micro-batch"}
Order = tuple[Action, ...]


@dataclass(frozen=True, slots=True)
class Mesh:
    """Named axes with their sizes, the slowest first: with (pp, dp, tp), ranks count through tp first."""

    axes: tuple[tuple[str, int], ...]
    tps: tuple[int, ...] = ()
    """tp of each pipeline rank, where they differ; the axis tp, the last, then has the largest, and pp is the first."""

    def __post_init__(self) -> None:
        if any(size < 1 for _, size in self.axes) or len(dict(self.axes)) != len(self.axes):
            raise ValueError(f"mesh {self.axes}: every axis once, of size 1 or more")
        if self.tps:
            ends = self.axes[0], self.axes[-1]
            if ends != (("pp", len(self.tps)), ("tp", max(self.tps))) or min(self.tps) < 1:
                raise ValueError(f"mesh {self.axes} with tps {self.tps}: pp first, with one for each of its ranks")

    @classmethod
    def of(cls, pp: int = 1, dp: int = 1, cp: int = 1, ep: int = 1, tp: int = 1, tps: tuple[int, ...] = ()) -> "Mesh":
        """The usual order: pipeline slowest, tensor parallelism fastest. cp and ep only where they are used."""
        sizes = (("pp", pp), ("dp", dp), ("cp", cp), ("ep", ep), ("tp", tp))
        return cls(tuple((name, size) for name, size in sizes if size != 1 or name not in ("cp", "ep")), tps)

    @property
    def world(self) -> int:
        if self.tps:
            return sum(self.tps) * math.prod(size for _, size in self.axes[1:-1])
        return math.prod(size for _, size in self.axes)

    def size(self, axis: str) -> int:
        """1 for an axis that the mesh lacks."""
        return dict(self.axes).get(axis, 1)

    def coordinate(self, rank: int) -> dict[str, int]:
        """Where a rank sits, by axis. ValueError for a rank outside the mesh."""
        if not 0 <= rank < self.world:
            raise ValueError(f"rank {rank} is not in a mesh of {self.world}")
        for pp, tp in enumerate(self.tps):
            stage = Mesh((*self.axes[1:-1], ("tp", tp)))
            if rank < stage.world:
                return {"pp": pp, **stage.coordinate(rank)}
            rank -= stage.world
        found = {}
        for name, size in reversed(self.axes):
            rank, found[name] = divmod(rank, size)
        return {name: found[name] for name, _ in self.axes}

    def rank(self, **coordinate: int) -> int:
        """The inverse of `coordinate`; axes left out count as 0."""
        if self.tps:
            pp = coordinate.pop("pp", 0)
            if not 0 <= pp < len(self.tps):
                raise ValueError(f"pp={pp} is not in an axis of {len(self.tps)}")
            stages = [Mesh((*self.axes[1:-1], ("tp", tp))) for tp in self.tps]
            return sum(stage.world for stage in stages[:pp]) + stages[pp].rank(**coordinate)
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
        """The ranks that differ in `axis` only, group by group; every rank is in one group.

        ValueError where pipeline ranks differ in tp: there are no lines along pp.
        """
        if self.tps:
            raise ValueError(f"pipeline ranks of tp {self.tps} do not stand in lines")
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
    replicas: tuple[tuple[int, ...], ...] = ()
    """Of each pipe after the first: the pipeline rank of every stage. `stages` has those of the first pipe."""

    @property
    def pipes(self) -> int:
        """Replicas of each stage in one pipeline: 1 of nearly all schedules."""
        return 1 + len(self.replicas)

    def order_of(self, rank: int) -> Order:
        """What a rank does in a step, in order."""
        return self.orders[self.mesh.coordinate(rank).get("pp", 0)]

    def rank_of(self, stage: int, pipe: int = 0) -> int:
        """The pipeline rank that holds a stage, or a pipe's replica of it."""
        return self.replicas[pipe - 1][stage] if pipe else self.stages[stage].rank

    def ranks_of(self, stage: int) -> tuple[int, ...]:
        """The pipeline ranks that hold a stage, pipe by pipe: whose gradients of it are added up."""
        return tuple(self.rank_of(stage, pipe) for pipe in range(self.pipes))

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


def numbered(actions: Iterable[Action], pipes: int = 1) -> Order:
    """The same actions, with repetitions distinguished by `turn`.

    Pipes take turns: repetition k of pipe p is turn k x pipes + p, so that no two replicas of a stage share an id.
    """
    seen: dict[str, int] = {}
    order = []
    for action in actions:
        if action.parts > 1 or action.op in SECOND_ORDER:
            order.append(action)  # its turn is the number of the part, or of what it is about
            continue
        turn = seen.get(action.text, action.pipe if action.op in WHOLE_STAGE else 0)
        seen[action.text] = turn + pipes
        order.append(action if turn == action.turn else replace(action, turn=turn))
    return tuple(order)


def to_csv(orders: Sequence[Sequence[Action]]) -> str:
    """One line a pipeline rank, in torch's form. Ops that torch lacks are left out.

    A plan with several pipes, several micro-batches at once or parts of one keeps them, in cells that torch refuses.
    """
    return "".join(",".join(a.text for a in order if a.op in TORCH) + "\n" for order in orders)


def from_csv(text: str) -> tuple[Order, ...]:
    """The inverse of `to_csv`; empty cells (torch's idle slots) are skipped. ValueError for what is no action."""
    lines = text.replace("\r", "").removesuffix("\n").split("\n")
    orders = [[Action.parse(cell) for cell in line.split(",") if cell.strip()] for line in lines]
    pipes = 1 + max((action.pipe for order in orders for action in order), default=0)
    return tuple(numbered(order, pipes) for order in orders)
