"""States in host memory: the same bits as on the device, as few bytes there as the formula has, in whatever order."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from holdfast.trainer.optim.host.cuts import UNIT, cut, halves
from holdfast.trainer.optim.host.lanes import AtOnce, Lane
from holdfast.trainer.optim.host.states import HostStates
from holdfast.trainer.optim.optimizer import Optimizer
from holdfast.trainer.optim.slices import Slice
from holdfast.trainer.settings.config import OptimConfig
from holdfast.trainer.settings.layout import TrainerLayout
from holdfast.trainer.telemetry.totals import Pending

SHAPES = [(37, 61), (1,), (129,), (64, 64), (0, 5), (3,), (1000,), (63,)]
TOTAL = sum(math.prod(shape) for shape in SHAPES)
STEPS = 5
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
RULES = pytest.mark.parametrize("name", ["adamw", "sgd"])


def made(
    state: str, dtype: torch.dtype, bucket: int = 1000, on_device: bool = False, seed: int = 1, **more: Any
) -> Optimizer:
    """Of tensors of odd sizes on one rank, one of them empty."""
    generator = torch.Generator().manual_seed(seed)
    shards = [nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in SHAPES]
    mesh: Any = SimpleNamespace(
        layout=TrainerLayout(1, 1, 1, 1, 1), pp_rank=0, device=torch.device("cpu"), whole_stages=lambda: None
    )
    slices = [Slice(f"t{n}", one, one, 1, False, False, False) for n, one in enumerate(shards)]
    config = OptimConfig(state=state, bucket=bucket, **more)  # type: ignore[arg-type]
    made = Optimizer(config, slices, mesh, lambda: None)
    made.skips_on_device = on_device
    return made


def with_gradients(one: Optimizer, step: int, bad: float | None = None, scale: float = 1.0) -> None:
    generator = torch.Generator().manual_seed(100 + step)
    for piece in one.all:
        shard = piece.shard
        shard.grad = (torch.randn(shard.shape, generator=generator) * scale).to(shard.dtype)
        if bad is not None and shard.numel():
            shard.grad.view(-1)[-1] = bad


def stepped(one: Optimizer, step: int, bad: float | None = None, scale: float = 1.0) -> None:
    with_gradients(one, step, bad, scale)
    one.step(step, Pending(torch.tensor([2.5, 0.0, 0.0], dtype=torch.float64), 0, None))


def bits(one: Optimizer) -> dict[str, torch.Tensor]:
    return {
        f"{piece.name}@{key}": value.detach().clone()
        for piece in one.all
        for key, value in {"": piece.shard, **one.state(piece)}.items()
    }


def differ(first: Optimizer, second: Optimizer) -> list[str]:
    a, b = bits(first), bits(second)
    assert a.keys() == b.keys()
    return [name for name in a if a[name].dtype != b[name].dtype or not torch.equal(a[name], b[name])]


@RULES
@DTYPES
@pytest.mark.parametrize("bucket", [128, 129, 1001, TOTAL - 1, TOTAL, TOTAL + 1, 16_000_000])
def test_buckets_of_any_size_change_what_the_plain_optimizer_changes_by_the_same_bits(
    name: str, dtype: torch.dtype, bucket: int
) -> None:
    plain, host = made("device", dtype, name=name), made("host", dtype, bucket, name=name)
    before = bits(plain)
    assert differ(plain, host) == []
    for step in range(STEPS):
        # Norms of about 90 and of 0.1: clipped and not.
        for one in (plain, host):
            stepped(one, step, scale=1.0 if step % 2 else 0.001)
        assert differ(plain, host) == [], f"after step {step}"
    assert not torch.equal(before["t0@"], plain.all[0].shard)


@pytest.mark.parametrize("on_device", [False, True], ids=["host decides", "device decides"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_a_step_that_is_not_finite_changes_nothing_and_counts_for_nothing(
    bad: float, dtype: torch.dtype, on_device: bool
) -> None:
    plain, host = made("device", dtype), made("host", dtype, 128, on_device)
    for step in range(2):
        stepped(plain, step)
        stepped(host, step)
    before = bits(host)
    stepped(host, 2, bad)
    assert host.applied == 2
    assert all(torch.equal(before[name], value) for name, value in bits(host).items())
    stepped(plain, 3)
    stepped(host, 3)
    assert differ(plain, host) == []


@pytest.mark.parametrize("bucket", [128, 1001, TOTAL, 16_000_000])
@pytest.mark.parametrize(
    ("dtype", "name", "word", "buffers"),
    [
        (torch.bfloat16, "adamw", 2, 4 * 4),
        (torch.bfloat16, "sgd", 2, 3 * 4),
        (torch.float32, "adamw", 4, 2 * 4),
        (torch.float64, "adamw", 8, 2 * 8),
    ],
)
def test_the_device_has_parameters_gradients_and_one_bucket(
    dtype: torch.dtype, name: str, word: int, buffers: int, bucket: int
) -> None:
    host = made("host", dtype, bucket, name=name)
    for step in range(2):
        stepped(host, step)
    assert isinstance(host.states, HostStates)
    expected = 2 * word * TOTAL + buffers * min(bucket, TOTAL)
    assert host.states.arena.peak == expected
    assert sum(tensor.nbytes for tensor in host.states.on_device()) == buffers * min(bucket, TOTAL)
    kept = {(torch.bfloat16, "adamw"): 12, (torch.bfloat16, "sgd"): 8, (torch.float32, "adamw"): 8}.get(
        (dtype, name), 16
    )
    staging = host.states.staging
    assert (staging.copied_in, staging.copied_out) == (2 * kept * TOTAL, 2 * kept * TOTAL)


class Allocated(TorchDispatchMode):
    """The largest memory, in bytes, that an operation returned and that is not of these tensors."""

    def __init__(self, known: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self._known = {tensor.untyped_storage().data_ptr() for tensor in known}
        self.most = self.operations = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        self.operations += 1
        for tensor in tree_leaves((args, found)):
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage().data_ptr() not in self._known:
                self.most = max(self.most, tensor.untyped_storage().nbytes())
        return found


@DTYPES
@RULES
def test_an_update_takes_no_memory_beside_the_bucket(name: str, dtype: torch.dtype) -> None:
    """What the arena counts is all there is: what operations allocate by themselves is less than a tensor."""
    host = made("host", dtype, 1000, name=name)
    stepped(host, 0)
    for piece in host.all:
        piece.shard.grad = torch.ones_like(piece.shard)
    assert isinstance(host.states, HostStates)
    kept = host.state(host.all[0]).values()
    known = [*kept, host.states.staging.memory, *(t for p in host.all for t in (p.shard, p.shard.grad))]
    with Allocated(known) as seen:
        host.states.update(0.01, 1, 0.5, None)
    assert seen.operations > 10
    assert seen.most <= 4, "the count of updates is one number"


@RULES
@DTYPES
@pytest.mark.parametrize(("before", "after"), [("host", "host"), ("host", "device"), ("device", "host")])
def test_state_that_is_saved_goes_on_by_the_same_bits(name: str, dtype: torch.dtype, before: str, after: str) -> None:
    whole, saved = made("device", dtype, name=name), made(before, dtype, name=name)
    for step in range(2):
        stepped(whole, step)
        stepped(saved, step)
    found = made(after, dtype, bucket=256, seed=2, name=name)
    found.applied = saved.applied
    for ours, theirs in zip(found.all, saved.all, strict=True):
        with torch.no_grad():
            ours.shard.copy_(theirs.shard)
        found.set_state(ours, {key: value.clone() for key, value in saved.state(theirs).items()})
    for step in range(2, 4):
        stepped(whole, step)
        stepped(found, step)
    assert differ(whole, found) == []


class Late(AtOnce):
    """A device that does nothing before it must, and then lanes in any order that their marks allow."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._lanes: dict[Lane, list[Callable[[], None] | tuple[Lane, int]]] = {lane: [] for lane in Lane}
        self._done = dict.fromkeys(Lane, 0)

    def do(self, lane: Lane, work: Callable[[], None]) -> None:
        self._lanes[lane].append(work)

    def mark(self, lane: Lane) -> tuple[Lane, int]:
        return lane, len(self._lanes[lane])

    def wait(self, lane: Lane, mark: tuple[Lane, int]) -> None:
        self._lanes[lane].append(mark)

    def settle(self) -> None:
        while ready := [lane for lane in Lane if self._can(lane)]:
            lane = self._rng.choice(ready)
            entry = self._lanes[lane][self._done[lane]]
            self._done[lane] += 1
            if callable(entry):
                entry()
        assert all(self._done[lane] == len(self._lanes[lane]) for lane in Lane), "lanes wait for each other"

    def _can(self, lane: Lane) -> bool:
        if self._done[lane] == len(self._lanes[lane]):
            return False
        entry = self._lanes[lane][self._done[lane]]
        return callable(entry) or self._done[entry[0]] >= entry[1]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("bucket", [128, 1001, 16_000_000])
def test_copies_beside_computation_change_nothing(seed: int, bucket: int) -> None:
    """Three updates are queued before any of it is done, as on a GPU whose host is ahead."""
    plain, host = made("device", torch.bfloat16), made("host", torch.bfloat16, bucket)
    late = Late(seed)
    host.states = HostStates(host.config, host.all, torch.device("cpu"), late)
    for step in range(3):
        stepped(plain, step)
        stepped(host, step)
    assert torch.equal(host.all[0].shard, made("host", torch.bfloat16).all[0].shard), "nothing is done yet"
    assert differ(plain, host) == []


def test_the_next_bucket_is_on_its_way_before_one_is_updated() -> None:
    seen: list[Lane] = []

    class Noted(AtOnce):
        def do(self, lane: Lane, work: Callable[[], None]) -> None:
            seen.append(lane)
            work()

    host = made("host", torch.float32, 2000)
    host.states = HostStates(host.config, host.all, torch.device("cpu"), Noted())
    stepped(host, 0)
    number = len(cut([piece.shard.numel() for piece in host.all], halves(2000, TOTAL)))
    assert number > TOTAL // 1000
    runs = [lane for lane, _ in itertools.groupby(seen)]
    # The first two buckets come in together, the last is updated when none is left to come.
    assert runs == [Lane.IN, Lane.COMPUTE, Lane.OUT] * (number - 1) + [Lane.COMPUTE, Lane.OUT]


@given(
    st.lists(st.integers(0, 700), max_size=12),
    st.integers(2 * UNIT, 1500),
)
@settings(deadline=None)
def test_buckets_hold_every_element_once_and_cut_tensors_at_whole_vectors(sizes: list[int], bucket: int) -> None:
    room = halves(bucket, sum(sizes))
    assert sum(room) == min(bucket, sum(sizes))
    buckets = cut(sizes, room)
    at: dict[int, int] = {}
    begun = 0
    for number, one in enumerate(buckets):
        assert 0 < one.size <= room[number % len(room)]
        assert one.start == begun
        begun += one.size
        held = 0
        for part in one.parts:
            assert (part.offset, part.start) == (held, at.get(part.index, 0))
            assert part.start % UNIT == 0
            assert part.stop % UNIT == 0 or part.stop == sizes[part.index]
            held += part.stop - part.start
            at[part.index] = part.stop
        assert held == one.size
        # A bucket ends where the next vectors do not fit.
        if number + 1 < len(buckets):
            following = buckets[number + 1].parts[0]
            assert room[number % len(room)] - one.size < min(UNIT, sizes[following.index] - following.start)
    assert begun == sum(sizes)
    assert at == {index: size for index, size in enumerate(sizes) if size}


def test_a_bucket_too_small_for_a_vector_is_an_error() -> None:
    with pytest.raises(ValueError, match="a bucket of 63 elements: 64 or more"):
        cut([64], [63])


def test_a_rank_without_elements_updates_nothing() -> None:
    empty = nn.Parameter(torch.zeros(0, 4))
    for slices in ([], [Slice("t", empty, empty, 1, False, False, False)]):
        states = HostStates(OptimConfig(state="host"), slices, torch.device("cpu"))
        states.update(0.1, 0, 0.5, None)
        states.drop()
        assert states.arena.peak == 0


def test_a_rank_of_another_form_than_rows_is_an_error() -> None:
    turned = nn.Parameter(torch.zeros(4, 3).t())
    with pytest.raises(RuntimeError, match="view"):
        HostStates(OptimConfig(state="host"), [Slice("t", turned, turned, 1, False, False, False)], torch.device("cpu"))


class OnTheirWay:
    """Gradients of which a replica has nothing usable until it waits for them."""

    num_bytes = 0

    def __init__(self) -> None:
        self.whole: dict[int, torch.Tensor] = {}
        self.asked: list[tuple[int, int]] = []

    def hold_back(self, one: Optimizer) -> None:
        for piece in one.all:
            assert piece.shard.grad is not None
            self.whole[id(piece.parameter)] = piece.shard.grad.clone()
            piece.shard.grad.fill_(math.nan)

    def has(self, parameter: nn.Parameter) -> bool:
        return id(parameter) in self.whole

    def lacks(self, parameter: nn.Parameter, stop: int) -> bool:
        return True

    def bring(self, parameter: nn.Parameter, stop: int) -> None:
        assert parameter.grad is not None
        self.asked.append((self.place(parameter), stop))
        parameter.grad.view(-1)[:stop] = self.whole[id(parameter)].view(-1)[:stop]

    def place(self, parameter: nn.Parameter) -> int:
        return list(self.whole).index(id(parameter))

    def finish(self) -> None:
        assert sum({place: stop for place, stop in self.asked}.values()) == TOTAL


@RULES
@DTYPES
def test_a_bucket_is_updated_when_its_own_gradients_have_come(name: str, dtype: torch.dtype) -> None:
    plain = made("device", dtype, name=name, clip_norm=0.0)
    host = made("host", dtype, 256, name=name, clip_norm=0.0, reduce_pieces=2)
    for step in range(3):
        stepped(plain, step)
        with_gradients(host, step)
        late: Any = OnTheirWay()
        late.hold_back(host)
        host._late = (late,)
        host.update_beside(step)
        assert [place for place, _ in late.asked] == sorted((place for place, _ in late.asked), reverse=True)
        assert late.asked[0] == (len(SHAPES) - 1, 63), "the first bucket waits for no more than its own"
        host.step(step, Pending(torch.tensor([2.5, 0.0, 0.0], dtype=torch.float64), 0, None))
        assert differ(plain, host) == [], f"after step {step}"
        assert host.applied == step + 1
