"""What must be true of a plan. Pure. What its actions wait for is in needs.py, what they hold in memory.py."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from fractions import Fraction
from graphlib import CycleError, TopologicalSorter

from holdfast.plan.memory import in_flight
from holdfast.plan.needs import Doers, Message, channels, dependencies, messages
from holdfast.plan.plan import COMPUTE, LAST_BACKWARDS, RECEIVES, SENDS, WHOLE_STAGE, Action, Op, Plan

__all__ = ["channels", "dependencies", "in_flight", "verify"]

_WAYS_BACK = (Op.BACKWARD, Op.BACKWARD_INPUT, Op.BACKWARD_WEIGHT)
_ONE_BACKWARD = ([True, False, False], [False, True, True])
"""Which of these a stage does of a micro-batch: the whole, or both halves."""
_COMPUTE = sorted(COMPUTE)
_REPEATED = (Op.UNSHARD, Op.RESHARD, Op.REDUCE_GRAD, Op.FACTOR, Op.INVERT, Op.PRECOND, Op.FETCH, Op.EVICT, Op.SNAP)
"""Ops that a stage may do more than once in a step."""


def verify(plan: Plan) -> list[str]:
    """What is wrong with a plan, in words; empty if it can be executed and ends."""
    wrong = list(_misplaced(plan))
    if wrong:
        return wrong  # what follows would only repeat it
    wrong = [*_incomplete(plan), *_unpaired(plan), *_sharding(plan), *_apart(plan)]
    return wrong or list(_stuck(plan))


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
    is_whole = True
    for pipe, ranks in enumerate(plan.replicas, 1):
        if len(ranks) != len(plan.stages) or not all(0 <= rank < len(plan.orders) for rank in ranks):
            is_whole = False
            yield f"pipe {pipe} has no place for each of {len(plan.stages)} stages on {len(plan.orders)} pipeline ranks"
    if is_whole:
        for rank, action in plan.actions():
            yield from _misplaced_action(plan, rank, action)


def _misplaced_action(plan: Plan, rank: int, action: Action) -> Iterator[str]:
    if not 0 <= action.stage < len(plan.stages):
        yield f"rank {rank}: {action.id} is of no stage of the plan"
    elif not 0 <= action.pipe < plan.pipes:
        yield f"rank {rank}: {action.text} is of no pipe of {plan.pipes}"
    elif plan.rank_of(action.stage, action.pipe) != rank:
        yield f"rank {rank}: {action.text} belongs on rank {plan.rank_of(action.stage, action.pipe)}"
    if action.op not in WHOLE_STAGE and not all(0 <= m < plan.micro_batches for m in action.micro_batches):
        yield f"rank {rank}: {action.text} is of no micro-batch of {plan.micro_batches}"
    if action.parts > 1 and not 0 <= action.turn < action.parts:
        yield f"rank {rank}: {action.text} is no part"
    elif action.parts == 1 and action.turn >= plan.pipes and action.op not in _REPEATED:
        yield f"rank {rank}: {action.text} is there again"


def _incomplete(plan: Plan) -> Iterator[str]:
    doers = Doers(action for _, action in plan.actions())
    pipes: dict[int, int] = {}
    for _, action in plan.actions():
        for m in action.micro_batches:
            if pipes.setdefault(m, action.pipe) != action.pipe:
                yield f"{action.text} is of pipe {action.pipe}, micro-batch {m} of pipe {pipes[m]}"
    for stage in range(len(plan.stages)):
        for m in range(plan.micro_batches):
            if not doers.of(Op.FORWARD, stage, m):
                yield f"{Action(Op.FORWARD, stage, m).id} is missing"
            if [bool(doers.of(op, stage, m)) for op in _WAYS_BACK] not in _ONE_BACKWARD:
                whole, *halves = (Action(op, stage, m).id for op in _WAYS_BACK)
                yield f"stage {stage} needs one backward of micro-batch {m}: {whole}, or {halves[0]} and {halves[1]}"
            for op in _COMPUTE:
                yield from _uneven(doers.of(op, stage, m), m)


def _uneven(found: list[Action], micro_batch: int) -> Iterator[str]:
    """Why actions of one op, stage and micro-batch do not do each part of it exactly once."""
    if not found or (len(found) == 1 and found[0].parts == 1):
        return  # nearly always: fractions are slow
    parts = Counter(action.part for action in found)
    for part, times in parts.items():
        if times > 1:
            text = next(action.text for action in found if action.part == part)
            yield f"micro-batch {micro_batch} is in {times} actions like {text}"
    done = sum((Fraction(1, parts_of) for _, parts_of in parts), Fraction(0))
    if found and done != 1:
        yield f"{', '.join(action.text for action in found)} are {done} of micro-batch {micro_batch}, not all of it"


def _unpaired(plan: Plan) -> Iterator[str]:
    """Either a plan has no transfers at all, or every one that it needs, in one order at both ends."""
    sent, received = channels(plan, SENDS), channels(plan, RECEIVES)
    if not sent and not received:
        return
    needed: dict[tuple[int, int], set[Message]] = {
        ends: {(a.op is Op.FORWARD, a.stage, a.micro_batch, a.part[0]) for a in made}
        for ends, made in messages(plan).items()
    }
    for ends in sorted({*sent, *received, *needed}):
        if set(sent.get(ends, ())) != needed.get(ends, set()):
            yield f"rank {ends[0]} to {ends[1]}: sends are not what the stages need"
        if sent.get(ends) != received.get(ends):
            yield f"rank {ends[0]} to {ends[1]}: receives are not in the order of the sends"


def _sharding(plan: Plan) -> Iterator[str]:
    """A stage that is gathered at all is whole whenever it computes; gradients that are reduced at all, all are."""
    sharded = {action.stage for _, action in plan.actions() if action.op is Op.UNSHARD}
    used = {action.pipe for _, action in plan.actions() if action.op in COMPUTE}
    for order in plan.orders:
        whole: set[tuple[int, int]] = set()
        reduced: set[tuple[int, int]] = set()
        fresh: dict[tuple[int, int], Action] = {}
        for action in order:
            s = action.pipe, action.stage
            if action.op is Op.UNSHARD:
                if s in whole:
                    yield f"{action.id} gathers what is whole already"
                whole.add(s)
            elif action.op is Op.RESHARD:
                if s not in whole:
                    yield f"{action.id} frees what is not there"
                whole.discard(s)
            elif action.op is Op.REDUCE_GRAD:
                if s not in fresh and action.pipe in used:  # a pipe without micro-batches adds nothing
                    yield f"{action.id} has no new gradients to reduce"
                fresh.pop(s, None)
                reduced.add(s)
            elif action.op in COMPUTE and action.stage in sharded and s not in whole:
                yield f"{action.id} computes on shards"
            if action.op in LAST_BACKWARDS:
                fresh[s] = action
        for replica, action in fresh.items():
            if replica in reduced:
                yield f"{action.id} comes after the gradients of its stage were reduced"


def _apart(plan: Plan) -> Iterator[str]:
    """Replicas of a stage on several ranks gather and reduce it together: equally often, in one order."""
    if plan.pipes == 1:
        return
    shared: dict[tuple[int, int], dict[int, list[tuple[Op, int]]]] = defaultdict(lambda: defaultdict(list))
    for rank, action in plan.actions():
        if action.op in (Op.UNSHARD, Op.REDUCE_GRAD):
            for peer in set(plan.ranks_of(action.stage)) - {rank}:
                shared[min(rank, peer), max(rank, peer)][rank].append((action.op, action.stage))
    for (one, other), stages in sorted(shared.items()):
        if stages[one] != stages[other]:
            yield f"ranks {one} and {other} gather or reduce shared stages in different orders"


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
