"""ZeRO stages: what replicas share out changes memory and traffic, and nothing that is computed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch
from forked import Zygote
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from holdfast.plan.check import verify
from holdfast.plan.plan import COMPUTE, Op
from holdfast.plan.schedules.table import SCHEDULES, Placement
from holdfast.plan.simulate import durations, simulate
from holdfast.trainer.__main__ import parse
from holdfast.trainer.optim.replicas import FineSum
from holdfast.trainer.pipeline.job_plan import job_plan
from holdfast.trainer.settings.errors import ConfigError
from holdfast.trainer.settings.layout import TrainerLayout, plan
from tests.trainer.run.test_equality import assembled, compare, mesh

STAGES = {
    "0": ["parallel.zero=0"],
    "1": ["parallel.zero=1"],
    "2": ["parallel.zero=2"],
    "3 by layer": ["parallel.zero=3"],
    "3 reduced once": ["parallel.zero=3", "parallel.zero_reduce=last"],
}
SMALL = ["--set", "model.layers=2", "--set", "train.micro_batches=4", "--set", "train.dtype=float64"]


def words(settings: list[str]) -> list[str]:
    return [word for setting in settings for word in ("--set", setting)]


@pytest.mark.parametrize("stage", STAGES)
def test_replicas_compute_what_one_process_computes(
    zygote: Zygote, tiny: list[str], tmp_path: Path, stage: str
) -> None:
    more = words([*STAGES[stage], "model.dropout=0.1", f"model.tied={'true' if '3' in stage else 'false'}"])
    compare(zygote, [*tiny, *SMALL, *more, *mesh(1, 2, 1)], tmp_path, world=2, steps=3, within=1e-9)


@pytest.mark.parametrize(("stage", "replicas"), [*((stage, 4) for stage in STAGES), ("1", 2), ("3 by layer", 2)])
def test_bytes_held_are_those_of_the_table(
    zygote: Zygote, tiny: list[str], tmp_path: Path, stage: str, replicas: int
) -> None:
    large = ["model.layers=6", "model.d_model=128", "data.seq_len=4", f"train.micro_batches={2 * replicas}"]
    argv = [*tiny, *words([*large, *STAGES[stage]]), *mesh(1, replicas, 1)]
    done = zygote.run("counting:memory", replicas, tmp_path, args={"argv": argv})
    assert done["exits"] == [0] * replicas
    d = replicas
    between, peak = {
        "0": (12, 16),
        "1": (12 / d, 8 + 12 / d),
        "2": (12 / d, 8 + 16 / d),  # of which 4 are the last micro-batch's own gradients, about to be reduced
        "3 by layer": (12 / d, 16 / d),
        "3 reduced once": (12 / d, 4 + 12 / d),
    }[stage]
    for result in done["results"]:
        whole = result["parameters"]
        held = result["between"] / whole, result["peak"] / whole
        print(f"zero {stage} on {d}: {held[0]:.2f} between steps, {held[1]:.2f} after backward, for {between}, {peak}")
        assert held[0] == pytest.approx(between, abs=0.2)
        # Where the others are late, two of the six layers' whole gradients may still be on their way.
        late = {"3 by layer": 4 / 3, "3 reduced once": 4 / 3 / d}.get(stage, 0.0)
        assert held[1] == pytest.approx(peak, abs=0.2 + late)


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(
        [n for n in SCHEDULES if not SCHEDULES[n].halves_backward and SCHEDULES[n].placement is not Placement.BOTH_WAYS]
    ),
    pp=st.integers(1, 4),
    chunks=st.integers(1, 3),
    count=st.integers(1, 8),
    zero=st.integers(0, 3),
    by_layer=st.booleans(),
    reduce_each=st.booleans(),
)
def test_plans_say_what_is_gathered_and_reduced(
    name: str, pp: int, chunks: int, count: int, zero: int, by_layer: bool, reduce_each: bool
) -> None:
    schedule = SCHEDULES[name]
    chunks = chunks if schedule.takes_chunks else schedule.chunks
    if schedule.whole_rounds:
        count *= pp
    layout = TrainerLayout(pp, 2, 1, chunks, count, schedule.placement)
    orders = schedule.build(pp, chunks, count)
    made = job_plan(layout, name, layout.stages, orders, zero=zero, by_layer=by_layer, reduce_each=reduce_each)
    assert verify(made) == []
    assert simulate(made, durations(1, 2, chunks)).makespan > 0
    times = Counter((action.op, action.stage) for _, action in made.actions())
    for stage in range(layout.stages):
        found = tuple(times[op, stage] for op in (Op.UNSHARD, Op.RESHARD, Op.REDUCE_GRAD))
        if zero < 3:
            assert found == [(0, 0, 1), (1, 1, 1), (1, 1, count)][zero]
        elif by_layer:
            computed = 2 * count + times[Op.RECOMPUTE, stage]
            assert found == (computed, computed, count if reduce_each else 1)
        elif name == "bfs":
            is_last = stage // pp == chunks - 1  # it stays between its forwards and its backwards
            assert found == ((1, 1, 1) if is_last else (2, 2, 1))
    if zero == 3 and not by_layer:
        for order in made.orders:
            whole: set[int] = set()
            for action in order:
                if action.op is Op.UNSHARD:
                    whole.add(action.stage)
                if action.op is Op.RESHARD:
                    whole.discard(action.stage)
                assert len(whole) <= 1
                assert action.op not in COMPUTE or whole == {action.stage}


@pytest.mark.parametrize(
    ("chosen", "says"),
    [
        (["parallel.zero=4"], "parallel.zero is 4: write 0, 1, 2 or 3"),
        (["parallel.zero=2", "parallel.zero_unit=stage"], "set parallel.zero = 3, or leave parallel.zero_unit = layer"),
        (
            ["parallel.zero=3", "parallel.schedule=zbv", "parallel.pp=2"],
            "set parallel.zero_unit = stage, or parallel.z",
        ),
        (["parallel.zero=3", "parallel.zero_unit=stage"], "set parallel.zero_unit = layer, or parallel.schedule = bfs"),
        (["parallel.zero=2", "parallel.zero_reduce=last"], "leave it at each, or set parallel.zero = 1"),
        (["parallel.zero_live=0"], "parallel.zero_live is 0: write 1 or more stages"),
        (["parallel.zero=3", "parallel.zero_live=2"], "parallel.zero_unit = stage, or leave parallel.zero_live = 1"),
        (
            [*(f"parallel.{w}" for w in ("zero=3", "zero_unit=stage", "zero_live=3", "schedule=bfs", "pp=2"))],
            "parallel.zero_live = 3 are more than the 2 stages of a rank",
        ),
    ],
)
def test_what_cannot_be_is_refused(tiny: list[str], chosen: list[str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        plan(parse([*tiny, *words(chosen)]), world=4, vocab=256)


def test_gradients_of_several_micro_batches_add_up_finer_than_they_are_kept() -> None:
    parameter = nn.Parameter(torch.zeros(4, dtype=torch.bfloat16))
    parts = [torch.full((4,), value) for value in (1.0, *[2.0**-9] * 4)]
    add = FineSum([parameter])
    for step in range(2):
        for part in parts:
            reduced = part.clone()
            add(reduced)
            assert parameter.grad is None
            parameter.grad = reduced.bfloat16()  # as FSDP2 does behind it
        # One by one, in bfloat16, each of the small ones would have been lost.
        assert parameter.grad.tolist() == [1 + 2.0**-7] * 4, step
        parameter.grad = None


def test_gathering_starts_before_data_is_there_and_goes_ahead_of_the_layers(
    zygote: Zygote, tiny: list[str], tmp_path: Path
) -> None:
    def happened(zero: str) -> list[str]:
        argv = [*tiny, *words(["model.layers=4", "train.micro_batches=2", *STAGES[zero]]), *mesh(1, 2, 1)]
        done = zygote.run("counting:order", 2, tmp_path / zero, args={"argv": argv})
        assert done["exits"] == [0, 0]
        assert done["results"][0] == done["results"][1]
        return list(done["results"][0]["happened"])

    assert happened("0") == ["read", *["layer"] * 4]
    assert happened("1") == happened("2") == ["gather", "read", *["layer"] * 4]
    # Embedding, four layers, head: each starts the gathering of the next one before it computes.
    forward = ["gather", "read", "gather", "gather", "layer", "gather", "layer", "gather", "layer", "gather", "layer"]
    assert happened("3 by layer") == [*forward, *["gather"] * 6]


def test_bfloat16_gradients_are_added_up_alike(zygote: Zygote, tiny: list[str], tmp_path: Path) -> None:
    many = ["model.layers=2", "model.d_model=16", "model.heads=2", "train.micro_batches=32", "train.dtype=bfloat16"]
    found = {}
    for zero in ("1", "2", "3 by layer"):
        argv = [*tiny, *words([*many, *STAGES[zero]]), *mesh(1, 2, 1), "--steps", "1"]
        done = zygote.run("gradients", 2, tmp_path / zero, args={"argv": argv})
        assert done["exits"] == [0, 0]
        found[zero] = {name: grad.float() for name, grad in assembled(tmp_path / zero, 2).items()}
    for zero in ("2", "3 by layer"):
        apart = {n: float((found[zero][n] - g).norm() / g.norm()) for n, g in found["1"].items()}
        print(zero, max(apart.values()))
        # Sixteen sums that are rounded each would be 4e-3 apart.
        assert max(apart.values()) < 5e-4
