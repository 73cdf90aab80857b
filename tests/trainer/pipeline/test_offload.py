"""Activations in host memory: no bit changes, the device has no more than it may, and nothing moves that need not."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from forked import Zygote
from offloading import fewest
from torch import Tensor, nn

from holdfast.plan.cache.arena import ArenaFullError
from holdfast.plan.plan import Action, Op
from holdfast.plan.schedules.table import SCHEDULES
from holdfast.trainer.optim.host.lanes import AtOnce, Lane, Lanes
from holdfast.trainer.pipeline.offload.blocks import Block, Uses, next_back, spare, traffic, uses_of
from holdfast.trainer.pipeline.offload.offload import Offload
from holdfast.trainer.pipeline.pieces import Pieces
from holdfast.trainer.settings.errors import ConfigError

CASES: dict[str, tuple[int, list[str], list[str]]] = {
    "1f1b": (2, ["pp=2"], ["none", "full"]),
    "alone": (1, [], ["none", "selective"]),
    "gpipe": (2, ["pp=2", "schedule=gpipe"], ["none", "cell", "stage-aware"]),
    "interleaved": (2, ["pp=2", "schedule=interleaved"], ["none", "selective"]),
    "zbv": (2, ["pp=2", "schedule=zbv"], ["none", "full"]),
    "chimera": (2, ["pp=2", "schedule=chimera"], ["none", "full"]),
    "chimera-halving": (2, ["pp=2", "schedule=chimera-halving", "zero=0"], ["none"]),
    "tp": (4, ["pp=2", "tp=2", "sequence=true", "shard_vocabulary=true"], ["none", "full"]),
    "a stage that saves nothing": (3, ["pp=3", "stage_layers=[2, 1, 1]"], ["full"]),
    "zero 2": (4, ["pp=2", "dp=2", "zero=2"], ["none"]),
    "zero 1, dualpipev": (4, ["pp=2", "dp=2", "schedule=dualpipev"], ["none", "full"]),
}
FAST = ("1f1b",)
STEPS = 2
"""In the first one sizes are learned, and no block comes back before it is needed; all later ones are alike."""


@pytest.mark.aside
@pytest.mark.parametrize("case", [pytest.param(c, marks=[] if c in FAST else pytest.mark.slow) for c in CASES])
def test_the_bits_are_those_without_and_no_more_moves_than_must(
    zygote: Zygote, tiny: list[str], tmp_path: Path, case: str
) -> None:
    world, named, recompute = CASES[case]
    values = [*(f"parallel.{one}" for one in named), "train.micro_batches=8", "train.micro_batch_size=2"]
    values += ["model.layers=4"]
    argv = [*tiny, *(word for value in values for word in ("--set", value))]
    done = zygote.run("offloading:each", world, tmp_path, args={"argv": argv, "recompute": recompute, "steps": STEPS})
    assert done["exits"] == [0] * world
    for setting in recompute:
        moved = 0
        for found in (rank[setting] for rank in done["results"]):
            assert found["unmoved"] == [[0, 0]]
            assert len(set(found["losses"])) == STEPS
            for one in found["capped"]:
                assert one["alike"] == [True, True], (setting, one["capacity"])
                assert one["same"]
                assert one["most"] <= one["capacity"]
                assert one["moved"] == one["expected"]
                assert one["left"] == 0
                moved += one["moved"][-1][0]
        # Alone, each backward follows its forward; with cells, its recompute.
        assert (moved == 0) == (case == "alone" or setting == "cell"), "nothing was tried"


@functools.cache
def listed(schedule: str, ranks: int, count: int) -> list[list[Uses]]:
    plan = SCHEDULES[schedule].plan(ranks, 2 if SCHEDULES[schedule].takes_chunks else SCHEDULES[schedule].chunks, count)
    return [uses_of(order, Pieces(plan).of) for order in plan.orders]


@pytest.mark.parametrize("count", [4, 8])
@pytest.mark.parametrize("capacity", [1, 2, 3, 4, 9])
def test_of_gpipe_all_that_do_not_fit_go_once_and_come_back_once(count: int, capacity: int) -> None:
    for uses in listed("gpipe", 4, count):
        found = traffic(uses, dict.fromkeys((block for one in uses for block in one.made), 10), 10 * capacity)
        # The last one made is needed last; where it is alone, it has to make room for the first.
        away = 10 * (count if capacity == 1 else max(0, count - capacity))
        assert (found.out, found.back, found.host) == (away, away, away)
        assert found.device == 10 * min(count, capacity)


@pytest.mark.parametrize("capacity", [1, 2, 3, 4])
def test_1f1b_with_room_for_all_under_way_moves_nothing_and_with_less_a_block_a_turn(capacity: int) -> None:
    ranks, count = 4, 12
    for rank, uses in enumerate(listed("1f1b", ranks, count)):
        found = traffic(uses, dict.fromkeys((block for one in uses for block in one.made), 1), capacity)
        under_way = ranks - rank
        assert found.device == min(capacity, under_way)
        if capacity >= under_way:
            assert found.out == 0
        else:
            assert found.out >= under_way - capacity
            assert found.out == best(uses, capacity)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "interleaved", "bfs"])
@pytest.mark.parametrize("capacity", [1, 2, 3])
def test_no_other_choice_moves_fewer_blocks(schedule: str, capacity: int) -> None:
    for uses in listed(schedule, 2, 4):
        sizes = dict.fromkeys((block for one in uses for block in one.made), 1)
        found = traffic(uses, sizes, capacity)
        assert found.out == found.back == best(uses, capacity)
        assert (found.out, found.back) == fewest(uses, sizes, capacity)


def best(uses: list[Uses], capacity: int) -> int:
    """The fewest copies to the host, of all ways to choose who leaves. Blocks of one size, needed once."""
    states: dict[frozenset[Block], int] = {frozenset(): 0}
    for one in uses:
        wanted = set(one.made + one.needed)
        after: dict[frozenset[Block], int] = {}
        for here, cost in states.items():
            others = sorted(here - wanted)
            leaving = max(0, len(others) + len(wanted) - capacity)
            for gone in itertools.combinations(others, leaving):
                then = (here - set(gone) | wanted) - set(one.over)
                after[then] = min(after.get(then, 1 << 30), cost + len(gone))
        states = after
    return min(states.values())


def test_a_computation_that_alone_needs_more_is_refused() -> None:
    uses = listed("1f1b", 2, 4)[0]
    sizes = dict.fromkeys((block for one in uses for block in one.made), 5)
    with pytest.raises(ArenaFullError, match="there is room for 4"):
        traffic(uses, sizes, 4)


def test_room_for_one_on_its_way_is_kept_where_there_is_room_and_something_leaves() -> None:
    uses = listed("1f1b", 4, 8)[0]
    sizes = dict.fromkeys((block for one in uses for block in one.made), 5)
    # One of 5 is needed at once, and 4 are under way.
    assert [spare(uses, sizes, capacity) for capacity in (9, 10, 19, 20)] == [0, 5, 5, 0]


def test_the_next_one_to_come_back_is_the_first_that_is_away() -> None:
    a, b, c = ((0, 0, (m, 0)) for m in range(3))
    uses = [Uses(made=(a,)), Uses(made=(b,)), Uses(made=(c,)), Uses(), Uses(needed=(b,)), Uses(needed=(c, a))]
    away: dict[int, set[Any]] = {0: {a, b}, 1: {a, c}, 2: {c}, 3: set()}
    assert [next_back(uses, 2, away[n].__contains__) for n in range(4)] == [b, c, c, None]
    assert next_back(uses, 4, away[0].__contains__) == a
    assert next_back(uses, 5, away[0].__contains__) is None


class WhenAwaited(AtOnce):
    """Copies are done when computation waits for them and no sooner: what nobody waits for is never there."""

    def __init__(self) -> None:
        self._left: dict[Lane, list[Any]] = {lane: [] for lane in Lane}
        self._done = dict.fromkeys(Lane, 0)

    def do(self, lane: Lane, work: Callable[[], None]) -> None:
        self._left[lane].append(work)

    def mark(self, lane: Lane) -> Any:
        return lane, len(self._left[lane])

    def wait(self, lane: Lane, mark: Any) -> None:
        assert mark is not None, "no stream of a GPU waits for that"
        if lane is Lane.COMPUTE:
            self._reach(*mark)
        else:
            self._left[lane].append(mark)

    def _reach(self, lane: Lane, count: int) -> None:
        while self._done[lane] < count:
            entry = self._left[lane][self._done[lane]]
            self._done[lane] += 1
            if callable(entry):
                entry()
            elif entry is not None:
                self._reach(*entry)


class Layers(nn.Module):
    """Saves two tensors of its input's size."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, 64).view(8, 8))

    def forward(self, x: Tensor) -> Tensor:
        return (x @ self.weight).tanh().sin().exp()


BLOCK = 2 * 16 * 8 * 4
"""Bytes: what tanh made, which it and sin save, and what exp made. The product's input is not moved."""


def trained(
    capacity: int, lanes: Lanes | None = None, watch: Callable[[Offload], None] = lambda _: None
) -> tuple[list[Tensor], Offload | None]:
    """Gradients of three steps of the first of four ranks under 1F1B."""
    plan = SCHEDULES["1f1b"].plan(4, 1, 8)
    order, pieces = plan.orders[0], Pieces(plan).of
    offload = Offload(order, pieces, capacity, torch.device("cpu"), lanes) if capacity else None
    if offload is not None:
        watch(offload)
    module, grads = Layers(), []
    outputs: dict[int, Tensor] = {}

    def forward(m: int, step: int) -> None:
        x = torch.arange(128.0).view(16, 8).mul(0.1 + m).add(step).cos().requires_grad_()
        if offload is None:
            outputs[m] = module(x)
            return
        with offload.recording((0, 0, (m, 0)), module, x):
            outputs[m] = module(x)

    def backward(m: int, step: int) -> None:
        outputs.pop(m).square().sum().backward()

    for step in range(3):
        module.zero_grad()
        if offload is not None:
            offload.begin()
        for action in order:
            do = functools.partial(forward if action.op is Op.FORWARD else backward, action.micro_batch, step)
            (do if offload is None else offload.around(action, do))()
        if offload is not None:
            offload.finish()
        assert module.weight.grad is not None
        grads.append(module.weight.grad.clone())
    return grads, offload


@pytest.mark.parametrize("blocks", [1, 2, 3, 4])
@pytest.mark.parametrize("make", [AtOnce, WhenAwaited])
def test_copies_beside_computation_change_nothing(make: Callable[[], Lanes], blocks: int) -> None:
    plain, _ = trained(0)
    found, offload = trained(blocks * BLOCK + 1, make())
    assert offload is not None
    assert all(torch.equal(a, b) for a, b in zip(plain, found, strict=True))
    assert set(offload.sizes.values()) == {BLOCK}
    assert (offload.peak, offload.held) == (blocks * BLOCK, 0)
    assert bool(offload.moved.out) == (blocks < 4)
    assert offload.moved.out == offload.moved.back


def test_memory_for_what_comes_back_is_taken_before_its_copy_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """With deterministic algorithms `torch.empty` fills what it gives, as computation: a copy that only waited for what
    was before could be overwritten."""
    noted: list[str] = []
    empty = torch.empty

    class Noting(AtOnce):
        def do(self, lane: Lane, work: Callable[[], None]) -> None:
            noted.append(f"copy {lane.name}")
            work()

        def wait(self, lane: Lane, mark: Any) -> None:
            noted.append(f"wait {lane.name}")

    def noting(*sizes: Any, **named: Any) -> Tensor:
        if named.get("device") is not None and sizes[0]:
            noted.append("memory")
        return empty(*sizes, **named)

    monkeypatch.setattr(torch, "empty", noting)
    trained(BLOCK + 1, Noting())
    copies = [place for place, what in enumerate(noted) if what == "copy IN"]
    assert copies
    for place in copies:
        before = [what for what in noted[:place] if what in ("memory", "wait IN")]
        assert before[-1] == "wait IN"


def test_with_room_for_one_more_what_is_needed_is_on_its_way_before(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[list[tuple[int, int]]] = []

    def watch(offload: Offload) -> None:
        original, begin = offload._bring, offload.begin

        def begun() -> None:
            steps.append([])
            begin()

        def bring(block: Block) -> None:
            needed = next(t for t, one in enumerate(offload.uses) if block in one.needed)
            steps[-1].append((offload._now, needed))
            original(block)

        monkeypatch.setattr(offload, "_bring", bring)
        monkeypatch.setattr(offload, "begin", begun)

    _, offload = trained(3 * BLOCK, watch=watch)
    assert offload is not None
    first, *later = steps
    assert first
    assert all(now == needed for now, needed in first), "in the first step nobody knows how much room it takes"
    assert all(now < needed for one in later for now, needed in one)
    assert sum(map(len, later)) == 2 * offload.moved.back // BLOCK


def test_a_cap_below_one_micro_batch_is_refused_in_one_line() -> None:
    with pytest.raises(ConfigError, match=f"train.activation_bytes is {BLOCK - 1}: stage 0 saves more than") as refused:
        trained(BLOCK - 1)
    assert "\n" not in str(refused.value)


def test_what_a_step_moves_is_said_once() -> None:
    _, offload = trained(2 * BLOCK)
    assert offload is not None
    said = offload.news(3)
    assert said is not None
    assert said.startswith(f"activations of pipeline rank 3: {offload.moved.out} bytes to the host and ")
    assert offload.news(3) is None


def test_what_is_computed_again_is_made_then() -> None:
    f, r, b = (Action(op, 1, 0) for op in (Op.FORWARD, Op.RECOMPUTE, Op.BACKWARD))
    block = ((0, 1, (0, 0)),)
    assert uses_of([f, r, b], lambda action: [(0, 0)]) == [Uses(), Uses(made=block), Uses(needed=block, over=block)]
    first, weight = Action(Op.BACKWARD_INPUT, 0, 0), Action(Op.BACKWARD_WEIGHT, 0, 0)
    found = uses_of([first, weight], lambda action: [(0, 0)])
    assert [bool(one.needed) for one in found] == [False, True], "the first stage has no half to do"
