"""Gradients in buckets: which go together, when they go out, and that they are the same as all at once."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from forked import Zygote
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from holdfast.trainer.mesh import mesh
from holdfast.trainer.optim import buckets
from holdfast.trainer.optim.buckets import FEWEST, LARGEST, SMALLEST, GradientMeans, PiggybackedReductions, cut
from holdfast.trainer.settings.launch import Launch


@pytest.fixture
def alone() -> Iterator[dist.ProcessGroup]:
    """A group of this one process."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    group = dist.group.WORLD
    assert group is not None
    yield group
    dist.destroy_process_group()


@given(st.lists(st.integers(1, 2 * LARGEST), max_size=60), st.integers(1, 3))
def test_buckets_hold_everything_once_in_order_and_are_no_larger_than_they_may_be(
    sizes: list[int], fewest: int
) -> None:
    found = cut(sizes, fewest)
    assert [place for places in found for place in places] == list(range(len(sizes)))
    limit = min(LARGEST, max(SMALLEST, sum(sizes) // fewest))
    held = [sum(sizes[place] for place in places) for places in found]
    assert all(size <= limit or len(places) == 1 for size, places in zip(held, found, strict=True))
    assert all(first + second > limit for first, second in pairwise(held))


@pytest.mark.parametrize(("cores", "crowded"), [(2, True), (3, False)])
def test_more_ranks_than_cores_are_a_crowd_but_not_on_gpus(
    alone: dist.ProcessGroup, monkeypatch: pytest.MonkeyPatch, cores: int, crowded: bool
) -> None:
    monkeypatch.setattr(mesh.os, "sched_getaffinity", lambda pid: set(range(cores)))
    launch = Launch(world=6, local_world=3)
    assert mesh.is_crowded(launch, torch.device("cpu")) == crowded
    assert not mesh.is_crowded(launch, torch.device("cuda"))
    assert not mesh.is_crowded(Launch(), torch.device("cpu"))


class Sent:
    """What is reduced, and how many gradients had been computed by then."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, model: nn.Module) -> None:
        self.done, self.at = 0, list[int]()
        reduce = dist.all_reduce

        def count(parameter: nn.Parameter) -> None:
            self.done += 1

        def watched(*args: Any, **kwargs: Any) -> Any:
            self.at.append(self.done)
            return reduce(*args, **kwargs)

        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(count)
        monkeypatch.setattr(buckets.dist, "all_reduce", watched)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_bucket_goes_out_as_soon_as_its_gradients_are_final(
    alone: dist.ProcessGroup, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    monkeypatch.setattr(buckets, "SMALLEST", 1)
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(8, 8, bias=False, dtype=dtype) for _ in range(8)))
    sent = Sent(monkeypatch, model)
    means = GradientMeans(model.parameters(), alone)
    x = torch.randn(4, 8, dtype=dtype)
    model(x).sum().backward()
    assert sent.at == []  # the first of two micro-batches: nothing is final
    means.expect()
    model(x).sum().backward()
    assert sent.at == [12, 16]
    means.finish()
    assert sent.at == [12, 16]
    found = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    model.zero_grad()
    for _ in range(2):
        model(x).sum().backward()
    for grad, parameter in zip(found, model.parameters(), strict=True):
        assert parameter.grad is not None
        assert torch.equal(grad, parameter.grad)


def test_what_no_backward_announces_goes_out_at_the_end_of_each_step(
    alone: dist.ProcessGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1))
    sent = Sent(monkeypatch, model)
    means = GradientMeans(model.parameters(), alone)
    for step in (1, 2):
        model.zero_grad()
        model(torch.randn(4, 8)).sum().backward()
        means.finish()
        assert sent.at == [4 * turn for turn in range(1, step + 1)]


@pytest.mark.parametrize("is_announced", [True, False])
def test_what_rides_goes_out_with_the_last_gradients_once_a_step(
    alone: dist.ProcessGroup, monkeypatch: pytest.MonkeyPatch, is_announced: bool
) -> None:
    monkeypatch.setattr(buckets, "SMALLEST", 1)
    model = nn.Sequential(*(nn.Linear(8, 8, bias=False) for _ in range(4)))
    sent = Sent(monkeypatch, model)
    asked, reported = list[int](), list[list[float]]()

    def ask() -> torch.Tensor:
        asked.append(sent.done)
        return torch.tensor([len(asked), 0.5], dtype=torch.float64)

    means = GradientMeans(
        model.parameters(), alone, PiggybackedReductions(ask, lambda sums: reported.append(sums.tolist()))
    )
    for step in (1, 2):
        model.zero_grad()
        if is_announced:
            means.expect()
        model(torch.randn(4, 8)).sum().backward()
        assert len(asked) == (step if is_announced else step - 1)
        means.finish()
        assert len(sent.at) == FEWEST * step, "in no collective of its own"
        assert reported == [[turn, 0.5] for turn in range(1, step + 1)]
    for parameter in model.parameters():
        assert parameter.grad is not None
        assert parameter.grad.shape == (8, 8)


@pytest.mark.parametrize("cores", [1, 2])
def test_two_ranks_on_one_core_send_all_of_a_step_at_once(
    zygote: Zygote, tiny: list[str], tmp_path: Path, cores: int
) -> None:
    """The loss with it, in no collective of its own."""
    argv = [*tiny, "--dp", "2", "--steps", "3", "--set", "parallel.zero=0"]
    done = zygote.run("tasks:reductions", 2, tmp_path, args={"argv": argv, "cores": cores})
    assert done["exits"] == [0, 0]
    first, second = (found["counts"] for found in done["results"])
    assert first == second
    assert first == [1] * 3 if cores == 1 else min(first) >= FEWEST


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_pieces_come_one_by_one_and_bring_the_means_of_their_elements(
    alone: dist.ProcessGroup, dtype: torch.dtype
) -> None:
    parameters = [nn.Parameter(torch.zeros(size, dtype=dtype)) for size in (100, 7, 40, 300)]
    means = GradientMeans(parameters, alone, divisor=2, piece=64)
    for step in range(2):
        for parameter in parameters:
            parameter.grad = torch.arange(1.0, 1 + parameter.numel()).to(dtype)
        whole = [parameter.grad.clone() for parameter in parameters if parameter.grad is not None]
        means.begin()
        # What fits into a piece goes together, and what is larger is cut from its start.
        assert [len(bucket.works) for bucket in means._buckets] == [5, 1, 2]
        means.bring(parameters[3], 100)
        assert [bucket.came for bucket in means._buckets] == [2, 0, 0]
        grad = parameters[3].grad
        assert grad is not None
        assert torch.equal(grad[:128], whole[3][:128] / 2)
        if dtype == torch.bfloat16:
            assert torch.equal(grad[128:], whole[3][128:]), "nothing is handed out before it has come"
        assert not means.lacks(parameters[3], 128)
        assert means.lacks(parameters[3], 129)
        means.bring(parameters[0], 64)
        assert [bucket.came for bucket in means._buckets] == [2, 0, 1]
        means.bring(parameters[0], 65)
        means.bring(parameters[1], 1)
        assert [bucket.came for bucket in means._buckets] == [2, 1, 2]
        means.finish()
        for parameter, one in zip(parameters, whole, strict=True):
            assert parameter.grad is not None
            assert torch.equal(parameter.grad, one / 2), f"step {step}"
