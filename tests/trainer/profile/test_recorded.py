"""What a rank is recorded to compute and send: its own processor time, and neither waits nor the transport's calls."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from holdfast.trainer.mesh.pretended import rank_of
from holdfast.trainer.run.loop import Trainer
from holdfast.trainer.settings.layout import TrainerLayout

PATCHED = ("isend", "irecv", "all_reduce", "all_gather_into_tensor", "all_gather_single", "all_to_all_single", "send",
           "recv", "broadcast", "reduce_scatter_tensor", "reduce_scatter_single", "all_gather", "reduce", "scatter",
           "gather", "batch_isend_irecv")  # fmt: skip


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "benchmarks"))
    for name in PATCHED:
        if hasattr(dist, name):
            monkeypatch.setattr(dist, name, getattr(dist, name))
    monkeypatch.setattr(Trainer, "step", Trainer.step)
    return importlib.import_module("recorded")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now

    def passes(self, seconds: float) -> None:
        self.now += seconds


def slow(name: str, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """What torch itself does takes 100 s."""
    usual = getattr(dist, name)

    def call(*args: Any, **named: Any) -> Any:
        clock.passes(100)
        return usual(*args, **named)

    monkeypatch.setattr(dist, name, call)


def test_a_step_is_recorded(recorded: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, x = Clock(), torch.zeros(4)
    for name in ("all_reduce", "isend", "irecv"):
        slow(name, clock, monkeypatch)
    recorder = recorded.Recorder(clock)
    with rank_of(TrainerLayout(2, 1, 2, 1, 2)) as mesh:
        tp = mesh.tp.get_group()
        recorder.install()
        dist.all_reduce(x)  # no step yet
        recorder.begin()
        clock.passes(1)
        dist.all_reduce(x, group=tp)
        clock.passes(2)
        work = dist.all_reduce(x, group=tp, async_op=True)
        clock.passes(3)
        coming = dist.irecv(x, group=mesh.pp_group, group_src=1)
        dist.isend(x, group=mesh.pp_group, group_dst=1)
        clock.passes(4)
        assert work is not None
        assert coming is not None
        work.wait()
        coming.wait()
        coming.wait()
        clock.passes(5)
        recorder.end()
    (step,) = recorder.steps
    assert [(one.computed, str(one.kind), one.key, one.num_bytes) for one in step] == [
        (1, "begin", ("all_reduce", (0, 1), 1), 16),
        (0, "wait", ("all_reduce", (0, 1), 1), 16),
        (2, "begin", ("all_reduce", (0, 1), 2), 16),
        (3 + 100, "send", (0, 2, (0, 2), 1), 16),  # posting a receive is the rank's own work
        (4, "wait", ("all_reduce", (0, 1), 2), 16),
        (0, "receive", (2, 0, (0, 2), 1), 16),
        (5, "end", (), 0),
    ]


def test_what_is_not_recorded_is_refused_in_a_step(recorded: Any) -> None:
    recorder = recorded.Recorder(Clock())
    with rank_of(TrainerLayout(1, 2, 1, 1, 2)):
        recorder.install()
        dist.broadcast(torch.zeros(1), 0)
        recorder.begin()
        with pytest.raises(RuntimeError, match="broadcast in a step: it is not recorded"):
            dist.broadcast(torch.zeros(1), 0)
