"""How long a plan takes when each action takes a given time. Pure, in virtual time.

The rule: a rank does its list in order; an action begins when the rank is free and what it needs has ended, plus
the link's latency if that was on another rank. Sends and receives take no time of the rank unless a time is given.
A plan whose order is not fixed is simulated by dynamic.py.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from holdfast.plan.memory import live
from holdfast.plan.needs import dependencies, messages
from holdfast.plan.plan import COMPUTE, RECEIVES, SENDS, Action, Op, Plan, Resource

Duration = Callable[[Action], float]
"""Seconds (or any unit) that an action keeps its rank busy."""
Latency = float | Duration
"""What a message takes: the same for each, or by the action that sends it (the computation, without transfers)."""
Size = Callable[[Action], int]
"""Bytes of the message that a computation's output is."""
Link = tuple[int, int]
"""From one pipeline rank to another."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """When everything began and ended, by action id; busy time and bubble by pipeline rank."""

    start: dict[str, float]
    end: dict[str, float]
    busy: tuple[float, ...]
    """Time spent computing."""
    live: tuple[float, ...] = ()
    """The most micro-batches whose activations a rank holds, over all its stages: see memory.py."""
    wire: dict[Link, int] = field(default_factory=dict)
    """Bytes that go over each link in a step, where sizes of messages were given."""

    @property
    def makespan(self) -> float:
        return max(self.end.values(), default=0.0)

    @property
    def bubble(self) -> tuple[float, ...]:
        """Share of the makespan in which a rank computed nothing."""
        return tuple(1 - busy / self.makespan for busy in self.busy)


def durations(forward: float, backward: float, chunks: int = 1) -> Duration:
    """A rank's layers take `forward` and `backward` for one micro-batch, split evenly over its `chunks` stages.

    Halves of a backward take half of it; recomputing takes a forward; everything else takes no time.
    """
    table = {
        Op.FORWARD: forward,
        Op.RECOMPUTE: forward,
        Op.BACKWARD: backward,
        Op.BACKWARD_INPUT: backward / 2,
        Op.BACKWARD_WEIGHT: backward / 2,
    }
    return lambda action: table.get(action.op, 0) / chunks * len(action.micro_batches) / action.parts


def simulate(
    plan: Plan,
    duration: Duration,
    latency: Latency = 0.0,
    *,
    posted_ahead: bool = True,
    one_at_a_time: bool = False,
    by_resource: bool = False,
    sizes: Size | None = None,
) -> Timeline:
    """Run a plan. `latency` is what a message takes after its computation, without occupying either end.

    A message moves once it has been sent and its receive posted. Where a plan has no transfers, receives are posted
    as early as can be, or with `posted_ahead` false only when the receiver has nothing else left to do before it: a
    message then never moves while its receiver computes. With `one_at_a_time` two ranks exchange their messages one
    after another, both directions together, in the order in which their lists have them: as NCCL does. It needs a plan
    with transfers, which has such an order.

    With `by_resource` a rank does what keeps different resources busy side by side: an action other than a
    computation begins when the computations before it in the list have ended, and later ones do not wait for it
    unless they need it. ValueError when the lists deadlock (`verify` says where), or when two ranks have their messages
    in orders of which `one_at_a_time` cannot be true.
    """
    needs = _with_replicas(plan) if by_resource else dependencies(plan)
    arrival = _Arrival(plan, latency, posted_ahead, one_at_a_time)
    queues = list(_queues(plan, by_resource, needs))
    start: dict[str, float] = {}
    end: dict[str, float] = {}
    clock = [0.0] * len(queues)
    busy = [0.0] * len(plan.orders)
    at = [0] * len(queues)
    ready = list(range(len(queues)))
    waiting: dict[str, list[int]] = {}
    while ready:
        number = ready.pop()
        rank, queue = queues[number]
        while at[number] < len(queue):
            action = queue[at[number]]
            missing = next((need for need in needs[action.id] if need not in end), None)
            if missing is not None:
                waiting.setdefault(missing, []).append(number)
                break
            started = max(clock[number], arrival.of(action, needs[action.id], rank, end, clock[number]))
            took = duration(action)
            start[action.id], end[action.id] = started, started + took
            clock[number] = started + took
            busy[rank] += took if action.op in COMPUTE else 0
            at[number] += 1
            ready += waiting.pop(action.id, ())
    if len(end) < sum(map(len, plan.orders)):
        raise ValueError(f"the {plan.schedule} plan never ends: after {len(end)} actions, all wait for each other")
    return Timeline(start, end, tuple(busy), live(plan), wire(plan, sizes) if sizes else {})


def wire(plan: Plan, sizes: Size) -> dict[Link, int]:
    """Bytes that the messages of one step take over each link."""
    return {link: sum(map(sizes, made)) for link, made in messages(plan).items()}


def _queues(plan: Plan, by_resource: bool, needs: dict[str, tuple[str, ...]]) -> list[tuple[int, list[Action]]]:
    """What is done in order: each rank's list, or what it has for each resource. Adds to `needs` when it may begin."""
    if not by_resource:
        return [(rank, list(order)) for rank, order in enumerate(plan.orders)]
    queues: dict[tuple[int, Resource], list[Action]] = defaultdict(list)
    for rank, order in enumerate(plan.orders):
        before = ""
        for action in order:
            queues[rank, action.resource].append(action)
            if action.resource is Resource.COMPUTE:
                before = action.id
            elif before:
                needs[action.id] += (before,)
    return [(rank, queue) for (rank, _), queue in queues.items()]


def _with_replicas(plan: Plan) -> dict[str, tuple[str, ...]]:
    """What each action needs, where a reduction over the pipes begins when the last of its ranks is there."""
    needs = dependencies(plan)
    reductions = [action for _, action in plan.actions() if action.op is Op.REDUCE_GRAD and plan.pipes > 1]
    together: dict[tuple[int, int], list[str]] = defaultdict(list)
    for one in reductions:
        together[one.stage, one.turn // plan.pipes] += needs[one.id]
    for one in reductions:
        needs[one.id] = tuple(dict.fromkeys(together[one.stage, one.turn // plan.pipes]))
    return needs


class _Arrival:
    """When what actions need is there."""

    def __init__(self, plan: Plan, latency: Latency, posted_ahead: bool, one_at_a_time: bool) -> None:
        self.actions = {action.id: (rank, action) for rank, action in plan.actions()}
        self.latency = latency if callable(latency) else lambda action: latency
        self.posted_ahead = posted_ahead
        self.before = _before(plan) if one_at_a_time else {}
        self.arrived: dict[str, float] = {}

    def of(self, action: Action, needs: tuple[str, ...], rank: int, end: dict[str, float], free: float) -> float:
        """When the last of what an action needs is there. A message counts from the later of its two ends."""
        at = max((end[need] for need in needs), default=0.0)
        if action.op not in COMPUTE:
            return at
        posted: float | None = None
        for need in needs:
            home, source = self.actions[need]
            if source.op in RECEIVES:
                posted = end[need]
            elif home != rank:
                if posted is not None and self.before:
                    at = max(at, self.through(need, end))
                    continue
                begin = posted if posted is not None else 0.0 if self.posted_ahead else free
                at = max(at, max(end[need], begin) + self.latency(source))
        return at

    def through(self, send: str, end: dict[str, float]) -> float:
        """When a message is there that must let those before it through. Both its ends are known, and so are theirs."""
        waiting = []
        while send and send not in self.arrived:
            waiting.append(send)
            send = self.before[send][1]
        at = self.arrived.get(send, 0.0)
        for one in reversed(waiting):
            receive, _ = self.before[one]
            at = self.arrived[one] = max(at, end[one], end[receive]) + self.latency(self.actions[one][1])
        return at


def _before(plan: Plan) -> dict[str, tuple[str, str]]:
    """By send: its receive, and the send before it between the same two ranks in either direction, "" for the first."""
    ends: dict[Link, list[Action]] = defaultdict(list)
    for rank, action in plan.actions():
        if action.op in SENDS | RECEIVES:
            adjacent = action.stage + (1 if action.op in (Op.SEND_FORWARD, Op.RECV_BACKWARD) else -1)
            ends[rank, plan.rank_of(adjacent, action.pipe)].append(action)
    found: dict[str, tuple[str, str]] = {}
    for (rank, peer), own in ends.items():
        if rank > peer:
            continue
        last = ""
        for mine, other in zip(own, ends[peer, rank], strict=True):
            send, receive = (mine, other) if mine.op in SENDS else (other, mine)
            if send.op not in SENDS or receive.op not in RECEIVES:
                raise ValueError(f"ranks {rank} and {peer} have their messages in different orders, at {mine.id}")
            found[send.id], last = (receive.id, last), send.id
    return found
