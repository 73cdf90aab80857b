"""Layouts of the planner as settings: the trainer takes them, and counts what the planner counted on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast.planner.cost.layout import Layout
from holdfast.trainer.memory.expected import expect
from holdfast.trainer.settings.config import Config
from holdfast.trainer.settings.layout import plan, vocab_of
from holdfast.trainer.settings.load import load
from holdfast.trainer.settings.planned import settings_of, takes
from holdfast.trainer.settings.written import written

MODEL: list[tuple[str, Any]] = [("model.layers", 8), ("model.d_model", 64), ("model.heads", 4), ("optim.clip_norm", 0)]
FOUND = {
    "states": (Layout(dp=2, micro_batches=4, is_on_host=True, bucket=4096), {"optim.state": "host"}),
    "sums in pieces": (
        Layout(dp=2, micro_batches=4, zero=0, is_on_host=True, reduce_pieces=1),
        {"optim.state": "host", "optim.reduce_pieces": 1},
    ),
    "activations": (Layout(pp=4, micro_batches=8, activation_blocks=2), {"train.activations": "host"}),
    "both": (
        Layout(pp=2, schedule="interleaved", chunks=4, micro_batches=8, is_on_host=True, activation_blocks=2),
        {"train.activations": "host", "optim.state": "host"},
    ),
    "chunks": (
        Layout(dp=2, micro_batches=2, micro_batch_size=4, zero=3, recompute="full", device_bytes=3 << 20),
        {"memory.policy": "chunks", "memory.device_bytes": 3 << 20},
    ),
    "parts": (
        Layout(tp=2, micro_batches=4, micro_batch_size=2, sub_batches=2, shard_vocabulary=True),
        {"parallel.sub_batches": 2, "parallel.sequence": False},
    ),
}  # fmt: skip


def value(config: Config, name: str) -> Any:
    section, key = name.split(".")
    return getattr(getattr(config, section), key)


@pytest.mark.parametrize("case", FOUND)
def test_the_trainer_takes_it(case: str, tmp_path: Path) -> None:
    layout, wanted = FOUND[case]
    given = load(overrides=MODEL)
    vocab = vocab_of(given.data.tokenizer)
    assert takes(given, layout, vocab)
    config = settings_of(given, layout)
    assert {name: value(config, name) for name in wanted} == wanted
    (tmp_path / "found.toml").write_text(written(config))
    assert load(tmp_path / "found.toml") == config
    # Counting refuses activations that are fewer than a computation saves, and chunks for which there is no room.
    assert expect(config, plan(config, layout.world, vocab), vocab, "cuda").needs > 0


def test_what_the_settings_rule_out_is_not_taken() -> None:
    layout, _ = FOUND["sums in pieces"]
    assert not takes(load(overrides=[*MODEL[:3], ("optim.clip_norm", 1.0)]), layout, 256)
    layout, _ = FOUND["parts"]
    assert not takes(load(overrides=[*MODEL, ("model.dropout", 0.1)]), layout, 256)
    layout, _ = FOUND["chunks"]
    assert not takes(load(overrides=[*MODEL, ("optim.name", "lamb")]), layout, 256)
