"""A fork server that another fork server of this host forks, instead of importing everything itself.

Importing torch and the trainer takes 3 s of a processor, a fork some hundredths. Here: what has to be equal for a fork
to be as good as a new process, and how the client asks. `server_forks` carries it out.
"""

import asyncio
import json
import os
import resource
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import holdfast
from holdfast.agent.forkserver.json_lines import LINE_LIMIT, peer_uid
from holdfast.base import log
from holdfast.base.local_socket import short_path
from holdfast.base.service import NICENESS

VARIABLE = "HOLDFAST_FORK_FROM"
"""Run folder of another fork server of this host, which an agent asks first."""
MODULE = "holdfast.agent.forkserver.fork_server"
SOCKET, LOCK, LOG = "warm.sock", "warm.lock", "warm.log"
"""What lies in the run folder of a fork server."""
APPEAR_S = 10.0
"""For the other fork server, where none has ever served: a local cluster starts all its agents at once."""

IGNORED = frozenset((
    "COLUMNS", "INVOCATION_ID", "JOURNAL_STREAM", "LINES", "OLDPWD", "PWD", "SHLVL", "TERM", "_",
    "MKL_NUM_THREADS", "OMP_NUM_THREADS",  # each fork server sets these itself
    "PYTEST_CURRENT_TEST",
))  # fmt: skip
"""Variables that no import reads. Our own, HOLDFAST_*, are read when they are needed."""
_STATUS = (
    "Uid", "Gid", "Groups", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp",
    "Cpus_allowed_list", "Mems_allowed_list",
)  # fmt: skip


def situation(environ: Mapping[str, str]) -> dict[str, str]:
    """By name: what a fork has from its parent and a new process from whoever starts it, or found in `environ` when
    it imported its modules. This process's own; the environment may be another's."""
    python = (sys.version, os.path.realpath(sys.executable), sys.prefix)
    root = os.stat("/")
    found = {
        "Python": " ".join(python),
        "holdfast": f"{holdfast.__version__} {os.path.realpath(holdfast.__file__)}",
        "niceness": environ.get(NICENESS) or str(os.getpriority(os.PRIO_PROCESS, 0)),
        "scheduling policy": str(os.sched_getscheduler(0)),
        "root folder": f"{root.st_dev} {root.st_ino}",
        "cgroup": Path("/proc/self/cgroup").read_text(),
        "OOM score": Path("/proc/self/oom_score_adj").read_text(),
    }
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in _STATUS:
            found[name] = value.strip()
    for name in sorted(os.listdir("/proc/self/ns")):
        found[f"namespace {name}"] = os.readlink(f"/proc/self/ns/{name}")
    for name in filter(lambda name: name.startswith("RLIMIT_"), dir(resource)):
        found[name] = str(resource.getrlimit(getattr(resource, name)))
    variables = (name for name in environ if name not in IGNORED and not name.startswith("HOLDFAST_"))
    return found | {f"variable {name}": environ[name] for name in variables}


def difference(ours: Mapping[str, str], theirs: Mapping[str, str]) -> str:
    """The name of what is not equal, the first of several; empty if all is."""
    return next((name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name)), "")


async def ask(folder: Path, args: Sequence[str], environ: Mapping[str, str], timeout_s: float) -> int:
    """Have the fork server of `folder` fork one for these arguments: its process id once it listens. 0, and a line in
    the log, if there is none within `timeout_s`, or it refuses."""
    try:
        async with asyncio.timeout(timeout_s):
            reply = await _reply(folder, {
                "id": 0, "do": "fork_server", "args": [*args], "env": {**environ}, "cwd": os.getcwd(),
                "umask": _umask(), "situation": situation(environ),
            })  # fmt: skip
    except (OSError, ValueError, KeyError) as error:  # TimeoutError is an OSError
        reply = {"ok": False, "error": str(error) or f"no answer within {timeout_s:g} s"}
    if not reply["ok"]:
        log.event("warm.not_forked", source=str(folder), reason=reply["error"])
        return 0
    log.event("warm.forked", source=str(folder), pid=reply["pid"])
    return int(reply["pid"])


async def _reply(folder: Path, request: dict[str, Any]) -> dict[str, Any]:
    reader, writer = await _connected(folder)
    try:
        if (uid := peer_uid(writer.get_extra_info("socket"))) != os.geteuid():
            return {"ok": False, "error": f"it belongs to user {uid}"}
        writer.write(json.dumps(request).encode() + b"\n")
        await writer.drain()
        while line := await reader.readline():
            message: dict[str, Any] = json.loads(line)
            if "id" in message:  # the rest is for all clients
                return message
        return {"ok": False, "error": "it ended, or takes no such request"}
    finally:
        writer.close()


async def _connected(folder: Path) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Raises OSError. Waits where none has ever served, but the folder is there: one is about to start."""
    end = asyncio.get_running_loop().time() + APPEAR_S
    while True:
        has_served = (folder / LOCK).exists()  # asked first: it binds its socket right after
        try:
            with short_path(folder, SOCKET) as path:
                return await asyncio.open_unix_connection(path, limit=LINE_LIMIT)
        except FileNotFoundError:
            if has_served or not folder.is_dir() or asyncio.get_running_loop().time() > end:
                raise
        await asyncio.sleep(0.02)


def _umask() -> int:
    """As /proc has it: to read it by a system call is to change it for a moment, for all threads."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("Umask:"))
    return int(line.split()[1], 8)
