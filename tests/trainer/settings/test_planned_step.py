"""What a step is planned to take: written with the settings, read again, and only used for what it was planned for."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import pytest

from holdfast.plan.planned_step import PlannedStep
from holdfast.planner.cost.layout import Layout
from holdfast.trainer.settings.config import Config
from holdfast.trainer.settings.errors import ConfigError
from holdfast.trainer.settings.load import load
from holdfast.trainer.settings.planned import hash_of, planned_of, settings_of, with_planned
from holdfast.trainer.settings.written import written

STEP = PlannedStep(1.5, (0.1, 0.2), (0.2, 0.4), (0.0, 0.01), 1e-05, (0.02, 0.03), (0.1, 0.1))
LAYOUT = Layout(pp=2, dp=2, micro_batches=8, micro_batch_size=2)
CONFIG = with_planned(settings_of(Config(), LAYOUT), STEP, "H100", 4)
H100 = "NVIDIA H100 80GB HBM3"


def test_it_is_written_read_and_used(tmp_path: Path) -> None:
    path = tmp_path / "best.toml"
    path.write_text(written(CONFIG))
    assert "[planned]\nstep_s = 1.5\nforward_s = [0.1, 0.2]" in path.read_text()
    assert load(path) == CONFIG
    assert planned_of(load(path), 4, H100) == (STEP, "")
    assert planned_of(Config(), 4, H100) == (None, ""), "nothing was planned, and there is nothing to say"


@pytest.mark.parametrize(
    "setting",
    [
        ("train.micro_batches", 16),
        ("train.micro_batch_size", 4),
        ("train.dtype", "bfloat16"),
        ("train.recompute", "full"),
        ("model.layers", 6),
        ("model.window", 8),
        ("data.seq_len", 128),
        ("data.tokenizer", "bpe:4096"),
        ("parallel.schedule", "gpipe"),
        ("parallel.zero", 2),
        ("parallel.stage_layers", [1, 3]),
        ("optim.name", "sgd"),
        ("optim.state", "host"),
    ],
)
def test_other_settings_than_planned_are_not_compared(setting: tuple[str, object], tmp_path: Path) -> None:
    path = tmp_path / "best.toml"
    path.write_text(written(CONFIG))
    other = load(path, [setting])
    assert planned_of(other, 4, H100) == (None, "[planned] is of other settings or another number of ranks than 4")


def test_settings_that_change_no_step_are_compared(tmp_path: Path) -> None:
    path = tmp_path / "best.toml"
    path.write_text(written(CONFIG))
    same = [("train.steps", 7), ("optim.lr", 0.5), ("checkpoint.every", 9), ("model.dropout", 0.5), ("data.path", "x")]
    assert planned_of(load(path, same), 4, H100)[0] == STEP


def test_another_number_of_ranks_or_another_gpu_is_not_compared() -> None:
    assert planned_of(CONFIG, 8, H100)[1] == "[planned] is of other settings or another number of ranks than 8"
    for gpu, named in (("NVIDIA A100-SXM4-80GB", "NVIDIA A100-SXM4-80GB"), ("", "a CPU"), ("H100 NVL", "H100 NVL")):
        assert planned_of(CONFIG, 4, gpu) == (None, f"[planned] is of H100, and this is {named}")
    own = with_planned(settings_of(Config(), LAYOUT), STEP, "gpu", 4)  # a table [gpu] of a cluster file
    assert planned_of(own, 4, "")[0] == planned_of(own, 4, H100)[0] == STEP


def test_a_plan_of_other_settings_does_not_stay_with_these() -> None:
    again = settings_of(CONFIG, replace(LAYOUT, pp=1, dp=4))
    assert again.planned == Config().planned
    assert hash_of(again, 4) != hash_of(CONFIG, 4)


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("step_s", -1.0, r"\[planned\]: a step of -1.0 s: must be above 0"),
        ("forward_s", [0.1], r"\[planned\]: forward, backward and tensor differ in their number of stages"),
        ("backward_s", [0.1, -0.5], r"\[planned\]: backward of -0.5 s: must be from 0"),
        ("forward_s", ["x"], r"planned.forward_s in the command line is \['x'\]: write a list of numbers"),
        ("forward_s", 3, r"write a list of numbers, as in \[0.5, 0.25\]"),
        ("message_s", 1e10, r"\[planned\]: message of 10000000000.0 s"),
    ],
)
def test_what_no_step_takes_is_refused(key: str, value: object, says: str, tmp_path: Path) -> None:
    path = tmp_path / "best.toml"
    path.write_text(written(CONFIG))
    with pytest.raises(ConfigError, match=says):
        load(path, [(f"planned.{key}", value)])


def test_every_setting_of_the_hashed_sections_is_there() -> None:
    """A renamed one would raise here, and not when a job starts."""
    assert len(hash_of(Config(), 1)) == 16
    assert set(asdict(Config())) >= {"module", "data", "optim", "memory", "train", "model", "parallel"}
