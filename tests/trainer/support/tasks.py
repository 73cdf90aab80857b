"""What forked ranks do in the distributed tests. Imported in the fork server, run in its children."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import math
import os
import signal
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from calls import Calls
from joining import joined
from safetensors.torch import save_file
from striking import die_here

from holdfast.agent import probe
from holdfast.checkpoint.stores.file import FileStore
from holdfast.trainer.__main__ import main, parse
from holdfast.trainer.model import sequence_parallel
from holdfast.trainer.optim import buckets
from holdfast.trainer.optim.slices import Slice
from holdfast.trainer.run import loop
from holdfast.trainer.settings.launch import from_environment
from holdfast.trainer.telemetry import spans
from holdfast.trainer.telemetry.totals import Pending, Totals
from holdfast.trainer.weights.state import shards


def gradients(folder: Path, argv: list[str]) -> dict[str, Any]:
    """The first step's gradients, as they are when they are applied, into a file of this rank; all steps' losses."""
    with joined(argv) as rank:
        trainer = rank.trainer()
        apply = trainer.optimizer.step

        def saved(step: int, pending: Pending) -> Totals:
            if step == 0:
                grads = {s.name: s.shard.grad.contiguous() for s in trainer.optimizer.slices}
                save_file(grads, folder / f"grads-{rank.launch.rank}.safetensors", tiles(trainer.slices))
            return apply(step, pending)

        trainer.optimizer.step = saved  # type: ignore[method-assign]
        return {"losses": [trainer.step(n).loss for n in range(rank.config.train.steps)]}


def added(folder: Path, argv: list[str]) -> dict[str, int]:
    """Matrices of this rank but for the embedding's, and products of a step that are added to what is there."""
    with joined(argv) as rank:
        trainer = rank.trainer()
        names = [name for stage in trainer.stages for name, weight in stage.named_parameters() if weight.dim() > 1]
        with Calls(torch.ops.aten.addmm_.default) as seen:
            trainer.gradients(0)
    return {"matrices": sum(not name.startswith("embed") for name in names), "added": seen.count}


def tiles(slices: Sequence[Slice]) -> dict[str, str]:
    """Where slices lie in their whole parameters, as metadata of a safetensors file: name to shape, offset, size."""
    table = {
        name: {"shape": tensor.shape, "offset": shard.offset, "size": shard.size}
        for name, (tensor, shard) in shards(slices).items()
    }
    return {"tiles": json.dumps(table)}


def train(folder: Path, argv: list[str], mark: bool = False) -> dict[str, Any]:
    """The whole trainer; with `mark`, a file for each step begun, so that a test can strike inside it, and one with the
    losses of the steps done."""
    launch = from_environment(os.environ)
    begun = time.perf_counter()
    first_step_s = 0.0
    original = loop.Trainer.step

    def watched(self: loop.Trainer, step: int) -> Any:
        nonlocal first_step_s
        if mark:
            (folder / f"mark-{launch.rank}-{step}").touch()
        totals = original(self, step)
        first_step_s = first_step_s or time.perf_counter() - begun
        if mark:
            with (folder / f"losses-{launch.rank}").open("a") as done:
                done.write(f"{totals.loss!r},")
            die_here(step)
        return totals

    loop.Trainer.step = watched  # type: ignore[method-assign]
    outcome = loop.run(parse(argv), launch)
    return {"first": outcome.first_step, "losses": outcome.losses, "first_step_s": first_step_s}


def command(folder: Path, argv: list[str]) -> dict[str, Any]:
    """The command line as a user runs it: exit code and standard error."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        code = main(argv)
    return {"code": code, "stderr": said.getvalue()}


def poisoned(folder: Path, argv: list[str], rank: int, step: int) -> dict[str, Any]:
    """The command line, with a NaN injected on one rank; also what it reported through the probe."""
    reports: list[tuple[int, float | None]] = []

    def report(n: int, loss: float | None = None, tokens: int | None = None) -> None:
        reports.append((n, None if loss is None or math.isnan(loss) else loss))

    probe.step = report  # type: ignore[assignment]
    probe.poisoned = lambda: os.environ["RANK"] == str(rank) and len(reports) == step  # type: ignore[assignment]
    return {**command(folder, argv), "reports": reports}


def disagreeing(folder: Path, argv: list[str]) -> dict[str, Any]:
    """The command line, with another seed on each rank."""
    return command(folder, [*argv, "--seed", os.environ["RANK"]])


def dying(folder: Path, argv: list[str], rank: int, step: int) -> dict[str, Any]:
    """The command line; one rank dies in the middle of a step."""
    original = loop.Trainer.gradients

    def struck(self: loop.Trainer, at: int) -> None:
        if at == step and os.environ["RANK"] == str(rank):
            os.kill(os.getpid(), signal.SIGKILL)
        original(self, at)

    loop.Trainer.gradients = struck  # type: ignore[method-assign]
    return command(folder, argv)


def full_disk(folder: Path, argv: list[str], rank: int, part: str) -> dict[str, Any]:
    """The command line; one rank's disk is full while it writes what has `part` in its path."""
    original = FileStore.create

    def full(self: FileStore, path: str, pieces: Any) -> None:
        if part in path and os.environ["RANK"] == str(rank):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        original(self, path, pieces)

    FileStore.create = full  # type: ignore[method-assign]
    return command(folder, argv)


def unmounted(folder: Path, argv: list[str], step: int, mount: str) -> dict[str, Any]:
    """The command line; before a step a file lies where the store's folder was: nothing can be read or written."""
    original = loop.Trainer.step

    def stepping(self: loop.Trainer, number: int) -> Totals:
        if number == step and os.environ["RANK"] == "0":
            os.rename(mount, f"{mount}-away")
            Path(mount).touch()
        return original(self, number)

    loop.Trainer.step = stepping  # type: ignore[method-assign]
    return command(folder, argv)


def reductions(folder: Path, argv: list[str], cores: int) -> dict[str, Any]:
    """All-reduces of each step on a host with so many cores, however few its gradients are."""
    counts: list[int] = []
    original, step = dist.all_reduce, loop.Trainer.step

    def counted(*args: Any, **kwargs: Any) -> Any:
        counts[-1:] = [counts[-1] + 1] if counts else []
        return original(*args, **kwargs)

    def stepping(self: loop.Trainer, number: int) -> Any:
        counts.append(0)
        return step(self, number)

    os.sched_getaffinity = lambda pid: set(range(cores))  # type: ignore[assignment, misc]
    buckets.SMALLEST = 1
    dist.all_reduce, loop.Trainer.step = counted, stepping  # type: ignore[method-assign]
    loop.run(parse(argv), from_environment(os.environ))
    return {"counts": counts}


def collectives(folder: Path, argv: list[str]) -> dict[str, Any]:
    """One step's tensor-parallel collectives, by name and direction, and the bytes each sends to the peer."""
    counts: Counter[str] = Counter()
    way = "forward"
    sent: dict[str, set[int]] = {}
    original, backward = spans.operation, torch.autograd.backward

    def operation(name: str, num_bytes: int = 0) -> Any:
        if name.startswith("tp:"):
            counts[f"{name} {way}"] += 1
        return original(name, num_bytes)

    def going_back(*args: Any, **kwargs: Any) -> Any:
        nonlocal way
        way = "backward"
        backward(*args, **kwargs)
        way = "after"

    def gather(x: Any, group: Any) -> Any:
        sent.setdefault("tp:all_gather", set()).add(x.nbytes * (group.size() - 1))
        return all_gather(x, group)

    def scatter(x: Any, group: Any) -> Any:
        sent.setdefault("tp:reduce_scatter", set()).add(x.nbytes * (group.size() - 1) // group.size())
        return reduce_scatter(x, group)

    all_gather, reduce_scatter = sequence_parallel.all_gather, sequence_parallel.reduce_scatter
    sequence_parallel.all_gather, sequence_parallel.reduce_scatter = gather, scatter
    spans.operation = operation
    torch.autograd.backward = going_back
    loop.run(parse(argv), from_environment(os.environ))
    return {"counts": counts, "wire_bytes": {name: sorted(sizes) for name, sizes in sent.items()}}
