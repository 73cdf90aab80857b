"""`holdfast run --replan`: what is planned for fewer nodes, and what is refused before anything starts."""

from pathlib import Path
from typing import Any

import pytest

from holdfast.base.errors import UsageError
from holdfast.cli.job.launch.layouts import plan_all
from holdfast.cli.main import main
from holdfast.trainer.__main__ import arguments, parse
from holdfast.trainer.settings.config import Config
from holdfast.trainer.settings.layout import plan
from holdfast.trainer.settings.planned import changes, layout_of, settings_of
from tests.holdfast.support.fake_controller import FakeController

Capture = pytest.CaptureFixture[str]
CLUSTER = """
nodes = {nodes}
gpus_per_node = {devices}
[gpu]
flops = 1e10
memory_bytes = {memory}
memory_bytes_per_s = 1e10
[links.node]
gb_per_s = 1
[links.switch]
gb_per_s = 1
"""
TRAINER = "holdfast.trainer"
TINY = ["--set", "model.layers=4", "--set", "model.d_model=32", "--set", "model.heads=4", "--set", "data.seq_len=32",
        "--set", "train.micro_batch_size=1"]  # fmt: skip


def cluster(folder: Path, nodes: int = 4, devices: int = 2, memory: float = 4e9) -> Path:
    path = folder / "cluster.toml"
    path.write_text(CLUSTER.format(nodes=nodes, devices=devices, memory=memory))
    return path


def planned(folder: Path, *args: str, nnodes: tuple[int, int] = (1, 4)) -> dict[int, dict[str, Any]]:
    return {one["nodes"]: one for one in plan_all(cluster(folder), [*TINY, *args], TRAINER, nnodes, "2")}


def test_each_layout_is_one_that_the_trainer_takes_with_the_same_samples(tmp_path: Path) -> None:
    given = ["--dp", "8", "--set", "train.micro_batches=24"]
    found = planned(tmp_path, *given)
    assert sorted(found) == [1, 2, 3]
    for nodes, one in found.items():
        config = parse([*TINY, *given, *one["args"]])  # what is added outranks what was given
        assert plan(config, 2 * nodes, 256).world == 2 * nodes
        assert (config.train.micro_batches, config.train.micro_batch_size) == (24, 1)
    # 24 micro-batches in shares of 3, 4, 6 and 12: computation alone would be 3/4, 1/2 and 1/4 of the throughput.
    assert found[3]["throughput"] == pytest.approx(3 / 4, rel=0.1)
    assert found[2]["throughput"] == pytest.approx(1 / 2, rel=0.1)
    assert found[1]["throughput"] == pytest.approx(1 / 4, rel=0.1)


def test_what_does_not_divide_is_left_out_with_the_reason(tmp_path: Path, capsys: Capture) -> None:
    # 7 nodes are 14 ranks: neither 8 micro-batches nor 4 heads nor 4 layers have a 7 in them.
    file = cluster(tmp_path, nodes=8)
    found = plan_all(file, [*TINY, "--dp", "8", "--pp", "2", "--set", "train.micro_batches=8"], TRAINER, (7, 8), "2")
    assert found == []
    said = " ".join(capsys.readouterr().err.split())
    assert "no layout is planned for 7 nodes: no layout has 8 samples in a step on 14 devices" in said
    assert "no smaller layout is planned: the job waits for 8 nodes when one is lost" in said


def test_a_number_of_nodes_that_is_no_faster_than_fewer_is_no_choice(tmp_path: Path, capsys: Capture) -> None:
    # 5 nodes of 1 device: 8 micro-batches go over pp=5 at best, slower than dp=4 on 4 nodes.
    file = cluster(tmp_path, nodes=8, devices=1)
    args = [*TINY, "--set", "model.layers=5", "--dp", "8", "--set", "train.micro_batches=8"]
    found = plan_all(file, args, TRAINER, (4, 8), "1")
    assert [one["nodes"] for one in found] == [4]
    assert "left out: 5" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("settings", "layout"),
    [
        (["--dp", "4", "--zero", "2"], (1, 4, 1, "1f1b", 2)),
        (["--pp", "2", "--tp", "2", "--schedule", "interleaved", "--set", "parallel.chunks=2"],
         (2, 1, 2, "interleaved", 1)),
    ],
)  # fmt: skip
def test_the_settings_own_layout_is_the_planners(settings: list[str], layout: tuple[int, int, int, str, int]) -> None:
    config = parse([*TINY, *settings, "--set", "parallel.zero=1"] if "--zero" not in settings else [*TINY, *settings])
    found = layout_of(config, plan(config, 4, 256))
    assert (found.pp, found.dp, found.tp, found.schedule, found.zero) == layout
    other = settings_of(config, found)
    again = layout_of(other, plan(other, 4, 256))
    assert again == found


def test_arguments_outrank_flags_and_settings_before_them() -> None:
    config = parse(["--dp", "8", "--set", "parallel.sequence=true", "--set", "parallel.tp=2", "--schedule", "gpipe"])
    other = Config()
    assert parse([*_of(config), *arguments(changes(config, other))]) == other


def _of(config: Config) -> list[str]:
    return arguments(changes(Config(), config))


REFUSED = [
    (["--nnodes", "1:2", "train.py"], "--replan plans layouts of the embedded trainer"),
    (["--nnodes", "2", "-m", TRAINER], "--replan needs fewer nodes to plan for: write --nnodes MIN:2"),
    (["--nnodes", "1:2", "--nproc-per-node", "auto", "-m", TRAINER], "--nproc-per-node N instead of auto"),
    (["--nnodes", "1:2", "--nproc-per-node", "4", "-m", TRAINER], "node0 has 2 devices, --nproc-per-node is 4"),
    (["--nnodes", "1:9", "--nproc-per-node", "2", "-m", TRAINER], "has 4 nodes, --nnodes up to 9: write nodes = 9"),
    (["--nnodes", "1:2", "--nproc-per-node", "2", "-m", TRAINER, "--traffic"], "--replan is for training"),
    (["--nnodes", "1:2", "--nproc-per-node", "2", "-m", TRAINER, "--set", "memory.policy=chunks"],
     "--replan plans with parameters and activations on the device"),
    (["--nnodes", "1:2", "--nproc-per-node", "2", "-m", TRAINER, "--set", "parallel.stage_tp=[1,3]", "--pp", "2"],
     "parallel.stage_tp has entries that differ"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "text"), REFUSED)
def test_what_cannot_be_planned_is_one_line(words: list[str], text: str, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "train.py").write_text("")
    words = [str(tmp_path / word) if word == "train.py" else word for word in words]
    assert main(["run", "--replan", str(cluster(tmp_path)), *words]) == 2
    said = capsys.readouterr().err.strip()
    assert text in " ".join(said.split())


def test_a_file_that_is_no_cluster_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cluster.toml").write_text("nodes = 2")
    with pytest.raises(UsageError, match=r"cluster\.toml: no gpu"):
        plan_all(tmp_path / "cluster.toml", TINY, TRAINER, (1, 2), "1")


def test_run_submits_them(fake: FakeController, tmp_path: Path) -> None:
    fake.end("finished", exit_code=0)
    argv = ["run", "--nnodes", "1:2", "--nproc-per-node", "2", "--replan", str(cluster(tmp_path, nodes=2))]
    assert main([*argv, "--no-env", "-m", TRAINER, *TINY, "--dp", "4", "--set", "train.micro_batches=8"]) == 0
    spec = next(asked[2] for asked in fake.asked if asked[1] == "/jobs")
    assert spec is not None
    assert (spec["nnodes"], spec["node_counts"]) == (2, [1])
    (layout,) = spec["layouts"]
    assert layout["nodes"] == 1
    assert "dp=2" in layout["text"]
    assert layout["args"][:2] == ["--dp", "2"]
