"""The fork servers of other agents of this host that are forked from this one (`HOLDFAST_FORK_FROM`).

Each is a daemon of its own: no child of ours, in a session of its own, with the environment, folder and umask of the
agent that wants it. A simulated node failure ends all that descends from one fork server, and none of the others.
"""

import json
import os
import selectors
import signal
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from holdfast.agent.forkserver import forked_children
from holdfast.agent.forkserver.json_lines import LOG, MODULE, Connection
from holdfast.agent.processes import inherited, interpreter, proc_title
from holdfast.base import private, service

Serve = Callable[[Callable[[], None]], int]
"""The main function of the new fork server; it calls its argument when it listens. Returns the exit code."""


class ServerForks:
    """`environ` is what this process was started with, `packages` what was installed when it imported its modules.
    `release` closes in a forked child what is the parent's, `descriptors` among it."""

    def __init__(
        self, selector: selectors.BaseSelector, environ: Mapping[str, str], packages: str, release: Callable[[], None]
    ) -> None:
        self._selector, self._environ, self._packages, self._release = selector, environ, packages, release
        self._starting: set[int] = set()  # pipes of those that do not listen yet

    def descriptors(self) -> list[int]:
        return list(self._starting)

    def refusal(self, asker: Connection, ask: Mapping[str, Any]) -> str:
        """Why a fork would not be what the asker wants; empty if it would."""
        if asker.has_left():
            return "the client has left"  # and started one itself: it would be a second one
        ours = inherited.situation(self._environ) | {inherited.PACKAGES: self._packages}
        different = inherited.difference(ours, ask["situation"])
        return f"this fork server has another {different}" if different else ""

    def fork(
        self, run_dir: Path, ask: Mapping[str, Any], serve: Serve, reply: Callable[[dict[str, Any]], bool]
    ) -> None:
        """Fork one that serves `run_dir` by `serve`. `reply` gets `{"pid": N}` when that listens, or `{"error": TEXT}`.
        If it returns False, no client waits any more, and the new one is ended. Raises OSError if there can be none."""
        private.make_folder(run_dir)
        log = str(run_dir / LOG)
        outputs = forked_children.open_files(log, log)
        reading, writing = os.pipe2(os.O_CLOEXEC)

        def listens() -> None:
            os.write(writing, json.dumps({"pid": os.getpid()}).encode())
            os.close(writing)

        def body() -> int:
            if os.fork():
                os._exit(0)  # what is forked twice has no parent here
            os.setsid()
            self._become(ask)
            return serve(listens)

        def release() -> None:
            self._release()
            os.close(reading)

        try:
            os.waitpid(forked_children.fork(body, release, outputs), 0)
        except OSError:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        self._starting.add(reading)
        self._selector.register(reading, selectors.EVENT_READ, lambda mask: self._on_answer(reading, run_dir, reply))

    def _become(self, ask: Mapping[str, Any]) -> None:
        os.umask(ask["umask"])
        os.chdir(ask["cwd"])
        os.environ.clear()
        os.environ.update(ask["env"])
        tempfile.tempdir = None  # the folder that it found before
        proc_title.show(interpreter.command(MODULE, *ask["args"]), ask["env"])
        service.give_way()

    def _on_answer(self, reading: int, run_dir: Path, reply: Callable[[dict[str, Any]], bool]) -> None:
        data = os.read(reading, 1 << 16)
        self._selector.unregister(reading)
        self._starting.discard(reading)
        os.close(reading)
        answer: dict[str, Any] = (
            json.loads(data) if data else {"error": f"the fork ended before it listened; see {run_dir / LOG}"}
        )
        if not reply(answer) and "pid" in answer:
            with suppress(ProcessLookupError):
                os.kill(answer["pid"], signal.SIGKILL)
