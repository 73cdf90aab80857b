"""Two steps of a job on this machine's CPUs, for `holdfast memory --measure`: real ranks, forked from one process."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from holdfast.base.errors import HoldfastError, UsageError
from holdfast.base.plain import one_line
from holdfast.cli.common import output

MOST_RANKS = 16
_LIMIT_S = 600.0
_PAUSE_S = 10.0
"""From SIGTERM to SIGKILL."""
_OF_A_RANK = 300 * 10**6
"""Bytes of a process with torch, before it has a tensor."""
_TORCHRUN = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"}


def check(world: int, needs_bytes: int) -> None:
    """UsageError for a job that this machine cannot hold. `needs_bytes` of its fullest rank."""
    if world > MOST_RANKS:
        raise UsageError(f"--measure starts {world:,} ranks here: {MOST_RANKS} at most; take a smaller layout")
    free, wanted = _available(), world * (needs_bytes + _OF_A_RANK)
    if free is not None and wanted > free:
        raise UsageError(
            f"--measure needs {output.size(wanted)} on this machine, {output.size(free)} are free: take a smaller model"
        )


def run(arguments: Sequence[str], world: int) -> dict[str, Any]:
    """What ranks held, beside what was expected: as train.memory_path has it. `arguments` are those of the trainer.

    HoldfastError if the run fails or takes ten minutes.
    """
    with tempfile.TemporaryDirectory(prefix="holdfast-memory-") as folder:
        path = Path(folder) / "memory.json"
        # Nothing of the job that these settings are for is touched: its store, metrics, board and rendezvous.
        unset = ("train.metrics_path=", "train.tensorboard_dir=", "parallel.rendezvous=env", "parallel.device=cpu")
        chosen = [word for setting in (*unset, f"train.memory_path={path}") for word in ("--set", setting)]
        own = ["--steps", "2", "--store", "", *chosen]
        command = [sys.executable, "-m", "holdfast.trainer.here", str(world), *arguments, *own]
        environment = {
            key: value for key, value in os.environ.items() if key not in _TORCHRUN and not key.startswith("HOLDFAST_")
        }
        _finish(
            subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                env=environment,
                start_new_session=True,
            )
        )
        try:
            found: dict[str, Any] = json.loads(path.read_text())
        except (OSError, ValueError):
            raise HoldfastError("the measured run ended without a report") from None
        return found


def _finish(process: subprocess.Popen[str]) -> None:
    """Wait for its end. Whatever happens, no process of its session is left."""
    try:
        _, errors = process.communicate(timeout=_LIMIT_S)
    except subprocess.TimeoutExpired:
        raise HoldfastError(f"the measured run takes more than {_LIMIT_S:g} s: take a smaller model") from None
    finally:
        if process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(_PAUSE_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    if process.returncode:
        said = [line for line in errors.splitlines() if line.startswith("holdfast train: ")]
        reason = said[-1].removeprefix("holdfast train: ") if said else f"exit code {process.returncode}"
        raise HoldfastError(f"the measured run failed: {one_line(reason)}")


def _available() -> int | None:
    """Bytes that the kernel thinks a new process could have; None where it does not say."""
    try:
        found = re.search(r"^MemAvailable:\s+(\d+) kB$", Path("/proc/meminfo").read_text(), re.MULTILINE)
    except OSError:
        return None
    return None if found is None else int(found[1]) * 1024
