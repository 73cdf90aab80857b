"""From torchrun's options to a job: pure, so that every way to write them is a line in a test."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.errors import UsageError

Json = dict[str, Any]

IGNORED = (
    "node-rank", "rdzv-backend", "rdzv-endpoint", "rdzv-id", "rdzv-conf", "master-addr", "master-port", "local-addr",
    "start-method", "role", "log-dir", "redirects", "tee", "monitor-interval",
)  # fmt: skip
"""Options of torchrun that say what a controller knows by itself; they take a value."""


def parse_nnodes(text: str) -> tuple[int, int]:
    """(least, most) of "4" or "2:4"."""
    low, colon, high = text.partition(":")
    parts = [low, high if colon else low]
    if not all(part.isdecimal() for part in parts) or not 1 <= int(parts[0]) <= int(parts[1]):
        raise UsageError(f"--nnodes must be N or MIN:MAX with 1 <= MIN <= MAX, not {text!r}")
    return int(parts[0]), int(parts[1])


def check_nproc(text: str) -> None:
    if text not in ("auto", "gpu", "cpu") and not (text.isdecimal() and int(text) >= 1):
        raise UsageError(f"--nproc-per-node must be a number from 1, auto, gpu or cpu, not {text!r}")


def local_nproc(text: str, dev: Path = Path("/dev")) -> int:
    """Workers for this machine. `auto` means one per GPU, or one per core where there is no GPU."""
    if text.isdecimal():
        return int(text)
    gpus = sum(1 for entry in dev.glob("nvidia[0-9]*") if entry.name.removeprefix("nvidia").isdecimal())
    if text == "gpu" and not gpus:
        raise UsageError("--nproc-per-node gpu: this machine has no GPU")
    if text == "cpu" or not gpus:
        return len(os.sched_getaffinity(0))
    return gpus


def place(nodes: Sequence[Json], nnodes: str, nproc: str) -> tuple[int, int]:
    """(nodes, workers per node) on a cluster whose nodes are these. What does not fit now is the controller's to say:
    a job may wait for nodes that are still to join."""
    least, most = parse_nnodes(nnodes)
    usable = [node for node in nodes if node["state"] in ("healthy", "spare", "suspect")]
    count = max(least, min(most, len(usable)))
    if nproc.isdecimal():
        return count, int(nproc)
    sizes = sorted((_slots(node, nproc) for node in usable), reverse=True)[:count]
    if not sizes or sizes[-1] < 1:
        raise UsageError(f"--nproc-per-node {nproc}: no healthy node offers that; give a number")
    return count, sizes[-1]


def _slots(node: Json, nproc: str) -> int:
    """All nodes run the same number of workers, so the smallest node counts."""
    if nproc == "gpu":
        return len(node.get("gpus") or [])
    return int(node.get("cpus") or 0) if nproc == "cpu" else int(node.get("slots") or 0)


def parse_env(pairs: Sequence[str]) -> dict[str, str]:
    env = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise UsageError(f"--env must be NAME=VALUE, not {pair!r}")
        env[name] = value
    return env


def check_script(target: str, module: bool, cwd: Path) -> str:
    """The target as the workers need it: a script becomes an absolute path. UsageError when there is none."""
    if module:
        if not all(part.isidentifier() for part in target.split(".")):
            raise UsageError(f"not a module's name: {target!r}")
        return target
    path = cwd / target
    if path.is_dir() and not (path / "__main__.py").is_file():
        raise UsageError(f"{target} is a folder without __main__.py")
    if not path.exists():
        raise UsageError(f"no such script: {target} (for a module: holdfast run -m {target})")
    return str(path)


def default_env(nproc: int, environ: Mapping[str, str]) -> dict[str, str]:
    """Several workers on a host would each start a thread per core: one each, unless the user says otherwise."""
    if "OMP_NUM_THREADS" in environ:
        return {"OMP_NUM_THREADS": environ["OMP_NUM_THREADS"]}
    return {"OMP_NUM_THREADS": "1"} if nproc > 1 else {}
