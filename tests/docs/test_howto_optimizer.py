"""The worked example of docs/howto-optimizer.md is an optimizer: it is set, refused or not, trained with, and right."""

import re
import sys
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from holdfast.trainer.__main__ import parse
from holdfast.trainer.optim.update_rules import Peers, Target, rule
from holdfast.trainer.settings.config import OptimConfig
from holdfast.trainer.settings.errors import ConfigError
from holdfast.trainer.settings.layout import plan
from holdfast.trainer.settings.optimizers import OPTIMIZERS, OptimizerEntry

PAGE = (Path(__file__).parents[2] / "docs" / "howto-optimizer.md").read_text()


@pytest.fixture
def entry(monkeypatch: pytest.MonkeyPatch) -> OptimizerEntry:
    (code,) = re.findall(r"^ *```python\n(.*?)^ *```$", PAGE, re.DOTALL | re.MULTILINE)
    module = ModuleType("holdfast.trainer.optim.lion")
    exec(compile(textwrap.dedent(code), "docs/howto-optimizer.md", "exec"), module.__dict__)
    made: OptimizerEntry = module.__dict__["ENTRY"]
    monkeypatch.setitem(OPTIMIZERS, made.name, made)
    monkeypatch.setitem(sys.modules, made.rule.partition(":")[0], module)
    return made


def test_settings_and_layouts_take_it(entry: OptimizerEntry) -> None:
    config = parse(["--optimizer", entry.name, "--tp", "2", "--dp", "2"])
    assert config.optim.name == "lion"
    assert plan(config, 4, 256).world == 4
    with pytest.raises(ConfigError, match="choose one of adamw, lamb, sgd, dp-kfac, lion"):
        parse(["--optimizer", "tiger"])


def test_it_updates_as_its_formula_says(entry: OptimizerEntry) -> None:
    config = OptimConfig(name=entry.name, beta1=0.5, beta2=0.75, weight_decay=0.25)
    matrix, vector = nn.Parameter(torch.tensor([[4.0, -8.0]])), nn.Parameter(torch.tensor([2.0]))
    no_peers: Any = None
    made = rule(config, [Target(matrix, True, 1), Target(vector, False, 1)], Peers(no_peers))
    for applied, grads in enumerate(([[1.0, -1.0]], [[-0.2, 4.0]])):
        matrix.grad, vector.grad = torch.tensor(grads), torch.tensor([-3.0])
        made.update(0.5, applied)
    # First: signs 1, -1. m becomes g / 4; then c = (0.125 - 0.1, -0.125 + 2): signs 1, 1.
    first = [4 - 0.5 * (1 + 0.25 * 4), -8 - 0.5 * (-1 + 0.25 * -8)]
    expected = [x - 0.5 * (1 + 0.25 * x) for x in first]
    assert matrix.detach().tolist() == [pytest.approx(expected)]
    assert vector.detach().tolist() == [3.0]
    assert made.averages(0)["momentum"].tolist() == [pytest.approx([0.75 * 0.25 - 0.05, 0.75 * -0.25 + 1])]


def test_its_state_is_put_back(entry: OptimizerEntry) -> None:
    no_peers: Any = None
    shard = nn.Parameter(torch.ones(2, 2))
    made = rule(OptimConfig(name=entry.name), [Target(shard, True, 1)], Peers(no_peers))
    made.restore(0, {"momentum": torch.full((2, 2), 3.0)}, 7)
    assert made.averages(0)["momentum"].tolist() == [[3.0, 3.0], [3.0, 3.0]]
