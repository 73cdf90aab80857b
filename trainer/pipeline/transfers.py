"""Passes that add sends and receives, never fused with each other or with computation.

A send goes directly behind the computation that made the data; a receive is posted early and not awaited.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.plan.plan import COMPUTE, RECEIVES, Action, Op, Order

POSTED_AHEAD = {"cpu": 2, "cuda": 0}
"""By device: computations by which a receive is posted before its use. Two are enough for a message to arrive while
the rank computes, and a buffer is kept for every receive anyway. NCCL does the messages of a link in the order in which
they were posted, so there they keep to one order."""

_BACKWARDS = (Op.BACKWARD, Op.BACKWARD_INPUT)


def add_transfers(orders: Sequence[Order], rank_of: Sequence[int]) -> list[Order]:
    """Add to each list the messages that its stages exchange with those on other ranks. `rank_of` is by stage.

    Both ends of a link get its messages in one order, both directions taken together, so that not even a
    transport that does one message at a time can get stuck. To find such an order all ranks go forward in
    rounds, an action each, and a message enters both lists at once. ValueError when no rank can go on.
    """
    done: list[list[Action]] = [[] for _ in orders]
    at = [0] * len(orders)
    here: list[set[tuple[bool, int, int]]] = [set() for _ in orders]  # inputs that a rank has, or will have
    while any(at[rank] < len(order) for rank, order in enumerate(orders)):
        before = sum(at)
        for rank, order in enumerate(orders):
            if at[rank] == len(order):
                continue
            action = order[at[rank]]
            if (wanted := _input(action, len(rank_of))) is not None and wanted not in here[rank]:
                continue
            at[rank] += 1
            done[rank].append(action)
            made = _output(action, len(rank_of))
            if made is None:
                continue
            is_forward, stage, m = made
            peer = rank_of[stage]
            here[peer].add(made)
            if peer != rank:
                send, receive = _MESSAGES[is_forward]
                done[rank].append(Action(send, action.stage, m))
                done[peer].append(Action(receive, stage, m))
        if sum(at) == before:
            stuck = [order[at[rank]].id for rank, order in enumerate(orders) if at[rank] < len(order)]
            raise ValueError(f"the lists deadlock, at {', '.join(stuck)}")
    return [tuple(actions) for actions in done]


def post_ahead(order: Order, rank_of: Sequence[int], ahead: int) -> Order:
    """Post each receive at least `ahead` computations before the one that needs it.

    Per sender, the order of receives stays. Only for transports whose two directions of a link do not wait for
    each other (gloo: yes; NCCL: no).
    """
    computations = [i for i, action in enumerate(order) if action.op in COMPUTE]
    users = {_input(order[i], len(rank_of)): n for n, i in enumerate(computations)}
    target = list(range(len(order)))
    earliest: dict[int, int] = {}
    for i in reversed(range(len(order))):
        action = order[i]
        if action.op in RECEIVES:
            is_forward = action.op is Op.RECV_FORWARD
            peer = rank_of[action.stage - 1 if is_forward else action.stage + 1]
            user = users[is_forward, action.stage, action.micro_batch]
            wished = computations[max(0, user - ahead)]
            target[i] = earliest[peer] = min(i, wished, earliest.get(peer, i))
    # A receive that moves to a place goes in front of what stands there; moved ones keep their own order.
    moved = sorted(range(len(order)), key=lambda i: (target[i], target[i] == i, i))
    return tuple(order[i] for i in moved)


_MESSAGES = {True: (Op.SEND_FORWARD, Op.RECV_FORWARD), False: (Op.SEND_BACKWARD, Op.RECV_BACKWARD)}


def _input(action: Action, stages: int) -> tuple[bool, int, int] | None:
    """What a computation needs from an adjacent stage: (is activation, own stage, micro-batch)."""
    if action.op is Op.FORWARD and action.stage > 0:
        return True, action.stage, action.micro_batch
    if action.op in _BACKWARDS and action.stage < stages - 1:
        return False, action.stage, action.micro_batch
    return None


def _output(action: Action, stages: int) -> tuple[bool, int, int] | None:
    """What a computation makes for an adjacent stage: (is activation, that stage, micro-batch)."""
    if action.op is Op.FORWARD and action.stage < stages - 1:
        return True, action.stage + 1, action.micro_batch
    if action.op in _BACKWARDS and action.stage > 0:
        return False, action.stage - 1, action.micro_batch
    return None
