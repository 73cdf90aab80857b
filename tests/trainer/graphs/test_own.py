"""A module of the user's own in stages: seconds in closed form, what fits, and settings that the trainer takes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.trainer.__main__ import parse
from holdfast.trainer.graphs.cuts import Machines
from holdfast.trainer.graphs.own import find_own
from holdfast.trainer.settings.config import Config
from holdfast.trainer.settings.errors import ConfigError
from holdfast.trainer.settings.layout import plan
from holdfast.trainer.settings.load import load

WIDTH, LAYERS, SAMPLES, LENGTH, COUNT = 16, 6, 2, 8, 12
CHAIN = f"""
import torch
from torch import nn


class Chain(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(256, {WIDTH})
        self.layers = nn.ModuleList(nn.Linear({WIDTH}, {WIDTH}, bias=False) for _ in range({LAYERS}))
        self.head = nn.Linear({WIDTH}, 256, bias=False)

    def forward(self, tokens):
        x = self.table(tokens)
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.head(x)


def build():
    return Chain()
"""
TOKENS = SAMPLES * LENGTH
LAYER, HEAD, TABLE = 2 * TOKENS * WIDTH**2 + TOKENS * WIDTH, 2 * TOKENS * WIDTH * 256, 256 * WIDTH
"""FLOPs of a layer with its tanh, one an element, and of the head; parameters of the table."""
FORWARD = TOKENS * WIDTH + LAYERS * LAYER + HEAD
"""With the look-up, one an element."""
SPEED, BETA = 1e9, 1e-9


@pytest.fixture
def config(tmp_path: Path) -> Config:
    (tmp_path / "chain.py").write_text(CHAIN)
    settings: dict[str, Any] = {"module.build": f"{tmp_path}/chain.py:build", "data.seq_len": LENGTH,
                                "train.micro_batches": COUNT, "train.micro_batch_size": SAMPLES}  # fmt: skip
    return load(overrides=list(settings.items()))


def machines(devices: int, memory_bytes: float = 1e9, beta: float = BETA) -> Machines:
    return Machines(1, devices, SPEED, memory_bytes, inside_alpha=0.0, inside_beta=beta)


def test_stages_take_three_forwards_and_cuts_balance_them(config: Config) -> None:
    """The head has 256 / 16 = 16 layers' FLOPs: it is alone with what no other stage can take from it."""
    cuts, _ = find_own(config, machines(2))
    (one,) = [cut for cut in cuts if cut.layout.pp == 2 and cut.config.module.balance == "flops"]
    assert sum(one.stage_seconds) == pytest.approx(3 * FORWARD / SPEED)
    assert max(one.stage_seconds) == pytest.approx(3 * HEAD / SPEED, rel=0.01)
    # Table and head have as many parameters, so equal parts of them cut in the middle: three layers beside the head.
    worse = 3 * (HEAD + 3 * LAYER) / SPEED
    assert one.even_seconds == pytest.approx(3 * FORWARD / SPEED + (COUNT - 1) * worse, rel=0.02)
    assert one.simulated_seconds < one.even_seconds
    assert one.seconds == pytest.approx(sum(one.stage_seconds) + (COUNT - 1) * max(one.stage_seconds))


def test_replicas_sum_all_gradients_once_a_step(config: Config) -> None:
    """2 (n - 1) / n x 4 bytes of each parameter with stage 0 and 1; half of it behind each micro-batch with 2."""
    cuts, _ = find_own(config, machines(2))
    parameters = 2 * TABLE + LAYERS * WIDTH**2
    compute = COUNT // 2 * 3 * FORWARD / SPEED
    half = 4 * parameters * BETA / 2
    found = {cut.config.parallel.zero: cut.simulated_seconds for cut in cuts if cut.layout.dp == 2}
    assert found == pytest.approx({0: compute + 2 * half, 1: compute + 2 * half, 2: compute + (COUNT // 2 + 1) * half})


def test_slow_links_make_stages_of_replicas(config: Config) -> None:
    fast, slow = (find_own(config, machines(2, beta=beta))[0][0] for beta in (1e-12, 1e-6))
    assert (fast.layout.pp, fast.layout.dp) == (1, 2)
    assert (slow.layout.pp, slow.layout.dp) == (2, 1)
    for one in (fast, slow):
        assert plan(one.config, 2, 256) == one.layout
        words = [word for setting in one.settings for word in ("--set", setting)]
        assert parse(["--model", config.module.build, *words]).parallel == one.config.parallel


def test_what_does_not_fit_is_left_out_with_the_reason(config: Config) -> None:
    """Whole states take 16 bytes a parameter, 4 + 4 + 8 / 2 with stage 1 over two replicas."""
    parameters = 2 * TABLE + LAYERS * WIDTH**2
    kept = 4 * TOKENS * (WIDTH * (1 + 2 * LAYERS) + 256)  # the look-up, products and tanh of layers, logits: twice
    cuts, refused = find_own(config, machines(2, memory_bytes=14 * parameters + 2 * kept))
    assert {cut.config.parallel.zero for cut in cuts if cut.layout.dp == 2} == {1, 2}
    assert any("pp=1 zero=0: stage 0 does not fit" in reason for reason in refused)
    with pytest.raises(ConfigError, match=r"no layout of the module on 2 devices is possible: .* does not fit"):
        find_own(config, machines(2, memory_bytes=1000))


def test_axes_that_do_not_divide_are_named(config: Config) -> None:
    train = replace(config.train, micro_batches=1)
    cuts, refused = find_own(replace(config, train=train), machines(2))
    assert {cut.layout.pp for cut in cuts} == {2}
    assert refused == {"dp=2 does not divide train.micro_batches = 1": 1}
