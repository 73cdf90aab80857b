"""Diagnostic checks that the controller asks for: each in a process of its own, killed at its deadline."""

import asyncio
import os
import signal
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Callable
from contextlib import suppress

from holdfast.agent.processes import interpreter
from holdfast.base import log
from holdfast.base.service import PARENT
from holdfast.wire import messages as msg

_MOST = 256 * 1024  # bytes of a check's output that are passed on
_LAST_WORDS = 300  # characters of what it said on standard error


class Checks:
    """Answers go to `on_answer`. Checks run beside everything else: a stop must not wait for one."""

    def __init__(self, state_dir: str, on_answer: Callable[[msg.CommandResult], None]) -> None:
        self._state_dir, self._on_answer = state_dir, on_answer
        self._running: dict[str, asyncio.Task[None]] = {}

    def begin(self, command: msg.Command, order: msg.RunCheck) -> None:
        """Start, unless this command runs already."""
        if command.id not in self._running:
            task = asyncio.create_task(self._run(command, order))
            self._running[command.id] = task
            task.add_done_callback(lambda _: self._running.pop(command.id, None))

    async def close(self) -> None:
        """End what runs."""
        running = list(self._running.values())
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    async def _run(self, command: msg.Command, order: msg.RunCheck) -> None:
        try:
            answer = await self._answer(command, order)
        except OSError as error:
            answer = msg.CommandResult(command.id, False, f"cannot start a check: {error.strerror or error}")
        log.event("check", id=command.id, checks=list(order.checks), ok=answer.ok, error=answer.error)
        self._on_answer(answer)

    async def _answer(self, command: msg.Command, order: msg.RunCheck) -> msg.CommandResult:
        flags = ["--json", "--options", order.options, "--folder", self._state_dir]
        process = await asyncio.create_subprocess_exec(
            *interpreter.command("holdfast.diagnostics", *order.checks, *flags),
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=PIPE,
            env=interpreter.environment({**os.environ, PARENT: str(os.getpid())}),
            start_new_session=True,  # what it starts itself must end with it
        )
        assert process.stdout is not None
        assert process.stderr is not None
        reading = [asyncio.create_task(_read(process.stdout)), asyncio.create_task(_read(process.stderr))]
        error = ""
        try:
            await asyncio.wait_for(process.wait(), order.deadline)
        except TimeoutError:
            error = f"killed after {order.deadline:g} s"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        out, err = [data.decode(errors="replace") for data in await asyncio.gather(*reading)]
        if not error and process.returncode:
            words = err.strip().rpartition("\n")[2][-_LAST_WORDS:]
            error = f"its process ended with {process.returncode}" + (f": {words}" if words else "")
        return msg.CommandResult(command.id, not error, error, {"results": out})


async def _read(stream: asyncio.StreamReader) -> bytes:
    """All that comes, the first `_MOST` bytes kept: a pipe that no process reads would stop the check."""
    kept = bytearray()
    while data := await stream.read(65536):
        kept += data[: _MOST - len(kept)]
    return bytes(kept)
