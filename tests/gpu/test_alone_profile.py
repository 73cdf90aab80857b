"""`holdfast profile` on a real GPU, and what the planner makes of it beside a step of the trainer."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gpu.conftest import Start
from tests.gpu.jobs import finished, settings, started

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

MODEL: dict[str, object] = {
    "model__layers": 8, "model__d_model": 2048, "model__heads": 16, "model__mlp": "swiglu", "model__block": "serial",
    "data__seq_len": 1024, "train__micro_batches": 4, "train__micro_batch_size": 4, "train__dtype": "bfloat16",
}  # fmt: skip


def test_a_predicted_step_beside_a_measured_one(start: Start, tmp_path: Path) -> None:
    argv = settings(tmp_path, **MODEL)
    out = tmp_path / "profile.json"
    command = start("-m", "holdfast", "profile", "-o", str(out), "--tps", "1", "--repeats", "10", *argv)
    code = command.wait(50)
    print("\n" + command.output[-3000:])
    assert code == 0
    # As the trainer does by default, `profile` measures deterministic kernels.
    runs = [
        {"name": n, "argv": settings(tmp_path, **{**MODEL, "train__steps": 14, "train__deterministic": d})}
        for n, d in (("free", "false"), ("deterministic", "true"))
    ]
    found, problems = finished(started(start, tmp_path, runs), 50)
    assert not problems, "\n".join(problems)

    from holdfast.planner.cluster.cluster import Cluster, Hop, Level, Node
    from holdfast.planner.cluster.gpus import Gpu, find
    from holdfast.planner.cost.layers import Precision
    from holdfast.planner.cost.layout import Layout
    from holdfast.planner.cost.measured import read
    from holdfast.planner.cost.predict import CostModel
    from holdfast.trainer.__main__ import parse
    from holdfast.trainer.settings.shape import shape_of

    config = parse(argv)
    profile = read(out.read_text())
    gpu = find(profile.device) or Gpu(profile.device, 989e12, 80e9, 3.35e12)
    cluster = Cluster(gpu, (Node("here", 1),), {Level.NODE: Hop(1e-5, 1 / 100e9)})
    layout = Layout(1, 1, 1, micro_batches=4, micro_batch_size=4, zero=1)
    cost = CostModel(cluster, Precision.of("bfloat16"), profile, overlap=False)
    predicted = cost.predict(shape_of(config.model, 256, config.data.seq_len), layout).step_s
    for name, row in found.items():
        print(f"predicted {predicted * 1e3:.1f} ms a step, measured ({name}) {row['step_s'] * 1e3:.1f}: "
              f"error {predicted / row['step_s'] - 1:+.1%}")  # fmt: skip
    # The goal is 10 % on a machine without other load.
    assert 0.3 < predicted / found["deterministic"]["step_s"] < 3
