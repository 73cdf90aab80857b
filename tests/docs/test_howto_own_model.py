"""The worked example of docs/howto-own-model.md is a module: it is trained in one process, and cut as the page says."""

import json
import re
import sys
import textwrap
from pathlib import Path

import pytest
import torch

from holdfast.trainer.__main__ import main, parse
from holdfast.trainer.modules.stage import open_module

PAGE = (Path(__file__).parents[2] / "docs" / "howto-own-model.md").read_text()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (code,) = re.findall(r"^ *```python\n(.*?)^ *```$", PAGE, re.DOTALL | re.MULTILINE)
    (tmp_path / "my_model.py").write_text(textwrap.dedent(code))
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.txt").write_text("some text of a few words\n" * 40)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "my_model", raising=False)
    return tmp_path


def test_it_is_cut_as_the_page_says(folder: Path) -> None:
    whole = open_module(parse(["--model", "my_model:build", "--pp", "2"]), 2, torch.device("cpu"))
    held = [whole.parameters_of(stage) for stage in range(2)]
    assert held[0] & held[1] == {"table.weight"}
    assert len(held[0] | held[1]) == 1 + 2 * 8
    # The very first and the newest value cross, and nothing else.
    assert [field.shape for field in whole.messages[0].fields] == [(2, 64, 64)] * 2


def test_it_is_trained(folder: Path) -> None:
    argv = ["--model", "my_model:build", "--steps", "6", "--data", "text", "--set", "data.seq_len=8"]
    more = ["data.cache_dir=cache", "train.metrics_path=metrics", "train.log_every=0"]
    assert main([*argv, *(word for one in more for word in ("--set", one))]) == 0
    losses = [json.loads(line)["loss"] for line in (folder / "metrics").read_text().splitlines()]
    assert len(losses) == 6
    assert losses[-1] < losses[0]
