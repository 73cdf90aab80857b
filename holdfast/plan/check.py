"""What must be true of a plan, and what each of its actions waits for. Pure."""

from collections import defaultdict
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter

from holdfast.plan.plan import COMPUTE, RECEIVES, SENDS, WHOLE_STAGE, Action, Op, Plan

_BACKWARDS = (Op.BACKWARD, Op.BACKWARD_INPUT)
_LAST_BACKWARDS = (Op.BACKWARD, Op.BACKWARD_WEIGHT)
_ONE_BACKWARD = ([True, False, False], [False, True, True])


def dependencies(plan: Plan) -> dict[str, tuple[str, ...]]:
    """What each action needs to be done first, by id, besides its turn in its own rank's list.

    A receive is posted and not awaited, so it needs nothing: the action that uses the data needs the receive and
    the send. Where a plan has no transfers, it needs the adjacent stage's computation itself.
    """
    places, last = plan.places, len(plan.stages) - 1
    needs: dict[str, tuple[str, ...]] = {}
    for order in plan.orders:
        gathered: dict[int, str] = {}
        backwards: dict[int, list[str]] = defaultdict(list)
        reduced: dict[int, str] = {}
        loaded = ""
        for action in order:
            s, m = action.stage, action.micro_batch
            wanted: list[str] = []
            match action.op:
                case Op.FORWARD if s > 0:
                    wanted = _arrival(plan, s, s - 1, m)
                case Op.BACKWARD | Op.BACKWARD_INPUT:
                    again = Action(Op.RECOMPUTE, s, m).id
                    wanted = [again if again in places else Action(Op.FORWARD, s, m).id]
                    if s < last:
                        wanted += _arrival(plan, s, s + 1, m)
                case Op.BACKWARD_WEIGHT:
                    wanted = [Action(Op.BACKWARD_INPUT, s, m).id]
                case Op.RECOMPUTE | Op.SEND_FORWARD:
                    wanted = [Action(Op.FORWARD, s, m).id]
                case Op.SEND_BACKWARD:
                    wanted = [_backward(plan, s, m)]
                case Op.REDUCE_GRAD:
                    wanted = list(backwards[s])
                    reduced[s] = action.id
                case Op.STEP:
                    wanted = [reduced[s]] if s in reduced else list(backwards[s])
                case Op.UNSHARD:
                    gathered[s] = action.id
                case Op.LOAD:
                    loaded = action.id
            if action.op in COMPUTE and s in gathered:
                wanted.append(gathered[s])
            if action.op is Op.FORWARD and s in (0, last) and loaded:
                wanted.append(loaded)
            if action.op in _LAST_BACKWARDS:
                backwards[s].append(action.id)
            needs[action.id] = tuple(wanted)
    return needs


def verify(plan: Plan) -> list[str]:
    """What is wrong with a plan, in words; empty if it can be executed and ends."""
    wrong = list(_misplaced(plan))
    if wrong:
        return wrong  # what follows would only repeat it
    wrong = [*_incomplete(plan), *_unpaired(plan), *_sharding(plan)]
    return wrong or list(_stuck(plan))


def in_flight(plan: Plan) -> tuple[int, ...]:
    """By pipeline rank: the most forwards, over all its stages, whose backward has not been done yet."""
    peaks = []
    for order in plan.orders:
        now = peak = 0
        for action in order:
            now += (action.op is Op.FORWARD) - (action.op in _LAST_BACKWARDS)
            peak = max(peak, now)
        peaks.append(peak)
    return tuple(peaks)


def channels(plan: Plan, ops: frozenset[Op]) -> dict[tuple[int, int], list[tuple[bool, int, int]]]:
    """Messages from one pipeline rank to another, as (is activation, sending stage, micro-batch), in list order.

    `ops` is SENDS for the senders' view of it, RECEIVES for the receivers'.
    """
    found: dict[tuple[int, int], list[tuple[bool, int, int]]] = defaultdict(list)
    for rank, action in plan.actions():
        if action.op in ops:
            is_forward = action.op in (Op.SEND_FORWARD, Op.RECV_FORWARD)
            ahead = 1 if is_forward else -1
            source = action.stage if action.op in SENDS else action.stage - ahead
            other = action.stage + (ahead if action.op in SENDS else -ahead)
            peer = plan.rank_of(other) if 0 <= other < len(plan.stages) else -1
            ends = (rank, peer) if action.op in SENDS else (peer, rank)
            found[ends].append((is_forward, source, action.micro_batch))
    return dict(found)


def _arrival(plan: Plan, stage: int, source: int, micro_batch: int) -> list[str]:
    """What brings a stage the output (or gradient) of the adjacent stage `source`."""
    is_forward = source < stage
    receive = Action(Op.RECV_FORWARD if is_forward else Op.RECV_BACKWARD, stage, micro_batch).id
    if receive in plan.places:
        return [receive, Action(Op.SEND_FORWARD if is_forward else Op.SEND_BACKWARD, source, micro_batch).id]
    return [Action(Op.FORWARD, source, micro_batch).id if is_forward else _backward(plan, source, micro_batch)]


def _backward(plan: Plan, stage: int, micro_batch: int) -> str:
    """The action that yields the gradient of a stage's input."""
    whole = Action(Op.BACKWARD, stage, micro_batch).id
    return whole if whole in plan.places else Action(Op.BACKWARD_INPUT, stage, micro_batch).id


def _misplaced(plan: Plan) -> Iterator[str]:
    if len(plan.orders) != plan.mesh.size("pp"):
        yield f"{len(plan.orders)} lists for {plan.mesh.size('pp')} pipeline ranks"
    at = 0
    for number, stage in enumerate(plan.stages):
        if stage.first != at or stage.stop < stage.first:
            yield f"stage {number} holds layers {stage.first} to {stage.stop}, after layer {at}"
        if not 0 <= stage.rank < len(plan.orders):
            yield f"stage {number} is on pipeline rank {stage.rank} of {len(plan.orders)}"
        at = stage.stop
    for rank, action in plan.actions():
        if not 0 <= action.stage < len(plan.stages):
            yield f"rank {rank}: {action.id} is of no stage of the plan"
        elif plan.rank_of(action.stage) != rank:
            yield f"rank {rank}: {action.id} belongs on rank {plan.rank_of(action.stage)}"
        if action.op not in WHOLE_STAGE and not 0 <= action.micro_batch < plan.micro_batches:
            yield f"rank {rank}: {action.id} is of no micro-batch of {plan.micro_batches}"
        if action.turn and action.op not in (Op.UNSHARD, Op.RESHARD, Op.REDUCE_GRAD):
            yield f"rank {rank}: {action.text} is there again"


def _incomplete(plan: Plan) -> Iterator[str]:
    places = plan.places
    for stage in range(len(plan.stages)):
        for m in range(plan.micro_batches):
            forward, whole = Action(Op.FORWARD, stage, m).id, Action(Op.BACKWARD, stage, m).id
            halves = [Action(op, stage, m).id for op in (Op.BACKWARD_INPUT, Op.BACKWARD_WEIGHT)]
            if forward not in places:
                yield f"{forward} is missing"
            if [action_id in places for action_id in (whole, *halves)] not in _ONE_BACKWARD:
                yield f"stage {stage} needs one backward of micro-batch {m}: {whole}, or {halves[0]} and {halves[1]}"


def _unpaired(plan: Plan) -> Iterator[str]:
    """Either a plan has no transfers at all, or every one that it needs, in one order at both ends."""
    sent, received = channels(plan, SENDS), channels(plan, RECEIVES)
    if not sent and not received:
        return
    needed: dict[tuple[int, int], set[tuple[bool, int, int]]] = defaultdict(set)
    for stage in range(len(plan.stages) - 1):
        here, there = plan.rank_of(stage), plan.rank_of(stage + 1)
        if here != there:
            for m in range(plan.micro_batches):
                needed[here, there].add((True, stage, m))
                needed[there, here].add((False, stage + 1, m))
    for ends in sorted({*sent, *received, *needed}):
        if set(sent.get(ends, ())) != needed.get(ends, set()):
            yield f"rank {ends[0]} to {ends[1]}: sends are not what the stages need"
        if sent.get(ends) != received.get(ends):
            yield f"rank {ends[0]} to {ends[1]}: receives are not in the order of the sends"


def _sharding(plan: Plan) -> Iterator[str]:
    """A stage that is gathered at all is whole whenever it computes; gradients that are reduced at all, all are."""
    sharded = {action.stage for _, action in plan.actions() if action.op is Op.UNSHARD}
    for order in plan.orders:
        whole: set[int] = set()
        reduced: set[int] = set()
        fresh: dict[int, Action] = {}
        for action in order:
            s = action.stage
            if action.op is Op.UNSHARD:
                if s in whole:
                    yield f"{action.id} gathers what is whole already"
                whole.add(s)
            elif action.op is Op.RESHARD:
                if s not in whole:
                    yield f"{action.id} frees what is not there"
                whole.discard(s)
            elif action.op is Op.REDUCE_GRAD:
                if s not in fresh:
                    yield f"{action.id} has no new gradients to reduce"
                fresh.pop(s, None)
                reduced.add(s)
            elif action.op in COMPUTE and s in sharded and s not in whole:
                yield f"{action.id} computes on shards"
            if action.op in _LAST_BACKWARDS:
                fresh[s] = action
        for stage, action in fresh.items():
            if stage in reduced:
                yield f"{action.id} comes after the gradients of its stage were reduced"


def _stuck(plan: Plan) -> Iterator[str]:
    needs = dependencies(plan)
    graph: TopologicalSorter[str] = TopologicalSorter()
    for order in plan.orders:
        before = ""
        for action in order:
            graph.add(action.id, *needs[action.id], *([before] if before else []))
            before = action.id
    missing = {need for wanted in needs.values() for need in wanted} - needs.keys()
    if missing:
        yield f"actions wait for what is not in the plan: {', '.join(sorted(missing)[:4])}"
        return
    try:
        graph.prepare()
    except CycleError as error:
        yield f"the lists wait for each other for ever: {' < '.join(error.args[1])}"
