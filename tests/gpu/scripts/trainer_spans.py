"""Spans of a real GPU's work beside the wall time of its steps, and what they cost. Prints a line of JSON.

python trainer_spans.py FOLDER ARGUMENT...
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

import torch

from holdfast.agent import probe
from holdfast.agent.probe_file.layout import ENV_PATH
from holdfast.trainer.__main__ import parse
from holdfast.trainer.run import loop
from holdfast.trainer.settings.launch import Launch
from holdfast.trainer.telemetry import device_spans, spans

PLAIN, SLOWED = range(4, 10), range(10, 16)


class Watched:
    """Steps of a run: their wall time, the spans that came of them, and from step 10 on a slower forward."""

    def __init__(self, is_slowed: bool, is_toggled: bool) -> None:
        self.is_slowed, self.is_toggled = is_slowed, is_toggled
        self.walls: dict[int, tuple[int, int]] = {}
        self.spans: dict[int, list[tuple[str, int, int]]] = defaultdict(list)
        self.on = True
        self.sleep_s = 0.0
        self._record, self._step, self._attached = probe.record, loop.Trainer.step, probe.attached
        device_spans.probe.record = self.record  # type: ignore[assignment]
        device_spans.probe.attached = lambda: self.on and self._attached()  # type: ignore[assignment]
        loop.Trainer.step = lambda trainer, number: self.step(trainer, number)  # type: ignore[method-assign,assignment]

    def end(self) -> None:
        device_spans.probe.record, device_spans.probe.attached = self._record, self._attached
        loop.Trainer.step = self._step  # type: ignore[method-assign]

    def record(self, kind: str, start_ns: int, end_ns: int, **named: Any) -> None:
        self.spans[named.get("step", -1)].append((kind, start_ns, end_ns))
        self._record(kind, start_ns, end_ns, **named)

    def step(self, trainer: loop.Trainer, number: int) -> Any:
        if self.is_slowed and number == SLOWED.start:
            self._slow(trainer)
        self.on = not self.is_toggled or bool(number % 2)
        begun = time.monotonic_ns()
        totals = self._step(trainer, number)
        self.walls[number] = begun, time.monotonic_ns()
        return totals

    def _slow(self, trainer: loop.Trainer) -> None:
        """As much again as a forward takes, before each."""
        own = [end - start for step in PLAIN for kind, start, end in self.spans[step] if kind == "forward"]
        self.sleep_s = median(own) / 1e9 if own else 1e-3
        cycles = round(self.sleep_s * _cycles_a_second())
        trainer.stages[0].register_forward_pre_hook(lambda module, given: torch.cuda._sleep(cycles))


def _cycles_a_second() -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(1_000_000)
    begin.record()
    torch.cuda._sleep(20_000_000)
    end.record()
    torch.cuda.synchronize()
    return 20_000_000 / max(begin.elapsed_time(end), 1e-3) * 1e3


def union(found: list[tuple[str, int, int]], low: int, high: int) -> int:
    """Nanoseconds between `low` and `high` in which some span is open."""
    total, at = 0, low
    for _, start, end in sorted(found, key=lambda one: one[1]):
        start, end = max(start, at), min(end, high)
        if end > start:
            total, at = total + end - start, end
    return total


def main() -> None:
    folder, argv = Path(sys.argv[1]), sys.argv[2:]
    os.environ[ENV_PATH] = str(folder / "probe")
    first = Watched(is_slowed=True, is_toggled=False)
    loop.run(parse([*argv, "--steps", str(SLOWED.stop + 1)]), Launch())
    first.end()
    shares, kinds = [], {"plain": defaultdict(list), "slowed": defaultdict(list)}
    for name, steps in (("plain", PLAIN), ("slowed", SLOWED)):
        for step in steps:
            low, high = first.walls[step]
            shares.append(union(first.spans[step], low, high) / (high - low))
            each: dict[str, float] = defaultdict(float)
            for kind, start, end in first.spans[step]:
                each[kind] += (end - start) / 1e6
            for kind, ms in each.items():
                kinds[name][kind].append(ms)
    walls = {name: median((first.walls[s][1] - first.walls[s][0]) / 1e6 for s in steps)
             for name, steps in (("plain", PLAIN), ("slowed", SLOWED))}  # fmt: skip
    # A model so small that a step is the host's launches: with spans in every other step.
    spans._device = None
    small = ["--set", "model.d_model=128", "--set", "data.seq_len=64", "--set", "train.micro_batch_size=1"]
    second = Watched(is_slowed=False, is_toggled=True)
    loop.run(parse([*argv, *small, "--steps", "60"]), Launch())
    second.end()
    both = [[(b - a) / 1e6 for step, (a, b) in second.walls.items() if step >= 10 and step % 2 == on] for on in (0, 1)]
    print(json.dumps({
        "covered": shares, "wall_ms": walls, "sleep_ms": first.sleep_s * 1e3,
        "ms": {name: {kind: median(ms) for kind, ms in one.items()} for name, one in kinds.items()},
        "spans_a_step": len(first.spans[PLAIN.start]),
        "small_off_ms": median(both[0]), "small_on_ms": median(both[1]),
        "small_spans_a_step": len(second.spans[41]),
    }))  # fmt: skip


if __name__ == "__main__":
    main()
