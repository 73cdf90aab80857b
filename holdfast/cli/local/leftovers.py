"""Removes leftovers of a local cluster: orphaned workers, shared memory without an owner.

Processes are found by a mark in their environment, which children inherit: it names one cluster, so that clusters
side by side do not end each other's.
"""

import os
import shutil
import signal
import time
from pathlib import Path

from holdfast.agent.node.checkpoints import snapshots_dir
from holdfast.agent.workers.workers import shared_dir

MARK = "HOLDFAST_LOCAL_CLUSTER"


def marked(mark: str, proc: Path = Path("/proc")) -> list[int]:
    """Processes with `NAME=value` in their environment, except this one. Those of other users cannot be read."""
    wanted = mark.encode()
    found = []
    for folder in proc.iterdir():
        if not folder.name.isdecimal() or int(folder.name) == os.getpid():
            continue
        try:
            environment = (folder / "environ").read_bytes()
        except OSError:
            continue
        if wanted in environment.split(b"\0"):
            found.append(int(folder.name))
    return sorted(found)


def end_marked(mark: str, timeout: float = 5.0) -> list[int]:
    """Send SIGKILL until none is left: a process that forks meanwhile leaves a child with the same variable."""
    ended: set[int] = set()
    deadline = time.monotonic() + timeout
    while (pids := marked(mark)) and time.monotonic() < deadline:
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
                ended.add(pid)
            except ProcessLookupError:
                pass
        time.sleep(0.02)
    return sorted(ended)


def remove_shared_memory(state_dir: Path, node: str) -> None:
    """Files of this node's workers and daemons that a killed agent could not remove."""
    for folder in (shared_dir(state_dir), snapshots_dir(state_dir, node)):
        shutil.rmtree(folder, ignore_errors=True)
