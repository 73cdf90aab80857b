"""A plan that was found is trained, and computes what one process computes; its time is what was predicted."""

from __future__ import annotations

from pathlib import Path

import pytest
from forked import Zygote
from programs import figures

from holdfast.cli.main import main
from holdfast.trainer.__main__ import parse
from holdfast.trainer.graphs.cuts import Cut, Machines, find
from tests.trainer.run.test_equality import compare

pytestmark = pytest.mark.aside
EIGHT = ["--set", "train.micro_batches=8", "--set", "train.dtype=float64"]


def found(argv: list[str], machines: Machines) -> Cut:
    return find(parse(argv), machines).cuts[0]


def trained(zygote: Zygote, argv: list[str], cut: Cut, folder: Path) -> None:
    settings = [word for setting in cut.settings for word in ("--set", setting)]
    assert parse([*argv, *settings]) == cut.config
    compare(zygote, [*argv, *settings], folder, cut.layout.world, steps=2, within=1e-12)


def test_stages_unlike_in_tp_and_layers_equal_one_process(zygote: Zygote, tiny: list[str], tmp_path: Path) -> None:
    """On three devices: two share most of the layers, one has the others."""
    argv = [*tiny, *EIGHT]
    cut = found(argv, Machines(1, 3, flops=1e9, memory_bytes=1e9))
    assert sorted(cut.layout.tps) == [1, 2]
    assert sorted(cut.layout.stage_layers) in ([2, 6], [3, 5])
    trained(zygote, argv, cut, tmp_path)


@pytest.mark.slow
def test_replicas_that_share_parameters_equal_one_process(zygote: Zygote, tiny: list[str], tmp_path: Path) -> None:
    """One layer, nodes of one device: neither stages nor tp. 28,736 parameters take 920 kB whole, 690 kB with states
    shared by two, 460 kB with all shared, and activations some 300 kB."""
    argv = [*tiny, *EIGHT, "--set", "model.layers=1"]
    cut = found(argv, Machines(2, 1, flops=1e9, memory_bytes=8.7e5))
    assert (cut.layout.pp, cut.layout.dp, cut.config.parallel.zero) == (1, 2, 3)
    trained(zygote, argv, cut, tmp_path)


@pytest.mark.slow
def test_a_step_takes_what_was_predicted(zygote: Zygote, tmp_path: Path) -> None:
    """Executors of real ranks, in virtual time. Alpa's formula is for stages of any lengths, and at most this exact."""
    rows = figures(zygote, tmp_path, "planned.py", "--virtual", "--repeats", "1")["planned"]
    assert [one["tp of stages"] for one in rows] == ["1+2", "1+1+1", "2+2"]
    for one in rows:
        assert one["least"] == pytest.approx(one["simulated"], rel=1e-9)
        assert one["least"] == pytest.approx(one["formula"], rel=1e-9)


@pytest.mark.slow
def test_settings_that_the_command_writes_are_trained(zygote: Zygote, tiny: list[str], tmp_path: Path) -> None:
    """`holdfast plan --stages alpa -o FILE`, then as many ranks with `--config FILE`."""
    (tmp_path / "three.toml").write_text(
        "nodes = 1\ngpus_per_node = 3\n[gpu]\nflops = 1e9\nmemory_bytes = 1e9\nmemory_bytes_per_s = 1e11\n"
        "[links.node]\nalpha_us = 5\ngb_per_s = 300\n"
    )
    best = tmp_path / "best.toml"
    words = ["--stages", "alpa", "--cluster", str(tmp_path / "three.toml"), "-o", str(best)]
    assert main(["plan", *words, *tiny, *EIGHT]) == 0
    config = parse(["--config", str(best)])
    assert sorted(config.parallel.stage_tp) == [1, 2]
    assert sum(config.parallel.stage_layers) == 8
    compare(zygote, ["--config", str(best)], tmp_path, 3, steps=2, within=1e-12)
