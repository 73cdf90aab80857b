"""What the probe costs a training process: microseconds of its processor per call, watched and unwatched.

python benchmarks/probe_cost.py [--json] [--calls 100000]
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
from holdfast.agent.probe_layout import ENV_PATH
from holdfast.agent.probe_reader import ProbeReader

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--calls", type=int, default=100_000, help="calls per repeat")
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
    if options.json:
        result = {"medians_us": medians, "unwatched_us": unwatched, "calls": options.calls, "step_s": step_s}
        print(json.dumps(result))
        return
    print(f"{'call':<20} {'watched, us':>12} {'unwatched, us':>14}")
    for name, value in medians.items():
        print(f"{name:<20} {value:>12.2f} " + (f"{unwatched[name]:>14.2f}" if name in unwatched else f"{'':>14}"))
    print(f"1,000 spans, 125 of them of work, are {SHARE:.1%} of a step of {step_s:.2f} s")


if __name__ == "__main__":
    main()
