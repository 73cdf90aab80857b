"""Jobs of ranks that share the machine's GPU, and what they print. No torch."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.local.ports import free_ports
from tests.gpu.conftest import SCRIPTS, Child, Start, one_gpu_environments

Row = dict[str, Any]
TEXT = "".join(f"line {i}: {i * i % 97} sheep and {i % 7} goats, {i * 31 % 1009} of them at sea\n" for i in range(4000))


def settings(folder: Path, **changes: object) -> list[str]:
    """Arguments for the trainer: text and its cache in `folder`. `changes` as section__key."""
    data = folder / "text"
    if not data.exists():
        data.mkdir()
        (data / "some.txt").write_text(TEXT)
    chosen: dict[str, object] = {
        "data__path": data, "data__suffixes": '[".txt"]', "data__cache_dir": folder / "cache",
        "train__log_every": 0, "parallel__timeout_s": 40, "optim__warmup_steps": 2,
    }  # fmt: skip
    chosen |= changes
    return [word for key, value in chosen.items() for word in ("--set", f"{key.replace('__', '.', 1)}={value}")]


def started(start: Start, folder: Path, runs: Sequence[Row], world: int = 1) -> list[Child]:
    """Ranks that do `runs`, each with "name" and "argv"."""
    listed = [{**run, "port": port} for run, port in zip(runs, free_ports(len(runs)), strict=True)]
    path = folder / f"runs-{time.monotonic_ns()}.json"
    path.write_text(json.dumps(listed))
    common = {
        "WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1",
        "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
    }  # fmt: skip
    each = one_gpu_environments(world)
    script = str(SCRIPTS / "trainer_runs.py")
    return [start(script, str(path), env={**common, **own, "RANK": str(rank)}) for rank, own in enumerate(each)]


def rows(child: Child) -> list[Row]:
    """What it has printed as JSON so far."""
    found = []
    for line in child.output.splitlines():
        if line.startswith("{"):
            try:
                found.append(json.loads(line))
            except ValueError:
                continue  # not yet whole
    return found


def finished(children: Sequence[Child], deadline_s: float) -> tuple[dict[str, Row], list[str]]:
    """The rows of all by name, and what went wrong. What has been done by then counts, whoever is late."""
    give_up = time.monotonic() + deadline_s
    problems = []
    for number, child in enumerate(children):
        try:
            code = child.process.wait(max(0.1, give_up - time.monotonic()))
        except Exception:
            problems.append(f"process {number} is not done after {deadline_s:g} s:\n{child.output[-1500:]}")
            continue
        if code:
            problems.append(f"process {number} ended with {code}:\n{child.output[-2500:]}")
    found = {row["name"]: row for child in children for row in rows(child) if "name" in row}
    problems += [f"{name}: {row['error']}" for name, row in found.items() if "error" in row]
    return found, problems


def answer(child: Child, deadline_s: float) -> Row:
    """The last line of JSON of a script, printed; fails with its output where there is none."""
    code = child.wait(deadline_s)
    found = rows(child)
    print("\n" + child.output[-6000:])
    if code or not found:
        pytest.fail(f"ended with {code}:\n{child.output[-4000:]}")
    return found[-1]


def apart(one: Sequence[float], other: Sequence[float]) -> float:
    """The largest relative difference; infinite where one has no number for a step."""
    if len(one) != len(other):
        return float("inf")
    return max((abs(a - b) / max(abs(b), 1e-12) for a, b in zip(one, other, strict=True)), default=float("inf"))


def merged(base: Mapping[str, object], *more: Mapping[str, object]) -> dict[str, object]:
    found = dict(base)
    for one in more:
        found |= one
    return found
