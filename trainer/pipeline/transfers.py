"""Passes that add sends and receives, never fused with each other or with computation.

A send goes directly behind the computation that made the data; a receive is posted early and not awaited.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from holdfast.plan.needs import Doers, receiver, sources
from holdfast.plan.plan import COMPUTE, RECEIVES, Action, Op, Order

POSTED_AHEAD = {"cpu": 2, "cuda": 0}
"""By device: computations by which a receive is posted before its use. Two are enough for a message to arrive while
the rank computes, and a buffer is kept for every receive anyway. NCCL does the messages of a link in the order in which
they were posted, so there they keep to one order."""
ONE_AT_A_TIME = {"cpu": False, "cuda": True}
"""By device: whether two ranks exchange their messages one after another, in the order of their lists."""
Replicas = Sequence[Sequence[int]]
"""The rank of each stage in each pipe after the first."""


def add_transfers(orders: Sequence[Order], rank_of: Sequence[int], replicas: Replicas = ()) -> list[Order]:
    """Add to each list the messages that its stages exchange with those on other ranks. `rank_of` is by stage.

    Both ends of a link get its messages in one order, both directions taken together, so that not even a
    transport that does one message at a time can get stuck. To find such an order all ranks go forward in
    rounds, an action each, and a message enters both lists at once. ValueError when no rank can go on.
    """
    places, stages = (rank_of, *replicas), len(rank_of)
    doers = Doers(action for order in orders for action in order)
    done: list[list[Action]] = [[] for _ in orders]
    at = [0] * len(orders)
    here: list[set[str]] = [set() for _ in orders]  # outputs of other stages that a rank has, or will have
    while any(at[rank] < len(order) for rank, order in enumerate(orders)):
        before = sum(at)
        for rank, order in enumerate(orders):
            if at[rank] == len(order):
                continue
            action = order[at[rank]]
            if any(source.id not in here[rank] for source in sources(doers, action, stages)):
                continue
            at[rank] += 1
            done[rank].append(action)
            to = receiver(action, stages)
            if to is None:
                continue
            peer = places[action.pipe][to]
            here[peer].add(action.id)
            if peer != rank:
                send, receive = _MESSAGES[action.op is Op.FORWARD]
                done[rank].append(replace(action, op=send))
                done[peer].append(replace(action, op=receive, stage=to))
        if sum(at) == before:
            stuck = [order[at[rank]].id for rank, order in enumerate(orders) if at[rank] < len(order)]
            raise ValueError(f"the lists deadlock, at {', '.join(stuck)}")
    return [tuple(actions) for actions in done]


def post_ahead(order: Order, rank_of: Sequence[int], ahead: int, replicas: Replicas = ()) -> Order:
    """Post each receive at least `ahead` computations before the one that needs it.

    Per sender, the order of receives stays. Only for transports whose two directions of a link do not wait for
    each other (gloo: yes; NCCL: no).
    """
    places = (rank_of, *replicas)
    computations = [i for i, action in enumerate(order) if action.op in COMPUTE]
    number = {order[i].id: n for n, i in enumerate(computations)}
    doers = Doers(order)
    target = list(range(len(order)))
    earliest: dict[int, int] = {}
    for i in reversed(range(len(order))):
        action = order[i]
        if action.op in RECEIVES:
            is_forward = action.op is Op.RECV_FORWARD
            peer = places[action.pipe][action.stage - 1 if is_forward else action.stage + 1]
            user = min(number[one.id] for one in _users(doers, action))
            wished = computations[max(0, user - ahead)]
            target[i] = earliest[peer] = min(i, wished, earliest.get(peer, i))
    # A receive that moves to a place goes in front of what stands there; moved ones keep their own order.
    moved = sorted(range(len(order)), key=lambda i: (target[i], target[i] == i, i))
    return tuple(order[i] for i in moved)


_MESSAGES = {True: (Op.SEND_FORWARD, Op.RECV_FORWARD), False: (Op.SEND_BACKWARD, Op.RECV_BACKWARD)}


def _users(doers: Doers, receive: Action) -> list[Action]:
    """The computations that use what a receive brings."""
    if receive.op is Op.RECV_FORWARD:
        return doers.matching(Op.FORWARD, receive.stage, receive)
    late = [one for one in doers.matching(Op.RECOMPUTE, receive.stage, receive) if one.late]
    return [
        *late,
        *doers.matching(Op.BACKWARD, receive.stage, receive),
        *doers.matching(Op.BACKWARD_INPUT, receive.stage, receive),
    ]
