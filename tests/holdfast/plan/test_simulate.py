"""Messages, resources and bytes in a simulated step: figures by hand or by formula."""

from __future__ import annotations

import pytest

from holdfast.plan.plan import Action, Layers, Mesh, Op, Plan, from_csv
from holdfast.plan.schedules.table import SCHEDULES, Placement
from holdfast.plan.simulate import durations, simulate
from holdfast.trainer.pipeline.job_plan import job_plan
from holdfast.trainer.settings.layout import TrainerLayout

WORK = durations(1, 2)


def plan_of(text: str, micro_batches: int = 1) -> Plan:
    orders = from_csv(text)
    stages = tuple(Layers(s, s + 1, s) for s in range(len(orders)))
    return Plan("by hand", Mesh.of(pp=len(orders)), stages, micro_batches, orders)


@pytest.mark.parametrize("n", [1, 4, 9])
def test_messages_whose_receives_are_posted_late_are_all_exposed(n: int) -> None:
    plan = SCHEDULES["gpipe"].plan(2, 1, n)
    without = (n + 1) * (1 + 2)
    # Posted ahead, the first of each way shows; posted late, each of them: 2N(D - 1) for D = 2.
    assert simulate(plan, WORK, latency=0.125).makespan == without + 2 * 0.125
    assert simulate(plan, WORK, latency=0.125, posted_ahead=False).makespan == without + 2 * n * 0.125


def test_messages_of_two_ranks_may_go_one_at_a_time_in_the_order_of_their_lists() -> None:
    """By hand. The gradient of 1 is ready at 7.5, but rank 0 posts its receive at 8, behind the send of activation 2,
    and that takes the link until 8.5: it is there at 9 and not at 8.5."""
    layout = TrainerLayout(2, 1, 1, 1, 4, Placement.LOOP)
    plan = job_plan(layout, "1f1b", 2, SCHEDULES["1f1b"].build(2, 1, 4))
    line, free = (simulate(plan, WORK, 0.5, one_at_a_time=one) for one in (True, False))
    assert [line.start[f"0B{m}"] for m in range(4)] == [5, 9, 13, 16]
    assert [free.start[f"0B{m}"] for m in range(4)] == [5, 8.5, 12, 15.5]
    assert (line.makespan, free.makespan) == (18, 17.5)


@pytest.mark.parametrize(("d", "n"), [(2, 3), (4, 8), (8, 16)])
def test_gpipe_over_nccl_exposes_every_message_of_a_rank(d: int, n: int) -> None:
    """A list of forwards posts each receive behind the forward before it: N + D - 2 messages each way."""
    c = 0.5
    layout = TrainerLayout(d, 1, 1, 1, n, Placement.LOOP)
    plan = job_plan(layout, "gpipe", d, SCHEDULES["gpipe"].build(d, 1, n))
    assert simulate(plan, WORK, c, one_at_a_time=True).makespan == (n + d - 1) * (1 + 2) + 2 * (n + d - 2) * c


def test_lists_that_differ_in_order_cannot_be_done_one_message_at_a_time() -> None:
    text = "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n" \
           "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n"  # fmt: skip
    assert simulate(plan_of(text, 2), WORK, 0.5).makespan > 0
    with pytest.raises(ValueError, match="ranks 0 and 1 have their messages in different orders, at 0SEND_F1"):
        simulate(plan_of(text, 2), WORK, 0.5, one_at_a_time=True)


def test_a_message_may_take_longer_than_another() -> None:
    plan = plan_of("0F0,0B0\n1F0,1B0\n")
    line = simulate(plan, WORK, latency=lambda sender: 5.0 if sender.op is Op.FORWARD else 0.5)
    assert (line.start["1F0"], line.start["0B0"]) == (1 + 5, 1 + 5 + 3 + 0.5)


def test_with_resources_of_their_own_messages_and_reductions_go_on_beside_computation() -> None:
    plan = plan_of("0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0RECV_B1,0B0,0B1,0REDUCE_GRAD,0STEP\n"
                   "1RECV_F0,1RECV_F1,1F0,1F1,1B0,1SEND_B0,1B1,1SEND_B1\n", 2)  # fmt: skip

    def took(action: Action) -> float:
        return {Op.SEND_FORWARD: 3.0, Op.REDUCE_GRAD: 7.0}.get(action.op, WORK(action))

    alone, beside = simulate(plan, took), simulate(plan, took, by_resource=True)
    assert (alone.start["0F1"], beside.start["0F1"]) == (4, 1), "a send keeps the rank's processor, or not"
    assert (beside.start["0SEND_F1"], beside.start["1F0"], beside.start["1F1"]) == (4, 4, 7), "one message at a time"
    assert beside.start["0REDUCE_GRAD"] == beside.end["0B1"]
    assert beside.start["0STEP"] == beside.end["0REDUCE_GRAD"] == beside.end["0B1"] + 7
    assert beside.busy == alone.busy == (6, 6)


def test_what_keeps_no_processor_busy_begins_where_the_list_has_it() -> None:
    line = simulate(plan_of("0F0,0SNAP,0B0,0STEP\n"), lambda a: 9 if a.op is Op.SNAP else WORK(a), by_resource=True)
    assert (line.start["0SNAP"], line.start["0B0"], line.makespan) == (1, 1, 10)


def test_replicas_begin_to_reduce_when_the_last_of_them_is_there() -> None:
    layout = TrainerLayout(4, 1, 1, 2, 3, Placement.BOTH_WAYS)  # one pipe has two micro-batches, the other one
    plan = job_plan(layout, "chimera", 4, SCHEDULES["chimera"].build(4, 2, 3), sync="eager")
    line = simulate(plan, lambda a: 1 if a.op is Op.REDUCE_GRAD else WORK(a), by_resource=True)
    for stage in range(4):
        last = max(line.end[a.id] for _, a in plan.actions() if a.op is Op.BACKWARD and a.stage == stage)
        starts = [line.start[a.id] for _, a in plan.actions() if a.op is Op.REDUCE_GRAD and a.stage == stage]
        assert len(starts) == 2
        assert min(starts) >= last
        assert starts[0] == starts[1]


def test_bytes_of_each_link() -> None:
    d, n, size = 4, 8, 100
    line = simulate(SCHEDULES["1f1b"].plan(d, 1, n), WORK, sizes=lambda sender: size)
    both = [(s, s + 1) for s in range(d - 1)] + [(s + 1, s) for s in range(d - 1)]
    assert line.wire == dict.fromkeys(both, n * size)
    # Doubled forwards send as much in half as many messages; both pipes use every link both ways.
    for name in ("chimera", "chimera-doubling", "chimera-halving"):
        plan = SCHEDULES[name].plan(d, 2, n)
        line = simulate(plan, WORK, sizes=lambda sender: round(size * float(sender.share)))
        assert line.wire == dict.fromkeys(both, n * size)
    assert simulate(SCHEDULES["1f1b"].plan(d, 1, n), WORK).wire == {}


def test_live_activations_of_each_rank() -> None:
    d, n = 4, 8
    assert simulate(SCHEDULES["1f1b"].plan(d, 1, n), WORK).live == (4, 3, 2, 1)
    assert simulate(SCHEDULES["gpipe"].plan(d, 1, n), WORK).live == (8,) * 4
