"""A worker whose timers record events in its GPU's stream: timed_steps.py FOLDER WHAT

"steps" does steps until the file `stand` is in FOLDER, and then hands the GPU a kernel of about six seconds, with an
event after it. "graph" and "graph-unasked" capture a CUDA graph while another thread asks for events: the first as the
probe does, the second without what keeps the capture whole.
"""

import sys
import time
from pathlib import Path

import torch

from holdfast.agent import probe
from holdfast.agent.probe_file import events as device_events

FOLDER, WHAT = Path(sys.argv[1]), sys.argv[2]
probe.attach()
torch.cuda.set_device(0)
a = torch.randn(512, 512, device="cuda")
torch.cuda.synchronize()


def cycles(seconds: float) -> int:
    """By the clock that this GPU has now."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    torch.cuda._sleep(50_000_000)
    end.record()
    torch.cuda.synchronize()
    return int(seconds * 50_000_000 / max(begin.elapsed_time(end) / 1e3, 1e-3))


def record(stream: torch.cuda.Stream | None = None) -> torch.cuda.Event:
    event = torch.cuda.Event()
    event.record(stream)
    probe.recorded(event)
    return event


def steps() -> None:
    print("ready", flush=True)
    n = 0
    while not (FOLDER / "stand").exists():
        b = a @ a
        record()
        b.sum().item()
        probe.step(n)
        n += 1
        time.sleep(0.02)
    torch.cuda._sleep(cycles(6.0))
    event = record()
    print("stands", flush=True)
    torch.cuda.synchronize()
    print("came", event.query(), flush=True)
    time.sleep(60)


def graph() -> None:
    asked = [0]

    class Asked(torch.cuda.Event):
        def query(self) -> bool:
            asked[0] += 1
            return super().query()

    if WHAT == "graph-unasked":
        device_events.spoils_no_capture = lambda: True
    other, third, captured = torch.cuda.Stream(), torch.cuda.Stream(), torch.cuda.CUDAGraph()
    c = torch.zeros(512, 512, device="cuda")
    with torch.cuda.stream(other):
        torch.cuda._sleep(cycles(4.0))
        event = Asked()
        event.record()
    probe.recorded(event)
    deadline = time.monotonic() + 5
    while not asked[0] and time.monotonic() < deadline:
        time.sleep(0.01)
    before = asked[0]
    try:
        with torch.cuda.stream(third):  # `torch.cuda.graph` would wait for the kernel first
            captured.capture_begin()
            for _ in range(10):
                c.add_(1)
                time.sleep(0.12)
            captured.capture_end()
    except RuntimeError as error:
        print("failed:", str(error).partition("\n")[0], "; asked", asked[0] - before, flush=True)
        return
    during = asked[0] - before
    torch.cuda.synchronize()
    captured.replay()
    captured.replay()
    torch.cuda.synchronize()
    print("captured; asked", during, "sum", c.sum().item() / 512**2, flush=True)


graph() if WHAT.startswith("graph") else steps()
