"""Layouts of the planner as settings: the trainer takes them, and counts what the planner counted on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast.planner.cluster.file import parse
from holdfast.planner.cost.layout import Layout
from holdfast.planner.search.space import Space, families
from holdfast.trainer.memory.expected import expect
from holdfast.trainer.settings.config import Config
from holdfast.trainer.settings.layout import plan, vocab_of
from holdfast.trainer.settings.load import load
from holdfast.trainer.settings.planned import settings_of, takes
from holdfast.trainer.settings.shape import shape_of
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


def test_what_another_schedule_or_stage_needs_does_not_stay() -> None:
    """Sums once in a step are for ZeRO 3, micro-batches under way for axonn: what is planned has neither."""
    for stale in (("parallel.zero_reduce", "last"), ("parallel.in_flight", 3)):
        given = load(overrides=[*MODEL, ("parallel.zero", 3), ("parallel.schedule", "axonn"), stale])
        assert takes(given, Layout(dp=2, micro_batches=4, zero=1), 256), stale


def test_a_planned_layout_keeps_the_bucket_of_the_settings() -> None:
    given = load(overrides=[*MODEL, ("optim.bucket", 1000000)])
    model, space = (
        shape_of(given.model, 256, given.data.seq_len),
        Space(schedules=("1f1b",), memory=("states",), bucket=1000000),
    )
    cluster = parse('gpu = "A100"\nnodes = 1\ngpus_per_node = 2\n')
    found = [one for family in families(model, cluster, 4, space) for one in family.members(model, space)]
    assert found
    assert {settings_of(given, one).optim.bucket for one in found} == {1000000}
