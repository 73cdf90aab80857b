"""The reconciler requests each missing state once, and again after manual changes; and its pure part."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.base.errors import Unavailable
from holdfast.controller.schedulers import reconciler as module
from holdfast.controller.schedulers.base import Out, changes, outs
from holdfast.controller.schedulers.reconciler import SchedulerReconciler
from holdfast.controller.state.history import History
from holdfast.controller.state.model import Node
from holdfast.wire import types as t

NAMES = st.sets(st.sampled_from("abcdef"))


def wish(*names: str) -> dict[str, Out]:
    return {name: Out(name, "why") for name in names}


class Memory:
    """A scheduler that does what it is asked, and counts."""

    name = "memory"

    def __init__(self, out: set[str] | None = None, unknown: set[str] | None = None) -> None:
        self.out, self.unknown = out or set(), unknown or set()
        self.away = False
        self.calls: list[str] = []

    async def taken_out(self) -> set[str]:
        if self.away:
            raise Unavailable("memory does not answer")
        self.calls.append("look")
        return set(self.out)

    async def evict(self, order: Out) -> None:
        self.calls.append(f"out {order.node}")
        if order.node in self.unknown:
            raise Unavailable(f"no node {order.node}")
        self.out.add(order.node)

    async def let_in(self, node: str) -> None:
        self.calls.append(f"in {node}")
        self.out.discard(node)

    async def ask_for_nodes(self, reason: str) -> bool:
        self.calls.append(f"ask {reason}")
        return True


@given(wanted=NAMES, known=NAMES, out=NAMES)
def test_after_the_changes_all_is_as_wanted_but_for_what_others_took_out(
    wanted: set[str], known: set[str], out: set[str]
) -> None:
    orders, back = changes(wish(*wanted), known, out)
    after = (out | {order.node for order in orders}) - set(back)
    assert wanted <= after
    assert after - wanted == (out - wanted) - known


def test_evicted_cordoned_and_lost_nodes_are_out() -> None:
    histories = {"a": History(evicted="three hangs"), "b": History(cordoned=True), "c": History()}
    lost = Node("d", t.Identity("d", "d", "1"), state=t.NodeState.LOST, reason="not connected for too long")
    well = Node("e", t.Identity("e", "e", "1"), state=t.NodeState.HEALTHY)
    assert {name: out.reason for name, out in outs({"d": lost, "e": well}, histories).items()} == {
        "a": "three hangs",
        "b": "cordoned",
        "d": "lost: not connected for too long",
    }


def test_one_look_and_one_order_for_each_change() -> None:
    scheduler, wanted = Memory(), wish("a")
    one = SchedulerReconciler(scheduler, lambda: wanted, lambda node, text: None)
    for _ in range(3):
        asyncio.run(one.once())
    assert scheduler.calls == ["look", "out a"]
    del wanted["a"]
    for _ in range(3):
        asyncio.run(one.once())
    assert scheduler.calls[2:] == ["look", "in a"]


def test_what_people_changed_is_seen_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = Memory()
    one = SchedulerReconciler(scheduler, lambda: wish("a"), lambda node, text: None)
    asyncio.run(one.once())
    scheduler.out.clear()
    monkeypatch.setattr(module, "_LOOK_AGAIN", -1.0)
    asyncio.run(one.once())
    assert scheduler.out == {"a"}


def test_a_node_that_others_took_out_stays_out() -> None:
    scheduler = Memory(out={"theirs"})
    asyncio.run(SchedulerReconciler(scheduler, dict, lambda node, text: None).once())
    assert scheduler.out == {"theirs"}


def test_an_unknown_name_is_reported_once_and_delays_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LOOK_AGAIN", -1.0)
    scheduler, reported = Memory(unknown={"a"}), list[str]()
    one = SchedulerReconciler(scheduler, lambda: wish("a", "b"), lambda node, text: reported.append(f"{node}: {text}"))
    for _ in range(3):
        asyncio.run(one.once())
    assert scheduler.out == {"b"}
    assert reported == ["a: memory did not drain it: no node a"]


def test_a_job_that_waits_asks_once_each_time() -> None:
    scheduler, reasons = Memory(), ["", "needs 2", "needs 2", "", "needs 1"]
    one = SchedulerReconciler(scheduler, dict, lambda node, text: None, lambda: reasons.pop(0))
    for _ in range(5):
        asyncio.run(one.once())
    assert [call for call in scheduler.calls if call != "look"] == ["ask needs 2", "ask needs 1"]


def test_it_goes_on_when_the_scheduler_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EVERY", 0.001)
    scheduler = Memory()
    scheduler.away = True

    async def story() -> None:
        task = asyncio.create_task(SchedulerReconciler(scheduler, lambda: wish("a"), lambda node, text: None).run())
        await asyncio.sleep(0.05)
        assert not task.done()
        scheduler.away = False
        async with asyncio.timeout(10):
            while not scheduler.out:
                await asyncio.sleep(0.01)
        task.cancel()

    asyncio.run(story())
