"""Parts of a model are timed as what they are: more work takes longer, and the file is what the planner reads."""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from holdfast.cli.main import main
from holdfast.planner.cost.collectives import Collective
from holdfast.planner.cost.layers import Precision, parts
from holdfast.planner.cost.layout import Layout
from holdfast.planner.cost.measured import read
from holdfast.trainer.model.model import ModelStage
from holdfast.trainer.profile import layers
from holdfast.trainer.profile.links import group_sizes, measure_links
from holdfast.trainer.settings.config import Config
from holdfast.trainer.settings.errors import ConfigError
from holdfast.trainer.settings.shape import shape_of

SMALL = replace(Config(), model=replace(Config().model, d_model=128, heads=4), data=replace(Config().data, seq_len=64))


def test_times_of_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock that goes on by the FLOPs computed: time itself depends on what else the machine does."""
    with FlopCounterMode(display=False) as counter:
        monkeypatch.setattr(layers, "_now", lambda device: counter.get_total_flops())
        found = layers.measure_parts(SMALL, [1, 4], 4096, torch.device("cpu"), 2)
    assert set(found) == {"tp=1", "tp=4"}
    tokens, width = SMALL.train.micro_batch_size * SMALL.data.seq_len, SMALL.model.d_model
    head = 2 * tokens * width * 4096
    # At tp = 1 the gradients of weights are summed by an operation whose FLOPs torch does not count.
    assert asdict(found["tp=1"]["last"]) == {"forward": head, "backward": head, "again": 0}
    assert found["tp=4"]["last"].forward == head, "the vocabulary is not split"
    whole, quarter = found["tp=1"]["layer"], found["tp=4"]["layer"]
    assert quarter.forward == whole.forward / 4 > 0
    assert 0 < quarter.backward < whole.backward


def test_an_update_takes_time() -> None:
    assert layers.measure_update(torch.device("cpu"), 3) > 0


def test_load_for_a_while_is_in_no_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 6 x 4 turns, three looks at the clock each, the first 2 x 4 take a hundred times as long."""
    looks, now = 0, 0

    def clock(device: torch.device) -> float:
        nonlocal looks, now
        looks, now = looks + 1, now + (100 if looks <= 24 else 1)
        return now

    monkeypatch.setattr(layers, "_now", clock)
    found = layers.measure_parts(SMALL, [1], 64, torch.device("cpu"), 5)
    assert looks == 72
    assert asdict(found["tp=1"]["layer"]) == {"forward": 1, "backward": 1, "again": 0}
    assert asdict(found["tp=1"]["first"]) == asdict(found["tp=1"]["last"]) == {"forward": 0, "backward": 0, "again": 0}


def test_time_that_others_have_the_processor_is_no_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu, usual = torch.device("cpu"), ModelStage.forward

    def interrupted(*words: Any) -> torch.Tensor:
        time.sleep(0.05)
        return usual(*words)

    monkeypatch.setattr(ModelStage, "forward", interrupted)
    found = layers.measure_parts(SMALL, [1], 64, cpu, 2)
    assert 0 < found["tp=1"]["layer"].forward < 0.05


def test_a_share_that_cannot_be() -> None:
    with pytest.raises(ConfigError, match=r"--tps has 3: model.heads = 4 is not divisible by tp"):
        layers.check(SMALL, [1, 3])


def test_sizes_of_groups() -> None:
    assert group_sizes(8) == [2, 4, 8]
    assert group_sizes(6) == [2, 3, 6]
    assert group_sizes(1) == []


@pytest.mark.slow
def test_links_of_two_ranks() -> None:
    found = measure_links(2, "gloo", 3, (1 << 12, 1 << 20))
    assert set(found) == {"all_reduce", "all_gather", "reduce_scatter", "send"}
    for each in found.values():
        assert each[2].seconds(1 << 20) > 0
    assert measure_links(1, "gloo", 1) == {}


@pytest.mark.slow
def test_the_command_writes_what_the_planner_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "p.json"
    words = ["profile", "-o", str(path), "--tps", "1,2", "--ranks", "2", "--repeats", "2"]
    sizes = ["--set", "model.d_model=64", "--set", "data.seq_len=32", "--set", "parallel.device=cpu"]
    assert main([*words, *sizes]) == 0
    assert f"kept in {path}" in capsys.readouterr().out
    profile, layout = read(path.read_text()), Layout(tp=2, micro_batch_size=2)
    shape = shape_of(replace(Config().model, d_model=64), 256, 32)
    assert profile.applied(parts(shape, layout, Precision.of("float32")), layout).layer.t_f
    assert profile.seconds(Collective.ALL_REDUCE, 2, 1e6)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--tps", "two"], "--tps is 'two': write numbers from 1 to 1024, as 1,2,4"),
        (["--tps", "3"], "--tps has 3: model.heads = 8 is not divisible by tp"),
        (["--ranks", "1"], "--ranks is 1: must be 0, or from 2 to 64"),
        (["--repeats", "0"], "--repeats is 0: must be from 1 to 1000"),
        (
            ["-o", "/nowhere/p.json"],
            "--output is '/nowhere/p.json': no file can be made there (No such file or directory)",
        ),
        (["--traffic"], "holdfast profile takes settings only"),
        (["--model", "gpt9"], "--model is 'gpt9', which is not known"),
    ],
)
def test_bad_input_is_one_line(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", *words]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert len(error.strip().splitlines()) == 1
