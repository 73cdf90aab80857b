"""Converts torchrun's options to a job. Pure."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.base.errors import UsageError
from holdfast.base.settings import parse_seconds, parse_whole
from holdfast.cli.common.bounds import check_world

Json = dict[str, Any]

MOST_SECONDS = 1e6
"""Largest limit in seconds (eleven days), and in steps."""


def parse_nnodes(text: str) -> tuple[int, int]:
    """(least, most) of "4" or "2:4"."""
    low, colon, high = text.partition(":")
    least, most = parse_whole(low), parse_whole(high if colon else low)
    if least is None or most is None or not 1 <= least <= most:
        raise UsageError(f"--nnodes must be N or MIN:MAX with 1 <= MIN <= MAX, not {text!r}")
    check_world(most, 1)
    return least, most


def check_nproc(text: str, nodes: int = 1) -> None:
    """UsageError for an invalid number of workers, or too many for that number of nodes."""
    if text not in ("auto", "gpu", "cpu") and not parse_whole(text):
        raise UsageError(f"--nproc-per-node must be a number from 1, auto, gpu or cpu, not {text!r}")
    check_world(nodes, parse_whole(text) or 1)


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
    """(nodes, workers per node) on a cluster with these nodes. A job that does not fit now is not refused here: it may
    wait for nodes that join later."""
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


def check_text(text: str, what: str) -> None:
    """UsageError for bytes that are not UTF-8: what goes to other hosts, and into files, must be text."""
    if "\0" in text or any("\ud800" <= character <= "\udfff" for character in text):
        raise UsageError(f"{what} is not UTF-8: {text!r}")


def parse_limits(given: Mapping[str, str]) -> dict[str, float]:
    """Seconds (of `hang_steps`: steps) by option, of those that were given. UsageError for what is none."""
    limits = {}
    for name, text in given.items():
        if not text:
            continue
        flag = f"--{name.replace('_', '-')}"
        try:
            limits[name] = float(text) if name == "hang_steps" else parse_seconds(text)
        except ValueError:
            wanted = "a number such as 2" if name == "hang_steps" else "a time such as 90s, 30m or 2h"
            raise UsageError(f"{flag} must be {wanted}, not {text!r}") from None
        if not 0 < limits[name] <= MOST_SECONDS:
            raise UsageError(f"{flag} must be more than 0 and at most {MOST_SECONDS:,.0f}, not {text!r}")
    return limits


def check_script(target: str, module: bool, no_python: bool, cwd: Path) -> str:
    """The target as the workers need it: a script becomes an absolute path. UsageError when there is none."""
    if no_python:
        if module:
            raise UsageError("--no-python and --module exclude each other: a module needs Python")
        check_text(target, "SCRIPT")
        return target  # the nodes look it up, as a shell does
    if module:
        if not all(part.isidentifier() for part in target.split(".")):
            raise UsageError(f"not a module's name: {target!r}")
        return target
    check_text(target, "SCRIPT")
    path = cwd / target
    try:
        if path.is_dir() and not (path / "__main__.py").is_file():
            raise UsageError(f"{target} is a folder without __main__.py")
        if not path.exists():
            raise UsageError(f"no such script: {target} (for a module: holdfast run -m {target})")
        if not (path.is_dir() or path.is_file()):
            raise UsageError(f"{target} is no file: a script is a file, or a folder with __main__.py")
    except OSError as error:
        raise UsageError(f"no such script: {target}: {error.strerror or error}") from None
    return str(path)
