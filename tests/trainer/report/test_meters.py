"""FLOPs and utilisation by the papers' formulas; where a step's time goes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from forked import Zygote
from torch.utils.flop_counter import FlopCounterMode

from holdfast.plan.plan import Op
from holdfast.plan.transformer import paper_flops
from holdfast.trainer.report.meters import Meter, model_flops, peak_of, percent
from holdfast.trainer.report.report import Reporter
from holdfast.trainer.settings.config import Config, ModelConfig
from holdfast.trainer.telemetry import spans
from holdfast.trainer.telemetry.totals import Totals

# arXiv 2402.15627, table 2: GPUs, samples in a step, seconds a step and MFU of Megatron-LM on 175 B parameters.
ROWS = [
    (256, 768, 40.0, 53.0),
    (512, 768, 21.2, 49.9),
    (768, 768, 15.2, 46.7),
    (1024, 768, 11.9, 44.7),
    (3072, 6144, 29.02, 48.7),
    (6144, 6144, 14.78, 47.8),
    (8192, 6144, 12.24, 43.3),
    (12288, 6144, 8.57, 41.2),
]
BIG = ModelConfig(layers=96, d_model=12288, heads=96)


@pytest.mark.parametrize(("gpus", "samples", "seconds", "mfu"), ROWS)
def test_the_papers_table(gpus: int, samples: int, seconds: float, mfu: float) -> None:
    flops = paper_flops(96, 12288, 2048, 64000, samples)
    assert 100 * flops / seconds / gpus / 312e12 == pytest.approx(mfu, abs=0.2)
    assert model_flops(BIG, 64000, 2048, samples).model == pytest.approx(flops, rel=1e-12)


def test_windows_and_recomputation_count_what_they_do() -> None:
    model = ModelConfig(layers=2, d_model=64, heads=4, window=16)
    plain, windowed = ModelConfig(layers=2, d_model=64, heads=4), model_flops(model, 256, 128, 4)
    scores = 12.0 * 4 * 2 * 64  # forward and backward: 12 h a layer, sample and pair
    assert model_flops(plain, 256, 128, 4).model == windowed.model
    assert windowed.model - windowed.pairs == pytest.approx(scores * (128 * 128 - 2 * (16 * 128 - 16 * 15 // 2)))
    full = model_flops(plain, 256, 128, 4, "full")
    head = 6.0 * 4 * 128 * 256 * 64
    assert full.hardware - full.model == pytest.approx((full.model - head) / 3)
    selective = model_flops(plain, 256, 128, 4, "selective")
    assert selective.hardware - selective.model == pytest.approx(scores / 3 * 128 * 128)


@pytest.mark.parametrize("mlp", ["gelu", "swiglu"])
def test_matrices_count_as_torch_counts_them(mlp: str) -> None:
    model = ModelConfig(layers=1, d_model=32, heads=4, kv_heads=2, ffn_width=48, mlp=mlp)  # type: ignore[arg-type]
    x = torch.randn(6, 32)
    shapes = [(64, 32), (32, 32), ((2 if mlp == "swiglu" else 1) * 48, 32), (32, 48), (256, 32)]
    with FlopCounterMode(display=False) as counter:
        for rows, columns in shapes:
            torch.zeros(6, columns) @ torch.zeros(rows, columns).T
    del x
    attention = 4.0 * 32 * 6 * 6
    assert model_flops(model, 256, 6, 1).model == pytest.approx(3 * (counter.get_total_flops() + attention))


def test_no_figure_rather_than_a_wrong_one() -> None:
    assert peak_of("NVIDIA H200", "bfloat16") == 989.4e12
    assert peak_of("NVIDIA A100-SXM4-80GB", "bfloat16") == 312e12
    assert peak_of("NVIDIA H100 PCIe", "bfloat16") == 756e12
    assert peak_of("NVIDIA L40S", "bfloat16") == 362e12
    for device, dtype in (("cpu", "bfloat16"), ("NVIDIA A1000", "bfloat16"), ("NVIDIA H200", "float32")):
        assert peak_of(device, dtype) is None
    meter = Meter(Config(), 256, torch.device("cpu"), 1, ["none"])
    assert set(meter.utilisation(1.0).values()) == {None}
    assert (percent(None), percent(0.5512)) == ("n/a", "55.1%")
    meter.peak = meter.flops.model * 4
    assert meter.utilisation(0.5)["mfu"] == pytest.approx(0.5)


def test_a_blocks_time_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(spans, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    spans.clock.take()
    with spans.action(Op.FORWARD, 0):
        now[0] += 2
        with spans.operation("tp:all_reduce"):
            now[0] += 3
    with spans.operation("pp:recv"):
        now[0] += 1
    taken = spans.clock.take()
    assert (taken["compute"], taken["communication"], taken["bubble"]) == (2.0, 3.0, 1.0)
    assert set(spans.clock.take().values()) == {0.0}


def test_the_parts_of_a_step_are_no_more_than_the_step(zygote: Zygote, tiny: list[str], tmp_path: Path) -> None:
    metrics = tmp_path / "metrics.jsonl"
    argv = [*tiny, "--pp", "2", "--steps", "4", "--set", f"train.metrics_path={metrics}"]
    done = zygote.run("command", 2, tmp_path / "run", args={"argv": argv})
    assert [result["code"] for result in done["results"]] == [0, 0]
    for line in map(json.loads, metrics.read_text().splitlines()):
        assert 0 < sum(line["parts_s"].values()) <= line["seconds"]
        assert all(line["parts_s"][part] > 0 for part in ("compute", "bubble", "data", "optimizer"))
        assert (line["mfu"], line["hfu"]) == (None, None)
        assert line["memory_bytes"] > 1 << 20


@pytest.mark.parametrize(
    ("before", "kept"),
    [
        ('{"step": 1}\n{"step": 2, "lo', ['{"step": 1}']),
        ('{"step": 1', []),
        ('{"step": 1}\n', ['{"step": 1}']),
        ('{"step": 1}', ['{"step": 1}']),
        ("a remark", ["a remark"]),
    ],
)
def test_a_rank_that_was_killed_while_it_wrote_leaves_whole_lines(before: str, kept: list[str], tmp_path: Path) -> None:
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text(before)
    config = Config()
    train = replace(config.train, metrics_path=str(metrics), log_every=0)
    with Reporter(train, Meter(config, 256, torch.device("cpu"), 1, ["none"]), tokens=1000) as reporter:
        reporter.step(2, Totals(3.0, 0.5, []), 0.25, {})
    *others, last = metrics.read_text().splitlines()
    assert others == kept
    assert json.loads(last)["step"] == 2


def test_tensorboard_gets_what_the_console_shows(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    config = Config()
    train = replace(config.train, tensorboard_dir=str(tmp_path / "board"), log_every=0)
    with Reporter(train, Meter(config, 256, torch.device("cpu"), 1, ["none"]), tokens=1000) as reporter:
        for step in range(3):
            reporter.step(step, Totals(3.0 - step, 0.5, []), 0.25, {"compute": 0.2, "optimizer": 0.01})
    events = accumulator.EventAccumulator(str(tmp_path / "board"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("loss")] == [(0, 3.0), (1, 2.0), (2, 1.0)]
    assert [event.value for event in events.Scalars("tokens_per_s")] == [4000.0] * 3
    assert events.Scalars("part_compute_s")[0].value == pytest.approx(0.2)
    assert "time" not in events.Tags()["scalars"]
