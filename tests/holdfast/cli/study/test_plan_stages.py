"""`holdfast plan --stages alpa`: a table beside even layers, JSON, settings, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast.cli.main import main
from holdfast.trainer.settings.layout import plan
from holdfast.trainer.settings.load import load

Capture = pytest.CaptureFixture[str]
DEVICE = "[gpu]\nflops = 1e9\nmemory_bytes = {}\nmemory_bytes_per_s = 1e11\n"
LINK = "[links.node]\nalpha_us = 5\ngb_per_s = 300\n"
MODEL = ("model.layers=8", "model.d_model=32", "model.heads=8", "data.seq_len=16", "train.micro_batch_size=1")


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    """Three devices: two stages can't have equally many of them."""
    (tmp_path / "three.toml").write_text(f"nodes = 1\ngpus_per_node = 3\n{DEVICE.format('1e9')}{LINK}")
    model = [word for one in MODEL for word in ("--set", one)]
    return ["plan", "--stages", "alpa", *model, "--cluster", str(tmp_path / "three.toml")]


def test_stages_are_cut_and_written_as_settings(words: list[str], tmp_path: Path, capsys: Capture) -> None:
    best = tmp_path / "best.toml"
    assert main([*words, "--json", "-o", str(best)]) == 0
    found = json.loads(capsys.readouterr().out)
    first = found["cuts"][0]
    assert sum(first["parts"]) == 8
    assert sum(first["stage_tp"]) * first["dp"] == 3
    assert first["step_s"] < 0.8 * first["even_step_s"]
    assert [one["step_s"] for one in found["cuts"]] == sorted(one["step_s"] for one in found["cuts"])
    config = load(best)
    assert list(config.parallel.stage_layers) == first["parts"]
    assert plan(config, 3, 256).world == 3
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "+".join(map(str, first["parts"])) in out
    assert f"{first['step_s'] / first['even_step_s'] - 1:+.1%} against even layers" in out


@pytest.mark.parametrize(
    ("more", "line"),
    [
        (["--stages", "best"], "--stages is 'best': write even or alpa"),
        (["--host", "--schedules", "zbv"], "plans 1f1b by time on all devices: leave out --schedules, --host"),
        (["--goal", "memory"], "leave out --goal memory"),
        (["--limit", "1KB"], "no layout of the model on 3 devices is possible"),
        (["--cluster", "unlike.toml"], "nodes have 2 to 4 devices: --stages alpa takes nodes alike"),
    ],
)
def test_what_can_not_be_is_one_line(
    words: list[str], more: list[str], line: str, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    links = "".join(f"[links.{level}]\nalpha_us = 5\ngbit_per_s = 9\n" for level in ("switch", "pod"))
    unlike = "[[group]]\nnodes = 2\ngpus_per_node = 2\n[[group]]\nnodes = 1\ngpus_per_node = 4\n"
    Path("unlike.toml").write_text(f"{unlike}{DEVICE.format('1e9')}{LINK}{links}")
    assert main([*words, *more]) == 2
    error = capsys.readouterr().err
    assert line in error
    assert error.count("\n") == 1
