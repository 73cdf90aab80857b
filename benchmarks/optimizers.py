"""Which optimizer a small language model learns with fastest: steps and seconds to a loss, each at its best rate.

python benchmarks/optimizers.py [--steps 80] [--target 3.5] [--only dp-kfac] [--json]

One process, the standard library's sources, bytes. Of each optimizer all rates of a short list are run; its row is
the run that takes the fewest steps to the target, or ends lowest. A loss is the mean of the last five steps.
Seconds are the median step's, the first three left out, times the steps.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from statistics import fmean, median
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "workers"))

import torch

from holdfast.trainer.__main__ import parse
from holdfast.trainer.run.loop import run
from holdfast.trainer.settings.launch import from_environment

MODEL = {
    "model.layers": 2, "model.d_model": 64, "model.heads": 4, "data.seq_len": 64, "train.micro_batches": 4,
    "train.micro_batch_size": 4, "optim.warmup_steps": 10, "train.log_every": 0, "data.max_bytes": 4 << 20,
}  # fmt: skip
# AdamW for vectors and embeddings isolates what the preconditioning of matrices does.
SYSTEMS: dict[str, tuple[list[str], tuple[float, ...]]] = {
    "adamw": ([], (3e-3, 1e-2)),
    "lamb": (["optim.name=lamb"], (1e-2, 3e-2)),
    "sgd": (["optim.name=sgd"], (0.1, 0.3)),
    "dp-kfac": (["optim.name=dp-kfac", "optim.clip_norm=0", "optim.kl_clip=0.01"], (0.03, 0.1)),
    "dp-kfac, others by adamw": (
        ["optim.name=dp-kfac", "optim.kfac_others=adamw", "optim.kfac_others_lr=0.003", "optim.clip_norm=0",
         "optim.kl_clip=0.01"],
        (0.03, 0.1),
    ),
}  # fmt: skip
MEAN = 5
"""Steps over which a loss is averaged."""


def trained(settings: list[str], lr: float, steps: int, folder: Path) -> tuple[list[float], list[float]]:
    """Losses, smoothed, and seconds of each step."""
    metrics = folder / "metrics.jsonl"
    metrics.unlink(missing_ok=True)
    values = [f"{key}={value}" for key, value in MODEL.items()]
    values += [*settings, f"optim.lr={lr}", f"train.steps={steps}", f"train.metrics_path={metrics}"]
    run(parse([word for value in values for word in ("--set", value)]), from_environment({}))
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    losses = [line["loss"] for line in lines]
    return [fmean(losses[max(0, n - MEAN + 1) : n + 1]) for n in range(steps)], [line["seconds"] for line in lines]


def measured(name: str, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    settings, rates = SYSTEMS[name]
    found = []
    for lr in rates:
        losses, seconds = trained(settings, lr, options.steps, folder)
        reached = next((n + 1 for n, loss in enumerate(losses) if loss <= options.target), None)
        step_s = median(seconds[3:])
        found.append({
            "optimizer": name, "lr": lr, "steps": reached, "seconds": reached and reached * step_s,
            "last": losses[-1], "step_ms": 1e3 * step_s,
        })  # fmt: skip
    return min(found, key=lambda one: (one["steps"] or options.steps + 1, one["last"]))


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--steps", type=int, default=80)
    options.add_argument("--target", type=float, default=3.5)
    options.add_argument("--only", choices=SYSTEMS)
    options.add_argument("--json", action="store_true")
    chosen = options.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        rows = [measured(name, chosen, Path(folder)) for name in SYSTEMS if chosen.only in (None, name)]
    if chosen.json:
        print(json.dumps(rows))
        return 0
    print(f"| optimizer | lr | steps to {chosen.target} | seconds | loss after {chosen.steps} | ms a step |")
    print("| --- | --- | --- | --- | --- | --- |")
    for one in rows:
        reached = (one["steps"], f"{one['seconds']:.1f}") if one["steps"] else ("never", "")
        print(f"| {one['optimizer']} | {one['lr']:g} | {reached[0]} | {reached[1]} | {one['last']:.3f} | "
              f"{one['step_ms']:.0f} |")  # fmt: skip
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
