"""Names in a node's folder of snapshots (HOLDFAST_SNAPSHOTS), which lies in memory.

daemon.sock, daemon.lock, port             the node's checkpoint daemon
daemon.absent                              why there is none: the agent's word, for workers that wait for it
JOB/own-w00003-0123abcd.snap               snapshots of a worker that runs here
JOB/peer-NODE-w00003-0123abcd.snap         copies of another node's
JOB/own-w00003-0123abcd.snap.values0       of the snapshot in slot 0, what is no tensor, where that is long
JOB/status.json                            what the daemon does for the job, for any reader
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from holdfast.checkpoint.snapshots.description import Description

FOLDER_VARIABLE = "HOLDFAST_SNAPSHOTS"
SOCKET = "daemon.sock"
LOCK = "daemon.lock"
ABSENT = "daemon.absent"
PORT = "port"
STATUS = "status.json"


def is_plain(name: str) -> bool:
    """Whether a job's or a node's name may be part of a file's."""
    return 0 < len(name) <= 128 and name[0] != "." and all(c.isalnum() or c in "-_.@" for c in name)


def key_of(description: Description) -> str:
    """Distinguishes arenas whose slots hold something else."""
    return hashlib.sha256(description.encode()).hexdigest()[:8]


def own_file(folder: Path, description: Description) -> Path:
    """The arena of a worker that runs on this node."""
    return folder / description.job / f"own-w{description.worker:05d}-{key_of(description)}.snap"


def worker_of(own: Path) -> int:
    """The worker whose arena this is, by its name."""
    return int(own.name.removeprefix("own-w").partition("-")[0])


def peer_file(folder: Path, node: str, description: Description) -> Path:
    """This node's copy of the snapshots of a worker on `node`."""
    return folder / description.job / f"peer-{node}-w{description.worker:05d}-{key_of(description)}.snap"
