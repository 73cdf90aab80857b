"""Transfer plans on real processes: what every rank holds afterwards is what slicing the whole tensor gives."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from forked import Zygote
from programs import figures
from torch import Tensor

from holdfast.plan.moves.order import Algorithm
from holdfast.plan.moves.shard_spec import ShardSpec
from holdfast.plan.moves.simulate import simulate
from holdfast.plan.moves.strategies import Message, Strategy
from holdfast.plan.moves.transfer_plan import make_plan
from holdfast.plan.moves.units import units
from holdfast.plan.plan import Mesh
from holdfast.plan.tiles import TensorShard
from holdfast.trainer.mesh import transfer

WORLD = 8


def test_parts_move_between_random_layouts_over_gloo(zygote: Zygote, tmp_path: Path) -> None:
    args = {"seeds": list(range(60)), "world": WORLD}
    found = zygote.run("moving:moved", WORLD, tmp_path / "ranks", args=args)
    assert found["exits"] == [0] * WORLD
    assert [result["wrong"] for result in found["results"]] == [[]] * WORLD
    assert sum(result["messages"] for result in found["results"]) > 1000, "most of it moved"
    assert sum(result["received"] for result in found["results"]) > 1000


class Recorder:
    """In place of a process group: what a rank begins, and what it waits for, in order."""

    def __init__(self, rank: int) -> None:
        self.rank, self.done = rank, list[tuple[str, int, int, int]]()

    def receive(self, room: Tensor, group: object, group_src: int) -> SimpleNamespace:
        return self._begun("receive", group_src, room)

    def send(self, piece: Tensor, target: int) -> SimpleNamespace:
        return self._begun("send", target, piece)

    def _begun(self, what: str, peer: int, piece: Tensor) -> SimpleNamespace:
        one = (peer, piece.storage_offset(), piece.numel())
        self.done.append((what, *one))
        return SimpleNamespace(wait=lambda: self.done.append((f"{what}d", *one)))


def expected(rank: int, messages: list[Message]) -> list[tuple[str, int, int, int]]:
    """Of one unit: messages in the plan's order; a rank passes on what it has received, and waits for no more."""
    found: list[tuple[str, int, int, int]] = []
    mine = {i: m for i, m in enumerate(messages) if rank in (m.source, m.target)}
    is_here = set[int]()

    def one(m: Message, peer: int) -> tuple[int, int, int]:
        return peer, m.start, m.stop - m.start

    for m in mine.values():
        if m.target == rank:
            found.append(("receive", *one(m, m.source)))
            continue
        if (after := m.after) in mine and mine[after].target == rank and after not in is_here:
            is_here.add(after)
            found.append(("received", *one(mine[after], mine[after].source)))
        found.append(("send", *one(m, m.target)))
    rest = [m for i, m in mine.items() if m.target == rank and i not in is_here]
    found += [("received", *one(m, m.source)) for m in rest]
    return found + [("sendd", *one(m, m.target)) for m in mine.values() if m.source == rank]


@pytest.mark.parametrize("strategy", Strategy)
def test_a_rank_waits_for_what_it_passes_on_and_for_nothing_else(
    strategy: Strategy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So what is simulated of a plan (tests/holdfast/plan/moves) is what ranks do: one unit from rank 0 to four hosts
    of two ranks each, in pieces."""
    count, ranks = 64, range(9)
    source = ShardSpec(Mesh.of(), ((),))
    target = ShardSpec(Mesh.of(dp=8), ((),), tuple(ranks[1:]))
    found = units("w", 4, source.held((count,)), target.held((count,)))
    plan = make_plan(found, [0, *(1 + i // 2 for i in range(8))], strategy, 8)
    (move,) = plan.moves
    whole, passed_on = TensorShard((0,), (count,)), 0
    for rank in ranks:
        recorder = Recorder(rank)
        monkeypatch.setattr(transfer.dist, "get_rank", lambda group, rank=rank: rank)
        monkeypatch.setattr(transfer.dist, "irecv", recorder.receive)
        held = {"w": (whole, torch.zeros(count))}
        transfer.run(plan, held if rank == 0 else {}, {} if rank == 0 else held, None, recorder.send)  # type: ignore[arg-type]
        assert recorder.done == expected(rank, plan.messages(move)), rank
        passed_on += sum(what == "send" for what, *_ in recorder.done) if rank else 0
    assert (passed_on > 0) == (strategy is not Strategy.SEND_RECV)


def test_transfers_over_slow_links_are_measured(zygote: Zygote, tmp_path: Path) -> None:
    """How near the figures come is in benchmarks/RESULTS.md: no test says what a busy machine takes."""
    words = ("--unit-s", "0.01", "--chunks", "8", "--repeats", "1", "--only", "ring", "order: exact")
    ring, order = figures(zygote, tmp_path, "resharding.py", *words)["cases"]
    assert (ring["formula"], ring["simulated"]) == (1 + 3 / 8, pytest.approx(1 + 3 / 8))
    assert (order["formula"], order["simulated"]) == (None, pytest.approx(1))
    assert min(ring["measured"], order["measured"]) > 0


def test_orders_of_three_parts_that_become_five() -> None:
    """By hand, in fifteenths of the tensor: every receiver gets 3, which is the bound. In order of load rank 1 sends
    its second unit from 3 to 4, for which the next one, of 2, waits at the same receiver."""
    source = ShardSpec(Mesh.of(dp=2, tp=3), (("tp",),))
    target = ShardSpec(Mesh.of(tp=5), (("tp",),), tuple(range(6, 11)))
    found = units("w", 1, source.held((15,)), target.held((15,)))
    plans = [make_plan(found, range(11), None, 1, way) for way in (Algorithm.EXACT, Algorithm.LOAD)]
    assert [simulate(plan, 1.0).makespan for plan in plans] == [3, 6]
