"""MFU of Holdfast's trainer on one GPU, with the model changes of MegaScale's ablation one after another.

python benchmarks/trainer_gpu.py [--steps 20] [--layers 10 --width 4096 …] [--json]
python benchmarks/trainer_gpu.py --only serial --kernels 20     that model alone, with its longest kernels
python benchmarks/trainer_gpu.py --attention cudnn     cuDNN's attention where it can be used, instead of FlashAttention
python benchmarks/trainer_gpu.py --smoke     the same code on a toy, on any machine; its figures mean nothing

A Llama-style model of 2.3 B parameters in bfloat16: SDPA's FlashAttention (FlexAttention with a window), fused AdamW
on float32 parameters, each layer compiled. Tokens are random. `serial` is the plain model, `+ parallel block` feeds
attention and feed-forward from one normalisation, `+ window` lets each position see so many before it. MFU counts as
papers do, all pairs of positions, also those that a window leaves out; `by pairs` counts what is left. Both over the
dense peak of the device. Of the steps after those to warm up the median counts. Exit code 2: there is no GPU.
"""

import argparse
import gc
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any, cast

import numpy as np
from common import Json, finish, free_port, parser

Case = tuple[str, dict[str, object]]


@dataclass(frozen=True, slots=True)
class Measured:
    seconds: list[float]
    """Of each step after those to warm up."""
    mfu: float | None
    mfu_pairs: float | None
    memory_gb: float
    loss: float
    kernels: dict[str, float]
    """Seconds of one step by kernel, the longest first."""


def cases(window: int) -> list[Case]:
    parallel: dict[str, object] = {"model.block": "parallel"}
    return [
        ("serial", {"model.block": "serial"}),
        ("+ parallel block", parallel),
        ("+ window", parallel | {"model.window": window}),
    ]


def measure(options: argparse.Namespace, changes: dict[str, object]) -> Measured:
    """One model, trained for some steps in this process alone."""
    import torch

    from holdfast.trainer.data.corpus import Corpus
    from holdfast.trainer.mesh.mesh import choose_device, join, leave
    from holdfast.trainer.report.meters import Meter
    from holdfast.trainer.run import loop
    from holdfast.trainer.settings.launch import Launch
    from holdfast.trainer.settings.layout import plan
    from holdfast.trainer.settings.load import load

    settings = {
        "model.layers": options.layers, "model.d_model": options.width, "model.heads": options.heads,
        "model.ffn_width": options.inner, "model.mlp": "swiglu", "data.seq_len": options.length,
        "train.micro_batches": options.micro_batches, "train.micro_batch_size": options.micro_batch,
        "train.dtype": "bfloat16", "train.deterministic": False, "parallel.device": options.device,
    }  # fmt: skip
    config = load(None, [*settings.items(), *changes.items()])
    launch = Launch()
    tokens = np.random.default_rng(0).integers(1, options.vocab, 1 << 22, dtype=np.uint16)
    corpus = Corpus(cast(Any, tokens), options.vocab, 0)  # a row like any other
    layout = plan(config, launch.world, options.vocab)
    mesh = join(config, launch, layout, choose_device(config, launch))
    is_gpu = mesh.device.type == "cuda"
    try:
        begun = time.perf_counter()
        trainer = loop.Trainer(config, mesh, corpus)
        built = time.perf_counter()
        if options.compile:
            for stage in trainer.stages:
                for layer in stage.layers.values():
                    layer.compile()
        seconds = []
        totals = None
        for step in range(options.warmup + options.steps):
            began = time.perf_counter()
            totals = trainer.step(step)
            if is_gpu:
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - began)
            if not step:
                print(f"built in {built - begun:.1f} s, first step {seconds[0]:.1f} s", file=sys.stderr, flush=True)
        assert totals is not None
        meter = Meter(config, options.vocab, mesh.device, 1, ["none"])
        kept = seconds[options.warmup :]
        used = meter.utilisation(median(kept))
        memory_gb = meter.memory_bytes() / 1e9
        kernels = profiled(lambda: trainer.step(step + 1), options.kernels) if options.kernels and is_gpu else {}
        return Measured(kept, used["mfu"], used["mfu_pairs"], memory_gb, totals.loss, kernels)
    finally:
        leave(mesh.store)
        trainer = None  # type: ignore[assignment]  # the next model needs the memory
        gc.collect()
        if is_gpu:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()


def profiled(work: Callable[[], object], most: int) -> dict[str, float]:
    """Seconds on the GPU by kernel, the `most` longest first."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        work()
        torch.cuda.synchronize()
    seconds = {event.key: event.self_device_time_total / 1e6 for event in profiler.key_averages()}
    return dict(sorted(seconds.items(), key=lambda pair: -pair[1])[:most])


def prefer(attention: str) -> None:
    """Choose among torch's implementations of attention, for this process."""
    import torch

    torch.backends.cuda.enable_flash_sdp(attention == "flash")
    torch.backends.cuda.enable_cudnn_sdp(attention == "cudnn")


def main() -> int:
    made = parser(__doc__)
    made.add_argument("--only", choices=[name for name, _ in cases(0)], action="append", help="this model; repeatable")
    made.add_argument("--kernels", type=int, default=0, metavar="N", help="show the N kernels that take longest")
    made.add_argument("--attention", choices=["flash", "cudnn"], help="torch chooses by itself if not given")
    made.add_argument("--smoke", action="store_true", help="a toy, on the CPU if there is no GPU")
    made.add_argument("--no-compile", dest="compile", action="store_false")
    full = {"layers": 10, "width": 4096, "heads": 32, "inner": 11008, "length": 4096, "vocab": 32000, "window": 1024,
            "micro-batches": 8, "micro-batch": 4, "steps": 20, "warmup": 5}  # fmt: skip
    toy = {"layers": 2, "width": 64, "heads": 4, "inner": 96, "length": 64, "vocab": 512, "window": 16,
           "micro-batches": 2, "micro-batch": 2, "steps": 3, "warmup": 2}  # fmt: skip
    for name in full:
        made.add_argument(f"--{name}", type=int)
    options = made.parse_args()
    for name, size in (toy if options.smoke else full).items():
        key = name.replace("-", "_")
        setattr(options, key, size if getattr(options, key) is None else getattr(options, key))
    import torch

    if not torch.cuda.is_available() and not options.smoke:
        print("trainer_gpu: no GPU that torch can use; --smoke runs a toy without one", file=sys.stderr)
        return 2
    options.device = "cuda" if torch.cuda.is_available() else "cpu"
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    mfu: dict[str, float | None] = {}
    seconds: dict[str, float] = {}
    rows = []
    tokens = options.micro_batches * options.micro_batch * options.length
    kernels: dict[str, dict[str, float]] = {}
    if options.attention:
        prefer(options.attention)
    for name, changes in cases(options.window):
        if options.only and name not in options.only:
            continue
        found = measure(options, changes)
        kernels[name] = found.kernels
        step_s = median(found.seconds)
        seconds[name], mfu[name] = step_s, found.mfu
        shares = ["n/a" if share is None else f"{share:.1%}" for share in (found.mfu, found.mfu_pairs)]
        rows.append([name, step_s, f"{tokens / step_s:.0f}", *shares, found.memory_gb, found.loss])
        print(f"{name}: {step_s:.3f} s a step, MFU {shares[0]}", file=sys.stderr, flush=True)
    device = torch.cuda.get_device_name() if options.device == "cuda" else "cpu"
    result: Json = {"medians_mfu": {"holdfast": mfu}, "medians_s": {"holdfast": seconds}, "tokens": tokens}
    result |= {
        "device": device,
        "smoke": options.smoke,
        "kernels": kernels,
        "attention": options.attention or "torch's",
    }
    finish(result, options.json, ["model", "s a step", "tokens/s", "MFU", "by pairs", "GB", "loss"], rows)
    for name, found in kernels.items():
        for kernel, spent in found.items() if not options.json else ():
            print(f"{name}: {spent * 1e3:9.2f} ms  {kernel[:110]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
