"""What the planner predicts of published runs, beside what their authors measured.

python benchmarks/published.py [--json]

The rows are all of MegaScale's table 2 (175B, 96 layers of 12,288, 128 heads, 64,000 words, 2,048 tokens; tp 8, pp 8,
six chunks; A100 with 200 Gbit/s each) and the first row of its ablation. Megatron-LM: the usual block, attention
recomputed, nothing of the replicas' traffic beside computation. MegaScale: the parallel block, nothing recomputed,
traffic beside it. `calibrated`: the share of the peak that large products reach is chosen so that each system's first
row is right, as one measured step on 32 nodes would give it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace

from common import Json, finish, parser

from holdfast.plan.transformer import Transformer, paper_flops
from holdfast.planner.cluster.cluster import Cluster
from holdfast.planner.cluster.file import parse
from holdfast.planner.cost.layout import Layout
from holdfast.planner.cost.predict import CostModel

SHAPE = Transformer(96, 12288, 128, 64000, 2048)
PEAK = 312e12


@dataclass(frozen=True)
class Run:
    system: str
    gpus: int
    samples: int
    seconds: float
    """Of a step, as published."""
    mfu: float
    """Percent, as published."""


RUNS = (
    *(
        Run("Megatron-LM", *numbers)
        for numbers in (
            (256, 768, 40.0, 53.0), (512, 768, 21.2, 49.9), (768, 768, 15.2, 46.7), (1024, 768, 11.9, 44.7),
            (3072, 6144, 29.02, 48.7), (6144, 6144, 14.78, 47.8), (8192, 6144, 12.24, 43.3), (12288, 6144, 8.57, 41.2),
        )
    ),
    *(
        Run("MegaScale", *numbers)
        for numbers in (
            (256, 768, 32.0, 65.3), (512, 768, 16.5, 63.5), (768, 768, 11.5, 61.3), (1024, 768, 8.9, 59.0),
            (3072, 6144, 23.66, 59.1), (6144, 6144, 12.21, 57.3), (8192, 6144, 9.56, 54.9), (12288, 6144, 6.34, 55.2),
        )
    ),
)  # fmt: skip


def cluster(gpus: int, reached: float) -> Cluster:
    links = "\n".join(f"[links.{level}]\ngbit_per_s = 200" for level in ("switch", "pod", "cluster"))
    found = parse(
        f'gpu = "A100"\nnodes = {gpus // 8}\ngpus_per_node = 8\nnodes_per_switch = 64\nswitches_per_pod = 4\n'
        f'nic = "roce"\nrails = true\n{links}\n'
    )
    return replace(found, gpu=replace(found.gpu, reached=reached))


def predicted(run: Run, reached: float) -> float:
    """Seconds of a step."""
    ours = run.system == "MegaScale"
    model = replace(SHAPE, block="parallel") if ours else SHAPE
    layout = Layout(
        8, run.gpus // 64, 8, "interleaved", 6, run.samples, 1, zero=1, recompute="none" if ours else "selective",
        sequence=True, shard_vocabulary=True,
    )  # fmt: skip
    return CostModel(cluster(run.gpus, reached), overlap=ours).predict(model, layout).step_s


def calibrated(run: Run) -> float:
    """The share of the peak at which a run's prediction is what was published."""
    low, high = 0.1, 1.0
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if predicted(run, middle) > run.seconds else (low, middle)
    return (low + high) / 2


def rows() -> Iterator[Json]:
    share: dict[str, float] = {}
    for run in RUNS:
        usual = cluster(64, 0.8).gpu.reached
        first = share.setdefault(run.system, 0.0) or calibrated(run)
        share[run.system] = first
        plain, fitted = predicted(run, usual), predicted(run, first)
        flops = paper_flops(layers=96, width=12288, length=2048, vocab=64000, samples=run.samples)
        percent = 100 * flops / (run.gpus * PEAK)
        yield {
            "system": run.system, "gpus": run.gpus, "published_s": run.seconds, "predicted_s": plain,
            "error": plain / run.seconds - 1, "published_mfu": run.mfu, "predicted_mfu": percent / plain,
            "calibrated_s": fitted, "calibrated_error": fitted / run.seconds - 1, "reached": first,
        }  # fmt: skip


def main(argv: list[str]) -> int:
    options = parser(__doc__).parse_args(argv)
    found = list(rows())
    head = (
        *("system", "GPUs", "step s, published", "predicted", "error"),
        *("MFU %, published", "predicted", "calibrated s", "error"),
    )
    cells = [
        (
            one["system"], f"{one['gpus']:,}", f"{one['published_s']:g}", f"{one['predicted_s']:.2f}",
            f"{one['error']:+.0%}", f"{one['published_mfu']:g}", f"{one['predicted_mfu']:.1f}",
            f"{one['calibrated_s']:.2f}", f"{one['calibrated_error']:+.0%}",
        )
        for one in found
    ]  # fmt: skip
    finish({"runs": found}, options.json, head, cells)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
