"""Bytes on the wire, read from the network's own counters in a namespace of its own, are those of the formulas."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from forked import REPOSITORY, Zygote

from holdfast.planner.placement.expected import node_bytes
from holdfast.trainer.__main__ import main, parse
from holdfast.trainer.modules.stage import look_at, sizes_of
from holdfast.trainer.optim.traffic import traffic
from holdfast.trainer.pipeline.pipeline import build_plan
from holdfast.trainer.settings.layout import plan as plan_layout
from holdfast.trainer.settings.layout import vocab_of
from holdfast.trainer.settings.planned import step_traffic
from tests.trainer.run.test_equality import mesh

pytestmark = pytest.mark.aside

# Headers of packets are taken off; a message of gloo has one of its own, which shows where messages are small.
WITHIN = 0.02
BESIDES = 20_000
STEPS = 2
# On a busy machine TCP takes an answer that is late for a lost one, and sends again: not before 20 s here.
NEVER_AGAIN = """
ip link set lo up
for key in tcp_early_retrans tcp_recovery; do echo 0 > /proc/sys/net/ipv4/$key; done
for to in 127.0.0.0/8 127.0.0.1; do
    ip route replace table local local $to dev lo proto kernel scope host src 127.0.0.1 rto_min 20s
done
"""
LONELY = ["unshare", "--net", "--map-root-user", "sh", "-ec", NEVER_AGAIN + 'exec "$@"', "sh"]

CHUNKS = ["memory.policy=chunks", "memory.device_bytes=12000000"]
LARGE = {
    "model.layers": 4,
    "model.d_model": 128,
    "model.heads": 4,
    "data.seq_len": 64,
    "train.micro_batches": 4,
    "train.micro_batch_size": 2,
}
CASES: dict[str, tuple[tuple[int, int, int], list[str]]] = {
    "tp": ((1, 1, 2), []),
    "tp sequence": ((1, 1, 2), ["parallel.sequence=true"]),
    "tp serial vocabulary": ((1, 1, 4), ["model.block=serial", "parallel.shard_vocabulary=true"]),
    "tp sequence vocabulary": ((1, 1, 4), ["parallel.sequence=true", "parallel.shard_vocabulary=true"]),
    "pp": ((4, 1, 1), []),
    "pp bfs tied": ((2, 1, 1), ["parallel.schedule=bfs", "model.tied=true"]),
    "pp zbv": ((2, 1, 1), ["parallel.schedule=zbv"]),
    "pipes tied": ((2, 1, 1), ["parallel.schedule=chimera", "model.tied=true"]),
    "pipes of replicas": ((2, 2, 1), ["parallel.schedule=chimera", "parallel.zero=0"]),
    "pipes zero 1": ((2, 2, 1), ["parallel.schedule=chimera", "parallel.zero=1"]),
    "pipes zero 2": ((2, 2, 1), ["parallel.schedule=chimera", "parallel.zero=2", "train.micro_batches=8"]),
    "pipes zero 0": ((2, 1, 2), ["parallel.schedule=chimera", "parallel.zero=0", "parallel.sequence=true"]),
    "four pipes": ((4, 1, 1), ["parallel.schedule=chimera", "parallel.chunks=4"]),
    "zero 0": ((1, 2, 1), ["parallel.zero=0"]),
    "zero 1": ((1, 2, 1), ["parallel.zero=1"]),
    "zero 2": ((1, 2, 1), ["parallel.zero=2"]),
    "zero 3": ((1, 2, 1), ["parallel.zero=3"]),
    "zero 0 of 4": ((1, 4, 1), ["parallel.zero=0"]),
    "zero 1 of 4": ((1, 4, 1), ["parallel.zero=1"]),
    "zero 2 of 4": ((1, 4, 1), ["parallel.zero=2", "train.micro_batches=8"]),
    "zero 3 reduced once": ((1, 2, 1), ["parallel.zero=3", "parallel.zero_reduce=last"]),
    "zero 3 of 4": ((1, 4, 1), ["parallel.zero=3", "train.micro_batches=8"]),
    "zero 3 bfs by stage": ((2, 2, 1), ["parallel.zero=3", "parallel.zero_unit=stage", "parallel.schedule=bfs"]),
    "chunks": ((1, 2, 1), ["parallel.zero=3", *CHUNKS, "train.micro_batches=2"]),
    "chunks of 4, tied": ((1, 4, 1), ["parallel.zero=3", *CHUNKS, "model.tied=true"]),
    "zero 3 tied": ((1, 2, 2), ["parallel.zero=3", "model.tied=true"]),
    "all": ((2, 2, 2), ["parallel.zero=2", "model.tied=true", "parallel.sequence=true"]),
    "all, zero 0": ((2, 2, 2), ["parallel.zero=0", "model.tied=true", "parallel.sequence=true"]),
    "gated": ((1, 2, 2), ["parallel.zero=1", "parallel.sequence=true", "model.block=serial", "model.mlp=swiglu"]),
    "partial backward": ((1, 4, 1), ["parallel.zero=0", "parallel.partial_backward=4"]),
    "partial backward in twos": ((1, 4, 1), ["parallel.zero=0", "parallel.partial_backward=2", "model.norm=layer"]),
    "dp-kfac": ((1, 2, 1), ["parallel.zero=0", "optim.name=dp-kfac"]),
    "dp-kfac of 4": ((1, 4, 1), ["parallel.zero=0", "optim.name=dp-kfac", "optim.kfac_form=eigen"]),
    "dp-kfac stages": ((2, 2, 1), ["parallel.zero=0", "optim.name=dp-kfac", "optim.kfac_owners=round-robin"]),
    "bfloat16": ((1, 2, 1), ["parallel.zero=1", "train.dtype=bfloat16"]),
}
UNLIKE: dict[str, tuple[list[int], list[str]]] = {
    "unlike tp": ([1, 2], ["model.tied=true"]),
    "unlike tp sequence": ([4, 2], ["parallel.sequence=true", "parallel.shard_vocabulary=true"]),
    "unlike tp replicas": ([2, 1], ["parallel.dp=2", "parallel.zero=1", "parallel.schedule=gpipe"]),
}
OWN: dict[str, tuple[tuple[int, int, int], list[str]]] = {
    "own module": ((2, 2, 1), ["parallel.zero=1"]),
    "own module in twos": ((2, 1, 1), ["parallel.schedule=interleaved"]),
    "own module both ways": ((2, 2, 1), ["parallel.schedule=chimera", "parallel.zero=2"]),
    "own module of replicas": ((1, 4, 1), ["parallel.zero=0"]),
}
MODULE = f"module.build={REPOSITORY / 'tests' / 'trainer' / 'support' / 'own_models.py'}:wide"
FAST = ("tp", "zero 1")
COUNTED = (*CASES, *UNLIKE, "own module")


@pytest.fixture(scope="module")
def alone() -> Iterator[Zygote]:
    """Ranks in a network namespace of their own, where nothing else sends."""
    asked = subprocess.run([*LONELY, "true"], capture_output=True, text=True, timeout=200, check=False)
    if asked.returncode:
        pytest.skip(f"no network namespace of one's own here: {asked.stderr.strip()}")
    warm = Zygote(LONELY)
    yield warm
    warm.close()


def unfilled(name: str) -> float:
    """The share of what goes on the wire that the planner does not count: chunks go whole, full or not."""
    return 0.15 if name.startswith("chunks") else 0.0


def job_of(tiny: list[str], name: str) -> tuple[list[str], int]:
    """Arguments of a case, and its ranks."""
    sizes = [f"{key}={value}" for key, value in LARGE.items()]
    if name in UNLIKE:
        tps, settings = UNLIKE[name]
        layout, settings = (len(tps), 1, 1), [*settings, f"parallel.stage_tp={tps}"]
        world = sum(tps) * (1 + ("parallel.dp=2" in settings))
    else:
        layout, settings = {**CASES, **OWN}[name]
        world = layout[0] * layout[1] * layout[2]
    if name in OWN:  # it has a shape of its own
        sizes, settings = [one for one in sizes if not one.startswith("model.")], [MODULE, *settings]
        tiny = tiny[:2] + [word for one in tiny[3::2] if not one.startswith("model.") for word in ("--set", one)]
    laid = ["--pp", str(layout[0])] if name in UNLIKE else mesh(*layout)
    return [*tiny, *(word for setting in (*sizes, *settings) for word in ("--set", setting)), *laid], world


def check(alone: Zygote, tiny: list[str], folder: Path, name: str) -> None:
    argv, world = job_of(tiny, name)
    if name in OWN:
        alone.imported("traced_once")  # by one process, for all ranks
    counted = expected = 0
    for attempt in range(4):  # on a busy machine TCP sends a packet twice now and then, never one less
        done = alone.run("counting:wire", world, folder / str(attempt), args={"argv": argv, "steps": STEPS})
        assert done["exits"] == [0] * world
        results: list[dict[str, Any]] = done["results"]
        assert all(result["as_held"] for result in results)
        expected, planned = (results[0][key] for key in ("expected", "planned"))
        counted = results[0]["sent"] // STEPS
        print(f"{name}: {counted} bytes a step counted, {expected} expected, {counted / expected - 1:+.2%}")
        within = (WITHIN, WITHIN + unfilled(name))
        if all(abs(counted - one) <= one * w + BESIDES for one, w in zip((expected, planned), within, strict=True)):
            return
    raise AssertionError(
        f"{name}: {counted} bytes a step on the wire, {expected} by the formula, {planned} by what is published"
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", FAST)
def test_bytes_are_those_of_the_formula(alone: Zygote, tiny: list[str], tmp_path: Path, name: str) -> None:
    check(alone, tiny, tmp_path, name)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in COUNTED if name not in FAST])
def test_bytes_of_all_forms(alone: Zygote, tiny: list[str], tmp_path: Path, name: str) -> None:
    check(alone, tiny, tmp_path, name)


@pytest.mark.parametrize("name", [*CASES, *UNLIKE, *OWN])
def test_what_is_published_is_what_is_counted(tiny: list[str], name: str) -> None:
    """Of every form that packets are counted of, and more: over all links, the planner's bytes are the trainer's."""
    argv, world = job_of(tiny, name)
    config = parse(argv)
    vocab = vocab_of(config.data.tokenizer)
    layout = plan_layout(config, world, vocab)
    plan = build_plan(config, layout, torch.device("cpu"))
    own = sizes_of(look_at(config, layout.stages)) if name in OWN else None
    expected = traffic(config, layout, plan, vocab, own)
    found = step_traffic(config, layout, vocab, plan, own)
    assert found is not None
    # The trainer's count has rows that are filled up for ZeRO's replicas.
    within = 1e-9 if config.parallel.zero == 0 else 0.01
    assert node_bytes(plan, found, 1).sent.sum() == pytest.approx(expected.total, rel=within + unfilled(name))


def test_the_command_says_what_a_step_sends(capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--set", "model.layers=2", "--set", "model.d_model=32", "--set", "model.heads=4"]
    assert main([*small, "--dp", "4", "--set", "parallel.zero=0", "--set", "model.tied=true", "--traffic"]) == 0
    said = dict(line.split() for line in capsys.readouterr().out.splitlines()[1:])
    # 12 h^2 a layer, a table of bytes, three norms: 2(d-1) times four bytes each.
    parameters = 2 * 12 * 32**2 + 256 * 32 + 3 * 32
    assert said["replicas"] == f"{2 * 3 * 4 * parameters:,}"
    assert said["tensor"] == said["pipeline"] == "0"


def test_the_command_says_what_a_module_of_ones_own_sends(capsys: pytest.CaptureFixture[str], tiny: list[str]) -> None:
    argv, _ = job_of(tiny, "own module")
    assert main([*argv, "--traffic"]) == 0
    said = dict(line.split() for line in capsys.readouterr().out.splitlines()[1:])
    assert said["tensor"] == said["optimizer"] == "0"
    # Width 64: what two layers share, eight layers with their norms, and the table in both stages. Gathered and reduced
    # once by two replicas, in four bytes.
    norm, up, down = 2 * 64, 65 * 128, 129 * 64
    parameters = 65 * 64 + 8 * (norm + up + down) + 2 * 256 * 64
    assert said["replicas"] == f"{parameters * 2 * 4:,}"
    # Four micro-batches of (2, 64, 64): the stream, what it began with, and a byte a token. Both copies of the table.
    message = 2 * (2 * 64 * 64) * 4 + 2 * 64
    assert said["pipeline"] == f"{2 * 4 * message + 2 * 256 * 64 * 4:,}"
