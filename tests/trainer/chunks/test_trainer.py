"""A trainer whose model data is in chunks: the bits of one without, below the cap, whatever else is set."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from holdfast.agent import probe
from holdfast.plan.cache.arena import ArenaFullError
from holdfast.trainer.chunks.device import Device
from holdfast.trainer.chunks.moments import Moment
from holdfast.trainer.optim.host.lanes import Lane
from holdfast.trainer.rows.optim import in_chunks
from holdfast.trainer.rows.optim.in_chunks import Trained, train
from holdfast.trainer.run.loop import Trainer
from holdfast.trainer.settings import chunk_layout
from holdfast.trainer.settings.chunk_layout import Words
from holdfast.trainer.settings.errors import ConfigError
from holdfast.trainer.weights.state import put_back, tensors, values

CHUNKS = {"memory.policy": "chunks", "memory.device_bytes": 480_000}
SMALL = {"model.layers": 3}
MARGIN = {"memory.chunk_bytes": 40_000, "memory.device_bytes": 600_000}
"""Some groups are updated on the device, others not."""


def unlike(one: Trained, other: Trained) -> list[str]:
    assert one.values.keys() == other.values.keys()
    return [name for name, value in one.values.items() if not torch.equal(value, other.values[name])]


@pytest.mark.parametrize(
    "settings",
    [
        {"model.tied": False, "memory.evict": "lru"},
        {"model.positions": "learned", "model.norm": "layer", "memory.evict": "fifo"},
        {"model.block": "serial", "model.mlp": "swiglu", "optim.name": "sgd"},
        {"train.dtype": "float64", "memory.device_bytes": 900_000},
        {"train.dtype": "bfloat16", "model.dropout": 0.1},
        {"train.recompute": "full"},
        {"train.recompute": "selective", "parallel.schedule": "gpipe"},
        {"train.recompute": "cell"},
        {"parallel.schedule": "axonn"},
        {"parallel.schedule": "merak"},
        {"memory.chunk_bytes": 40_000, "memory.device_bytes": 700_000},
        {"memory.device_bytes": 1_500_000},
        {"memory.device_bytes": 0},
        {"train.dtype": "bfloat16", "memory.device_bytes": 1_000_000},
    ],
    ids=str,
)
def test_chunks_change_no_bit(settings: dict[str, object]) -> None:
    plain = {key: value for key, value in settings.items() if not key.startswith("memory.")}
    expected = train({**SMALL, **plain})
    found = train({**SMALL, **CHUNKS, **settings})
    assert found.losses == expected.losses
    assert unlike(found, expected) == []
    assert len(set(found.losses)) == in_chunks.STEPS
    cap = {**CHUNKS, **settings}["memory.device_bytes"]
    assert not cap or found.chunks.device.arena.peak <= cap


def test_the_margin_is_on_the_device_and_moves_nothing() -> None:
    one = train({**SMALL, **CHUNKS, "memory.device_bytes": 0})
    assert len(one.chunks.states.margin) == one.chunks.chunks.num_groups
    assert one.moved[1:] == [0] * (in_chunks.STEPS - 1)
    some = train({**SMALL, **CHUNKS, **MARGIN})
    here, count = len(some.chunks.states.margin), some.chunks.chunks.num_groups
    assert 0 < here < count
    # All parameters fit: only what the host updates goes there and comes back.
    assert some.moved[1:] == [2 * (count - here) * some.chunks.chunks.chunk_bytes] * (in_chunks.STEPS - 1)
    assert some.chunks.device.arena.used_by["optimizer"] == here * 3 * some.chunks.chunks.chunk_bytes


@pytest.mark.parametrize("bad", [0, 2])
@pytest.mark.parametrize("more", [{}, {"train.dtype": "bfloat16"}, MARGIN], ids=str)
def test_a_step_that_is_not_finite_puts_parameters_back(
    monkeypatch: pytest.MonkeyPatch, bad: int, more: dict[str, object]
) -> None:
    steps: list[int] = []

    def poisoned() -> bool:
        return len(steps) == bad

    gradients = Trainer.gradients

    def counted(self: Trainer, step: int) -> None:
        steps[:] = range(step)
        gradients(self, step)

    monkeypatch.setattr(Trainer, "gradients", counted)
    monkeypatch.setattr(probe, "poisoned", poisoned)
    skip: dict[str, object] = {**SMALL, "train.on_nonfinite": "skip"}
    plain = {key: value for key, value in more.items() if not key.startswith("memory.")}
    expected, found = train({**skip, **plain}), train({**skip, **CHUNKS, **more})
    assert unlike(found, expected) == []
    assert found.losses[bad] != found.losses[bad]
    assert [a for n, a in enumerate(found.losses) if n != bad] == [a for n, a in enumerate(expected.losses) if n != bad]


@pytest.mark.parametrize("more", [{}, {"train.dtype": "bfloat16"}, MARGIN], ids=str)
def test_what_was_put_back_goes_on_alike(monkeypatch: pytest.MonkeyPatch, more: dict[str, object]) -> None:
    """Read into the trainer's own memory where that is possible, as a restore does."""
    original = Trainer.step

    def restored(self: Trainer, step: int) -> Any:
        if step == 3:
            held = tensors(self.slices, self.optimizer)
            kept = {name: tensor.detach().clone() for name, (_, _, tensor) in held.items()}
            known = values(self.optimizer)
            for piece in self.slices:
                piece.shard.data.fill_(7)
                for tensor in self.optimizer.state(piece).values():
                    tensor.fill_(5)
            self.optimizer.applied = 0
            for name, (_, _, tensor) in held.items():
                tensor.detach().copy_(kept[name])
            put_back({name: tensor for name, (_, _, tensor) in held.items()}, known, self.slices, self.optimizer)
        return original(self, step)

    expected = train({**SMALL, **CHUNKS, **more})
    monkeypatch.setattr(Trainer, "step", restored)
    found = train({**SMALL, **CHUNKS, **more})
    assert unlike(found, expected) == []
    assert found.losses == expected.losses


def test_least_and_activations_must_fit() -> None:
    with pytest.raises(ConfigError, match=r"^memory\.policy = chunks: the parameters of one layer need [\d,]+ bytes"):
        train({**SMALL, **CHUNKS, "memory.device_bytes": 60_000})
    with pytest.raises(ArenaFullError, match=r"no room for [\d,]+ bytes of activations .*; raise memory\.device_bytes"):
        train({**SMALL, **CHUNKS, "memory.device_bytes": 150_000})
    with pytest.raises(ConfigError, match="chunk of 100 bytes is smaller than the largest parameter"):
        train({**SMALL, **CHUNKS, "memory.chunk_bytes": 100})


class Noted:
    """Lanes that do everything at once, and note in which order it was asked for."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def do(self, lane: Lane, work: Callable[[], None]) -> None:
        self.notes.append(f"do {lane.name}")
        work()

    def mark(self, lane: Lane) -> str:
        return lane.name

    def wait(self, lane: Lane, mark: str) -> None:
        self.notes.append(f"{lane.name} waits for {mark}")

    def settle(self) -> None:
        self.notes.append("settle")


def test_copies_wait_for_what_they_read_and_memory_for_its_copy() -> None:
    """What a GPU's streams need: a race shows on a GPU alone, so the order is held to here."""
    sizes = {"a": 64, "b": 64}
    laid = chunk_layout.in_chunks(sizes, {"a": ("a",), "b": ("b",)}, Words(4, 12), 1, 0, 256)
    lanes = Noted()
    device = Device(laid, torch.float32, torch.device("cpu"), 256, "lru", lanes)
    device.host[0].fill_(3)
    device.begin()
    device.need(Moment((0,), True))
    fetch = ["IN waits for OUT", "IN waits for COMPUTE", "do IN", "COMPUTE waits for IN"]
    assert lanes.notes == fetch
    assert device.own[0].tensor.eq(3).all()
    device.own[0].tensor.fill_(4)
    lanes.notes.clear()
    device.need(Moment((1,), True))
    assert lanes.notes == ["OUT waits for COMPUTE", "do OUT", "COMPUTE waits for OUT", *fetch]
    assert device.host[0].eq(4).all()
    assert not device.own[0].is_here
    lanes.notes.clear()
    device.need(Moment((1,), False, True))
    # The host reads what has arrived.
    assert lanes.notes == ["OUT waits for COMPUTE", "do OUT", "COMPUTE waits for OUT", "settle"]
    assert (device.fetched, device.evicted) == (512, 512)


def test_copies_leave_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[tuple[str, int]] = []
    original = probe.span

    def span(kind: str, *args: Any, **named: Any) -> Any:
        if kind in ("fetch", "evict"):
            found.append((kind, named["num_bytes"]))
        return original(kind, *args, **named)

    monkeypatch.setattr(probe, "span", span)
    one = train({**SMALL, **CHUNKS})
    size = one.chunks.chunks.chunk_bytes
    assert {kind for kind, _ in found} == {"fetch", "evict"}
    assert sum(num_bytes for _, num_bytes in found) == sum(one.moved)
    assert {num_bytes for _, num_bytes in found} == {size}


def test_the_best_of_all_choices_is_found_by_hand() -> None:
    """Three chunks in two places: forward 0 1 2, back 2 1 0, each updated by the host."""
    moments = [*(Moment((n,)) for n in (0, 1, 2)), *(Moment((n,), True) for n in (2, 1, 0))]
    moments += [Moment((n,), False, True) for n in (0, 1, 2)]
    # All three come; 0 leaves for 2 unwritten, and comes again for its backward. Each gradient goes once.
    assert in_chunks.fewest(moments, [2] * 9, 1) == 3 + 1 + 3
    assert in_chunks.fewest(moments, [3] * 9, 1) == 3 + 3
    assert in_chunks.fewest(moments, [1] * 9, 2) == 2 * (3 + 2 + 3)
