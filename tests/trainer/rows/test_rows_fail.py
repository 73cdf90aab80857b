"""A small fault in what a technique promises makes its rows fail."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from holdfast.checkpoint.restore import routes
from holdfast.plan.cache.window import Window
from holdfast.plan.plan import Action, Op, Order, numbered
from holdfast.planner.sharing.state import Resident
from holdfast.trainer.data.feed import Prefetched
from holdfast.trainer.data.shared_feed import SharedFeed
from holdfast.trainer.embeddings import cacher
from holdfast.trainer.embeddings.stage import Stage, Staged
from holdfast.trainer.mesh import collectives, mesh
from holdfast.trainer.model import accumulate, attention, layers, overlap
from holdfast.trainer.pipeline import job_plan
from holdfast.trainer.rows import batches, clicks, transfers
from holdfast.trainer.rows.planner import sharing
from holdfast.trainer.rows.table import TECHNIQUES
from holdfast.trainer.telemetry import garbage


def failing(id: str) -> set[str]:
    return {row.what for row in TECHNIQUES[id].check() if not row.passes}


def some(found: set[str], *beginnings: str) -> bool:
    """Whether rows fail, and only those that begin so."""
    return bool(found) and all(what.startswith(beginnings) for what in found)


def test_sums_that_are_left_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    original = job_plan.add_reduce

    def late(order: Order, *args: Any) -> Order:
        actions = original(order, *args)
        return numbered(sorted(actions, key=lambda action: action.op is Op.REDUCE_GRAD), 1)

    monkeypatch.setattr(job_plan, "add_reduce", late)
    assert some(failing("M4"), "exposed ms of 800, interleaved")


def test_a_load_that_keeps_its_order_and_one_that_reads_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(routes, "by_rounds", routes.by_load)
        assert some(failing("C13"), "4 hosts that each read for the next")
    plan = transfers.read_plan
    monkeypatch.setattr(transfers, "read_plan", lambda *words: [*plan(*words), plan(*words)[0]])
    assert some(failing("C13"), "load 4x1 to 2x2", "the same: bytes that reach")


def test_gatherings_in_another_order(monkeypatch: pytest.MonkeyPatch) -> None:
    original = job_plan.add_unshard

    def reversed_(order: Order, *args: Any) -> list[Action]:
        actions = list(original(order, *args))
        gathers = [i for i, action in enumerate(actions) if action.op is Op.UNSHARD]
        stages = [actions[i].stage for i in reversed(gathers)]
        for i, stage in zip(gathers, stages, strict=True):
            actions[i] = dataclasses.replace(actions[i], stage=stage)
        return list(numbered(actions, 1))

    monkeypatch.setattr(job_plan, "add_unshard", reversed_)
    assert {what.split(" ", 1)[0] for what in failing("M4")} == {"exposed", "gatherings"}


def test_stages_gathered_again(monkeypatch: pytest.MonkeyPatch) -> None:
    original = job_plan.add_unshard
    monkeypatch.setattr(job_plan, "add_unshard", lambda order, live: original(order, 1))
    assert {what.split(" ", 1)[0] for what in failing("M4")} == {"exposed", "gatherings"}


def test_a_transfer_that_is_awaited_before_the_next_product(monkeypatch: pytest.MonkeyPatch) -> None:
    original = collectives.start_reduce_scatter

    def waited(*args: Any) -> Callable[[], Tensor]:
        done = original(*args)()
        return lambda: done

    monkeypatch.setattr(collectives, "start_reduce_scatter", waited)
    found = failing("M6")
    assert some(found, "scatter and product", "backward of it, gather")
    assert "scatter and product, c 200, g 200, K 4" in found


def test_chunks_put_together_in_another_order(monkeypatch: pytest.MonkeyPatch) -> None:
    original = overlap._arriving

    def reversed_(*args: Any) -> Iterator[Tensor]:
        yield from reversed(list(original(*args)))

    monkeypatch.setattr(overlap, "_arriving", reversed_)
    assert "largest difference from one product, gather, K 4" in failing("M6")


def test_batches_read_when_they_are_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "PATIENCE_S", 0.02)
    monkeypatch.setattr(batches, "GLANCE_S", 0.01)
    monkeypatch.setattr(Prefetched, "read", lambda self, step: self._read(step))
    assert some(failing("M7"), "steps behind the first", "batches read beyond")


def test_one_batch_too_many_is_read_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Prefetched.__init__
    monkeypatch.setattr(Prefetched, "__init__", lambda self, read, depth, steps: original(self, read, depth + 1, steps))
    assert some(failing("M7"), "batches read beyond")


def test_a_rank_takes_another_replica_s_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    original = SharedFeed.__init__

    def first(self: SharedFeed, ring: Any, reader: int, replica: int | None, patience_s: float) -> None:
        original(self, ring, reader, replica, patience_s)
        self._replica = 0

    monkeypatch.setattr(SharedFeed, "__init__", first)
    assert some(failing("M8"), "batches unlike")


@pytest.mark.parametrize(
    ("id", "named", "begins"),
    [
        ("M9", {"use_local_synchronization": False}, "ranks it waits for"),
        ("M13", {"timeout": timedelta(seconds=8)}, "seconds that a group waits"),
    ],
)
def test_groups_made_in_another_way(
    monkeypatch: pytest.MonkeyPatch, id: str, named: dict[str, Any], begins: str
) -> None:
    original = dist.new_group
    monkeypatch.setattr(dist, "new_group", lambda ranks, **usual: original(ranks, **{**usual, **named}))
    assert some(failing(id), begins)


def test_a_group_for_each_axis_though_another_has_its_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    original = mesh.group_of

    def twice(*args: Any) -> dist.ProcessGroup:
        original(*args)
        return original(*args)

    monkeypatch.setattr(mesh, "group_of", twice)
    assert len(failing("M9")) == 7


def unfused(self: layers.LayerNorm, x: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred * (centred.square().mean(-1, keepdim=True) + self.eps).rsqrt() * self.weight + self.bias


def whole(q: Tensor, k: Tensor, v: Tensor, **_: Any) -> Tensor:
    scores = (q @ k.transpose(-1, -2)).softmax(-1)
    return scores @ v


@pytest.mark.parametrize(
    ("owner", "name", "fault", "begins"),
    [
        (layers.LayerNorm, "forward", unfused, ("kernels, LayerNorm", "bytes read and written, LayerNorm")),
        (attention.F, "scaled_dot_product_attention", whole, ("numbers in attention's",)),
        (accumulate, "_is_alone", True, ("kernels, a weight's", "bytes read and written, a weight's")),
        (layers, "_rms_norm", lambda x, w, eps: torch.rms_norm(x, x.shape[-1:], w, 2 * eps), ("largest diff",)),
    ],
)
def test_operations_that_are_not_fused_or_not_right(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, fault: Any, begins: tuple[str, ...]
) -> None:
    monkeypatch.setattr(owner, name, fault)
    assert some(failing("M14"), *begins)


def test_collections_that_come_when_they_like(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage, "gc_disabled", lambda every: contextlib.nullcontext(lambda done: None))
    assert some(failing("M20"), "collections inside", "collections between")


def test_a_look_ahead_that_is_a_batch_short_and_sums_that_wait_in_vain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clicks, "WINDOWS", (4,))
    with monkeypatch.context() as patch:
        patch.setattr(cacher, "Window", lambda size: Window(size - 1))
        assert some(failing("C7"), "rows fetched by the trainers", "bytes from the server", "bytes written back")
    take = Stage.next

    def all_now(self: Stage) -> Staged:
        staged = take(self)
        now = np.union1d(staged.batch.sync_now, staged.batch.sync_later)
        batch = dataclasses.replace(staged.batch, sync_now=now, sync_later=now[:0])
        return staged._replace(batch=batch)

    monkeypatch.setattr(Stage, "next", all_now)
    assert some(failing("C7"), "bytes of gradients before the next batch")


def test_roles_that_begin_with_the_shortest(monkeypatch: pytest.MonkeyPatch) -> None:
    def begin(self: Resident) -> None:
        self.waiting = set(self.places)
        self.left = list(range(self.job.roles, 0, -1))

    monkeypatch.setattr(sharing, "SEEDS", 0)
    monkeypatch.setattr(Resident, "begin", begin)
    assert some(failing("C12b"), "makespan of two jobs", "efficiency over that of gangs")
