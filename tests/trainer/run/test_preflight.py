"""What is refused before torch is imported, and that it is."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from forked import REPOSITORY

from holdfast.base.errors import UsageError
from holdfast.trainer.__main__ import parse
from holdfast.trainer.run.preflight import check_job

CHUNKS = ["--set", "memory.policy=chunks", "--set"]
KFAC_FILL = ["--optimizer", "dp-kfac", "--set", "optim.kfac_fill=true", "--set", "parallel.zero=0"]
UNLIKE = ["--pp", "2", "--set", "parallel.stage_tp=[1, 2]", "--set"]

AWAY = ["--set", "train.activations=host", "--set", "train.activation_bytes=100000", "--set"]
PIECES = ["--dp", "2", "--set", "parallel.zero=0", "--set", "optim.state=host", "--set", "optim.clip_norm=0"]
PIECES += ["--set", "optim.reduce_pieces=2", "--set"]


@pytest.mark.parametrize(
    ("argv", "world", "says"),
    [
        (["--tp", "3"], 3, "model.heads = 8 is not divisible by tp"),
        (["--tp", "2"], 3, "pp x dp x tp is 2, the world size is 3"),
        (["--pp", "2", "--set", "parallel.chunks=2"], 2, "needs parallel.schedule to be one of"),
        (["--pp", "2", "--set", "parallel.stage_tp=[1, 2]"], 4, "dp x (1 + 2) is 3, the world size is 4"),
        (["--set", "parallel.stage_tp=[1, 2]"], 3, "has 2 entries for pp=1"),
        (["--set", "transport.within=ib0"], 1, "transport.within = ib0 is for groups with networks of their own"),
        (["--set", "parallel.stage_tp=[2, 2]"], 4, "has 2 entries for pp=1"),
        (["--pp", "2", "--tp", "2", "--set", "parallel.stage_tp=[1, 2]"], 3, "set one of them"),
        (["--pp", "2", "--set", "parallel.stage_tp=[1, 3]"], 4, "model.heads = 8 is not divisible by tp"),
        (["--pp", "2", "--set", "parallel.stage_layers=[4]"], 2, "[4] has 1 entries for 2 stages: one for each"),
        (["--pp", "2", "--set", "parallel.stage_layers=[3, 2]"], 2, "adds up to 5, and model.layers = 4"),
        (["--pp", "2", "--set", "parallel.stage_layers=[4, 0]"], 2, "parallel.stage_layers has 0: must be from 1 to"),
        (
            [
                "--pp",
                "2",
                "--set",
                "optim.name=dp-kfac",
                "--set",
                "parallel.schedule=zbv",
                "--set",
                "train.recompute=full",
            ],
            2,
            "train.recompute = full repeats a forward, of which dp-kfac keeps the inputs, and zbv halves its backward",
        ),
        ([*UNLIKE, "parallel.stage_layers=[4, 1]"], 3, "adds up to 5, and model.layers = 4"),
        ([*UNLIKE, "parallel.schedule=chimera"], 3, "needs one replica of each stage"),
        ([*UNLIKE, "parallel.schedule=axonn"], 3, "tp ranks decide together"),
        ([*UNLIKE, "train.recompute=stage-aware"], 3, "other bytes in each stage"),
        ([*UNLIKE, "parallel.sub_batches=2"], 3, "parallel.sub_batches hides the sums of tp ranks"),
        ([*UNLIKE, "model.tied=true", "--set", "parallel.shard_vocabulary=true"], 3, "over 1 ranks in the first stage"),
        (
            ["--dp", "2", "--set", "parallel.partial_backward=2"],
            2,
            "parallel.partial_backward = 2 adds up gradients that only some replicas have (set parallel.zero = 0)",
        ),
        (
            ["--dp", "3", "--set", "parallel.partial_backward=2", "--set", "train.micro_batches=6"],
            3,
            "gives as many replicas each role, and dp is no multiple of it",
        ),
        (["--pp", "2", "--set", "parallel.partial_backward=2"], 2, "on one rank (set pp = 1 and tp = 1)"),
        (["--tp", "2", "--set", "parallel.partial_backward=2"], 2, "on one rank (set pp = 1 and tp = 1)"),
        (
            [
                "--dp",
                "2",
                "--set",
                "parallel.partial_backward=2",
                "--set",
                "parallel.zero=0",
                "--set",
                "model.tied=true",
            ],
            2,
            "unlike contributors (set model.tied = false)",
        ),
        (
            ["--dp", "8", "--set", "parallel.partial_backward=8", "--set", "parallel.zero=0"],
            8,
            "is more than model.layers = 4",
        ),
        (
            ["--dp", "2", "--optimizer", "dp-kfac", "--set", "parallel.partial_backward=2", "--set", "parallel.zero=0"],
            2,
            "leaves owners of matrices without products (set optim.name = adamw)",
        ),
        ([*UNLIKE, "train.memory_path=x"], 3, "train.memory_path works what ranks hold out for one (leave it out)"),
        (
            ["--schedule", "chimera", "--pp", "2", "--dp", "2", "--set", "parallel.zero=3"],
            4,
            "set parallel.zero to 2 or",
        ),
        (["--pp", "2", "--set", "parallel.replica_sync=eager"], 2, "1f1b has one pipe"),
        (
            ["--optimizer", "dp-kfac", "--tp", "2"],
            2,
            "dp-kfac needs whole matrices, and tp ranks split them",
        ),
        (["--optimizer", "dp-kfac", "--dp", "2"], 2, "parallel.zero = 1 shards them (set parallel.zero = 0"),
        (
            ["--optimizer", "lamb", "--set", "optim.state=host"],
            1,
            "optim.name = lamb needs whole tensors; set optim.state = device, or optim.name to one of adamw, sgd",
        ),
        (["--optimizer", "dp-kfac", "--set", "optim.state=host"], 1, "optim.name = dp-kfac needs whole tensors"),
        ([*PIECES, "optim.state=device"], 2, "optim.state = device has none; set optim.state = host"),
        ([*PIECES, "parallel.zero=1"], 2, "set parallel.zero = 0, or leave optim.reduce_pieces = 0"),
        ([*PIECES, "optim.clip_norm=1"], 2, "set optim.clip_norm = 0, or leave"),
        ([*PIECES, "train.on_nonfinite=skip"], 2, "set train.on_nonfinite = stop, or leave"),
        ([*PIECES, "parallel.tp=2"], 4, "tp ranks split them (set parallel.tp = 1)"),
        ([*PIECES, "parallel.partial_backward=2"], 2, "gradients from every replica (set parallel.partial_backward"),
        ([*PIECES, "model.tied=true", "--pp", "2"], 4, "has a tied table whose stages add up after all"),
        ([*PIECES, "parallel.schedule=chimera", "--pp", "2"], 4, "needs one pipe, and the schedule has 2"),
        (["--set", "optim.reduce_pieces=-1"], 1, "optim.reduce_pieces is -1: must be 0 or more buckets"),
        (["--set", "train.activations=host"], 1, "set train.activation_bytes to a number of bytes"),
        ([*AWAY, "parallel.schedule=axonn", "--pp", "2"], 2, "axonn decides that in the run; set parallel.schedule"),
        ([*AWAY, "parallel.zero=3", "--dp", "2"], 2, "set parallel.zero to 2 or less, or train.activations = device"),
        (["--set", "train.activation_bytes=-1"], 1, "train.activation_bytes is -1: must be 0 or more"),
        ([*KFAC_FILL, "--pp", "2", *AWAY[:-1]], 2, "which train.activations = host would move away"),
        ([*KFAC_FILL, "--dp", "2"], 2, "pipeline ranks wait for each other, and there is one (set optim.kfac_fill = f"),
        ([*KFAC_FILL, "--pp", "2", "--schedule", "axonn"], 2, "into a fixed order, and axonn has none (choose 1f1b"),
        ([*KFAC_FILL, "--pp", "2", "--schedule", "chimera"], 2, "dp-kfac needs one pipe, and the schedule has 2"),
        ([*KFAC_FILL, "--pp", "2", "--optimizer", "lamb"], 2, "is for optim.name = dp-kfac, and lamb has nothing"),
        ([*KFAC_FILL, "--pp", "2", "--set", "train.memory_path=x"], 2, "keeps what train.memory_path does not know of"),
        (["--set", "optim.bucket=127"], 1, "optim.bucket is 127: must be 128 or more elements"),
        ([*CHUNKS, "train.micro_batches=2"], 1, "a replica goes through its layers once a step"),
        ([*CHUNKS, "train.micro_batches=1", "--pp", "2"], 2, "holds whole layers of one stage (set pp = 1, tp = 1"),
        ([*CHUNKS, "train.micro_batches=1", "--tp", "2"], 2, "holds whole layers of one stage (set pp = 1, tp = 1"),
        ([*CHUNKS, "train.micro_batches=2", "--dp", "2"], 2, "as stage 3 of ZeRO does (set parallel.zero = 3)"),
        ([*CHUNKS, "train.micro_batches=4", "--dp", "2", "--zero", "3"], 2, "train.micro_batches = 4 gives it 2"),
        (
            [*CHUNKS, "train.micro_batches=1", "--set", "train.recompute=stage-aware"],
            1,
            "memory.policy = chunks has one stage, and train.recompute = stage-aware balances several (set full)",
        ),
        ([*CHUNKS, "train.micro_batches=1", "--set", "train.memory_path=x"], 1, "train.memory_path has no kinds for"),
        ([*CHUNKS, "train.micro_batches=1", "--set", "parallel.stage_tp=[2]"], 2, "holds whole layers of one stage"),
        ([*CHUNKS, "train.micro_batches=1", "--optimizer", "lamb"], 1, "optim.name to one of adamw, sgd"),
        ([*CHUNKS, "train.micro_batches=1", "--optimizer", "dp-kfac"], 1, "optim.name to one of adamw, sgd"),
        ([*CHUNKS, "train.micro_batches=1", "--set", "optim.state=host"], 1, "set one of them"),
        ([*CHUNKS, "train.micro_batches=1", *AWAY[:-1]], 1, "train.activations = host with memory.policy = chunks"),
        ([*CHUNKS, "memory.device_bytes=-1"], 1, "memory.device_bytes is -1: must be 0 or more"),
        (["--set", "memory.device_bytes=5"], 1, "memory.device_bytes is 5 with memory.policy = whole"),
        (["--set", "memory.evict=lru"], 1, "memory.evict is lru with memory.policy = whole"),
        (["--store", "ftp://host/x"], 1, "no such scheme 'ftp'"),
        (["--store", "file://host/x"], 1, "three slashes"),
    ],
)
@pytest.mark.parametrize("here", [True, False])
def test_settings_are_refused_wherever_the_ranks_are(argv: list[str], world: int, says: str, here: bool) -> None:
    with pytest.raises(UsageError, match=re.escape(says)) as refused:
        check_job(parse(argv), world, here)
    assert "\n" not in str(refused.value)


def test_folders_are_those_of_the_ranks(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for argv in (["--data", str(tmp_path / "gone")], ["--store", str(tmp_path / "file" / "x")]):
        check_job(parse(argv), 1, here=False)
        with pytest.raises(UsageError, match=r"no such folder|Not a directory"):
            check_job(parse(argv), 1)


def test_settings_that_work_are_let_through(tmp_path: Path) -> None:
    check_job(parse(["--pp", "2", "--dp", "2", "--data", str(tmp_path), "--store", str(tmp_path / "new")]), 4)
    check_job(parse([*CHUNKS, "train.micro_batches=2", "--dp", "2", "--zero", "3"]), 2)
    check_job(parse([*CHUNKS, "train.micro_batches=1", "--optimizer", "sgd"]), 1)
    for more in ("parallel.zero=2", "parallel.replica_sync=eager-opt"):
        check_job(parse(["--schedule", "chimera", "--pp", "2", "--dp", "2", "--set", more]), 4)


@pytest.mark.parametrize(
    "argv",
    [
        ["--set", "model.heads=5"],
        ["--tp", "3"],
        ["--data", "/gone"],
        ["--optimizer", "lamb", "--set", "optim.state=host"],
    ],
)
def test_the_trainer_refuses_before_it_imports_torch(argv: list[str], tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['torch'] = None; from holdfast.trainer.__main__ import main;"
        "sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", code, *argv]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=REPOSITORY)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert done.stderr.startswith("holdfast train: ")
