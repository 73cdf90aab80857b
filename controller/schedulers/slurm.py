"""Slurm, through `scontrol` and `sinfo`: nodes are drained with a reason, and resumed. Names are Slurm's own."""

import asyncio
import os

from holdfast.base.errors import Unavailable
from holdfast.controller.schedulers.base import MARK, Out

_TIMEOUT = 20.0
_REASON = 200  # characters; Slurm keeps more, but this is enough to read


class Slurm:
    name = "slurm"

    def __init__(self, requeue: bool = False, job: str = "") -> None:
        """`requeue`: when the nodes run out, start the whole Slurm job `job` again on others."""
        self._requeue, self._job = requeue, job or os.environ.get("SLURM_JOB_ID", "")

    async def taken_out(self) -> set[str]:
        text = await _call("sinfo", "--noheader", "--Node", "--format=%N|%T|%E")
        found = set()
        for line in text.splitlines():
            name, state, reason = [*line.split("|", 2), "", ""][:3]
            if reason.startswith(f"{MARK}:") and ("drain" in state or "down" in state):
                found.add(name)
        return found

    async def evict(self, order: Out) -> None:
        reason = " ".join(f"{MARK}: {order.reason}".split())[:_REASON]
        await _call("scontrol", "update", f"nodename={order.node}", "state=drain", f"reason={reason}")

    async def let_in(self, node: str) -> None:
        await _call("scontrol", "update", f"nodename={node}", "state=resume")

    async def ask_for_nodes(self, reason: str) -> bool:
        if not self._requeue or not self._job:
            return False
        await _call("scontrol", "requeue", self._job)
        return True


async def _call(*argv: str) -> str:
    """Standard output. Unavailable with Slurm's own message."""
    try:
        process = await asyncio.create_subprocess_exec(
            *argv, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
    except OSError as error:
        raise Unavailable(f"cannot start {argv[0]}: {error.strerror}; is Slurm's client installed here?") from None
    try:
        async with asyncio.timeout(_TIMEOUT):
            out, err = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        raise Unavailable(f"{argv[0]} did not answer within {_TIMEOUT:g} s") from None
    if process.returncode:
        said = " ".join(err.decode(errors="replace").split()) or f"exit code {process.returncode}"
        raise Unavailable(f"{' '.join(argv[:3])}: {said[:300]}")
    return out.decode(errors="replace")
