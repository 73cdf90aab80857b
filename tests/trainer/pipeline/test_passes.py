"""What is added to a schedule's lists: reductions of replicas, messages, receives that are posted early."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from plans import computations
from torch import nn

from holdfast.plan.plan import COMPUTE, LAST_BACKWARDS, RECEIVES, SENDS, Action, Op, Order
from holdfast.plan.schedules.table import SCHEDULES
from holdfast.plan.simulate import durations, simulate
from holdfast.trainer.optim.slices import GradientSums, Slice
from holdfast.trainer.pipeline.job_plan import job_plan
from holdfast.trainer.pipeline.sharding import reduced_early
from holdfast.trainer.pipeline.transfers import POSTED_AHEAD, add_transfers, post_ahead
from holdfast.trainer.settings.layout import TrainerLayout


def counts(order: Order, op: Op) -> int:
    return sum(action.op is op for action in order)


@pytest.mark.parametrize(("zero", "reductions"), [(0, 1), (1, 1), (2, 4)])
def test_stage_2_reduces_each_micro_batch_and_the_others_once_a_step(zero: int, reductions: int) -> None:
    """Four micro-batches of each of two replicas."""
    layout = TrainerLayout(2, 2, 1, 1, 4, SCHEDULES["1f1b"].placement)
    plan = job_plan(layout, "1f1b", 2, SCHEDULES["1f1b"].build(2, 1, 4), zero=zero)
    assert [counts(order, Op.REDUCE_GRAD) for order in plan.orders] == [reductions] * 2


def test_lists_that_wait_for_each_other_are_named() -> None:
    """The first rank would go back through a micro-batch before the second one had it; the third one is done."""
    first = (Action(Op.BACKWARD, 0, 0), Action(Op.FORWARD, 0, 0))
    second = (Action(Op.FORWARD, 1, 0), Action(Op.BACKWARD, 1, 0))
    with pytest.raises(ValueError, match=f"deadlock, at {first[0].id}, {second[0].id}$"):
        add_transfers([first, second, ()], [0, 1])


@pytest.mark.parametrize(("name", "chunks"), [("zbv", 2), ("interleaved", 2), ("bfs", 3)])
@pytest.mark.parametrize("ahead", [1, 2, 5])
def test_receives_of_one_sender_stay_in_its_order(name: str, chunks: int, ahead: int) -> None:
    """Also where a rank gets forwards and backwards from the same one, as the arms of a V do."""
    rank_of = [SCHEDULES[name].placement.rank_of(stage, 4) for stage in range(4 * chunks)]

    def received(order: Order, peer: int) -> list[str]:
        found = []
        for action in order:
            if action.op in (Op.RECV_FORWARD, Op.RECV_BACKWARD):
                sender = action.stage + (1 if action.op is Op.RECV_BACKWARD else -1)
                if rank_of[sender] == peer:
                    found.append(action.id)
        return found

    orders = add_transfers(computations(name, 4, chunks, 8), rank_of)
    assert [post_ahead(order, rank_of, ahead) for order in orders] != orders
    for order in orders:
        early = post_ahead(order, rank_of, ahead)
        for peer in range(4):
            assert received(early, peer) == received(order, peer)


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("pp", [2, 4])
def test_both_ends_of_a_link_post_in_one_order_for_nccl(name: str, pp: int) -> None:
    """NCCL does what two ranks post to each other one after another, sends and receives together."""
    schedule = SCHEDULES[name]
    layout = TrainerLayout(pp, 1, 1, schedule.chunks, 2 * pp, schedule.placement)
    plan = job_plan(
        layout, name, layout.stages, schedule.build(pp, schedule.chunks, 2 * pp), ahead=POSTED_AHEAD["cuda"]
    )
    posted: dict[tuple[int, int], list[tuple[bool, int, int]]] = {}
    for rank, order in enumerate(plan.orders):
        for action in order:
            if action.op not in SENDS | RECEIVES:
                continue
            is_forward = action.op in (Op.SEND_FORWARD, Op.RECV_FORWARD)
            up = action.op in (Op.SEND_FORWARD, Op.RECV_BACKWARD)
            peer = plan.rank_of(action.stage + (1 if up else -1), action.pipe)
            crossed = action.stage if up else action.stage - 1
            posted.setdefault((rank, peer), []).append((is_forward, crossed, action.micro_batch))
    assert posted
    for (rank, peer), messages in posted.items():
        assert messages == posted[peer, rank], (rank, peer)


@pytest.mark.parametrize("count", [4, 8])
def test_a_stage_is_reduced_in_idle_time_only_where_each_of_its_ranks_has_some(count: int) -> None:
    """Behind a rank's last computation there is none: what ends there is reduced at the step's end."""
    schedule = SCHEDULES["chimera"]
    layout = TrainerLayout(4, 1, 1, 2, count, schedule.placement)
    plan = job_plan(layout, "chimera", 4, schedule.build(4, 2, count))
    last = {[action for action in order if action.op in COMPUTE][-1].stage for order in plan.orders}
    line = simulate(plan, durations(1, 2))
    idle, ready = reduced_early(plan, line, only_idle=True), reduced_early(plan, line, only_idle=False)
    assert sorted(ready) == list(range(4))
    assert idle
    assert not last & set(idle)
    ends = {s: max(line.end[a.id] for _, a in plan.actions() if a.op in LAST_BACKWARDS and a.stage == s) for s in ready}
    assert ready == sorted(ready, key=lambda stage: (ends[stage], stage))


def test_a_rank_with_both_copies_of_a_tied_embedding_adds_their_gradients_up() -> None:
    """As in a V, whose first rank has the last stage too: no message."""
    layout = TrainerLayout(2, 1, 1, 2, 4, SCHEDULES["zbv"].placement)
    mesh: Any = SimpleNamespace(layout=layout, tp_size=1, tp_rank=0, dp_rank=0, tp=SimpleNamespace(get_group=object))
    pieces = []
    for stage, value in ((0, 1.0), (3, 10.0)):
        shard = nn.Parameter(torch.zeros(3))
        shard.grad = torch.full((3,), value)
        pieces.append(Slice("embed.weight", shard, shard, 1, False, True, False, stage))
    GradientSums(pieces, mesh, is_sequence=False)()
    for piece in pieces:
        assert piece.shard.grad is not None
        assert piece.shard.grad.tolist() == [11.0] * 3
