"""Real ranks hold what was expected of them before they were started, by kind, within 5 %."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from forked import Zygote
from torch.distributed.tensor import DTensor

from holdfast.trainer.__main__ import parse
from holdfast.trainer.memory.expected import expect
from holdfast.trainer.memory.measured import num_bytes
from holdfast.trainer.settings.layout import plan, vocab_of

LAYERS = 4
SMALL = [f"model.layers={LAYERS}", "train.micro_batches=4"]
# What nobody holds is expected to be nothing; FSDP's own and the optimizer's count of steps are small.
LAYOUTS = {
    "alone": (1, []),
    "selective": (1, ["train.recompute=selective"]),
    "full": (1, ["train.recompute=full"]),
    "serial-swiglu": (1, ["model.block=serial", "model.mlp=swiglu", "model.norm=layer", "model.positions=learned"]),
    "bfloat16": (1, ["train.dtype=bfloat16"]),
    "sgd": (1, ["optim.name=sgd"]),
    "host": (1, ["optim.state=host", "optim.bucket=5000", "train.dtype=bfloat16"]),
    "host-sgd": (1, ["optim.state=host", "optim.bucket=5000", "optim.name=sgd"]),
    "zero-1-host": (2, ["optim.state=host", "optim.bucket=5000", "train.dtype=bfloat16"]),
    "dp-kfac": (1, ["optim.name=dp-kfac", "model.block=serial"]),
    "dp-kfac-eigen-adamw": (1, ["optim.name=dp-kfac", "optim.kfac_form=eigen", "optim.kfac_others=adamw"]),
    "tp": (2, ["parallel.tp=2"]),
    "tp-sequence": (2, ["parallel.tp=2", "parallel.sequence=true", "parallel.shard_vocabulary=true"]),
    "tp-sub-batches": (2, ["parallel.tp=2", "parallel.sub_batches=2", "train.micro_batch_size=2"]),
    "pp": (2, ["parallel.pp=2"]),
    # Of a micro-batch the first stage saves 75 kB, of which two would be under way, and the second 93 kB.
    "pp-host": (2, ["parallel.pp=2", "train.activations=host", "train.activation_bytes=110000"]),
    "pp-cell": (2, ["parallel.pp=2", "train.recompute=cell"]),
    "pp-stage-aware": (2, ["parallel.pp=2", "train.recompute=stage-aware"]),
    "pp-mixed": (2, ["parallel.pp=2", "train.recompute=full,none"]),
    "pp-interleaved": (2, ["parallel.pp=2", "parallel.schedule=interleaved"]),
    "pp-chimera": (2, ["parallel.pp=2", "parallel.schedule=chimera"]),
    "pp-chimera-zero0": (2, ["parallel.pp=2", "parallel.schedule=chimera", "parallel.zero=0"]),
    # Two micro-batches in each replica's two pipes: the first one's gradients have been reduced behind the second.
    "pp-chimera-dp-zero2": (
        4,
        ["parallel.pp=2", "parallel.schedule=chimera", "parallel.zero=2", "train.micro_batches=8"],
    ),
    "pp-zbv": (2, ["parallel.pp=2", "parallel.schedule=zbv"]),
    "pp-tied": (2, ["parallel.pp=2", "model.tied=true"]),
    **{f"zero-{zero}": (2, [f"parallel.zero={zero}"]) for zero in range(4)},
    **{f"zero-{zero}-bfloat16": (2, [f"parallel.zero={zero}", "train.dtype=bfloat16"]) for zero in range(4)},
    "zero-3-last": (2, ["parallel.zero=3", "parallel.zero_reduce=last"]),
    "zero-3-stage": (4, ["parallel.pp=2", "parallel.schedule=bfs", "parallel.zero=3", "parallel.zero_unit=stage"]),
    "zero-2-pp-tp": (8, ["parallel.pp=2", "parallel.tp=2", "parallel.zero=2"]),
}


FAST = ("host", "pp-cell", "pp-zbv", "zero-2-bfloat16")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in FAST else [pytest.mark.slow, pytest.mark.aside]) for name in LAYOUTS],
)
def test_ranks_hold_what_was_expected(name: str, zygote: Zygote, tiny: list[str], tmp_path: Path) -> None:
    world, settings = LAYOUTS[name]
    argv = [*tiny, *(word for setting in [*SMALL, *settings] for word in ("--set", setting))]
    # It is the same on every rank, and here what layers save is counted once for all cases that are alike in it.
    config, vocab = parse(argv), vocab_of("bytes")
    ranks = expect(config, plan(config, world, vocab), vocab, "cpu").ranks
    done = zygote.run("gauging:held", world, tmp_path, args={"argv": argv})
    assert done["exits"] == [0] * world
    for rank, found in enumerate(done["results"]):
        expected, measured = asdict(ranks[found["pp_rank"]]), found["measured"]
        for kind in measured:
            if kind == "gathered" and name in ("zero-3", "zero-3-bfloat16", "zero-3-last"):
                continue  # layers are gathered and freed within an action, which is not seen
            if kind == "activations" and name == "tp-sub-batches":
                # Each layer keeps its share of the sum (2 samples of 16 x 32), which graphs do not save.
                expected[kind] -= LAYERS * 2 * 16 * 32 * 4
            assert measured[kind] == pytest.approx(expected[kind], rel=0.05, abs=64), f"rank {rank}, {kind}"


def test_a_gradient_that_another_thread_is_still_making_is_left_out() -> None:
    begun = torch.Tensor._make_wrapper_subclass(DTensor, (8,))
    assert num_bytes([begun, torch.zeros(4)]) == 16
