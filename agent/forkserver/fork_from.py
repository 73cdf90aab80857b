"""A fork server that another fork server of this host forks, instead of importing everything itself.

Importing torch and the trainer takes 3 s of a processor, a fork some hundredths. This is the client's side;
`server_forks` carries it out, if what a fork inherits (`inherited`) is what a new process would have.
"""

import asyncio
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.agent.forkserver.json_lines import LINE_LIMIT, LOCK, SOCKET, peer_uid
from holdfast.agent.processes import inherited
from holdfast.base import log
from holdfast.base.local_socket import short_path

VARIABLE = "HOLDFAST_FORK_FROM"
"""Run folder of another fork server of this host, which an agent asks first."""
APPEAR_S = 10.0
"""For the other fork server, where none has ever served: a local cluster starts all its agents at once."""


async def ask(folder: Path, args: Sequence[str], environ: Mapping[str, str], timeout_s: float) -> int:
    """Have the fork server of `folder` fork one for these arguments: its process id once it listens. 0, and a line in
    the log, if there is none within `timeout_s`, or it refuses."""
    try:
        async with asyncio.timeout(timeout_s):
            reply = await _reply(folder, {
                "id": 0, "do": "fork_server", "args": [*args], "env": {**environ}, "cwd": os.getcwd(),
                "umask": inherited.umask(), "situation": inherited.situation(environ),
            })  # fmt: skip
    except (OSError, ValueError, KeyError) as error:  # TimeoutError is an OSError
        reply = {"ok": False, "error": str(error) or f"no answer within {timeout_s:g} s"}
    if not (reply.get("ok") and "pid" in reply):
        log.event("warm.not_forked", source=str(folder), reason=reply.get("error", ""))
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
    has_served = False
    while True:
        try:
            with short_path(folder, SOCKET) as path:
                return await asyncio.open_unix_connection(path, limit=LINE_LIMIT)
        except (FileNotFoundError, ConnectionRefusedError):
            if has_served or not folder.is_dir() or asyncio.get_running_loop().time() > end:
                raise
        has_served = (folder / LOCK).exists()  # then once more: between its lock and its socket is a moment
        await asyncio.sleep(0.02)
