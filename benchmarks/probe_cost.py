"""What the probe costs a training process: microseconds of its processor per call, watched and unwatched.

python benchmarks/probe_cost.py [--json] [--calls 100000] [--train-seconds 5]

With --train-seconds also what the samples of an unmodified script's parameters cost (agent/hooks/finite.py, torch):
their share of the processor time of training, at three sizes of step.
"""

import argparse
import json
import os
import sys
import tempfile
import time
import timeit
from collections.abc import Callable
from pathlib import Path
from statistics import median

from holdfast.agent import probe
from holdfast.agent.probe_file.layout import ENV_PATH
from holdfast.agent.probe_file.reader import ProbeReader

REPEATS = 9
SHARE = 0.005
"""Of a step that its spans may cost."""


def step() -> None:
    probe.step(5, loss=1.25, tokens=4096)


def set_operation() -> None:
    probe.operation("all_reduce")


def operation_block() -> None:
    with probe.operation("all_reduce"):
        pass


def span_block() -> None:
    with probe.span("forward", micro_batch=1):
        pass


def timed_span_block() -> None:
    with probe.span("forward", micro_batch=1, cpu=True):
        pass


CALLS: tuple[tuple[str, Callable[[], None]], ...] = (
    ("step", step),
    ("operation, set", set_operation),
    ("operation, block", operation_block),
    ("span, block", span_block),
    ("span with CPU time", timed_span_block),
)


def cost_us(call: Callable[[], object], calls: int) -> float:
    """Median over the repeats of the mean microseconds of this thread's processor time per call."""
    return median(timeit.repeat(call, timer=time.thread_time, number=calls, repeat=REPEATS)) / calls * 1e6


def sampled(seconds: float) -> list[dict[str, float]]:
    """Of small models that train so long: the step, a sample, and the share of all samples in processor time."""
    import torch

    from holdfast.agent.hooks.finite import Finite

    torch.set_num_threads(1)
    found = []
    for width, layers in ((64, 2), (256, 4), (1024, 4)):
        model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(layers)))
        optimizer, watch = torch.optim.AdamW(model.parameters()), Finite(torch)
        data = torch.randn(64, width)
        steps = spent = 0.0
        began, until = time.thread_time(), time.monotonic() + seconds
        while time.monotonic() < until:
            optimizer.zero_grad()
            model(data).square().mean().backward()
            optimizer.step()
            before = time.thread_time()
            watch.after(optimizer)
            spent += time.thread_time() - before
            steps += 1
        took = time.thread_time() - began
        found.append({"step_ms": took / steps * 1e3, "sample_us": spent / max(watch.samples, 1) * 1e6,
                      "steps_per_sample": steps / max(watch.samples, 1), "share": spent / took})  # fmt: skip
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--calls", type=int, default=100_000, help="calls per repeat")
    parser.add_argument("--train-seconds", type=float, default=0.0, help="seconds of training at each size; 0: none")
    options = parser.parse_args()
    folder = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=folder) as run_dir:
        os.environ[ENV_PATH] = f"{run_dir}/probe"
        unwatched = {name: cost_us(call, options.calls) for name, call in CALLS}
        if not probe.attach():
            sys.exit(1)
        medians = {name: cost_us(call, options.calls) for name, call in CALLS}
        reader = ProbeReader(os.environ[ENV_PATH])
        clock = time.monotonic_ns
        medians["agent: sample"] = cost_us(lambda: reader.sample(clock()), options.calls // 20 + 1)
        medians["agent: new_steps"] = cost_us(reader.new_steps, options.calls // 20 + 1)
        reader.close()
    # A step of 1,000 spans of which one in eight is of work, and so timed by the processor's clock, too.
    step_s = (875 * medians["span, block"] + 125 * medians["span with CPU time"]) * 1e-6 / SHARE
    training = sampled(options.train_seconds) if options.train_seconds else []
    if options.json:
        result = {"medians_us": medians, "unwatched_us": unwatched, "calls": options.calls, "step_s": step_s}
        result["parameters"] = training
        print(json.dumps(result))
        return
    print(f"{'call':<20} {'watched, us':>12} {'unwatched, us':>14}")
    for name, value in medians.items():
        print(f"{name:<20} {value:>12.2f} " + (f"{unwatched[name]:>14.2f}" if name in unwatched else f"{'':>14}"))
    for one in training:
        print(
            f"parameters: step {one['step_ms']:.2f} ms, sample {one['sample_us']:.0f} us, one in "
            f"{one['steps_per_sample']:.1f} steps, {one['share']:.2%} of the processor time"
        )
    print(f"1,000 spans, 125 of them of work, are {SHARE:.1%} of a step of {step_s:.2f} s")


if __name__ == "__main__":
    main()
