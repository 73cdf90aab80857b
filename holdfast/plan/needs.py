"""What each action of a plan waits for, and which messages go where. Pure."""

from collections import defaultdict
from collections.abc import Iterable

from holdfast.plan.plan import BACKWARDS, COMPUTE, LAST_BACKWARDS, SENDS, Action, Op, Plan

Message = tuple[bool, int, int, int]
"""(is activation, sending stage, first micro-batch, number of the part)."""


class Doers:
    """A plan's actions by what they do: the same micro-batch may be done alone, with others or in parts."""

    def __init__(self, actions: Iterable[Action]) -> None:
        self._of: dict[tuple[Op, int, int], list[Action]] = defaultdict(list)
        for action in actions:
            for m in action.micro_batches:
                self._of[action.op, action.stage, m].append(action)

    def of(self, op: Op, stage: int, micro_batch: int) -> list[Action]:
        """Those that do this op of a stage for a micro-batch, or a part of it."""
        return self._of.get((op, stage, micro_batch), [])

    def matching(self, op: Op, stage: int, user: Action) -> list[Action]:
        """Those that do so for any of the samples that `user` is about."""
        if not user.also:
            found = self.of(op, stage, user.micro_batch)
            if user.parts == 1:
                return found  # the usual case, fast
        else:
            found = list(dict.fromkeys(a for m in user.micro_batches for a in self.of(op, stage, m)))
        return [action for action in found if _overlap(action.part, user.part)]


def _overlap(one: tuple[int, int], other: tuple[int, int]) -> bool:
    """Whether two parts of a micro-batch, (which, of how many), have a sample in common."""
    (i, n), (j, m) = one, other
    return i * m < (j + 1) * n and j * n < (i + 1) * m


def dependencies(plan: Plan) -> dict[str, tuple[str, ...]]:
    """What each action needs to be done first, by id, besides its turn in its own rank's list.

    A receive is posted and not awaited, so it needs nothing: the action that uses the data needs the receive and
    the send. Where a plan has no transfers, it needs the adjacent stage's computation itself. A reduction over the
    pipes' replicas is likewise begun and not awaited: the optimizer's step needs it, of all replicas. Statistics need
    the computation that they are of, and an inversion all of its stage's; late ones only those that are late too.
    """
    doers = Doers(action for _, action in plan.actions())
    needs: dict[str, tuple[str, ...]] = {}
    steps: list[Action] = []
    reduced: dict[tuple[int, int], str] = {}
    for order in plan.orders:
        gathered: dict[tuple[int, int], str] = {}
        backwards: dict[tuple[int, int], list[str]] = defaultdict(list)
        factors: dict[tuple[int, int, bool], list[str]] = defaultdict(list)
        for action in order:
            if action.op is Op.FACTOR:
                factors[action.pipe, action.stage, action.late].append(action.id)
        loaded = ""
        for action in order:
            replica = action.pipe, action.stage
            wanted = _wanted(plan, doers, action)
            match action.op:
                case Op.REDUCE_GRAD:
                    wanted = list(backwards[replica])
                    reduced[replica] = action.id
                case Op.STEP:
                    wanted = [reduced[replica]] if replica in reduced else list(backwards[replica])
                    steps.append(action)
                case Op.UNSHARD:
                    gathered[replica] = action.id
                case Op.LOAD:
                    loaded = action.id
                case Op.FACTOR:
                    wanted = [] if action.late else _factored(doers, action)
                case Op.INVERT:
                    wanted = list(factors[*replica, action.late])
            if action.op in COMPUTE and replica in gathered:
                wanted.append(gathered[replica])
            if action.op is Op.FORWARD and action.stage in (0, len(plan.stages) - 1) and loaded:
                wanted.append(loaded)
            if action.op in LAST_BACKWARDS:
                backwards[replica].append(action.id)
            needs[action.id] = tuple(wanted)
    for step in steps:
        others = [reduced.get((pipe, step.stage), "") for pipe in range(plan.pipes) if pipe != step.pipe]
        if (step.pipe, step.stage) in reduced:
            needs[step.id] += tuple(other for other in others if other)
    return needs


def channels(plan: Plan, ops: frozenset[Op]) -> dict[tuple[int, int], list[Message]]:
    """Messages from one pipeline rank to another, in list order.

    `ops` is SENDS for the senders' view of it, RECEIVES for the receivers'.
    """
    found: dict[tuple[int, int], list[Message]] = defaultdict(list)
    for rank, action in plan.actions():
        if action.op in ops:
            is_forward = action.op in (Op.SEND_FORWARD, Op.RECV_FORWARD)
            ahead = 1 if is_forward else -1
            source = action.stage if action.op in SENDS else action.stage - ahead
            other = action.stage + (ahead if action.op in SENDS else -ahead)
            peer = plan.rank_of(other, action.pipe) if 0 <= other < len(plan.stages) else -1
            ends = (rank, peer) if action.op in SENDS else (peer, rank)
            found[ends].append((is_forward, source, action.micro_batch, action.part[0]))
    return dict(found)


def messages(plan: Plan) -> dict[tuple[int, int], list[Action]]:
    """The computations whose output goes from one pipeline rank to another, by (from, to), rank by rank in order."""
    found: dict[tuple[int, int], list[Action]] = defaultdict(list)
    for rank, action in plan.actions():
        to = receiver(action, len(plan.stages))
        if to is not None and (peer := plan.rank_of(to, action.pipe)) != rank:
            found[rank, peer].append(action)
    return dict(found)


def receiver(action: Action, stages: int) -> int | None:
    """The stage that uses what a computation yields, None if no other does."""
    if action.op is Op.FORWARD:
        return action.stage + 1 if action.stage < stages - 1 else None
    return action.stage - 1 if action.op in BACKWARDS and action.stage > 0 else None


def sources(doers: Doers, action: Action, stages: int) -> list[Action]:
    """The computations of an adjacent stage whose output a computation uses."""
    source = _source(action, stages)
    if source is None:
        return []
    if source < action.stage:
        return doers.matching(Op.FORWARD, source, action)
    return doers.matching(Op.BACKWARD, source, action) or doers.matching(Op.BACKWARD_INPUT, source, action)


def _source(action: Action, stages: int) -> int | None:
    """The adjacent stage whose output a computation uses, None if it uses none."""
    if action.op is Op.FORWARD:
        return action.stage - 1 if action.stage > 0 else None
    if action.op in BACKWARDS or (action.op is Op.RECOMPUTE and action.late):
        return action.stage + 1 if action.stage < stages - 1 else None
    return None


def _wanted(plan: Plan, doers: Doers, action: Action) -> list[str]:
    """What an action needs of the computations and messages of its micro-batches."""
    s = action.stage
    own: list[str] = []
    match action.op:
        case Op.BACKWARD | Op.BACKWARD_INPUT:
            own = _ids(doers.matching(Op.RECOMPUTE, s, action)) or _found(doers, Op.FORWARD, s, action)
        case Op.RECOMPUTE | Op.SEND_FORWARD:
            own = _found(doers, Op.FORWARD, s, action)
        case Op.BACKWARD_WEIGHT:
            own = _found(doers, Op.BACKWARD_INPUT, s, action)
        case Op.SEND_BACKWARD:
            own = _backward(doers, s, action)
    source = _source(action, len(plan.stages))
    return own if source is None else own + _arrival(doers, action, source)


def _factored(doers: Doers, factor: Action) -> list[str]:
    """The computations whose statistics are taken: a micro-batch's forward, or what gives weights their gradients."""
    micro_batch, is_of_outputs = divmod(factor.turn, 2)
    of_micro_batch = Action(Op.BACKWARD, factor.stage, micro_batch)
    if not is_of_outputs:
        return _found(doers, Op.FORWARD, factor.stage, of_micro_batch)
    halves = _ids(doers.of(Op.BACKWARD_WEIGHT, factor.stage, micro_batch))
    return halves or _found(doers, Op.BACKWARD, factor.stage, of_micro_batch)


def _arrival(doers: Doers, user: Action, source: int) -> list[str]:
    """What brings a stage the output (or gradient) of the adjacent stage `source`."""
    is_forward = source < user.stage
    posted = doers.matching(Op.RECV_FORWARD if is_forward else Op.RECV_BACKWARD, user.stage, user)
    if not posted:
        return _found(doers, Op.FORWARD, source, user) if is_forward else _backward(doers, source, user)
    send = Op.SEND_FORWARD if is_forward else Op.SEND_BACKWARD
    return [need for receive in posted for need in (receive.id, *_found(doers, send, source, receive))]


def _backward(doers: Doers, stage: int, user: Action) -> list[str]:
    """The actions that yield the gradient of a stage's input."""
    return _ids(doers.matching(Op.BACKWARD, stage, user)) or _found(doers, Op.BACKWARD_INPUT, stage, user)


def _found(doers: Doers, op: Op, stage: int, user: Action) -> list[str]:
    """The actions' ids; where a plan lacks them, that of the one that is missing."""
    missing = Action(op, stage, user.micro_batch).id
    return _ids(doers.matching(op, stage, user)) or [missing]


def _ids(actions: Iterable[Action]) -> list[str]:
    return [action.id for action in actions]
