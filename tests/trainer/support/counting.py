"""What forked ranks do in the tests of bytes: train, and read the network's counters between steps."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from joining import joined

from holdfast.planner.placement.expected import node_bytes
from holdfast.trainer.model.model import Block
from holdfast.trainer.optim.traffic import held_by, traffic
from holdfast.trainer.pipeline.stage import Stage
from holdfast.trainer.rows.pretended import tensor_bytes
from holdfast.trainer.settings.launch import Launch
from holdfast.trainer.settings.planned import step_traffic

HEADERS = 66
"""Bytes of Ethernet, IP and TCP in each packet, acknowledgements too."""


def loopback_bytes() -> int:
    """Sent over this network namespace's lo so far, without headers."""
    lines = Path("/proc/net/dev").read_text().splitlines()
    lo = next(line.split(":")[1].split() for line in lines if line.split(":")[0].strip() == "lo")
    return int(lo[8]) - HEADERS * int(lo[9])


def meet(folder: Path, launch: Launch, number: int, deadline_s: float = 200.0) -> None:
    """Wait for the other ranks without sending anything."""
    (folder / f"at-{number}-{launch.rank}").touch()
    give_up = time.monotonic() + deadline_s
    while any(not (folder / f"at-{number}-{rank}").exists() for rank in range(launch.world)):
        assert time.monotonic() < give_up, f"ranks did not all come to meeting {number}"
        time.sleep(0.002)


def wire(folder: Path, argv: list[str], steps: int) -> dict[str, Any]:
    """Bytes on lo in `steps` steps, and what a step should take; after one step to settle."""
    torch.set_num_threads(1)
    with joined(argv) as rank:
        trainer, layout = rank.trainer(), rank.layout
        readings, done = [], 0
        for number, count in enumerate((1, steps)):
            for _ in range(count):
                trainer.step(done)
                done += 1
            meet(folder, rank.launch, 2 * number)
            readings.append(loopback_bytes())
            meet(folder, rank.launch, 2 * number + 1)  # no rank goes on before all have read
        vocab, own = rank.corpus.vocab, trainer.own_sizes
        expected = traffic(rank.config, layout, trainer.plan, vocab, own)
        planned = step_traffic(rank.config, layout, vocab, trainer.plan, own)
        stages = layout.stages_of(rank.mesh.pp_rank)
        shapes = [
            [(held.name, list(held.shape)) for held in held_by(rank.config, layout, vocab, stage)]
            if own is None
            else [(name, list(shape)) for name, shape in own.parameters[stage].items()]
            for stage in stages
        ]
        real = [[(n, list(p.shape)) for n, p in stage.named_parameters()] for stage in trainer.stages]
        return {
            "sent": readings[1] - readings[0],
            "expected": expected.total,
            "planned": None if planned is None else float(node_bytes(trainer.plan, planned, 1).sent.sum()),
            "as_held": [sorted(stage) for stage in shapes] == [sorted(stage) for stage in real],
        }


def memory(folder: Path, argv: list[str]) -> dict[str, Any]:
    """Bytes of tensors held before the trainer is made, between steps, and where the last backward has ended: without
    what a thread still sums of the micro-batch before."""
    with joined(argv) as rank:
        before = tensor_bytes()
        trainer, layout = rank.trainer(), rank.layout
        trainer.step(0)
        between = tensor_bytes()
        peaks = []
        original = Stage.backward

        def watched(*args: Any) -> Any:
            grad = original(*args)
            for thread in threading.enumerate():
                if thread.name == "reduction":
                    thread.join(60.0)
            peaks.append(tensor_bytes())
            return grad

        Stage.backward = watched  # type: ignore[method-assign]
        trainer.step(1)
        stages = range(layout.stages)
        all_held = [held for s in stages for held in held_by(rank.config, layout, rank.corpus.vocab, s)]
        parameters = sum(held.elements(layout.tp, layout.replicas) for held in all_held)
        return {"between": between - before, "peak": max(peaks) - before, "parameters": parameters}


def order(folder: Path, argv: list[str]) -> dict[str, Any]:
    """In the second step: what happened in which order, among gathering (started), reading, and layers forward."""
    happened: list[str] = []

    def noted(name: str, owner: Any, method: str) -> None:
        original = getattr(owner, method)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            happened.append(name)
            return original(*args, **kwargs)

        setattr(owner, method, wrapped)

    noted("gather", dist, "all_gather_single" if hasattr(dist, "all_gather_single") else "all_gather_into_tensor")
    noted("layer", Block, "forward")
    with joined(argv) as rank:
        trainer = rank.trainer()
        noted("read", type(trainer.feed), "read")
        trainer.step(0)
        happened.clear()
        trainer.step(1)
        return {"happened": happened}
